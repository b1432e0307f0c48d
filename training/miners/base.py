"""Base of the miners: one call for all of them, that of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from training.batch import EmbeddingBatch, read_batch
from training.functional import Pairs, Triplets
from zoo.errors import UsageError


class BaseMiner:
    """A miner, called as `miner(embeddings, labels, ref_emb, ref_labels)`.

    A subclass defines `mine`, which gets checked unit rows.

    Attributes:
        compares_references: Whether the miner takes reference embeddings.
    """

    compares_references = True

    def __call__(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Triplets | Pairs:
        """Return the mined tuples, which losses take as `indices_tuple`.

        Args:
            embeddings: [b, d]; they are scaled to unit length.
            labels: [b], of any integer type.
            ref_emb: [m, d]: positives and negatives are chosen among these instead.
            ref_labels: [m].

        Raises:
            UsageError: If a shape or a type is wrong.
        """
        if ref_emb is not None and not self.compares_references:
            raise UsageError(
                f"{type(self).__name__} does not take ref_emb; leave it out.", code="option-without-effect"
            )
        with torch.no_grad():
            return self.mine(read_batch(embeddings, labels, ref_emb, ref_labels))

    def mine(self, batch: EmbeddingBatch) -> Triplets | Pairs:
        """Return the tuples of a batch of unit rows, of float32 or more digits and without gradient."""
        raise NotImplementedError

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def mine_unit_rows(miner: Callable[..., Any], unit: Tensor, labels: Tensor) -> Any:
    """Return the tuples of unit rows [b, d] with labels int64 [b], which a miner of ours does not check again."""
    unit = unit.detach()
    return miner.mine(EmbeddingBatch(unit.float(), labels)) if isinstance(miner, BaseMiner) else miner(unit, labels)
