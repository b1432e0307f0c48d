"""Real HTTP server on the loopback that misbehaves on request."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET


@dataclass
class Fault:
    """Fault of one request. `drop`: the connection is reset after this many bytes of the body."""

    drop: int | None = None
    status: int | None = None
    ignore_range: bool = False
    wrong_start: bool = False
    shorter: int = 0


@dataclass
class FaultyServer:
    """State of the server: files, faults of the next requests in turn, and `Range` headers of the requests so far."""

    files: dict[str, bytes]
    faults: deque[Fault] = field(default_factory=deque)
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""

    def fail(self, *faults: Fault) -> None:
        self.faults.extend(faults)


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[FaultyServer]:
    state = FaultyServer(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = False  # so that closing the server waits until every connection is closed
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(state: FaultyServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            header = self.headers.get("Range")
            state.ranges.append(header)
            fault = state.faults.popleft() if state.faults else Fault()
            content = state.files.get(self.path.lstrip("/"))
            if fault.status or content is None:
                return self.send_error(fault.status or 404)
            content = content[: len(content) - fault.shorter]
            start = int(header.removeprefix("bytes=").rstrip("-")) if header and not fault.ignore_range else 0
            if start >= len(content):
                return self.send_error(416)
            return self._send(content, start, resumed=bool(header) and not fault.ignore_range, fault=fault)

        def _send(self, content: bytes, start: int, resumed: bool, fault: Fault) -> None:
            start = start - 1 if resumed and fault.wrong_start else start
            body = content[start:]
            self.send_response(206 if resumed else 200)
            self.send_header("Content-Length", str(len(body)))
            if resumed:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            self.wfile.write(body if fault.drop is None else body[: fault.drop])
            if fault.drop is not None:
                self._break(reset=fault.drop % 2 == 1)

        def _break(self, reset: bool) -> None:
            """End the connection before the promised length: with a reset, or as if all had been sent."""
            self.wfile.flush()
            if reset:
                self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler
