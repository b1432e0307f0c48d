"""The smallest method: one head, one loss, at most one miner."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.tuples import Triplets


class Plain(nn.Module):
    """loss(normalised head(features)) over the tuples that the miner finds, or over the whole batch without one."""

    def __init__(
        self, heads: nn.ModuleDict, loss: nn.Module, miner: Callable[[Tensor, Tensor], Triplets] | None = None
    ) -> None:
        super().__init__()
        self.heads, self.objective, self.miner = heads, loss, miner

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of pooled features [b, f] and labels int64 [b]."""
        (head,) = self.heads.values()
        # Distances and their densities lose too much in half precision.
        embeddings = normalize(head(features).float(), dim=1)
        tuples = self.miner(embeddings.detach(), labels) if self.miner else None
        value: Tensor = self.objective(embeddings, labels, tuples)
        return value
