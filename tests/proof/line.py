"""Connection of almost no cost, so that a load test measures the service and not its client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Self
from urllib.parse import urlsplit

IDLE_SECONDS = 30.0
"""Seconds after which a connection is not used again: the service may be closing it."""


def request(path: str, body: bytes = b"", method: str = "POST", key: str = "") -> bytes:
    """Return a whole request as bytes; the body is an image file."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Content-Type: image/jpeg"]
    if key:
        head.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*head, "", ""]).encode() + body


class Line:
    """Keep-alive connection to a service, opened at first use and again after it was closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.used = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def ask(self, text: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer; raise `OSError` if the connection breaks."""
        try:
            if self.streams is not None and (self.streams[0].at_eof() or time.monotonic() > self.used + IDLE_SECONDS):
                await self._close()
            if self.streams is None:
                self.streams = await asyncio.open_connection(self.host, self.port)
            reader, writer = self.streams
            writer.write(text)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            lines = dict(line.partition(b": ")[::2] for line in head.split(b"\r\n")[1:-2])
            body = await reader.readexactly(int(lines[b"content-length"]))
            self.used = time.monotonic()
        except asyncio.IncompleteReadError as error:
            await self._close()
            raise ConnectionResetError("the service closed the connection") from error
        except BaseException:
            await self._close()
            raise
        if lines.get(b"connection") == b"close":
            await self._close()
        return int(head.split(b" ", 2)[1]), body

    async def json(self, text: bytes) -> Any:
        status, body = await self.ask(text)
        assert status < 400, (status, body[:300])
        return json.loads(body)

    async def _close(self) -> None:
        if self.streams is not None:
            writer, self.streams = self.streams[1], None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
