"""The cores of a worker: how many images it works on at once, and what becomes of one that takes long."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from serving.metrics import WAITING, stage

PATIENCE = 0.25
"""Seconds: far more than a photograph takes, far less than a file that was built to keep a decoder busy."""
SHORT = 8
"""Calls a core, which a slow network has done within a second."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Cores:
    """Runs as many calls at once as there are cores, each in a thread.

    One that takes longer than `patience` seconds lets another in beside it, so that who comes after it shares the cores
    with it instead of waiting until it is done. So many are let in at most: `count`, and at least 2.
    """

    def __init__(self, count: int, patience: float = PATIENCE) -> None:
        self._calls, self._patience, self._left = CapacityLimiter(count), patience, max(2, count)
        self._waiting, self._short = OrderedDict[object, float](), SHORT * count

    def is_behind(self, seconds: float) -> bool:
        """Whether the call that waits longest has waited for more than `seconds`, as would the next one.

        A line of `SHORT` calls a core is not: it is as long where all wait for a model that is loaded.
        """
        return len(self._waiting) > self._short and time.monotonic() - next(iter(self._waiting.values())) > seconds

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with stage("queue"), WAITING.track_inprogress(), self._in_line():
            await self._calls.acquire()
        try:
            with self._patiently():
                return await to_thread.run_sync(lambda: call(*args, **kwargs))
        finally:
            self._calls.release()

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
