"""What a student is trained by: any trunk, a head of the teacher's dimension, the teacher's preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import timm
import torch

from training.api import base_of
from training.data import TrainingData
from training.frozen.extract import Model, Views
from training.methods.teacher import check_dims
from training.recipe import Backbone, Batch, Data, Objective, Optimizer, Recipe, Schedule
from training.resolving import check_names
from training.run import create_parts
from training.settings import override
from zoo.cards import Head, Preprocessing
from zoo.errors import RecipeError, UsageError
from zoo.network import check_architecture

SOURCES = {
    "embedding": "Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge Transfer, CVPR",
    "rkd": "Park et al. 2019, Relational Knowledge Distillation, CVPR",
    "similarity": "Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning",
}
BATCH, EPOCHS, LEAST_STEPS = 128, 30, 20
LR, PRETRAINED_LR = 1e-3, 3e-4
"""A trunk that has learnt moves less."""


@dataclass(frozen=True)
class Student:
    """What is to be trained. name: of the new model. backbone: a timm architecture, or one of ours, as conv4.

    loss: a name of `training.transfers`. dim: None: the teacher's. size: of its images in pixels; None: the teacher's.
    pretrained: as in a recipe's backbone. settings: `key=value`, as `--set` takes them.
    """

    name: str
    backbone: str
    loss: str = "embedding"
    dim: int | None = None
    size: int | None = None
    pretrained: bool | str = False
    settings: Sequence[str] = field(default_factory=tuple)
    seed: int = 0


def recipe_for(student: Student, teacher: Model, images: int, views: Views, dataset: str) -> Recipe:
    """The student's recipe, with which `images` images are learnt from.

    Raises `UsageError` or `RecipeError` for a backbone that there is not, sizes that do not fit, a loss that is unknown
    or needs the teacher's dimension, and settings that do not fit.
    """
    card = teacher.card
    if student.dim is not None and student.dim < 1:
        raise UsageError(f"--dim is 1 or more, not {student.dim}.")
    check_architecture(student.backbone)
    batch = min(BATCH, images)
    recipe = Recipe(
        name=student.name,
        method="distilled",
        data=Data(dataset, 1, 0.0, views.side, views.fit),
        backbone=Backbone(student.backbone, student.backbone, {}, student.pretrained),
        heads=(Head("embedding", student.dim or card.dim),),
        preprocessing=resized(card.preprocessing, student.size),
        objective=Objective(
            None,
            method="distillation",
            method_args={"teacher": teacher.reference, "fingerprint": card.fingerprint, "transfer": student.loss},
        ),
        augmentation=views.augmentation,
        batch=Batch(batch, "spc", 1),
        optimizer=Optimizer("adamw", PRETRAINED_LR if student.pretrained else LR, 1e-4),
        schedule=Schedule(EPOCHS, max(LEAST_STEPS, images // batch), "one-cycle"),
        precision="bf16",
        seed=student.seed,
    )
    changed = override(normalised_as_trained(recipe), student.settings)
    if changed.objective.method != "distillation":
        raise RecipeError(f"a student is trained by the method 'distillation', not by {changed.objective.method!r}.")
    if changed.preprocessing.mode != card.preprocessing.mode:
        raise RecipeError(
            f"preprocessing.mode is {changed.preprocessing.mode!r}; the teacher {card.name} takes "
            f"{card.preprocessing.mode!r}, and both are shown the same views."
        )
    check_names(changed)
    loss = changed.objective.method_args["transfer"]
    if changed.dim:  # without a head it is known when the trunk is there
        check_dims(loss, changed.dim, card)
    return replace(changed, sources=(SOURCES[loss],))


def resized(how: Preprocessing, size: int | None) -> Preprocessing:
    """The preprocessing for images of `size` pixels, of which the central crop shows as much."""
    if size is None:
        return how
    if not 1 <= size <= 4096:
        raise UsageError(f"--size is a number of pixels from 1 to 4096, not {size}.")
    return replace(how, crop=size, resize=max(size, round(size * how.resize / how.crop)))


def normalised_as_trained(recipe: Recipe) -> Recipe:
    """With the mean and standard deviation that the student's weights were trained with, where they are known."""
    base = base_of(recipe)
    values: Any = None
    if base is not None:
        values = base.preprocessing.mean, base.preprocessing.std
    elif recipe.backbone.pretrained is True:
        known = timm.models.get_pretrained_cfg(recipe.backbone.architecture)
        values = (tuple(known.mean), tuple(known.std)) if known else None
    if values is None or len(values[0]) != recipe.preprocessing.channels:
        return recipe
    return replace(recipe, preprocessing=replace(recipe.preprocessing, mean=values[0], std=values[1]))


def check_parts(recipe: Recipe, images: int) -> None:
    """Raise now, and not after hours of reading images, what building the student and its method would raise."""
    create_parts(recipe, TrainingData(torch.empty(0), np.arange(images), images, 1, None, []))
