"""Parts of a recipe's run by name: network, method, loss, miner and sampler."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from training.cached.samples import CachedData, CachedTrunk, Samples
from training.construction import construct
from training.losses import LOSSES
from training.losses.base import accepted_tuples
from training.methods import METHODS
from training.methods.base import Method, mined_tuples, objective_loss
from training.miners import create_miner
from training.own_network import copy_given_weights, inner_architecture
from training.recipe import Backbone, Objective, Recipe
from training.samplers import SAMPLERS
from training.samplers.base import BatchSampler, OtherSampler
from training.trunk.parts import choose_parts
from zoo.data.preprocessing import Preprocessing, same_statistics
from zoo.errors import RecipeError, ZooError
from zoo.models.backbones.custom import CustomNetwork, trusted
from zoo.models.card import Head, read_card
from zoo.models.names import find_model
from zoo.models.network import (
    Network,
    create_heads,
    create_trunk,
    discriminant_directions,
    feature_count,
    load_network,
    principal_directions,
    set_directions,
)
from zoo.models.places import is_place


@dataclass(frozen=True)
class MethodContext:
    """Facts of a run that a method may need.

    Attributes:
        trunk: The trunk.
        heads: The heads by name.
        features: The number of the trunk's features.
        labels: int64 [samples], 0 to classes - 1.
        classes: The number of classes.
        batch_size: Samples per batch.
        seed: The seed of the run.
    """

    trunk: nn.Module
    heads: nn.ModuleDict
    features: int
    labels: np.ndarray
    classes: int
    batch_size: int = 112
    seed: int = 0


def create_method(objective: Objective, context: MethodContext) -> Method:
    """Return the objective's method with its loss and miner.

    Raises:
        RecipeError: If a name or an argument is unknown, or loss, miner and method do not fit together.
    """
    dim = sum(cast(nn.Linear, head).out_features for head in context.heads.values()) or context.features
    makers: dict[str, Callable[[], Any]] = {
        "loss": lambda: _loss(objective, context, dim),
        "create_loss": lambda: lambda dim: _loss(objective, context, dim),
        "miner": lambda: _miner(objective),
    }
    offered = {**vars(context), "samples": len(context.labels), "dim": dim}
    if objective.method in METHODS:
        wanted = inspect.signature(METHODS[objective.method]).parameters
        _check_used(objective, set(wanted))
        offered |= {name: create() for name, create in makers.items() if name in wanted}
    method: Method = construct(METHODS, "method", objective.method, objective.method_args, offered)
    return method


def _loss(objective: Objective, context: MethodContext, dim: int) -> nn.Module:
    if objective.loss is None:
        raise RecipeError(
            f"the method {objective.method!r} needs a loss: set objective.loss.", code="conflicting-settings"
        )
    class_sizes = np.bincount(context.labels, minlength=context.classes)
    sizes = {"num_classes": context.classes, "embedding_size": dim, "class_sizes": class_sizes}
    loss: nn.Module = construct(LOSSES, "loss", objective.loss, objective.loss_args, sizes)
    return loss


def check_objective(recipe: Recipe, labels: np.ndarray) -> None:
    """Call a loss and a miner that are not ours once on a random batch, before any image is read.

    Args:
        recipe: The recipe; only of the method plain, whose loss gets the embeddings of its only head.
        labels: The labels of the training images, int64 [n].

    Raises:
        RecipeError: `invalid-value`, if a call fails, or the loss returns no scalar with a gradient.
    """
    objective, dim = recipe.objective, recipe.dim
    if objective.method != "plain" or not dim or not any(map(is_place, (objective.loss or "", objective.miner or ""))):
        return
    known, classes = np.unique(labels, return_inverse=True)
    per_class = max(2, recipe.batch.per_class)
    numbers = np.arange(len(known)).repeat(per_class)[-recipe.batch.size :]
    with torch.random.fork_rng(devices=[]):
        context = MethodContext(
            nn.Identity(), nn.ModuleDict(), dim, classes, len(known), recipe.batch.size, recipe.seed
        )
        loss, miner = _loss(objective, context, dim), _miner(objective)
        loss = loss.cpu() if isinstance(loss, nn.Module) else loss
        rows = torch.randn(len(numbers), dim, requires_grad=True)
        try:
            objective_loss(loss, miner, rows, torch.from_numpy(numbers))
        except ZooError:
            raise
        except Exception as error:  # of the user's class
            tuples = "" if objective.miner is None else f" and the tuples of the miner {objective.miner}"
            raise RecipeError(
                f"the loss {objective.loss} fails with embeddings {list(rows.shape)}, labels of {len(known)} classes"
                f"{tuples}: {type(error).__name__}: {error}. It is called as loss(embeddings, labels), with a miner as "
                "loss(embeddings, labels, indices_tuple).",
                code="invalid-value",
            ) from error


def _miner(objective: Objective) -> Any:
    if objective.miner is None:
        return None
    miner = create_miner(objective.miner, objective.miner_args)
    if objective.loss is not None and objective.loss in LOSSES:
        _check_tuples(objective, LOSSES[objective.loss], miner)
    return miner


def _check_used(objective: Objective, wanted: set[str]) -> None:
    """Check that the method uses the loss and the miner: nothing is dropped in silence."""
    if objective.loss is not None and not wanted & {"loss", "create_loss"}:
        raise RecipeError(
            f"the method {objective.method!r} has its own loss; leave objective.loss out.", code="option-without-effect"
        )
    for part in ("loss", "miner"):
        if getattr(objective, part) is None and getattr(objective, f"{part}_args"):
            raise RecipeError(
                f"objective.{part}_args are set, but no objective.{part} that takes them.", code="option-without-effect"
            )
    if objective.miner is not None and "miner" not in wanted:
        raise RecipeError(
            f"the method {objective.method!r} does not take a miner: set objective.miner=none.",
            code="option-without-effect",
        )


def _check_tuples(objective: Objective, loss: type[nn.Module], miner: Any) -> None:
    """Check that the loss takes the miner's kind of tuples, if the miner states one."""
    mined, accepted = mined_tuples(miner), accepted_tuples(loss)
    if not accepted or (mined is not None and mined not in accepted):
        named = " or ".join(kind.__name__.lower() for kind in accepted)
        advice = f"{named}: choose another miner" if named else "no tuples: set objective.miner=none"
        gives = "tuples" if mined is None else mined.__name__.lower()
        raise RecipeError(
            f"miner {objective.miner!r} gives {gives}, but loss {objective.loss!r} takes {advice}.",
            code="conflicting-settings",
        )


def create_sampler(recipe: Recipe, labels: np.ndarray, stream: int = 0) -> BatchSampler:
    """Return the recipe's sampler.

    Args:
        recipe: The recipe.
        labels: The labels it draws by, int64 [n].
        stream: Samplers of different streams draw independently.

    Raises:
        RecipeError: If the labels cannot give such batches, or the sampler needs a head that the recipe lacks.
    """
    batch = recipe.batch
    seed = recipe.seed if stream == 0 else int(np.random.SeedSequence((recipe.seed, stream)).generate_state(1)[0])
    offered = {"labels": labels, "batch_size": batch.size, "samples_per_class": batch.per_class, "seed": seed}
    offered["embedding_size"] = recipe.dim
    sampler: BatchSampler = construct(SAMPLERS, "sampler", batch.sampler, batch.args, offered)
    if not isinstance(sampler, BatchSampler):
        return OtherSampler(sampler, labels, batch.size)
    if hasattr(sampler, "memory") and not recipe.dim:
        raise RecipeError(
            f"the sampler {batch.sampler!r} chooses by embeddings: the recipe needs a head.",
            code="conflicting-settings",
        )
    return sampler


def base_heads(start: bool | str) -> nn.ModuleDict | None:
    """Return the heads of the model that a run starts from; None if it starts from weights without heads."""
    if isinstance(start, bool):
        return None
    try:
        folder = find_model(start)
        card = read_card(folder)
    except ZooError:
        return None  # a folder or a file of weights alone
    return load_network(card, folder).heads if card.heads else None


def create_parts(
    recipe: Recipe, data: Samples, start: Callable[[nn.Module, nn.ModuleDict], None] | None = None
) -> tuple[Network, Any]:
    """Return the recipe's network and method.

    Args:
        recipe: The recipe.
        data: The training samples.
        start: Gives the heads on the trunk other weights than random ones, before the method copies them.

    Raises:
        RecipeError: If they cannot be built or do not fit together.
    """
    trunk = (
        CachedTrunk(data.dim) if isinstance(data, CachedData) else _create_trunk(recipe.backbone, recipe.preprocessing)
    )
    features = feature_count(trunk)
    heads = create_heads(recipe.heads, features)
    if start is not None and heads:
        start(trunk, heads)
    context = MethodContext(trunk, heads, features, data.labels, data.classes, recipe.batch.size, recipe.seed)
    return Network(trunk, heads), create_method(recipe.objective, context)


def _create_trunk(backbone: Backbone, preprocessing: Preprocessing) -> nn.Module:
    with trusted(True):  # the user named the classes, if there are any
        trunk = create_trunk(backbone.architecture, preprocessing.channels, backbone.network_args, backbone.pretrained)
    _check_input(trunk, backbone.architecture, preprocessing)
    size = (2, preprocessing.channels, preprocessing.crop, preprocessing.crop)
    copy_given_weights(trunk, backbone, torch.linspace(-2, 2, math.prod(size)).reshape(size))
    if backbone.pretrained:
        inner = trunk.trunk if isinstance(trunk, CustomNetwork) else trunk
        _check_normalisation(inner, inner_architecture(backbone), preprocessing)
    choose_parts(trunk.trunk if isinstance(trunk, CustomNetwork) else trunk, backbone)
    return trunk


def _check_input(trunk: nn.Module, name: str, preprocessing: Preprocessing) -> None:
    """Check that the trunk takes the recipe's pixels: the message is clearer than that of the first step."""
    crop, channels = preprocessing.crop, preprocessing.channels
    try:
        with torch.no_grad():
            shape = trunk.eval()(torch.zeros(2, channels, crop, crop)).shape
    except (RuntimeError, AssertionError, ValueError) as error:
        raise RecipeError(
            f"{name} does not take images of {crop} x {crop} pixels (preprocessing.crop): {error}",
            code="unsupported-model",
        ) from None
    trunk.train()
    if len(shape) != 2:
        raise RecipeError(
            f"{name} gives features of shape {list(shape)}; backbone.args must pool.",
            code="unsupported-model",
        )


def _check_normalisation(trunk: nn.Module, name: str, ours: Preprocessing) -> None:
    """Check that the recipe normalises pixels as its pretrained weights expect."""
    config = getattr(trunk, "pretrained_cfg", None)
    if not config or len(config["mean"]) != ours.channels:
        return
    if not same_statistics([*ours.mean, *ours.std], [*config["mean"], *config["std"]]):
        raise RecipeError(
            f"the weights of {name} were trained with mean {config['mean']} and standard "
            f"deviation {config['std']}, the recipe has {ours.mean} and {ours.std}. Set preprocessing.mean and .std.",
            code="conflicting-settings",
        )


def fitted_heads(heads: Sequence[Head], end: str, features: Tensor, labels: np.ndarray) -> nn.ModuleDict:
    """Return the heads that replace trained ones, on the device of the features.

    Args:
        heads: Their names and dimensions.
        end: A recipe's `head_end`: "pca" or "lda".
        features: Pooled features of all training samples, float32 [n, f].
        labels: Their classes, int64 [n].
    """
    fitted, values = create_heads(heads, features.shape[1]), features.double().cpu()
    for head in fitted.values():
        linear = cast(nn.Linear, head)
        if end == "lda":
            directions = discriminant_directions(values, torch.from_numpy(labels), linear.out_features)
        else:
            directions = principal_directions(values, linear.out_features)
        set_directions(linear, directions, features.cpu())
    return fitted.to(features.device)
