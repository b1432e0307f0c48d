"""Group loss after a classification pre-training (Elezi et al. 2020, The Group Loss for Deep Metric Learning).

L = cross entropy in the first epochs, then the group loss of `training.losses.group`
"""

from __future__ import annotations

from torch import Tensor, nn

from training.losses.group import GroupLoss
from training.methods.base import Method, Minibatch, embed, require_at_most_one_head
from zoo.errors import RecipeError


class GroupMethod(Method):
    """Cross entropy of the group loss's classifier for `pretraining` epochs, then the group loss.

    Without a head the pooled features are the embedding, as in the published code and the paper's DenseNets. With a
    head the loss is defined on its output before normalisation.

    Args:
        heads: No head, or one.
        loss: The group loss.
        pretraining: Epochs of the pre-training; 10 in the paper.

    Raises:
        RecipeError: If there are several heads, the loss is another one, or the number of epochs is negative.
    """

    def __init__(self, heads: nn.ModuleDict, loss: nn.Module, pretraining: int = 10) -> None:
        super().__init__()
        if not isinstance(loss, GroupLoss):
            raise RecipeError(
                f"the method 'group' trains with the group loss, not {type(loss).__name__}; set objective.loss to "
                "group.",
                code="conflicting-settings",
            )
        require_at_most_one_head(heads, "group")
        if pretraining < 0:
            raise RecipeError(f"pretraining is {pretraining} epochs; it must be 0 or more.", code="invalid-value")
        self.heads, self.objective, self.pretraining = heads, loss, pretraining

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return `classification` in epochs of the pre-training, and `group` after them."""
        raw = embed(self.heads, batch.features)
        if batch.epoch < self.pretraining:
            return {"classification": self.objective.classification(raw, batch.labels)}
        return {"group": self.objective(raw, batch.labels)}
