"""Observation of a training step: the terms of its losses above zero, and the tuples of the miner."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.methods.base import takes_unit_rows


@dataclass
class Observation:
    """The terms and tuples of the losses of an observed step.

    Attributes:
        terms: For each group of terms with a margin, the number above zero, the number of all, and their sum if they
            are distances; scalars. The terms of a loss with class vectors are its samples; above zero are those whose
            class does not have the largest logit.
        mined: Of the first loss with tuples: unit embeddings [b, d] without gradient, labels [b] and tuples.
    """

    terms: list[tuple[Tensor | float, Tensor | float, Tensor | None]] = field(default_factory=list)
    mined: tuple[Tensor, Tensor, Any] | None = None

    @torch.no_grad()
    def add(self, loss: nn.Module, inputs: Sequence[Any], output: Tensor) -> None:
        """Add the terms and tuples of a loss that was just computed."""
        embeddings, labels, tuples = (*inputs, None)[:3]
        self.terms += [(terms.active, terms.number, terms.total) for terms in getattr(loss, "last_terms", ())]
        if (shifted_logits := getattr(loss, "shifted_logits", None)) is not None:
            logits = shifted_logits(embeddings, labels)
            self.terms.append(((logits.argmax(1) != labels).sum(), len(labels), None))
        if tuples is not None and self.mined is None:
            rows = embeddings.detach()
            self.mined = rows if takes_unit_rows(loss) else normalize(rows, dim=1), labels, tuples


@contextmanager
def observed(method: nn.Module) -> Iterator[Observation]:
    """Observe the losses of a method, or one loss, that are computed in the block."""
    observation = Observation()
    losses = [part for part in method.modules() if "tuples" in inspect.signature(part.forward).parameters]
    hooks = [loss.register_forward_hook(observation.add) for loss in losses]
    try:
        yield observation
    finally:
        for hook in hooks:
            hook.remove()
