"""Base of the miners: one call for all of them, that of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from training.batch import EmbeddingBatch, read_batch
from training.functional import Pairs, Triplets, unit_distances
from training.pml import MinerParts, check_parts, own_or_none
from zoo.errors import UsageError


class BaseMiner(nn.Module):
    """A miner, called as `miner(embeddings, labels, ref_emb, ref_labels)`.

    A subclass defines `mine`, which gets checked unit rows.

    Args:
        parts: `distance`, by which the miner compares embeddings, as in pytorch-metric-learning; a miner that can
            compare by others than its own gets rows as they come then.

    Attributes:
        compares_references: Whether the miner takes reference embeddings.
        takes_distance: Whether the miner can compare by another distance than its own.
        own_distance: Its own, as that library names it.
    """

    compares_references = True
    takes_distance = False
    own_distance = ""

    def __init__(self, **parts: Unpack[MinerParts]) -> None:
        super().__init__()
        check_parts(type(self), parts, MinerParts)
        self.distance = own_or_none(self, parts.get("distance"))

    def forward(
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
            return self.mine(read_batch(embeddings, labels, ref_emb, ref_labels, distance=self.distance))

    def mine(self, batch: EmbeddingBatch) -> Triplets | Pairs:
        """Return the tuples of a batch of unit rows, of float32 or more digits and without gradient."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the constants by name."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "parts"]
        values = ((name, getattr(self, name)) for name in names)
        return ", ".join(f"{name}={value!r}" for name, value in values if not isinstance(value, nn.Module))


def mined_distances(batch: EmbeddingBatch) -> Tensor:
    """Return the distances [b, m] of a batch of unit rows, or those that the user chose."""
    return unit_distances(batch.rows, batch.others) if batch.distance is None else batch.distances()


def mine_unit_rows(miner: Callable[..., Any], unit: Tensor, labels: Tensor) -> Any:
    """Return the tuples of unit rows [b, d] with labels int64 [b], which a miner of ours does not check again."""
    unit = unit.detach()
    return (
        miner.mine(EmbeddingBatch(unit.float(), labels, distance=miner.distance))
        if isinstance(miner, BaseMiner)
        else miner(unit, labels)
    )
