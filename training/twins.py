"""The methods that finetuning can take: those that have a small twin among the recipes."""

from __future__ import annotations

from training.recipe import Recipe
from training.recipes import RECIPES
from zoo.errors import UsageError, nearest

TWIN = "-conv4-cifar100"


def methods() -> list[str]:
    """The short names of the methods that can be chosen."""
    return [name.removesuffix(TWIN) for name in RECIPES if name.endswith(TWIN)]


def twin_of(method: str) -> Recipe:
    """The method's small twin. Raises `UsageError` with the nearest names, and for an ensemble."""
    known = methods()
    if method not in known:
        raise UsageError(f"there is no method {method!r}.{nearest(method, known)} Known: {', '.join(known)}.")
    twin = RECIPES[method + TWIN]()
    if not isinstance(twin, Recipe):
        raise UsageError(f"{method} is an ensemble; choose a single method, as margin, ms or diva.")
    return twin
