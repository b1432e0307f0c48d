"""Connections that come together are shared evenly by the workers, and nobody waits long for one that hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from serving.turns import PATIENCE, Acceptor, Counts, Turns, last_calls
from tests.serving.running import Running, serving, stopped

ESTABLISHED = "01"
THREE = [asyncio.Protocol() for _ in range(3)]


@pytest.fixture(scope="module")
def service(gallery_folder: Path) -> Iterator[Running]:
    with serving(gallery_folder, "--workers", 2) as running:
        yield running


def connections(service: Running) -> list[int]:
    """How many established connections to the service each worker has, as the kernel tells it."""
    port = f":{httpx.URL(service.url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == ESTABLISHED}
    return [sum(held in ours for held in files(pid)) for pid in service.workers()]


def files(pid: int) -> Iterator[str]:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(file.readlink())
        except OSError:  # closed meanwhile
            continue


@contextmanager
def connected(service: Running, count: int) -> Iterator[list[socket.socket]]:
    """So many connections at once, each of which has had an answer and stays."""
    url = httpx.URL(service.url)
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection((url.host, url.port), 20)) for _ in range(count)]
        for line in lines:
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for line in lines:
            assert line.recv(1000).startswith(b"HTTP/1.1 200 ")
        yield lines


def test_each_worker_has_half_of_the_connections_that_come_together(service: Running) -> None:
    most = []
    for _ in range(5):
        with connected(service, 8):
            held = connections(service)
        assert sum(held) == 8
        most.append(max(held))
        until_closed(service)
    assert sorted(most)[2] <= 5, "some may be taken by whoever saw them while the other was slow"


def test_whoever_has_fewer_gets_the_next(service: Running) -> None:
    first, second = service.workers()
    with ExitStack() as stack:
        with stopped(second):
            stack.enter_context(connected(service, 6))
        assert connections(service) == [6, 0]
        time.sleep(0.3)  # until the first has seen that the second goes on
        stack.enter_context(connected(service, 4))
        fewer, more = sorted(connections(service))
        assert more <= 7, (fewer, more)
    until_closed(service)
    assert service.workers() == [first, second]


def test_one_that_hangs_costs_the_others_next_to_nothing(service: Running) -> None:
    with connected(service, 4), stopped(service.workers()[0]):
        started = time.monotonic()
        for _ in range(5):
            assert httpx.get(f"{service.url}/livez").status_code == 200
        assert time.monotonic() - started < 5 * PATIENCE + 5
    until_closed(service)


def until_closed(service: Running) -> None:
    ends = time.monotonic() + 20
    while sum(connections(service)):
        assert time.monotonic() < ends
        time.sleep(0.02)
    time.sleep(0.15)  # until the workers have told of it


def test_the_turn_is_of_those_with_the_fewest(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", 3)
    first, second, third = (Turns(counts.path, number) for number in (1, 2, 3))
    first.tell(2)
    assert first.is_mine(), "the others are away"
    second.tell(1)
    assert (first.is_mine(), second.is_mine()) == (False, True)
    third.tell(1)
    assert (first.is_mine(), second.is_mine(), third.is_mine()) == (False, True, True)
    counts.away(2)
    counts.away(3)
    assert first.is_mine()


def test_one_that_left_a_connection_is_not_waited_for_until_its_count_changes(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", 3)
    first, second, third = (Turns(counts.path, number) for number in (1, 2, 3))
    for turns, count in ((first, 2), (second, 1), (third, 0)):
        turns.tell(count)
    awaited = first.before_me()
    third.tell(1)
    first.were_slow(awaited)
    assert not first.is_mine(), "the third took one meanwhile"
    third.tell(2)
    assert first.is_mine(), "the second alone has fewer"
    second.tell(2)
    second.tell(1)
    assert first.is_mine(), "nobody looked in between"
    second.tell(0)
    assert not first.is_mine()


def test_one_that_hung_without_connections_is_waited_for_again_once_it_goes_on(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", 2)
    first, second = (Turns(counts.path, number) for number in (1, 2))
    first.tell(6)
    second.tell(0)
    awaited = first.before_me()
    first.were_slow(awaited)
    assert first.is_mine()
    second.beat()
    assert not first.is_mine()
    awaited = first.before_me()
    second.beat()
    first.were_slow(awaited)
    assert not first.is_mine(), "it is busy, and goes on"


def accepted_by(acceptor: Callable[[socket.socket, list[asyncio.Protocol]], Acceptor], count: int) -> None:
    """So many connections at once are taken by the acceptor, which is given its socket and a list for them."""
    made: list[asyncio.Protocol] = []

    async def run(listening: socket.socket) -> None:
        taking = acceptor(listening, made)
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            while len(made) < count:
                await asyncio.sleep(0.001)
            taking.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(asyncio.wait_for(run(listening), 20))


def protocol(made: list[asyncio.Protocol]) -> asyncio.Protocol:
    made.append(asyncio.Protocol())
    return made[-1]


def test_who_is_alive_and_takes_none_is_not_waited_for_without_end(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", 2)
    own, alive = (Turns(counts.path, number) for number in (1, 2))
    alive.tell(0)

    class Beside(Acceptor):
        def _decide(self) -> None:
            alive.beat()
            super()._decide()

    accepted_by(lambda listening, made: Beside(listening, own, lambda: protocol(made), THREE), 4)


def test_who_cannot_accept_is_away_meanwhile(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", 2)
    own, other = (Turns(counts.path, number) for number in (1, 2))
    other.tell(9)

    class Full(socket.socket):
        def accept(self) -> NoReturn:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def looked(listening: socket.socket) -> None:
        acceptor = Acceptor(listening, own, asyncio.Protocol, [])
        acceptor.tick()
        assert not other.is_mine()
        with socket.create_connection(listening.getsockname()):
            while not other.is_mine():
                await asyncio.sleep(0.001)
            acceptor.tick()
            assert other.is_mine(), "its beat says nothing else"
        acceptor.close()

    with socket.create_server(("127.0.0.1", 0)) as listening, Full(fileno=listening.detach()) as full:
        asyncio.run(asyncio.wait_for(looked(full), 20))


def test_of_connections_that_come_together_only_the_first_waits_for_one_that_hangs(tmp_path: Path) -> None:
    waits: list[int] = []
    counts = Counts(tmp_path / "counts", 2)
    own, hanging = (Turns(counts.path, number) for number in (1, 2))
    hanging.tell(0)

    def noting(listening: socket.socket, made: list[asyncio.Protocol]) -> Acceptor:
        class Noted(Acceptor):
            def _pause(self, seconds: float) -> None:
                waits.append(len(made))
                super()._pause(seconds)

        return Noted(listening, own, lambda: protocol(made), THREE)

    accepted_by(noting, 6)
    assert set(waits) == {0}


def test_a_socket_is_closed_once_nobody_waits_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not list(last_calls(listening))
        with socket.create_connection(listening.getsockname()):
            calls = last_calls(listening)
            next(calls)
            listening.accept()[0].close()
            assert not list(calls)


def test_where_somebody_always_waits_no_more_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.turns.LONGEST_CALL", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        for _ in last_calls(listening):
            time.sleep(0.001)
        with pytest.raises(TimeoutError):
            socket.create_connection(listening.getsockname(), 0.2)
