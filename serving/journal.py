"""A line of JSON a request, with an id that the answer carries too; keys, images and query strings stay out of it."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.metrics import collection_in, route_of

HEADER = b"x-request-id"
REQUEST_ID = "request_id"
"""Under which a request's ASGI scope holds its id."""
logger = logging.getLogger(__name__)
_SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Journal:
    """ASGI middleware. A client's own X-Request-Id is kept where it is short and plain, else one is drawn.

    A failure that nobody has caught is logged here, with the id; the answer to it, where one has begun, is all that
    the server outside sees of it.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None] | None = to_stderr) -> None:
        """write: takes a line; None: only the ids."""
        self.app, self.write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER, b"")
        request_id = given if _SANE.fullmatch(given) else secrets.token_hex(8).encode()
        scope[REQUEST_ID] = request_id.decode()
        started, facts, begun = time.perf_counter(), {"status": 500, "bytes": 0}, False

        async def noted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                facts["status"], begun = message["status"], True
                message = {**message, "headers": [*message["headers"], (HEADER, request_id)]}
            else:
                facts["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            logger.exception("request %s failed: %s %s", scope[REQUEST_ID], scope["method"], route_of(scope))
            if not begun:
                raise
        finally:
            if self.write:
                self.write(json.dumps(_line(scope, request_id, facts, time.perf_counter() - started)))


def _line(scope: Scope, request_id: bytes, facts: dict[str, int], seconds: float) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": request_id.decode(),
        "method": scope["method"],
        **({"collection": name} if (name := collection_in(scope)) else {}),
        "route": route_of(scope),
        **facts,
        "ms": round(1000 * seconds, 1),
    }
