"""Recipes by model name: `<method>-<backbone>-<data set>`. Functions make them; none is made before it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from training.recipe import Ensemble, Recipe
from training.recipes import diva, group, reality, revisiting, sharing, small
from training.recipes.summary import summary

RECIPES: dict[str, Callable[[], Recipe | Ensemble]] = {
    name: make for paper in (revisiting, sharing, diva, group, reality, small) for name, make in paper.recipes()
}

FEATURES = {"r50": 2048, "gn": 1024, "ibn": 1024, "d121": 1024, "d161": 2208, "d169": 1664, "d201": 1920}
"""Pooled features of the backbones, which are the embedding of a recipe without heads."""


@cache
def standard_recipe(name: str) -> Recipe | Ensemble:
    """Return the recipe or the ensemble of a name in `RECIPES`, without settings; it is built once."""
    return RECIPES[name]()


def catalogue() -> dict[str, dict[str, object]]:
    """What `zoo list` shows of each recipe: the content of `zoo/models/recipes.json`."""
    recipes = {name: make() for name, make in sorted(RECIPES.items())}
    names = {
        name: {"dim": dim_of(r), "method": r.method, "backbone": r.backbone.name, "dataset": r.data.dataset}
        for name, r in recipes.items()
    }
    return {name: {**names[name], **summary(recipe)} for name, recipe in recipes.items()}


def dim_of(recipe: Recipe | Ensemble) -> int:
    """The dimension of the embedding."""
    if isinstance(recipe, Ensemble):
        return sum(dim_of(member) for member in recipe.members)
    return recipe.dim or FEATURES.get(recipe.backbone.name) or int(recipe.backbone.args["widths"][-1])
