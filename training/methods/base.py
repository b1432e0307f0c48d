"""Method and Plain.

One step's samples as a method sees them: labels of the whole batch, images, and the trunk to put them through.

What a training method is to the loop: named loss terms of a batch, and hooks that do nothing unless overridden.

The smallest method: one head or none, one loss, at most one miner.

What methods ask of a recipe: heads of certain names, losses of certain tuples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from training.functional import Pairs, Triplets
from training.miners.rho import Rho
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError

Forward = Callable[[Tensor, "nn.Module | None"], Tensor]


class Minibatch:
    """A batch of b samples, spread over the processes of the run; with one process all of it is here.

    labels: int64 [b]; samples: int64 [b], which of the training samples they are; both of the whole batch.
    images: float [b / processes, c, h, w], this process's part, augmented and normalised.
    part: which rows of the whole batch they are. task: which of the method's tasks the step trains. epoch: from 0.
    """

    def __init__(
        self,
        labels: Tensor,
        samples: Tensor,
        images: Tensor,
        forward: Forward,
        another_view: Callable[[], Tensor],
        task: str,
        epoch: int,
        part: slice = slice(None),
        render: Callable[[Preprocessing], Tensor] | None = None,
    ) -> None:
        self.part = part
        self.labels, self.samples, self.images, self.task, self.epoch = labels, samples, images, task, epoch
        self._forward, self._another_view, self._render = forward, another_view, render

    @cached_property
    def features(self) -> Tensor:
        """Pooled features float32 [b, f] of the images: those of all processes, in the order of `labels`."""
        return self._forward(self.images, None)

    def features_of(self, images: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Pooled features float32 of other images, n of each process, [processes * n, f], by the trunk or another one.

        Gradients reach the trunk from every process; under `torch.no_grad` there are none.
        """
        return self._forward(images, trunk)

    def another_view(self) -> Tensor:
        """The same samples as `images`, by another random augmentation."""
        return self._another_view()

    def render_for(self, preprocessing: Preprocessing) -> Tensor:
        """The same views as `images`, float [b / processes, c, how.crop, how.crop], as another model takes them."""
        if self._render is None:
            raise RecipeError("cached features hold no images that another model could see; train without --features.")
        return self._render(preprocessing)


ExtractFeatures = Callable[[], Tensor]
"""Pooled features float32 [n, f] of all training samples, not augmented, by the network as it is; without gradient."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that learn at a rate and with a weight decay of their own."""

    parameters: list[nn.Parameter]
    lr: float
    weight_decay: float


class Method(nn.Module, ABC):
    """Owns the heads, which are published with the trunk, and whatever else is learnt or kept beside it.

    All state lies in parameters and buffers, so that a checkpoint holds it. A method is made by `create_method`, which
    gives its constructor what it asks for by name, beside the recipe's `objective.method_args`:
    heads (nn.ModuleDict of linear maps f -> dim); loss and miner, the recipe's; create_loss(dim), another instance of
    the recipe's loss; trunk; features (f); dim (of all heads together); classes and samples, how many; labels,
    int64 [samples]; batch_size; seed.
    """

    heads: nn.ModuleDict

    @abstractmethod
    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Named scalar terms whose sum is the loss."""

    def plan(self, epoch: int, steps: int) -> list[str]:
        """The task that each step of the epoch trains, as its minibatch will say. A function of its arguments alone."""
        return ["main"] * steps

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        """The labels int64 [n] by which the batches of a task are drawn; `Minibatch.labels` are always the classes."""
        return labels

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        """Called before each epoch's first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Called after each step, when the weights were updated (with accumulated gradients: at every batch)."""

    def parameter_groups(self) -> list[ParameterGroup]:
        """Parameters that do not learn at the recipe's `optimizer.loss_lr`, as a method's own do by default."""
        return []


Miner = Callable[[Tensor, Tensor], Triplets | Pairs]


class Plain(Method):
    """loss(head(features)) over the tuples that the miner finds, or over the whole batch without one.

    The loss gets unit embeddings unless it is defined on raw ones; the miner always gets unit embeddings. Without a
    head the pooled features are the embedding. The plain regularisers of Milbich, Roth et al. 2020, Sharing Matters,
    table 6: dropout, the share of features dropped before the head; input_noise and output_noise, the standard
    deviation of Gaussian noise on the normalised images and on the embeddings.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        miner: Miner | None = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        output_noise: float = 0.0,
    ) -> None:
        super().__init__()
        if len(heads) > 1:
            raise RecipeError(f"the method 'plain' trains one head, not {len(heads)}; set heads to one.")
        if not 0 <= dropout < 1 or min(input_noise, output_noise) < 0:
            raise RecipeError("dropout is a share from 0 to below 1, and noise 0 or more.")
        self.heads, self.objective, self.miner = heads, loss, miner
        self.dropout, self.input_noise, self.output_noise = dropout, input_noise, output_noise

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        features = batch.features_of(self._noisy_images(batch)) if self.input_noise else batch.features
        if self.dropout:
            features = dropout(features, self.dropout)
        raw = next(iter(self.heads.values()))(features) if self.heads else features
        if self.output_noise:
            raw = raw + self.output_noise * torch.randn_like(raw)
        return {"loss": objective_loss(self.objective, self.miner, raw, batch.labels)}

    def _noisy_images(self, batch: Minibatch) -> Tensor:
        """The noise is drawn for the whole batch, so that it is the same however the batch is spread."""
        images = batch.images
        noise = torch.randn(len(batch.labels), *images.shape[1:], device=images.device)
        return images + self.input_noise * noise[batch.part]


def objective_loss(loss: nn.Module, miner: Miner | None, raw: Tensor, labels: Tensor) -> Tensor:
    """The loss of raw embeddings [b, d] over what the miner finds, on unit embeddings unless defined on raw ones."""
    unit = normalize(raw, dim=1)
    tuples = miner(unit.detach(), labels) if miner else None
    value: Tensor = loss(unit if getattr(loss, "normalised", True) else raw, labels, tuples)
    return value


def require_heads(heads: nn.ModuleDict, names: Iterable[str], whose: str) -> None:
    """Raise `RecipeError` unless the heads have these names, in any order; whose: "the method 'mic'"."""
    expected = sorted(names)
    if sorted(heads) != expected:
        raise RecipeError(f"{whose} trains heads named {_listed(expected)}, not {_listed(heads)}; set heads to these.")


def takes_tuples(loss: nn.Module, tuples: type) -> bool:
    """Whether the loss takes mined tuples of this kind; the annotation of its argument `tuples` says so."""
    return tuples in accepted_tuples(type(loss))


def accepted_tuples(loss: type[nn.Module]) -> list[type]:
    """The kinds of tuples that losses of this class take. Raises `RecipeError` where the class does not say."""
    hints = get_type_hints(loss.forward)
    if "tuples" not in hints:
        raise RecipeError(
            f"{loss.__name__}.forward does not say which mined tuples it takes: annotate its argument, as in "
            "tuples: Triplets | None = None (training.functional), or tuples: None = None where it takes none."
        )
    return [kind for kind in get_args(hints["tuples"]) if kind is not NoneType]


def mined_tuples(miner: Any) -> type:
    """The kind of tuples that a miner finds; the annotation of what it returns says so. Rho's is its own miner's."""
    if isinstance(miner, Rho):
        return mined_tuples(miner.miner)
    kind: type = get_type_hints(type(miner).__call__)["return"]
    return kind


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
