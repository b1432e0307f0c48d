"""The progress bar of a training run: steps, time left, images per second, loss and the last validation."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import torch
from torch import Tensor
from tqdm.auto import tqdm


class Progress:
    """A bar over `total` steps of `batch_size` images, of which `done` were made before."""

    def __init__(self, name: str, total: int, done: int, batch_size: int, shown: bool = True) -> None:
        # A log file is spared the many lines that on a terminal are one.
        interval = 0.2 if sys.stderr.isatty() else 10
        self.bar = tqdm(total=total, initial=done, disable=not shown, mininterval=interval, desc=name, unit="step")
        self.batch_size, self.last = batch_size, ""
        self.since, self.steps = time.perf_counter(), 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def step(self, terms: dict[str, Tensor]) -> None:
        self.bar.update()
        self.steps += 1
        # Reading the loss waits for an accelerator, so only now and then.
        if self.steps % 10 == 0 and not self.bar.disable:
            now = time.perf_counter()
            speed = 10 * self.batch_size / (now - self.since)
            loss = torch.stack(list(terms.values())).sum().item()
            self.bar.set_postfix_str(f"{speed:,.0f} images/s, loss {loss:.3f}{self.last}", refresh=False)
            self.since = now

    def validated(self, scores: dict[str, float]) -> None:
        if scores:
            self.last = f", val R@1 {scores['recall_at_1']:.3f}"
        self.since, self.steps = time.perf_counter(), 0
