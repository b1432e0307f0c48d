"""The group loss after a classification pre-training (Elezi et al. 2020, The Group Loss for Deep Metric Learning)."""

from __future__ import annotations

from torch import Tensor, nn

from training.losses.group import GroupLoss
from training.methods.base import Method, Minibatch
from zoo.errors import RecipeError


class GroupMethod(Method):
    """Plain cross entropy of the group loss's classifier for `pretraining` epochs, then the group loss.

    The paper has no head: the pooled features are the embedding. Where the recipe has one, the loss is defined on what
    it gives, before normalisation. 10 epochs of pre-training are the paper's.
    """

    def __init__(self, heads: nn.ModuleDict, loss: nn.Module, pretraining: int = 10) -> None:
        super().__init__()
        if not isinstance(loss, GroupLoss):
            raise RecipeError("the method 'group' trains with the group loss; set objective.loss to group.")
        if len(heads) > 1:
            raise RecipeError(f"the method 'group' trains no head, or one, not {len(heads)}; set heads to [].")
        if pretraining < 0:
            raise RecipeError(f"pretraining is a number of epochs, 0 or more, not {pretraining}.")
        self.heads, self.objective, self.pretraining = heads, loss, pretraining

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = next(iter(self.heads.values()))(batch.features) if self.heads else batch.features
        if batch.epoch < self.pretraining:
            return {"classification": self.objective.classification(raw, batch.labels)}
        return {"group": self.objective(raw, batch.labels)}
