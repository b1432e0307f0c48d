"""How many calls a worker runs at once, and who is let in beside one that takes long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from serving.cores import SHORT, Cores
from serving.metrics import REGISTRY

SOON, NEVER = 0.01, 3600.0


def counted(running: set[int], most: list[int], release: threading.Event) -> Callable[[int], int]:
    def call(number: int) -> int:
        running.add(number)
        most.append(len(running))
        assert release.wait(30)
        running.discard(number)
        return number

    return call


async def started(running: set[int], count: int) -> None:
    async with asyncio.timeout(30):
        while len(running) < count:
            await asyncio.sleep(0.005)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(whole())


def test_a_call_that_takes_long_does_not_hold_up_the_next() -> None:
    """The first ends only when the second has: behind it, the second would wait for ever."""
    done = threading.Event()

    async def scenario() -> None:
        cores = Cores(1, patience=SOON)
        slow = asyncio.create_task(cores.run(done.wait, 30))
        await asyncio.sleep(0)
        await cores.run(done.set)
        assert await slow

    run(scenario)


@pytest.mark.parametrize(("count", "at_once"), [(1, 3), (2, 4), (3, 6)])
def test_only_so_many_are_let_in_and_afterwards_all_is_as_before(count: int, at_once: int) -> None:
    running: set[int] = set()
    most: list[int] = []
    release = threading.Event()

    async def scenario() -> None:
        cores = Cores(count, patience=SOON)
        for _ in range(2):
            call = counted(running, most, release)
            tasks = [asyncio.create_task(cores.run(call, i)) for i in range(3 * at_once)]
            await started(running, at_once)
            await asyncio.sleep(10 * SOON)
            assert len(running) == at_once
            release.set()
            assert await asyncio.gather(*tasks) == list(range(3 * at_once))
            assert max(most) <= at_once
            release.clear()

    run(scenario)


def test_quick_calls_keep_to_the_cores() -> None:
    running: set[int] = set()
    most: list[int] = []
    release = threading.Event()

    async def scenario() -> None:
        cores = Cores(2, patience=NEVER)
        call = counted(running, most, release)
        tasks = [asyncio.create_task(cores.run(call, i)) for i in range(6)]
        await started(running, 2)
        await asyncio.sleep(10 * SOON)
        assert len(running) == 2
        release.set()
        await asyncio.gather(*tasks)
        assert max(most) == 2

    run(scenario)


def test_what_a_call_raises_reaches_who_asked_and_frees_its_core() -> None:
    def fail() -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        cores = Cores(1, patience=SOON)
        for _ in range(3):
            with pytest.raises(ValueError, match="broken"):
                await cores.run(fail)
        assert await cores.run(int, "7") == 7

    run(scenario)


def told(series: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(series, labels) or 0.0


def test_who_waits_is_counted_and_for_how_long() -> None:
    running: set[int] = set()
    release = threading.Event()
    queue = {"collection": "", "stage": "queue"}
    count, seconds = (told(f"zoo_stage_duration_seconds_{what}", **queue) for what in ("count", "sum"))

    async def scenario() -> None:
        cores = Cores(1, patience=NEVER)
        tasks = [asyncio.create_task(cores.run(counted(running, [], release), i)) for i in range(4)]
        await started(running, 1)
        await asyncio.sleep(0.1)
        assert told("zoo_cpu_queue_length") == 3
        tasks[3].cancel()
        await asyncio.sleep(0.01)
        assert told("zoo_cpu_queue_length") == 2
        release.set()
        assert await asyncio.gather(*tasks[:3]) == [0, 1, 2]

    run(scenario)
    assert told("zoo_cpu_queue_length") == 0
    assert told("zoo_stage_duration_seconds_count", **queue) == count + 4
    assert told("zoo_stage_duration_seconds_sum", **queue) - seconds > 0.3


@asynccontextmanager
async def with_its_core_taken(cores: Cores) -> AsyncIterator[None]:
    running, release = set[int](), threading.Event()
    taken = asyncio.create_task(cores.run(counted(running, [], release), 0))
    await started(running, 1)
    yield
    release.set()
    await taken


def test_it_is_behind_while_a_long_line_waits_for_long() -> None:
    async def scenario() -> None:
        cores = Cores(1, patience=NEVER)
        async with with_its_core_taken(cores):
            line = [asyncio.create_task(cores.run(int)) for _ in range(SHORT)]
            aside = [asyncio.create_task(cores.run_aside(int)) for _ in range(5)]
            await asyncio.sleep(SOON)
            assert not cores.is_behind(SOON)  # for long, but a short line, and others that do not count
            line.append(asyncio.create_task(cores.run(int)))
            await asyncio.sleep(2 * SOON)  # three in all: timers round
            assert cores.is_behind(2 * SOON)
            assert not cores.is_behind(NEVER)
            line[0].cancel()  # who goes away is not in line
            await asyncio.sleep(SOON)
            assert not cores.is_behind(SOON)
        await asyncio.gather(*line[1:], *aside)
        assert not cores.is_behind(0)

    run(scenario)


def test_it_is_behind_at_once_where_as_many_have_come_as_take_so_long() -> None:
    """Twelve calls of a twentieth of a second that wait for two cores are .3 s of work."""

    async def scenario() -> None:
        cores = Cores(2, patience=NEVER)
        await asyncio.gather(*(cores.run(time.sleep, 0.05) for _ in range(3)))
        tasks = [asyncio.create_task(cores.run(time.sleep, 0.05)) for _ in range(14)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert cores.is_behind(0.25)
        assert not cores.is_behind(1)
        await asyncio.gather(*tasks)

    run(scenario)


def test_how_long_is_that_of_the_first_in_line() -> None:
    async def scenario() -> None:
        cores = Cores(1, patience=NEVER)
        async with with_its_core_taken(cores):
            first = asyncio.create_task(cores.run(int))
            await asyncio.sleep(0.35)  # timers round
            later = time.monotonic()
            others = [asyncio.create_task(cores.run(int)) for _ in range(SHORT + 1)]
            await asyncio.sleep(0)
            assert cores.is_behind(0.3)
            first.cancel()
            await asyncio.sleep(SOON)
            assert not cores.is_behind(time.monotonic() - later)
        await asyncio.gather(*others)

    run(scenario)
