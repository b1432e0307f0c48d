"""DaNCE, distance-adapted noise contrastive estimation (Milbich, Roth et al. 2020, DiVA, eq. 6).

    L = mean_(a,p) log(sum_n exp(w(d_an) s_an / T)) - s_ap / T
    w(d) = min(cap, 1 / q(d)), scaled before so that the largest weight of an anchor is 1; without gradient

q(d) is the density of distances between random points of the unit sphere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from training import functional
from training.batch import EmbeddingBatch
from training.functional import fall_back
from training.losses.base import MetricLoss
from training.miners.distance_weighted import log_density
from zoo.errors import RecipeError


class DaNCELoss(MetricLoss):
    """Noise contrastive estimation whose negatives are weighted by the inverse density of their distance.

    Distances count as at least `nearest`. Negatives farther than `farthest` have weight 0 as long as the anchor has
    nearer ones, and equal weights otherwise. Both bounds are the published code's; equation 6 has none. The paper names
    the cap lambda without a value; without scaling, 1 / q(0.5) is about 10^40 in 128 dimensions.

    Args:
        temperature: T; 0.01 in table 1.
        nearest: Lower bound of the distances, as in distance-weighted sampling.
        farthest: Upper bound of the distances, as in distance-weighted sampling.
        cap: Largest weight after scaling.
        weighted: False sets every weight to 1: plain noise contrastive estimation.
        with_positive: Add the positive to the sum, as noise contrastive estimation and the published code do. Then the
            loss is above 0, and its gradient vanishes where the positive is the nearest. Equation 6 sums over the
            negatives alone, and has no lower bound.
        published: Form of the published code. The positive joins the sum; weights are scaled by the largest of all
            pairs, then divided by their sum over the anchors that share the negative. The authors call these divisors a
            slight error; their correction, `--diva_fixed`, divides by the sum over an anchor's negatives.

    Raises:
        RecipeError: If a temperature, a cap or a distance is out of range.
    """

    def __init__(
        self,
        temperature: float = 0.01,
        nearest: float = 0.5,
        farthest: float = 1.4,
        cap: float = 1.0,
        weighted: bool = True,
        with_positive: bool = False,
        published: bool = False,
    ) -> None:
        super().__init__()
        if not (temperature > 0 and cap > 0 and 0 < nearest <= farthest <= 2):
            raise RecipeError(
                f"the loss 'dance' got temperature {temperature}, cap {cap}, nearest {nearest}, farthest {farthest}; "
                "it needs a temperature and a cap above 0, and 0 < nearest <= farthest <= 2.",
                code="invalid-value",
            )
        self.temperature, self.nearest, self.farthest, self.cap = temperature, nearest, farthest, cap
        self.weighted, self.with_positive, self.published = weighted, with_positive or published, published

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar. Samples of one label are views of one thing.

        The loss is 0, with zero gradient, if no anchor has both a positive and a negative.
        """
        cosines = batch.cosines()
        anchors, positives = batch.positive.nonzero(as_tuple=True)
        pushed = self._pushed(cosines, batch.negative, batch.rows.shape[1])
        return self._mean(pushed[anchors], cosines[anchors, positives])

    def contrast_keys(self, queries: Tensor, keys: Tensor, negatives: Tensor) -> Tensor:
        """Return the loss, a scalar, of queries with one positive key each against common negatives.

        Args:
            queries: Unit rows [b, d]; the only input with a gradient.
            keys: Unit rows [b, d], the positive of each query.
            negatives: Unit rows [m, d].
        """
        cosines = queries @ negatives.detach().T
        pushed = self._pushed(cosines, torch.ones_like(cosines, dtype=torch.bool), queries.shape[1])
        return self._mean(pushed, (queries * keys.detach()).sum(1))

    def _pushed(self, cosines: Tensor, negative: Tensor, dim: int) -> Tensor:
        """Return log of the sum over the negatives, [b]; -inf for a row without negatives."""
        weights = self.weights(cosines.detach(), negative, dim) if self.weighted else 1.0
        return functional.masked_logsumexp(cosines * weights / self.temperature, negative)

    def _mean(self, pushed: Tensor, positive: Tensor) -> Tensor:
        terms = pushed - positive / self.temperature
        if self.with_positive:
            return softplus(terms).sum() / max(1, len(terms))
        return functional.masked_mean(terms, pushed != -torch.inf)

    def weights(self, cosines: Tensor, negative: Tensor, dim: int) -> Tensor:
        """Return the weights w [b, m] of the negatives.

        Args:
            cosines: Cosines [b, m] of unit embeddings.
            negative: bool [b, m]; the weight is 0 where it is false.
            dim: Dimension of the embeddings.
        """
        if not cosines.numel():
            return cosines
        squared = (2 - 2 * cosines).nan_to_num(4.0)
        near = negative & (squared <= self.farthest**2)
        logs = -log_density(squared.clamp(self.nearest**2, self.farthest**2), dim)
        if self.published:
            return _published_weights(logs, near, negative)
        candidates = fall_back(near, negative)
        largest = logs.masked_fill(~candidates, -torch.inf).amax(1, keepdim=True)
        return torch.exp(logs - largest).clamp(max=self.cap).masked_fill(~candidates, 0)


def _published_weights(logs: Tensor, near: Tensor, negative: Tensor) -> Tensor:
    """Return the published code's weights: an anchor's share of a negative's weight, from 10^-45 up."""
    logs = logs - logs.masked_fill(~near, -torch.inf).max().clamp(min=torch.finfo(logs.dtype).min)
    floored = logs.masked_fill(~near, -torch.inf).clamp(min=-45 * math.log(10))
    return floored.masked_fill(~negative, -torch.inf).softmax(0).masked_fill(~negative, 0)
