"""Embeddings of more numbers than directions: of a linear head that is wider than the features that it is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from training.recipe import Recipe
from training.studies.plan import Plan
from training.studies.study import EMBEDDING, FEATURES, RANDOM_HEAD, REDUCED, Measure

Ranks = dict[Measure, dict[str, tuple[int, int]]]
"""By measure of spectral decay and label: the highest rank and the dimension of embeddings whose rank is the lower."""


def is_decay(measure: Measure) -> bool:
    """Whether the measure is made of singular values: those that the rank leaves at 0 decide it, and mean nothing."""
    return measure.metric.startswith("spectral_decay")


def ranks_of(plan: Plan) -> Ranks:
    """Of every measure of spectral decay; arms whose embeddings can fill their dimension are left out."""
    return {measure: _ranks(plan, measure.view) for measure in plan.study.measures if is_decay(measure)}


def _ranks(plan: Plan, view: str) -> dict[str, tuple[int, int]]:
    found = {arm.label: rank_and_dim(plan.recipes(arm), view) for arm in plan.arms}
    return {label: (rank, dim) for label, (rank, dim) in found.items() if rank < dim}


def rank_and_dim(recipes: Sequence[Recipe], view: str = EMBEDDING) -> tuple[int, int]:
    """The highest rank that rows of a view can have, for their networks' widths, and their dimension.

    A head is a linear map with a bias of f features: its rows lie in f + 1 dimensions at most, and scaling each to unit
    length leaves them there. Heads, and models, are scaled one by one: their ranks add up.
    """
    pairs = [pair for recipe in recipes for pair in _parts(recipe, view)]
    return sum(rank for rank, _ in pairs), sum(dim for _, dim in pairs)


def _parts(recipe: Recipe, view: str) -> list[tuple[int, int]]:
    """Rank and dimension of each part of the rows."""
    features = _features(recipe)
    if view == FEATURES or REDUCED.fullmatch(view) or not recipe.heads:
        return [(features, features)]
    if view == RANDOM_HEAD:
        return [(min(features, recipe.heads[0].dim), recipe.heads[0].dim)]
    heads = [head for head in recipe.heads if view in (EMBEDDING, head.name)]
    return [(min(features + 1, head.dim), head.dim) for head in heads]


def _features(recipe: Recipe) -> int:
    backbone = recipe.backbone
    return _width(backbone.architecture, json.dumps(backbone.args, sort_keys=True), recipe.preprocessing.channels)


@cache
def _width(architecture: str, args: str, channels: int) -> int:
    """The pooled features of a trunk, built without memory for its weights."""
    import torch

    from zoo.models.network import create_trunk, feature_count

    with torch.device("meta"):
        return feature_count(create_trunk(architecture, channels, json.loads(args)))
