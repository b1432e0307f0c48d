"""Connections of a service under uvicorn: workers share them, and no request is cut off at the end."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import threading
import weakref
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.datastructures import State

YIELD_SECONDS = 0.001
"""Seconds that a worker leaves the next connection to the others, for each connection that it has..."""
MAX_YIELDS = 5
"""... up to this number."""
LAST_REQUESTS = 0.2
"""Seconds that open connections have for a last request after the socket has closed."""
LAST_CONNECTIONS = 1.0
"""Seconds within which connections that wait at the socket are accepted before it closes."""


class WorkerLoop(asyncio.SelectorEventLoop):
    """Event loop of a worker that leaves the next connection to workers with fewer.

    The kernel wakes all workers for a connection, and the one that runs already would take every connection of clients
    that come together. Kept-alive connections then stay there, and the other workers have nothing to do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.yields = True
        self.connections: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    def _make_socket_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        transport: asyncio.Transport = super()._make_socket_transport(*args, **options)  # type: ignore[misc]
        self.connections.add(transport)
        return transport

    def _accept_connection(self, make_protocol: Any, listening: socket.socket, *args: Any) -> None:
        super()._accept_connection(make_protocol, listening, *args)  # type: ignore[misc]
        number = listening.fileno()
        if self.yields and number in self._selector.get_map():  # type: ignore[attr-defined]
            pause = YIELD_SECONDS * min(1 + len(self.connections), MAX_YIELDS)
            self.remove_reader(number)
            self.call_later(pause, self._accept_again, make_protocol, listening, *args)

    def _accept_again(self, make_protocol: Any, listening: socket.socket, *args: Any) -> None:
        if listening.fileno() >= 0:  # it may have been closed meanwhile
            self.add_reader(listening.fileno(), self._accept_connection, make_protocol, listening, *args)


def delay_stop(state: State, seconds: float) -> None:
    """Let a stop signal reach uvicorn later; call this in the event loop of the server.

    For some seconds `state.draining` is True, /readyz answers 503 and everything else is answered as usual. Then the
    socket closes, and the open connections have a moment for a last request. A second Ctrl-C reaches uvicorn at once. A
    second SIGTERM changes nothing: service managers send it to every process.

    Args:
        state: The state of the application.
        seconds: The delay.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(server, uvicorn.Server):
        return
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        if not state.draining:
            state.draining = True
            close = partial(_close_socket, server, number, LAST_CONNECTIONS)
            loop.call_soon_threadsafe(lambda: loop.call_later(seconds, close))
        elif number == signal.SIGINT:
            server.handle_exit(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _close_socket(server: uvicorn.Server, number: int, patience: float, quiet: bool = False) -> None:
    """Close the socket once no connection waits there: the kernel would reset those that it has accepted.

    Args:
        server: The server.
        number: The signal.
        patience: Seconds to wait for such a moment.
        quiet: Whether no connection waited one round of the event loop ago. asyncio needs that round for a connection
            that it has just accepted.
    """
    loop, waiting = asyncio.get_running_loop(), select.poll()
    if isinstance(loop, WorkerLoop):
        loop.yields = False  # connections that wait are accepted at once, or there would be no moment without any
    for listening in server.servers if server.started else ():
        for each in listening.sockets:
            waiting.register(each, select.POLLIN)
    if not server.started or (patience > 0 and waiting.poll(0)):
        loop.call_later(0.001, _close_socket, server, number, patience - 0.001)
    elif patience > 0 and not quiet:
        loop.call_soon(_close_socket, server, number, patience, True)
    else:
        for listening in server.servers:
            listening.close()
        loop.call_later(LAST_REQUESTS, server.handle_exit, number, None)
