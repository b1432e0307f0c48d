"""HTTP as it is read from a connection: by httptools, within bounds, and what cannot be read is refused as all else is.

httptools reads a head of any length, however long that takes, and trailers, which come behind a body, as further
headers of the request.
"""

from __future__ import annotations

import json
import logging
from asyncio import TimerHandle, Transport
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.metrics import REFUSED
from serving.refusals import RefusedError, as_json

logger = logging.getLogger(__name__)

_OF_BODIES = (b"content-length", b"transfer-encoding")

MOST_HEAD = 64 * 1024
"""Bytes that a request's line and headers may have, as many as h11 takes, and so many that make up nothing whole."""


MOST_PIPELINED = 64
"""Requests that one connection may have sent before the first of them is answered."""

HEAD_SECONDS = 30.0
"""Within which a request's head must be here, counted from its first byte, or from when the connection was made."""

IDLE_SECONDS = 75
"""After an answer, how long the connection is kept for a next request. Whoever closes first must not be the one that is
asked: proxies keep theirs for a minute (nginx, load balancers), and would answer 502 for a service that closed before.
"""


class Wire(HttpToolsProtocol):
    """One connection."""

    _head = _waiting = 0
    _complete = _muted = False
    _deadline: TimerHandle | None = None
    _body_follows = b""
    """The head that stands for a request whose body httptools would not read, as another protocol is asked for."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.timeout_keep_alive = IDLE_SECONDS
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._unset_keepalive_if_required()  # which uvicorn leaves, and with it all of this, where the client has reset
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            self._waiting += len(data)
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as asked:
                # Nothing but HTTP/1.1 is spoken here, as who asks for more must expect (RFC 9110, section 7.8).
                data = data[asked.args[0] :]
                self._read_its_body()
            except httptools.HttpParserError:
                self._refuse(self._reason())
                return
            if self._is_too_long():
                self._refuse(self._reason())
                return
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and not (self._deadline or self.timeout_keep_alive_task or self.transport.is_closing()):
            # What came was the end of a body that nobody waits for, or nothing at all.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        if self._muted:
            return
        self._head = self._waiting = 0
        self._complete = False
        self._start_clock()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._muted:
            return
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        self._count(name + b": " + value + b"\r\n")
        if not self._complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        if self._is_too_long() or len(self.pipeline) >= MOST_PIPELINED or not self._names_one_host():
            raise ValueError  # which ends the reading, before anything is answered
        self._complete = True
        self._stop_clock()
        if self.parser.should_upgrade():
            told = [name + b": " + value + b"\r\n" for name, value in self.headers if name in _OF_BODIES]
            self._body_follows = b"POST / HTTP/1.1\r\n" + b"".join(told) + b"\r\n" if told else b""
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._body_follows:
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._waiting = 0
        super().on_body(body)

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop_clock(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_clock()  # until it is answered, no more may be read
            return
        if self.headers is None:  # nothing was asked: browsers open connections that they may need
            self.transport.close()
            return
        message = f"The request's head was not all here after {HEAD_SECONDS:g} s."
        self._refuse(RefusedError(HTTPStatus.REQUEST_TIMEOUT, "too_slow", message))

    def _is_too_long(self) -> bool:
        return max(self._head, self._waiting) > MOST_HEAD

    def _count(self, part: bytes) -> None:
        self._head += len(part)
        self._waiting = 0

    def _names_one_host(self) -> bool:
        """RFC 9112, section 3.2; with two, another one might be looked at than is checked."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        return hosts == 1 or (hosts == 0 and self.parser.get_http_version() == "1.0")

    def _read_its_body(self) -> None:
        """Go on with a parser that has read a head with the same body and no wish for another protocol."""
        if self._body_follows:
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            head, self._body_follows, self._muted = self._body_follows, b"", True
            self.parser.feed_data(head)
            self._muted = False

    def _should_upgrade(self) -> bool:
        return False

    def _reason(self) -> RefusedError:
        if self._is_too_long():
            message = f"The request's line and headers have more than {MOST_HEAD:,} bytes."
            return RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message)
        return RefusedError(HTTPStatus.BAD_REQUEST, "bad_http", "This is no HTTP request.")

    def _refuse(self, refusal: RefusedError) -> None:
        self._stop_clock()
        if self.transport.is_closing():
            return
        REFUSED.labels("", refusal.code).inc()
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering:  # an answer that is under way must not get another one in its midst
            body = json.dumps(as_json(refusal)).encode()
            told = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[refusal.status] + told.encode() + body)
        logger.info("a connection was closed: %s", refusal.message)
        self.transport.close()
