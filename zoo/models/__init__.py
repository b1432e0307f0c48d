"""Models: cards, folders, networks, and what loads and verifies them; and the recipes by which models can be trained.

The recipes are of a package above this one. The front door, which knows both, says where they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

Recipes = Mapping[str, Mapping[str, Any]]
"""What `zoo list` and `zoo info` show of each recipe, by name."""

_sources: list[Callable[[], Recipes]] = []


def recipes_from(source: Callable[[], Recipes]) -> None:
    """Take the recipes from a function, which is called when the first one is needed."""
    _sources[:] = [source]


def recipes() -> Recipes:
    """Return the key facts of every recipe by name."""
    return _sources[0]()
