"""Tasks for a few threads, with results in the order of the tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """Threads that compute ahead of whoever takes their results; a context that ends with them.

    threads: how many; one means none: each task is done when its result is taken. prepare: called in each thread
        before any task; prepared: called here when all of them are.
    """

    def __init__(
        self,
        threads: int,
        prepare: Callable[[], object] = lambda: None,
        prepared: Callable[[], object] = lambda: None,
    ) -> None:
        self._ahead = 2 * threads
        self._pool = ThreadPoolExecutor(threads, initializer=prepare) if threads > 1 else None
        if self._pool:
            ready = threading.Barrier(threads + 1)
            for _ in range(threads):  # each thread waits for the others, so each gets one of these
                self._pool.submit(ready.wait)
            ready.wait()
            prepared()

    def ahead(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """function(task) of each task, in their order. Tasks and results at hand stay few, however many there are."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(function, task))
            if len(waiting) > self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


def one_core_each() -> Workers:
    """As many as torch computes with: each computes blocks of its own on one core, and waits for no other."""
    import faiss
    import torch

    threads = torch.get_num_threads()

    def on_one_core() -> None:
        faiss.omp_set_num_threads(1)
        torch.set_num_threads(1)
        torch.get_num_threads()  # else the thread takes the number of all threads over when it first computes

    return Workers(threads, on_one_core, lambda: torch.set_num_threads(threads))
