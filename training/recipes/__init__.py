"""Recipes by model name: `<method>-<backbone>-<data set>`. Each is a function that returns the frozen value."""

from __future__ import annotations

from collections.abc import Callable

from training.recipe import Recipe
from training.recipes.small import margin_conv4_glyphs, margin_conv4_omniglot

RECIPES: dict[str, Callable[[], Recipe]] = {
    "margin-conv4-glyphs": margin_conv4_glyphs,
    "margin-conv4-omniglot": margin_conv4_omniglot,
}


def catalogue() -> dict[str, dict[str, object]]:
    """What `zoo list` shows of each recipe: the content of `zoo/recipes.json`."""
    recipes = {name: make() for name, make in sorted(RECIPES.items())}
    return {
        name: {"dim": r.dim, "method": r.method, "backbone": r.backbone.name, "dataset": r.data.dataset}
        for name, r in recipes.items()
    }
