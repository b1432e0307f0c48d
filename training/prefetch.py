"""The next batches' images are gathered in a thread while the present one is trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Draw = TypeVar("Draw")
Images = TypeVar("Images")


def prefetch(draws: Iterator[Draw], fetch: Callable[[Draw], Images], ahead: int) -> Iterator[tuple[Draw, Images]]:
    """Each draw with what `fetch` makes of it, in order, `ahead` of them begun before they are asked for.

    With `ahead` 0 a draw is made only when it is asked for, as samplers need that follow the training.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:
        waiting: deque[tuple[Draw, Future[Images]]] = deque()
        for draw in draws:
            waiting.append((draw, thread.submit(fetch, draw)))
            if len(waiting) > ahead:
                first, images = waiting.popleft()
                yield first, images.result()
        while waiting:
            first, images = waiting.popleft()
            yield first, images.result()
