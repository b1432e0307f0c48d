"""Connections of `zoo serve`: uvicorn's server with an accept loop, deadlines, and an end that cuts off no request."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, cast
from urllib.parse import unquote

import uvicorn
from httptools import HttpParserError
from starlette.datastructures import State
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.errors import RefusedError, error_response, head_too_large
from serving.settings import Settings
from serving.watchdog import KILL_SECONDS, kill_later

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""
BATCH = 64
"""Connections that a service with one worker accepts before it looks after those that it has."""
MAX_CONNECTIONS = 10_000
"""Open connections of one worker, if the limit of open files allows so many; each takes about 20 KB of memory."""
RESERVE = 512
"""Open files that are left for galleries, models and logs."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open. Proxies close theirs after 60, and must be the first to close."""
STALLED_SECONDS = 60.0
"""Seconds after which a connection is closed whose client takes nothing of its answer."""
CROWDED_SECONDS = 1.0
"""Seconds that connections without a request may be silent while others wait because there are too many."""
SHORT_SECONDS = 0.25
"""Seconds until the next attempt to accept a connection if there are too many, or no open file is left."""
WARNING_SECONDS = 10.0
"""Seconds between two warnings about that."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
YIELD_SECONDS = 0.001
"""Seconds that a worker leaves the next connection to the others, for each connection that it has..."""
MAX_YIELDS = 5
"""... up to this number."""
LAST_REQUESTS = 0.2
"""Seconds that open connections have for a last request after the socket has closed."""
MAX_HEAD = 64 * 2**10
"""Bytes of the address and the headers of a request, and of what surrounds the chunks of a body."""
MAX_HEADERS = 200
"""Headers of a request."""
MAX_PIECES, BYTES_PER_PIECE = 2000, 256
"""Pieces of a body that may be tiny, and the bytes that each further piece must have on average."""
REQUEST_LINE = re.compile(rb"[^ \n]+ [^ \n]+ HTTP/1\.[01]\r\n")
"""The beginning of a head; llhttp also takes more spaces, other versions, and other protocols than HTTP."""
HEAD_END = re.compile(rb"\n\r?\n")
"""The end of a head; llhttp refuses one without CR."""
UPGRADE = re.compile(rb"(?<=\n)upgrade:[^\n]*\n", re.IGNORECASE)
NOT_HTTP = RefusedError(400, "bad_http", "The request is not HTTP/1.1 as in RFC 9112, or its method is unknown.")


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, with limits to what a client may send, to its time, and to the requests it sends ahead.

    llhttp, the parser, gets each head whole and without the bytes that follow, once the request before is answered.
    What comes directly behind chunks is dropped, since only llhttp knows their end; the connection closes then.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waiting_since: float | None = self.loop.time()
        self.unsent, self.unsent_since = 0, 0.0
        self.rest, self.searched = b"", 0  # bytes that are not parsed, and those that have no end of a head
        self.expects_head = self.in_body = False
        self.body_left = self.pieces = self.parsed = self.received = 0
        self.refusal: RefusedError | None = NOT_HTTP

    @property
    def in_progress(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Continue a request, and note since when the client owes the rest of a head, or of a body nobody needs."""
        self.rest += data
        self._parse()
        if self.in_progress:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = self.loop.time()

    def _parse(self) -> None:
        """Parse what has come, but no request behind one that is in progress."""
        while self.rest and not self.transport.is_closing():
            if self.in_body:
                self._parse_body()
            elif self.in_progress:
                self.flow.pause_reading()
                return
            elif not self._parse_head():
                return

    def _parse_head(self) -> bool:
        """Parse a head, and return whether there was a whole one."""
        found = HEAD_END.search(self.rest, self.searched)
        end = found.end() if found else len(self.rest)
        if end > MAX_HEAD:
            self._refuse(head_too_large(MAX_HEAD))
        elif self.rest[0] <= ord(" ") or (found and not REQUEST_LINE.match(self.rest)):
            self._refuse(NOT_HTTP)
        elif found:
            head, self.rest, self.searched = self.rest[:end], self.rest[end:], 0
            if b"\nupgrade:" in head.lower():  # llhttp would take a body for the other protocol
                head = UPGRADE.sub(b"", head)
            self.expects_head = True
            super().data_received(head)
            if self.expects_head and not self.transport.is_closing():
                self._refuse(NOT_HTTP)
        else:
            self.searched = max(0, end - 2)
        return found is not None

    def _parse_body(self) -> None:
        part, self.rest = self.rest[: self.body_left], self.rest[self.body_left :]
        self.body_left -= len(part)
        self.parsed += len(part)
        super().data_received(part)
        if self.in_body and self.parsed - self.received > MAX_HEAD + self.received:  # extensions of chunks, trailers
            self._refuse(head_too_large(MAX_HEAD))

    def on_message_begin(self) -> None:
        """Begin a request, unless its head comes directly behind chunks."""
        if not self.expects_head:
            self.refusal = None
            raise HttpParserError("more than one request")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, and no trailer."""
        if not self.in_body:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin to answer a request, if its head is one of HTTP/1.1 or 1.0, in which llhttp does not check all."""
        self.expects_head = False
        hosts, codings, length = 0, [], 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                codings.append(value.lower())
        is_old = self.parser.get_http_version() == "1.0"
        if len(self.headers) > MAX_HEADERS:
            self.refusal = head_too_large(MAX_HEAD)
            raise HttpParserError("too many headers")
        is_valid = hosts <= 1 and not codings if is_old else hosts == 1 and codings in ([], [b"chunked"])
        if not is_valid or self.parser.should_upgrade():  # by CONNECT
            raise HttpParserError("hosts, codings or method")
        self.expect_100_continue &= not is_old
        raw, _, query = self.url.partition(b"?")
        path = unquote(raw.decode("ascii"))
        super().on_headers_complete()
        self.scope |= {"path": path, "raw_path": raw, "query_string": query}  # uvicorn leaves out host and fragment
        self.in_body, self.body_left = True, sys.maxsize if codings else length
        self.pieces = self.parsed = self.received = 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, unless it comes in too many."""
        self.pieces, self.received = self.pieces + 1, self.received + len(body)
        if self.pieces > MAX_PIECES + self.received // BYTES_PER_PIECE:
            raise HttpParserError("too many pieces")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body."""
        self.in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request, of which a part may have come already."""
        super().on_response_complete()
        self._parse()
        if not self.in_progress and (self.rest or self.in_body):
            self.waiting_since = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one with a part of a head has a deadline of its own."""
        if self.waiting_since is None:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Refuse what llhttp or a check of ours has refused."""
        if self.refusal is None:
            self.shutdown()  # after the answer to the request before
        else:
            self._refuse(self.refusal)

    def _refuse(self, refusal: RefusedError) -> None:
        """Refuse what is not HTTP, or a head that is too large, as the application refuses everything else."""
        if not (self.in_body and self.cycle.response_started):
            answer = error_response(refusal)
            headers = [*answer.raw_headers, (b"connection", b"close")]
            lines = [b"%b: %b\r\n" % header for header in headers]
            status = f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}\r\n".encode()
            self.transport.write(b"".join([status, *lines, b"\r\n", bytes(answer.body)]))
        if self.in_progress:  # the application does not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def end_if_late(self, patience: float, keep_idle: bool = True) -> None:
        """Close the connection if its client owes us something for longer than `patience`, or takes no answer.

        Args:
            patience: Seconds.
            keep_idle: Whether a connection may be silent between two requests.
        """
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self.unsent:
            self.unsent, self.unsent_since = unsent, now
        elif now - self.unsent_since > STALLED_SECONDS:
            self.transport.abort()
        is_late = not keep_idle if self.waiting_since is None else now - self.waiting_since > patience
        if is_late and not self.in_progress:
            self.transport.close()


class _Acceptor:
    """Accepts the connections of a listening socket, as many as there are open files for, and shares them.

    The kernel wakes all workers for a connection, and the one that runs already would take every connection of clients
    that come together. Kept-alive connections then stay there, and the other workers have nothing to do. Therefore a
    worker that has connections leaves the next one to the others for some milliseconds.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], HttpConnection],
        open_connections: set[HttpConnection],
        is_shared: bool,
    ) -> None:
        """Begin to accept, in the running event loop.

        Args:
            listening: The socket.
            make: Function that returns the protocol of a new connection.
            open_connections: The connections that are open now; others update it.
            is_shared: Whether other workers accept connections of this socket.
        """
        self.listening, self.make, self.open, self.is_shared = listening, make, open_connections, is_shared
        self.loop, self.limit = asyncio.get_running_loop(), _connection_limit()
        self.arriving: set[asyncio.Task[Any]] = set()
        self.warned = -WARNING_SECONDS
        self.pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept the connections that wait, which the kernel would reset, and close the socket."""
        if self.listening.fileno() < 0:
            return
        if self.pause is not None:
            self.pause.cancel()
        self.loop.remove_reader(self.listening)
        for _ in range(BACKLOG):
            if not self._accept_one():
                break
        self.listening.close()

    def _accept(self) -> None:
        for _ in range(1 if self.is_shared else BATCH):
            if not self._accept_one():
                return
        if self.is_shared:
            self._pause(YIELD_SECONDS * min(1 + len(self.open), MAX_YIELDS))

    def _accept_one(self) -> bool:
        """Accept a connection; return whether there may be another one."""
        if len(self.open) + len(self.arriving) >= self.limit:
            return self._refrain(f"{self.limit} connections are open, which is the most for this worker")
        try:
            accepted, _ = self.listening.accept()
        except OSError as error:  # of no interest: another worker took it, or its client has gone
            return self._refrain(f"cannot accept a connection: {error.strerror}") if error.errno in EXHAUSTED else False
        accepted.setblocking(False)
        task = self.loop.create_task(self.loop.connect_accepted_socket(self.make, accepted))
        self.arriving.add(task)
        task.add_done_callback(self._arrived)
        return True

    def _arrived(self, task: asyncio.Task[Any]) -> None:
        self.arriving.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.info("a connection ended as it began: %s", error)

    def _refrain(self, reason: str) -> bool:
        """Wait a moment, close connections that send nothing, and tell the log once in a while. Return False."""
        now = time.monotonic()
        if now - self.warned >= WARNING_SECONDS:
            self.warned = now
            logger.warning("%s; the next ones wait, and silent ones are closed.", reason)
        for connection in tuple(self.open):
            connection.end_if_late(CROWDED_SECONDS, keep_idle=False)
        self._pause(SHORT_SECONDS)
        return False

    def _pause(self, seconds: float) -> None:
        self.loop.remove_reader(self.listening)
        self.pause = self.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self.listening.fileno() >= 0:
            self.loop.add_reader(self.listening, self._accept)


class Server(uvicorn.Server):
    """uvicorn's server at a listening socket that it may share with other workers.

    A stop signal sets `state.draining`: for `shutdown_delay` seconds /readyz answers 503 and everything else is
    answered as usual. Then the socket closes, open connections have a moment for a last request, and uvicorn finishes
    the requests in progress for at most `drain_seconds`. A second Ctrl-C reaches uvicorn at once. A second SIGTERM
    changes nothing: service managers send it to every process.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: State,
        listening: socket.socket,
        settings: Settings,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Initialise the server.

        Args:
            config: uvicorn's configuration.
            state: The state of the application.
            listening: The socket, which the server closes.
            settings: The settings of the service.
            on_start: Function to call once the server answers.
        """
        super().__init__(config)
        self.state, self.listening, self.settings, self.on_start = state, listening, settings, on_start
        self.connections = cast("set[HttpConnection]", self.server_state.connections)
        self.acceptor: _Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, and begin to accept connections."""
        await super().startup(sockets=[])
        make = partial(
            HttpConnection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        is_shared = self.settings.workers > 1
        self.acceptor = _Acceptor(self.listening, make, self.connections, is_shared)
        self.on_start()

    async def on_tick(self, counter: int) -> bool:
        """Close late connections each second; uvicorn calls this ten times as often."""
        if counter % 10 == 0:
            for connection in tuple(self.connections):
                connection.end_if_late(self.settings.body_seconds)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop after a signal."""
        if self.acceptor is None or (self.state.draining and sig == signal.SIGINT):
            super().handle_exit(sig, frame)
        elif not self.state.draining:
            self.state.draining = True
            kill_later(end_seconds(self.settings))
            loop, close = self.acceptor.loop, partial(self._close, self.acceptor, sig)
            loop.call_soon_threadsafe(loop.call_later, self.settings.shutdown_delay, close)

    def _close(self, acceptor: _Acceptor, sig: int) -> None:
        acceptor.close()
        acceptor.loop.call_later(LAST_REQUESTS, super().handle_exit, sig, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in progress."""
        if self.acceptor is not None:
            self.acceptor.close()
        await super().shutdown(sockets)


def end_seconds(settings: Settings) -> float:
    """Return the seconds from a stop signal until what still runs is killed."""
    return settings.shutdown_delay + LAST_REQUESTS + settings.drain_seconds + KILL_SECONDS


def _connection_limit() -> int:
    """Return the number of connections that may be open at once: half of the open files, or all but `RESERVE`."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, max(files - RESERVE, files // 2)))


def raise_file_limit() -> None:
    """Let this process open as many files as it may; shells often allow 1,024."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:  # which macOS reports, and refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
