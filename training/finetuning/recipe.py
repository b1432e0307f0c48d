"""What a person's own pictures are trained by: a small twin's method on the trunk of a model that is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from training.frozen.extract import Model
from training.frozen.views import Views
from training.recipe import Backbone, Batch, Data, Recipe, Schedule
from training.resolving import check_names, custom
from training.settings import override
from training.twins import twin_of
from zoo.data.dataset import Dataset
from zoo.models.network import load_network

EPOCHS, HEAD_EPOCHS, STEPS = 10, 20, 200
LR, HEAD_LR = 1e-4, 3e-3
"""A trunk that has learnt moves little; heads begin anew."""


def recipe_for(
    method: str,
    model: Model,
    train: Dataset,
    views: Views,
    name: str,
    settings: Iterable[str] = (),
    seed: int = 0,
    head_only: bool = False,
) -> Recipe:
    """The recipe of a small twin with the model's trunk, preprocessing and augmentation, cut to the size of the data.

    head_only: for heads on cached features, which learn faster and for longer. Raises `UsageError` for an unknown
    method and `RecipeError` for settings that do not fit.
    """
    twin = twin_of(method)
    card = model.card
    start = Backbone(card.backbone, card.architecture, card.architecture_args, model.reference)
    batch = batch_for(train.labels)
    epochs, lr = (HEAD_EPOCHS, HEAD_LR) if head_only else (EPOCHS, LR)
    recipe = replace(
        twin,
        name=name,
        data=Data("folder", 1, 0.0, views.side, views.fit),
        backbone=start if head_only else _norm_frozen(start, model),
        preprocessing=card.preprocessing,
        augmentation=views.augmentation,
        batch=batch,
        optimizer=replace(twin.optimizer, lr=lr),
        schedule=Schedule(epochs, min(STEPS, max(10, len(train) // batch.size)), "one-cycle"),
        seed=seed,
    )
    changed = override(recipe, settings)
    check_names(changed)
    return custom(changed, twin)


def batch_for(labels: np.ndarray) -> Batch:
    """Batches of at most 128 images: four of a class, eight of fewer than eight classes, if any has so many."""
    sizes = np.unique(labels, return_counts=True)[1]
    classes = len(sizes)
    per_class = min(4 if classes >= 8 else 8, int(sizes.max()))
    return Batch(per_class * min(classes, 128 // per_class), "spc", per_class)


def _norm_frozen(backbone: Backbone, model: Model) -> Backbone:
    """Batch norms of a trunk that has them stay as they are: a few pictures say little of statistics."""
    trunk = load_network(model.card, model.folder).trunk
    if not any(isinstance(module, _BatchNorm) for module in trunk.modules()):
        return backbone
    return replace(backbone, freeze_norm="all")
