"""What a student is trained by: any trunk, a head of the teacher's dimension, the teacher's preprocessing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import timm
import torch

from training.api import base_of
from training.data import TrainingData
from training.distilling.student import Student, drafted, settled
from training.frozen.extract import Model
from training.frozen.views import Views
from training.recipe import Recipe
from training.resolving import check_names
from training.run import create_parts
from zoo.models.network import check_architecture


def recipe_for(student: Student, teacher: Model, images: int, views: Views, dataset: str) -> Recipe:
    """The student's recipe, with which `images` images are learnt from.

    Raises `UsageError` or `RecipeError` for a backbone that there is not, and what `drafted` and `settled` raise.
    """
    check_architecture(student.backbone)
    draft = drafted(student, teacher.card, teacher.reference, images, views, dataset)
    recipe = settled(normalised_as_trained(draft), student.settings, teacher.card)
    check_names(recipe)
    return recipe


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
