"""Cross-batch memory (Wang et al. 2020, Cross-Batch Memory for Embedding Learning).

L = loss(batch) + weight * loss(anchors of the batch, all else from batch and memory)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import Pairs, Quadruplets, Triplets
from training.losses.base import MetricLoss
from training.losses.multi_similarity import MultiSimilarityLoss
from training.methods.base import (
    Method,
    Miner,
    Minibatch,
    embed,
    loss_rows,
    objective_loss,
    require_at_most_one_head,
    takes_tuples,
)
from training.miners.base import mine_unit_rows
from zoo.errors import RecipeError


class CrossBatchMemory(Method):
    """The recipe's loss of the batch, plus its loss against a queue of past embeddings without gradient.

    Tuples of the second term have their anchor in the batch: those that the miner finds in batch and queue, or all
    pairs without a miner. A regulariser that averages over all samples, such as nu of the SNR losses, includes past
    ones there.

    Memory without a miner is O(b (b + size) dim) for losses of pairs. Miners compare all with all, O((b + size)^2), so
    that a size of some thousand is their limit.

    Args:
        heads: No head, or one.
        loss: The recipe's loss.
        dim: Dimension of the embeddings.
        batch_size: Samples per batch.
        miner: The recipe's miner.
        size: Embeddings in the queue, at least the batch; 55,000 in the published code's sample configuration.
        weight: Weight of the second term; 1 in the same place.
        warmup: Epoch, from 0, in which queue and second term start, because embeddings change too fast at first; the
            same place starts after 1000 steps.

    Raises:
        RecipeError: If there are several heads, a number is out of range, or the loss or miner cannot be restricted to
            anchors of the batch.
    """

    embeddings: Tensor
    labels: Tensor
    position: Tensor
    filled: Tensor

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        dim: int,
        batch_size: int,
        miner: Miner | None = None,
        size: int = 1024,
        weight: float = 1.0,
        warmup: int = 1,
    ) -> None:
        super().__init__()
        require_at_most_one_head(heads, "cross-batch-memory")
        if size < batch_size or weight < 0 or warmup < 0:
            raise RecipeError(
                f"the method 'cross-batch-memory' got size {size}, weight {weight} and warmup {warmup}; it needs a "
                f"size of at least the batch's ({batch_size}), and weight and warmup of 0 or more.",
                code="invalid-value",
            )
        _check_tuples(loss, miner)
        self.heads, self.objective, self.miner = heads, loss, miner
        if isinstance(loss, MetricLoss):
            loss.embeddings_are_scaled = True  # those of the queue are
        self.size, self.weight, self.warmup = size, weight, warmup
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("position", torch.tensor(0))
        self.register_buffer("filled", torch.tensor(0))

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return `loss`, and from epoch `warmup` on `memory`."""
        raw = embed(self.heads, batch.features)
        terms = {"loss": objective_loss(self.objective, self.miner, raw, batch.labels)}
        if batch.epoch >= self.warmup:
            terms["memory"] = self.weight * self._against_memory(raw, batch.labels)
        return terms

    def end_step(self, batch: Minibatch) -> None:
        if batch.epoch >= self.warmup:
            with torch.no_grad():
                self._enqueue(loss_rows(self.objective, embed(self.heads, batch.features)), batch.labels)

    def _against_memory(self, raw: Tensor, labels: Tensor) -> Tensor:
        filled = int(self.filled)
        rows = torch.cat([loss_rows(self.objective, raw), self.embeddings[:filled].to(raw.dtype)])
        classes = torch.cat([labels, self.labels[:filled]])
        if self.miner is None:
            tuples: Triplets | Pairs = all_pairs(classes, len(labels))
        else:
            tuples = restrict_anchors(mine_unit_rows(self.miner, normalize(rows.detach(), dim=1), classes), len(labels))
        value: Tensor = self.objective(rows, classes, tuples)
        return value

    def _enqueue(self, embeddings: Tensor, labels: Tensor) -> None:
        """Replace the oldest rows by the batch's."""
        positions = (self.position + torch.arange(len(labels), device=labels.device)) % self.size
        self.embeddings[positions] = embeddings.to(self.embeddings.dtype)
        self.labels[positions] = labels
        self.position.copy_((self.position + len(labels)) % self.size)
        self.filled.copy_((self.filled + len(labels)).clamp(max=self.size))


def all_pairs(labels: Tensor, anchors: int) -> Pairs:
    """Return all pairs of labels int64 [n] whose first sample is one of the first `anchors`, none with itself."""
    same = labels[:anchors, None] == labels
    itself = torch.arange(anchors, device=labels.device)
    positive = same.clone()
    positive[itself, itself] = False
    return Pairs(*positive.nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True))


def restrict_anchors(tuples: Triplets | Pairs, anchors: int) -> Triplets | Pairs:
    """Return the tuples whose anchor is one of the first `anchors` samples."""
    if isinstance(tuples, Triplets):
        in_batch = tuples.anchors < anchors
        return Triplets(*(field[in_batch] for field in tuples))
    positive, negative = tuples.anchors_p < anchors, tuples.anchors_n < anchors
    return Pairs(
        tuples.anchors_p[positive], tuples.positives[positive], tuples.anchors_n[negative], tuples.negatives[negative]
    )


def _check_tuples(loss: nn.Module, miner: Miner | None) -> None:
    """Raise `RecipeError` for a loss whose anchors cannot be restricted to the batch."""
    name = type(loss).__name__
    if miner is None and not takes_tuples(loss, Pairs):
        if takes_tuples(loss, Triplets) or takes_tuples(loss, Quadruplets):
            raise RecipeError(
                f"{name} does not accept pairs, and a cross-batch memory has too many triplets to use all of them; set "
                "objective.miner.",
                code="conflicting-settings",
            )
        raise RecipeError(
            f"{name} does not accept tuples, by which a cross-batch memory compares the batch with the past; choose a "
            "loss that does, such as contrastive or margin.",
            code="conflicting-settings",
        )
    if isinstance(loss, MultiSimilarityLoss) and not loss.kept_only:
        # The mean over all rows would count those of the memory, which are not anchors.
        raise RecipeError(
            "with a cross-batch memory ms needs objective.loss_args.kept_only true.",
            code="conflicting-settings",
        )
