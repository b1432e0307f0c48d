"""A process that is told to stop: who has connected is answered, whether it has sent its request by then or not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from serving import answering
from serving.turns import Counts, Turns, last_calls

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def app(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize("several", [False, True])
def test_who_has_connected_is_answered_a_last_time(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LAST_CALL", 1.0)  # a busy machine is no reason to fail
    turns = Turns(Counts(tmp_path / "counts", 1).path, 1) if several else None
    asyncio.run(asyncio.wait_for(stopped_with_two_connections(turns), 60))


async def stopped_with_two_connections(turns: Turns | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as pulse:
        address, started = listening.getsockname(), asyncio.Event()
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        server = answering.Server(config, listening, started.set, turns)
        served = asyncio.create_task(server.serve([pulse if turns else listening]))
        await started.wait()
        silent, used = [await asyncio.open_connection(*address) for _ in range(2)]
        assert b"connection: close" not in await answer_to(used)
        server.should_exit = True
        while server.server_state.default_headers[-1] != (b"connection", b"close"):
            await asyncio.sleep(0.01)
        if turns:  # as the supervisor does it
            for _ in last_calls(listening):
                await asyncio.sleep(0)
            listening.shutdown(socket.SHUT_RDWR)
        await until_refused(address)
        for connection in (silent, used):
            said = await answer_to(connection)
            assert said.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in said, "so that the client sends no more there"
            assert await connection[0].read() == b""
            connection[1].close()
        await served


async def answer_to(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    reader, writer = connection
    writer.write(REQUEST)
    return await reader.readuntil(b"done")


async def until_refused(address: tuple[str, int]) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(*address)
        except ConnectionRefusedError:
            return
        writer.close()
