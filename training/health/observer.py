"""Observation of a training step from inside its loss: terms above zero, and the tuples of the miner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Observation:
    """Reports of losses and miners while a step is observed.

    Attributes:
        terms: For each group of terms with a margin, the number above zero, the number of all, and their sum if they
            are distances; scalars.
        mined: Of the first mined loss: unit embeddings [b, d] without gradient, labels [b] and tuples.
    """

    terms: list[tuple[Tensor | float, Tensor | float, Tensor | float | None]] = field(default_factory=list)
    mined: tuple[Tensor, Tensor, Any] | None = None


_current: ContextVar[Observation | None] = ContextVar("observation", default=None)


@contextmanager
def observed() -> Iterator[Observation]:
    """Observe the losses that are computed in the block."""
    observation = Observation()
    token = _current.set(observation)
    try:
        yield observation
    finally:
        _current.reset(token)


def is_observed() -> bool:
    """Return whether the step is observed, for reports that cost time."""
    return _current.get() is not None


def report_terms(active: Tensor | float, number: Tensor | float, total: Tensor | float | None = None) -> None:
    """Report terms of a loss with a margin; without an observation nothing happens.

    Args:
        active: The number of terms above zero.
        number: The number of all terms.
        total: Their sum, if they are distances on the unit sphere.
    """
    observation = _current.get()
    if observation is not None:
        observation.terms.append((active, number, total))


def report_tuples(unit: Tensor, labels: Tensor, tuples: Any) -> None:
    """Report the tuples of a miner; the first report of a step counts.

    Args:
        unit: Unit embeddings [b, d] without gradient.
        labels: Those that the miner saw, int64 [b].
        tuples: Its tuples.
    """
    observation = _current.get()
    if observation is not None and observation.mined is None:
        observation.mined = unit, labels, tuples
