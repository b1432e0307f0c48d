"""uvicorn's server, as one process or as one of several at a listening socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from serving.turns import LAST_CALL, LONGEST_CALL, Acceptor, Turns, last_calls


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
        """Nobody more is accepted; who has been may send a request yet, whose answer says that it was the last.

        uvicorn alone would close a connection at once whose request is on its way, and the client would not know
        whether it was done.
        """
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await self._end_accepting()
        await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)
        if self.force_exit:  # Ctrl-C again: uvicorn would leave all as it is, for Python to complain of
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    async def _end_accepting(self) -> None:
        if self._acceptor:
            with suppress(TimeoutError):  # the supervisor shuts the socket sooner, where there is one yet
                await asyncio.wait_for(self._acceptor.closed.wait(), 2 * LONGEST_CALL)
            self._acceptor.close()
            return
        for _ in last_calls(self._listening):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()

    def _protocol(self) -> asyncio.Protocol:
        made = self.config.http_protocol_class
        return made(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]
