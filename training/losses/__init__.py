"""Losses by name. Each is a module called as `loss(embeddings [b, d], labels [b], tuples=None) -> scalar`."""

from __future__ import annotations

from torch import nn

from training.losses.margin import Margin

LOSSES: dict[str, type[nn.Module]] = {
    "margin": Margin,
}
