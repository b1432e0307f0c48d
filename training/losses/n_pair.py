"""N-pair loss (Sohn 2016, Improved Deep Metric Learning with Multi-class N-pair Loss Objective).

    L = mean_(a,p) log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)) + nu * mean |psi|^2

psi are raw embeddings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from training import functional
from training.functional import Triplets, check_batch, mean_norm, positive_mask


class NPairsLoss(nn.Module):
    """N-pair loss with a penalty on the length of the embeddings.

    Every sample is an anchor with a random positive; all samples of other classes in the batch are its negatives (Roth
    et al. 2020, Revisiting, appendix A.1).

    Args:
        classes: Number of training classes; not used.
        nu: Weight of the penalty; 0.005 in Revisiting, appendix A.1.
        all_samples: False: one pair per class, its first two samples in the batch, whose negatives are the positives of
            the other pairs (Sohn 2016, section 3.2).
        squared_norm: False penalises mean |psi|, as in the code published with Revisiting.
    """

    normalised = False
    several_negatives = True
    """Triplets of one anchor and one positive are one term, of all their negatives."""

    def __init__(self, classes: int, nu: float = 0.005, all_samples: bool = True, squared_norm: bool = True) -> None:
        super().__init__()
        self.nu, self.all_samples, self.squared_norm = nu, all_samples, squared_norm

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of raw (not normalised) embeddings [b, d] with labels int64 [b].

        Triplets, if there are any, choose the anchors, their positives and their negatives.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        pairs = choose_pairs(labels, self.all_samples) if tuples is None else join_triplets(tuples, len(labels))
        return n_pair_loss(embeddings, pairs) + self.nu * mean_norm(embeddings, self.squared_norm)


class NPairs(NamedTuple):
    """Anchors and positives, int64 [t], candidates, int64 [m], and which of these are of another class, bool [t, m]."""

    anchors: Tensor
    positives: Tensor
    candidates: Tensor
    negative: Tensor


def choose_pairs(labels: Tensor, all_samples: bool) -> NPairs:
    """Return every anchor against the whole batch, or one pair per class against the other positives."""
    if all_samples:
        positive = positive_mask(labels)
        (anchors,) = positive.any(1).nonzero(as_tuple=True)
        # An extra row: multinomial refuses an empty matrix.
        weights = torch.cat([positive[anchors].float(), torch.ones(1, len(labels), device=labels.device)])
        positives = torch.multinomial(weights, 1).squeeze(1)[:-1]
        candidates = torch.arange(len(labels), device=labels.device)
    else:
        anchors, positives = _first_pairs(labels)
        candidates = positives
    return NPairs(anchors, positives, candidates, labels[anchors][:, None] != labels[candidates])


def join_triplets(triplets: Triplets, batch: int) -> NPairs:
    """Return each pair of an anchor and a positive once, against the negatives of all its triplets."""
    keys, rows = (triplets.anchors * batch + triplets.positives).unique(return_inverse=True)
    negative = torch.zeros(len(keys), batch, dtype=torch.bool, device=keys.device)
    negative[rows, triplets.negatives] = True
    return NPairs(keys // batch, keys % batch, torch.arange(batch, device=keys.device), negative)


def _first_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the first and of the second sample of every class that has two, int64 [t] each."""
    ordered, rows = labels.sort(stable=True)
    follows = ordered[1:] == ordered[:-1]
    starts = torch.cat([torch.ones_like(follows[:1]), ~follows[:-1]])
    (first,) = (follows & starts).nonzero(as_tuple=True)
    return rows[first], rows[first + 1]


def n_pair_loss(embeddings: Tensor, pairs: NPairs) -> Tensor:
    """Return the mean over the pairs of log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)); 0 without pairs."""
    anchors, positives = embeddings[pairs.anchors], embeddings[pairs.positives]
    logits = anchors @ embeddings[pairs.candidates].T - (anchors * positives).sum(1, keepdim=True)
    return log_one_plus(logits, pairs.negative)


def log_one_plus(logits: Tensor, negative: Tensor) -> Tensor:
    """Return the mean over rows of log(1 + sum of exp(logits) over `negative`), both [t, m]; 0 without rows."""
    return softplus(functional.masked_logsumexp(logits, negative)).sum() / max(1, len(logits))
