"""The smallest method: one head, one loss, at most one miner."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.tuples import Pairs, Triplets
from zoo.errors import RecipeError


class Plain(nn.Module):
    """loss(head(features)) over the tuples that the miner finds, or over the whole batch without one.

    The loss gets unit embeddings unless it is defined on raw ones; the miner always gets unit embeddings.
    """

    def __init__(
        self, heads: nn.ModuleDict, loss: nn.Module, miner: Callable[[Tensor, Tensor], Triplets | Pairs] | None = None
    ) -> None:
        super().__init__()
        if len(heads) != 1:
            raise RecipeError(f"the method 'plain' trains one head, not {len(heads)}; set heads to one.")
        self.heads, self.objective, self.miner = heads, loss, miner
        self.normalised: bool = getattr(loss, "normalised", True)

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of pooled features [b, f] and labels int64 [b]."""
        (head,) = self.heads.values()
        raw = head(features).float()
        # Distances and their densities lose too much in half precision, which autocast would return to.
        with torch.autocast(raw.device.type, enabled=False):
            unit = normalize(raw, dim=1)
            tuples = self.miner(unit.detach(), labels) if self.miner else None
            value: Tensor = self.objective(unit if self.normalised else raw, labels, tuples)
        return value
