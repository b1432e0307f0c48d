"""The cores of a worker: how many images it works on at once, and what becomes of one that takes long."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from serving.metrics import WAITING, stage

PATIENCE = 0.25
"""Seconds: far more than a photograph takes, far less than a file that was built to keep a decoder busy."""
SHORT = 8
"""So many calls may always wait: a few are no rush, and wait where a model is loaded, too."""
RECENT = 31
"""Of how many calls it is known how long they took."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Cores:
    """Runs as many calls at once as there are cores, each in a thread.

    One that takes longer than `patience` seconds lets another in beside it, so that who comes after it shares the cores
    with it instead of waiting until it is done. So many are let in at most: `count`, and at least 2.
    """

    def __init__(self, count: int, patience: float = PATIENCE) -> None:
        self._calls, self._patience, self._left = CapacityLimiter(count), patience, max(2, count)
        self._count, self._waiting, self._took = count, OrderedDict[object, float](), deque[float](maxlen=RECENT)

    def is_behind(self, seconds: float) -> bool:
        """Whether the next call would wait for more than `seconds`, by those that wait: more than `SHORT`, and either
        the first of them has, or they take so long themselves, as most calls of late.
        """
        if len(self._waiting) <= SHORT:
            return False
        waited = time.monotonic() - next(iter(self._waiting.values()))
        usual = sorted(self._took)[len(self._took) // 2] if self._took else 0.0
        return max(waited, len(self._waiting) * usual / self._count) > seconds

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._in_line():
            await self._acquire()
        return await self._run(call, *args, **kwargs)

    async def run_aside(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """As `run`, but it does not count as one that waits: what nobody is to be refused for, as the further images of
        a request that has had a core already, and lets others in between.
        """
        await self._acquire()
        return await self._run(call, *args, **kwargs)

    async def _acquire(self) -> None:
        with stage("queue"), WAITING.track_inprogress():
            await self._calls.acquire()

    async def _run(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        begun = time.monotonic()
        try:
            with self._patiently():
                return await to_thread.run_sync(lambda: call(*args, **kwargs))
        finally:
            self._calls.release()
            self._took.append(time.monotonic() - begun)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        """They get their cores in the order in which they came."""
        place = object()
        self._waiting[place] = time.monotonic()
        try:
            yield
        finally:
            del self._waiting[place]

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        has_let_in: list[bool] = []

        def let_in() -> None:
            if self._left:
                self._left -= 1
                self._calls.total_tokens += 1
                has_let_in.append(True)

        timer = asyncio.get_running_loop().call_later(self._patience, let_in)
        try:
            yield
        finally:
            timer.cancel()
            if has_let_in:
                self._left += 1
                self._calls.total_tokens -= 1
