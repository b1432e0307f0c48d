"""uvicorn's server, as one process or as one of several at a listening socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from serving.turns import LAST_CALL, LONGEST_CALL, Acceptor, Turns


class Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, ready: Callable[[], None], turns: Turns | None = None
    ) -> None:
        """`ready` is called once queries are answered. turns: where other processes answer at the socket, too."""
        super().__init__(config)
        self._listening, self._ready, self._turns = listening, ready, turns
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._turns:
                self._acceptor = Acceptor(self._listening, self._turns, self._protocol, self.server_state.connections)
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        if self._acceptor:
            self._acceptor.tick()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._acceptor.closed.wait(), LONGEST_CALL)
            self._acceptor.close()
        else:
            await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        made = self.config.http_protocol_class
        return made(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]
