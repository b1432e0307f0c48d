"""DaNCE, distance-adapted noise contrastive estimation (Milbich, Roth et al. 2020, DiVA, eq. 6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from training import functional
from training.functional import check_batch, fall_back, negative_mask, positive_mask, products
from training.miners.distance_weighted import log_density
from zoo.errors import RecipeError


class DaNCE(nn.Module):
    """Mean over positive pairs of log sum_n exp(w(d_an) s_an / T) - s_ap / T; s: cosines, d: distances, n: negatives.

    w(d) = min(cap, 1 / q(d)), scaled before so that the largest weight of an anchor is 1; it passes no gradient. q(d)
    is the density of distances between random points of the unit sphere; d counts as at least `nearest`. Negatives
    farther than `farthest` have weight 0 as long as the anchor has nearer ones, and all the same weight otherwise.
    The paper names the cap lambda without a value; unscaled, 1 / q(0.5) is about 10^40 in 128 dimensions.
    Constants of the published code: temperature T 0.01, distances as for distance-weighted sampling.

    weighted=False: every weight is 1, plain noise contrastive estimation. published: the published code's form, where
    the positive joins the sum, weights are scaled by the largest of all pairs and then divided by their sum over the
    anchors that share the negative.
    """

    def __init__(
        self,
        classes: int,
        temperature: float = 0.01,
        nearest: float = 0.5,
        farthest: float = 1.4,
        cap: float = 1.0,
        weighted: bool = True,
        published: bool = False,
    ) -> None:
        super().__init__()
        if not (temperature > 0 and cap > 0 and 0 < nearest <= farthest <= 2):
            raise RecipeError("dance needs a temperature and a cap above 0, and 0 < nearest <= farthest <= 2.")
        self.temperature, self.nearest, self.farthest, self.cap = temperature, nearest, farthest, cap
        self.weighted, self.published = weighted, published

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]: samples of one label are views of one thing.

        0, with zero gradient, where no anchor has both a positive and a negative.
        """
        check_batch(embeddings, labels)
        cosines = products(embeddings)
        anchors, positives = positive_mask(labels).nonzero(as_tuple=True)
        pushed = self._pushed(cosines, negative_mask(labels), embeddings.shape[1])
        return self._mean(pushed[anchors], cosines[anchors, positives])

    def of_keys(self, queries: Tensor, keys: Tensor, negatives: Tensor) -> Tensor:
        """Scalar loss of unit queries [b, d] with a positive each, keys [b, d], against common negatives [m, d].

        Only queries get a gradient.
        """
        cosines = queries @ negatives.detach().T
        pushed = self._pushed(cosines, torch.ones_like(cosines, dtype=torch.bool), queries.shape[1])
        return self._mean(pushed, (queries * keys.detach()).sum(1))

    def _pushed(self, cosines: Tensor, negative: Tensor, dim: int) -> Tensor:
        """[b]: log of the sum over the negatives; -inf without any."""
        weights = self.weights(cosines.detach(), negative, dim) if self.weighted else 1.0
        return functional.masked_logsumexp(cosines * weights / self.temperature, negative)

    def _mean(self, pushed: Tensor, positive: Tensor) -> Tensor:
        terms = pushed - positive / self.temperature
        if self.published:
            return softplus(terms).sum() / max(1, len(terms))
        return functional.masked_mean(terms, pushed != -torch.inf)

    def weights(self, cosines: Tensor, negative: Tensor, dim: int) -> Tensor:
        """w of cosines [b, m] of unit embeddings in `dim` dimensions; 0 where `negative`, bool [b, m], is false."""
        if not cosines.numel():
            return cosines
        squared = (2 - 2 * cosines).nan_to_num(4.0)
        near = negative & (squared <= self.farthest**2)
        logs = -log_density(squared.clamp(self.nearest**2, self.farthest**2), dim)
        if self.published:
            return _published_weights(logs, near, negative)
        kept = fall_back(near, negative)
        largest = logs.masked_fill(~kept, -torch.inf).amax(1, keepdim=True)
        return torch.exp(logs - largest).clamp(max=self.cap).masked_fill(~kept, 0)


def _published_weights(logs: Tensor, near: Tensor, negative: Tensor) -> Tensor:
    """The published code's weights: a pair's share of what the negative weighs to all anchors, from 10^-45 up."""
    logs = logs - logs.masked_fill(~near, -torch.inf).max().clamp(min=torch.finfo(logs.dtype).min)
    floored = logs.masked_fill(~near, -torch.inf).clamp(min=-45 * math.log(10))
    return floored.masked_fill(~negative, -torch.inf).softmax(0).masked_fill(~negative, 0)
