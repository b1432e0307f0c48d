"""Base class of the training methods, the method `plain`, and the minibatch that methods receive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from inspect import isfunction
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from training.functional import Pairs, Triplets
from training.losses.base import MetricLoss, accepted_tuples
from training.miners.base import BaseMiner, mine_unit_rows
from training.miners.rho import RhoMiner
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError

Forward = Callable[[Tensor, "nn.Module | None"], Tensor]


class Minibatch:
    """Batch of b samples, spread over the processes of a run; in one process all of it is local.

    Args:
        labels: Classes, int64 [b], of the whole batch.
        samples: Indices of the training samples, int64 [b], of the whole batch.
        images: This process's images, float [b / processes, c, h, w], augmented and normalised.
        forward: Function that returns pooled features of images by the trunk (None) or another module.
        another_view: Function that returns the same samples by another random augmentation.
        task: Name of the method's task that the step trains.
        epoch: Number of the epoch, from 0.
        part: Rows of the whole batch that `images` are.
        render: Function that returns the views as another model's preprocessing makes them.

    Attributes:
        observe_features: Function that is called with all features of the trunk, or None.
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
        self.observe_features: Callable[[Tensor], None] | None = None

    @cached_property
    def features(self) -> Tensor:
        """Return the pooled features float32 [b, f] of the images of all processes, in the order of `labels`."""
        return self.features_of(self.images)

    def features_of(self, images: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Return the pooled features float32 [processes * n, f] of n other images per process.

        Under `torch.no_grad` the trunk gets no gradient; otherwise it gets the gradient of all processes' features.

        Args:
            images: float [n, c, h, w].
            trunk: Module to use instead of the trunk that is trained.
        """
        features = self._forward(images, trunk)
        if self.observe_features is not None and trunk is None:
            self.observe_features(features)
        return features

    def another_view(self) -> Tensor:
        """Return the same samples as `images` by another random augmentation."""
        return self._another_view()

    def render_for(self, preprocessing: Preprocessing) -> Tensor:
        """Return the same views as `images`, made by another model's preprocessing.

        Args:
            preprocessing: That of the other model.

        Returns:
            Float [b / processes, c, crop, crop].

        Raises:
            RecipeError: If training uses cached features instead of images.
        """
        if self._render is None:
            raise RecipeError(
                "cached features hold no images that another model could see; train without --features.",
                code="conflicting-settings",
            )
        return self._render(preprocessing)


ExtractFeatures = Callable[[], Tensor]
"""Function that returns the pooled features float32 [n, f] of all training samples, not augmented, without gradient."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with a learning rate (None: the factor times the network's) and a weight decay of their own."""

    parameters: list[nn.Parameter]
    lr: float | None
    weight_decay: float
    factor: float = 1.0


class Method(nn.Module, ABC):
    """Base of the training methods: the heads, which are published with the trunk, and all other learnt state.

    All state is in parameters and buffers, so that a checkpoint has it. `create_method` constructs a method with the
    recipe's `objective.method_args` and with those of these values that its constructor names:

    - heads: nn.ModuleDict of linear maps f -> dim
    - loss, miner: those of the recipe
    - create_loss: function of a dimension that returns another instance of the recipe's loss
    - trunk: the trunk; features: its number of pooled features f
    - dim: dimension of all heads together
    - classes, samples: their numbers
    - labels: classes of the training samples, int64 [samples]
    - batch_size, seed: those of the recipe
    """

    heads: nn.ModuleDict
    pretraining: int = 0
    """Epochs that prepare the method; none of them is kept as the model."""

    @abstractmethod
    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return named scalar terms; their sum is the loss."""

    def steps(self, iterations: int) -> int:
        """Return the number of steps in which an epoch performs this many iterations of the method's algorithm.

        An iteration trains on one batch of classes. A method with a second task adds that task's steps.
        """
        return iterations

    def plan(self, epoch: int, steps: int) -> list[str]:
        """Return the task of each step of the epoch; a function of its arguments alone."""
        return ["main"] * steps

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        """Return the labels int64 [n] by which a task's batches are drawn; `Minibatch.labels` are classes always."""
        return labels

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        """Prepare an epoch; called before its first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Update state after a step, when the weights were updated (with accumulated gradients: after every batch)."""

    def epoch_facts(self) -> dict[str, float]:
        """Return numbers of the epoch for its record, after its last step."""
        return {}

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return parameters that do not learn at `optimizer.loss_lr`, the default for a method's own parameters."""
        return []


Miner = Callable[[Tensor, Tensor], Triplets | Pairs]


class Plain(Method):
    """One head, or none, trained by one loss over mined tuples or over the whole batch.

        L = loss(head(features), labels, miner(head(features), labels))

    Without a head the pooled features are the embedding. The arguments are the plain regularisers of Milbich, Roth et
    al. 2020, Sharing Matters, table 6.

    Args:
        heads: No head, or one.
        loss: The recipe's loss.
        miner: The recipe's miner; it always gets unit embeddings.
        dropout: Share of the features that are dropped before the head.
        input_noise: Standard deviation of Gaussian noise on the normalised images.
        output_noise: Standard deviation of Gaussian noise on the embeddings.

    Raises:
        RecipeError: If there are several heads, or a number is out of range.
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
        require_at_most_one_head(heads, "plain")
        if not 0 <= dropout < 1 or min(input_noise, output_noise) < 0:
            raise RecipeError(
                f"the method 'plain' got dropout {dropout}, input_noise {input_noise} and output_noise {output_noise}; "
                "dropout must be from 0 to below 1, and noise 0 or more.",
                code="invalid-value",
            )
        self.heads, self.objective, self.miner = heads, loss, miner
        self.dropout, self.input_noise, self.output_noise = dropout, input_noise, output_noise

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the loss of the batch as `loss`."""
        features = batch.features_of(self._noisy_images(batch)) if self.input_noise else batch.features
        if self.dropout:
            features = dropout(features, self.dropout)
        raw = embed(self.heads, features)
        if self.output_noise:
            raw = raw + self.output_noise * torch.randn_like(raw)
        return {"loss": objective_loss(self.objective, self.miner, raw, batch.labels)}

    def _noisy_images(self, batch: Minibatch) -> Tensor:
        """Return the batch's images with noise."""
        images = batch.images
        # Drawn for the whole batch, so that the noise does not depend on how the batch is spread over processes.
        noise = torch.randn(len(batch.labels), *images.shape[1:], device=images.device)
        return images + self.input_noise * noise[batch.part]


def objective_loss(loss: nn.Module, miner: Miner | None, raw: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of embeddings over the tuples that the miner finds.

    Args:
        loss: One of ours, which scales embeddings itself if it is defined on unit ones; or any other, which receives
            unit embeddings.
        miner: Receives unit embeddings without gradient; None: the loss receives no tuples.
        raw: Embeddings [b, d], not normalised.
        labels: int64 [b].

    Returns:
        A scalar.

    Raises:
        RecipeError: `invalid-value`, if the loss returns something else, or a value without gradient.
    """
    arguments = (mine_unit_rows(miner, normalize(raw.detach(), dim=1), labels),) if miner is not None else ()
    value = loss(loss_rows(loss, raw), labels, *arguments)
    if not isinstance(value, Tensor):
        returned = f"a value of the type {type(value).__name__}"
    elif value.ndim:
        returned = f"a tensor of shape {list(value.shape)}"
    elif raw.requires_grad and torch.is_grad_enabled() and not value.requires_grad:
        returned = "a tensor without gradient"
    else:
        return value
    raise RecipeError(
        f"the loss {type(loss).__name__} returns {returned}; it must return a scalar tensor that depends on the "
        "embeddings, such as the mean of its terms.",
        code="invalid-value",
    )


def loss_rows(loss: nn.Module, raw: Tensor) -> Tensor:
    """Return the rows [b, d] to call a loss with: raw ones if it scales them itself, or is defined on these."""
    if isinstance(loss, MetricLoss) and not loss.embeddings_are_scaled:
        return raw
    return normalize(raw, dim=1) if takes_unit_rows(loss) else raw


def takes_unit_rows(loss: nn.Module) -> bool:
    """Return whether the loss is defined on unit embeddings; a loss that is not ours gets these."""
    return getattr(loss, "normalize_embeddings", True)


def embed(heads: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the embeddings [b, d] of the only head, not normalised; without a head the features [b, f]."""
    if not heads:
        return features
    (head,) = heads.values()
    embeddings: Tensor = head(features)
    return embeddings


def require_at_most_one_head(heads: nn.ModuleDict, method: str) -> None:
    """Raise `RecipeError` if the recipe has several heads."""
    if len(heads) > 1:
        raise RecipeError(
            f"the method {method!r} trains one head or none, and the recipe has {len(heads)}; set heads to one.",
            code="conflicting-settings",
        )


def require_heads(heads: nn.ModuleDict, names: Iterable[str], owner: str) -> None:
    """Raise `RecipeError` unless the heads have these names, in any order; owner: such as "the method 'mic'"."""
    expected = sorted(names)
    if sorted(heads) != expected:
        raise RecipeError(
            f"{owner} trains heads named {_listed(expected)}, and the recipe's are {_listed(heads)}; set heads to "
            "these.",
            code="conflicting-settings",
        )


def takes_tuples(loss: nn.Module, tuples: type) -> bool:
    """Return whether the loss accepts mined tuples of this kind."""
    return tuples in accepted_tuples(type(loss))


def mined_tuples(miner: Any) -> type | None:
    """Return the kind of tuples that a miner says it returns, of rho that of the wrapped miner; None: it says none."""
    if isinstance(miner, RhoMiner):
        return mined_tuples(miner.miner)
    function = miner.mine if isinstance(miner, BaseMiner) else miner if isfunction(miner) else type(miner).__call__
    kind = get_type_hints(function).get("return")
    return kind if kind in (Triplets, Pairs) else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
