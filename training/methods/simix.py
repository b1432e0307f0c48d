"""SiMix, similarity mixup (Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup).

    s(v, y) = lambda s(x, y) + (1 - lambda) s(z, y),  v = lambda x + (1 - lambda) z,  lambda ~ U(0, 1)

x and z are a positive pair of unit embeddings. The virtual sample v of their class joins the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.losses.base import MetricLoss
from training.methods.base import Method, Minibatch, embed, require_at_most_one_head, takes_unit_rows
from zoo.errors import RecipeError


class SiMix(Method):
    """The recipe's loss of a batch to which every positive pair adds one virtual sample.

    A virtual sample is not scaled to unit length: its inner products are then the mixed similarities. Losses of inner
    products (Recall@k, Smooth-AP, SupCon, multi-similarity) see the paper's; a loss of distances sees those of the
    mixed vectors. n samples of a class have n (n - 1) / 2 virtual ones.

    Args:
        heads: No head, or one.
        loss: The recipe's loss.

    Raises:
        RecipeError: If there are several heads, or the loss is defined on raw embeddings.
    """

    def __init__(self, heads: nn.ModuleDict, loss: nn.Module) -> None:
        super().__init__()
        require_at_most_one_head(heads, "simix")
        if not takes_unit_rows(loss):
            raise RecipeError(
                f"simix mixes cosines, and {type(loss).__name__} is defined on raw embeddings; choose another loss, as "
                "objective.loss=recall.",
                code="conflicting-settings",
            )
        if isinstance(loss, MetricLoss):
            loss.embeddings_are_scaled = True  # a virtual sample is not scaled
        self.heads, self.objective = heads, loss

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the loss of the batch and its virtual samples as `loss`."""
        rows = normalize(embed(self.heads, batch.features), dim=1)
        first, second = positive_pairs(batch.labels)
        share = torch.rand(len(first), 1).to(rows)
        virtual = share * rows[first] + (1 - share) * rows[second]
        labels = torch.cat([batch.labels, batch.labels[first]])
        return {"loss": self.objective(torch.cat([rows, virtual]), labels)}


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs of samples of one class, each once: int64 [t] and int64 [t] for labels int64 [b]."""
    first, second = (labels[:, None] == labels).triu(1).nonzero(as_tuple=True)
    return first, second
