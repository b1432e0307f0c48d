"""N-pair loss (Sohn 2016, Improved Deep Metric Learning with Multi-class N-pair Loss Objective)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from training import functional
from training.functional import check_batch, mean_norm, positive_mask


class NPair(nn.Module):
    """Mean over pairs of log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)), plus nu * mean |psi|^2.

    One pair a class, its first two samples in the batch; the negatives of a pair are the positives of the others.
    psi are embeddings that are NOT normalised. nu 0.005: Roth et al. 2020, Revisiting, appendix A. As in the code
    published with it: all_samples, every sample is an anchor, its positive random, and all samples of other classes
    are its negatives; squared_norm=False, nu * mean |psi|.
    """

    normalised = False

    def __init__(self, classes: int, nu: float = 0.005, all_samples: bool = False, squared_norm: bool = True) -> None:
        super().__init__()
        self.nu, self.all_samples, self.squared_norm = nu, all_samples, squared_norm

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of raw embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels)
        pairs = choose_pairs(labels, self.all_samples)
        return n_pair_loss(embeddings, pairs) + self.nu * mean_norm(embeddings, self.squared_norm)


class NPairs(NamedTuple):
    """t anchor-positive pairs, m candidates for negatives, int64; bool [t, m]: which candidate is of another class."""

    anchors: Tensor
    positives: Tensor
    candidates: Tensor
    negative: Tensor


def choose_pairs(labels: Tensor, all_samples: bool) -> NPairs:
    """One pair a class against each other's positives, or every anchor with a random positive against the batch."""
    if all_samples:
        positive = positive_mask(labels)
        (anchors,) = positive.any(1).nonzero(as_tuple=True)
        # An extra row: multinomial refuses an empty matrix.
        weights = torch.cat([positive[anchors].float(), torch.ones(1, len(labels), device=labels.device)])
        positives = torch.multinomial(weights, 1).squeeze(1)[:-1]
        candidates = torch.arange(len(labels), device=labels.device)
    else:
        anchors, positives = first_pairs(labels)
        candidates = positives
    return NPairs(anchors, positives, candidates, labels[anchors][:, None] != labels[candidates])


def first_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the first and of the second sample of every class that has two."""
    ordered, rows = labels.sort(stable=True)
    follows = ordered[1:] == ordered[:-1]
    starts = torch.cat([torch.ones_like(follows[:1]), ~follows[:-1]])
    (first,) = (follows & starts).nonzero(as_tuple=True)
    return rows[first], rows[first + 1]


def n_pair_loss(embeddings: Tensor, pairs: NPairs) -> Tensor:
    """Mean over the pairs of log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)); 0 without pairs."""
    anchors, positives = embeddings[pairs.anchors], embeddings[pairs.positives]
    logits = anchors @ embeddings[pairs.candidates].T - (anchors * positives).sum(1, keepdim=True)
    return log_one_plus(logits, pairs.negative)


def log_one_plus(logits: Tensor, negative: Tensor) -> Tensor:
    """Mean over rows of log(1 + sum of exp(logits) over `negative`), both [t, m]; 0 without rows."""
    return softplus(functional.masked_logsumexp(logits, negative)).sum() / max(1, len(logits))
