"""Cross-batch memory (Wang et al. 2020, Cross-Batch Memory for Embedding Learning)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import Pairs, Quadruplets, Triplets
from training.losses.multi_similarity import MultiSimilarity
from training.methods.base import Method, Miner, Minibatch, objective_loss, takes_tuples
from zoo.errors import RecipeError


class CrossBatchMemory(Method):
    """The recipe's loss of the batch, plus `weight` times that of its samples against batch and past embeddings.

    A queue keeps the last `size` embeddings, without gradient, with their labels. Tuples have their anchor in the
    batch, all else in batch or queue: what the miner finds among both, or all pairs without one. Queue and second term
    begin in epoch `warmup`, counted from 0: at first embeddings change too fast to be worth keeping. The sample
    configuration of the published code has weight 1, a start after 1000 steps and a size of 55,000.

    A regulariser that averages over all samples, as nu of the SNR losses, counts past ones too in the second term.

    Memory: without a miner O(b (b + size) dim) for losses of pairs; miners compare all with all, O((b + size)^2), so
    that a size of some thousand is their limit.
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
        if len(heads) > 1:
            raise RecipeError(f"the method 'cross-batch-memory' trains one head, not {len(heads)}; set heads to one.")
        if size < batch_size or weight < 0 or warmup < 0:
            raise RecipeError(
                f"a cross-batch memory needs a size of at least the batch's ({batch_size}), and weight and warmup of 0 "
                f"or more, not {size}, {weight} and {warmup}."
            )
        _check_tuples(loss, miner)
        self.heads, self.objective, self.miner = heads, loss, miner
        self.size, self.weight, self.warmup = size, weight, warmup
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("position", torch.tensor(0))
        self.register_buffer("filled", torch.tensor(0))

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = self._raw(batch.features)
        terms = {"loss": objective_loss(self.objective, self.miner, raw, batch.labels)}
        if batch.epoch >= self.warmup:
            terms["memory"] = self.weight * self._against_memory(raw, batch.labels)
        return terms

    def end_step(self, batch: Minibatch) -> None:
        if batch.epoch >= self.warmup:
            with torch.no_grad():
                self._keep(self._prepared(self._raw(batch.features)), batch.labels)

    def _against_memory(self, raw: Tensor, labels: Tensor) -> Tensor:
        filled = int(self.filled)
        rows = torch.cat([self._prepared(raw), self.embeddings[:filled].to(raw.dtype)])
        classes = torch.cat([labels, self.labels[:filled]])
        if self.miner is None:
            tuples: Triplets | Pairs = all_pairs(classes, len(labels))
        else:
            tuples = restrict_anchors(self.miner(normalize(rows.detach(), dim=1), classes), len(labels))
        value: Tensor = self.objective(rows, classes, tuples)
        return value

    def _keep(self, embeddings: Tensor, labels: Tensor) -> None:
        """Put the batch's rows in the place of the oldest."""
        places = (self.position + torch.arange(len(labels), device=labels.device)) % self.size
        self.embeddings[places] = embeddings.to(self.embeddings.dtype)
        self.labels[places] = labels
        self.position.copy_((self.position + len(labels)) % self.size)
        self.filled.copy_((self.filled + len(labels)).clamp(max=self.size))

    def _raw(self, features: Tensor) -> Tensor:
        return next(iter(self.heads.values()))(features) if self.heads else features

    def _prepared(self, raw: Tensor) -> Tensor:
        """What the loss is defined on: unit embeddings, or raw ones."""
        return normalize(raw, dim=1) if getattr(self.objective, "normalised", True) else raw


def all_pairs(labels: Tensor, anchors: int) -> Pairs:
    """All pairs of labels int64 [n] whose first is one of the first `anchors` samples; no sample with itself."""
    same = labels[:anchors, None] == labels
    itself = torch.arange(anchors, device=labels.device)
    positive = same.clone()
    positive[itself, itself] = False
    return Pairs(*positive.nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True))


def restrict_anchors(tuples: Triplets | Pairs, anchors: int) -> Triplets | Pairs:
    """Those of the tuples whose anchor is one of the first `anchors` samples."""
    if isinstance(tuples, Triplets):
        kept = tuples.anchors < anchors
        return Triplets(*(field[kept] for field in tuples))
    positive, negative = tuples.anchors_p < anchors, tuples.anchors_n < anchors
    return Pairs(
        tuples.anchors_p[positive], tuples.positives[positive], tuples.anchors_n[negative], tuples.negatives[negative]
    )


def _check_tuples(loss: nn.Module, miner: Miner | None) -> None:
    """Raise `RecipeError` for a loss whose anchors cannot be held to the batch."""
    name = type(loss).__name__
    if miner is None and not takes_tuples(loss, Pairs):
        needs = "takes no tuples: choose one that does, as contrastive or margin"
        if takes_tuples(loss, Triplets) or takes_tuples(loss, Quadruplets):
            needs = "takes no pairs, and there are too many triplets to take all: set objective.miner"
        raise RecipeError(f"a cross-batch memory compares the batch with the past by tuples, but {name} {needs}.")
    if isinstance(loss, MultiSimilarity) and not loss.kept_only:
        # The mean over all rows would count those of the memory, which are no anchors.
        raise RecipeError("with a cross-batch memory multi-similarity needs objective.loss_args.kept_only true.")
