"""Trunks and heads of the user in recipes: settings, construction, and the weights of given objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from training.construction import class_at, given_object
from training.recipe import Backbone, Recipe
from training.recipes.common import backbone_name
from zoo.errors import RecipeError, UsageError
from zoo.models.places import CUSTOM, is_place

if TYPE_CHECKING:
    from torch import nn


class OwnHead(NamedTuple):
    """The place of a head and the arguments of its constructor."""

    place: str
    args: Mapping[str, Any]


def with_own_network(recipe: Recipe, head: OwnHead | None, stated: Mapping[str, Any]) -> Recipe:
    """Return a recipe whose trunk or head is a class of the user, if it names one.

    Args:
        recipe: The recipe with all settings; its architecture may be a place, "module:Class".
        head: The head, or None.
        stated: The settings of the backbone that were given.

    Raises:
        RecipeError: `unknown-name` if a class cannot be imported; `conflicting-settings` if the recipe has several
            heads, or pretrained weights for such a trunk.
    """
    backbone = recipe.backbone
    trunk_is_own = is_place(backbone.architecture)
    if not trunk_is_own and head is None:
        return recipe
    if head is not None and len(recipe.heads) > 1:
        names = ", ".join(head.name for head in recipe.heads)
        raise RecipeError(
            f"a head of yours takes the place of a single one; {recipe.name} has {names}. Choose another recipe.",
            code="conflicting-settings",
        )
    if trunk_is_own and "pretrained" in stated and backbone.pretrained:
        raise RecipeError(
            "backbone.pretrained does not know the weights of a trunk of yours; give zoo.train the trunk as an object "
            "that holds them.",
            code="conflicting-settings",
        )
    for place in (backbone.architecture, *([head.place] if head else [])):
        if is_place(place):
            class_at(place)  # raises its error before any image is read
    size = recipe.preprocessing.crop
    args = {"trunk": backbone.architecture, "trunk_args": dict(backbone.args), "size": size}
    if head is not None:
        args |= {"head": head.place, "head_args": dict(head.args), "dim": recipe.dim}
    own = dataclasses.replace(
        backbone,
        name=_name(backbone.architecture, head.place if head else None),
        architecture=CUSTOM,
        args=args,
        pretrained=False if trunk_is_own else backbone.pretrained,
    )
    return dataclasses.replace(recipe, backbone=own, heads=() if head is not None else recipe.heads)


def _name(architecture: str, head: str | None) -> str:
    """Return the backbone's name, which says custom and names the classes."""
    words = [f"custom-{architecture.rpartition(':')[2]}" if is_place(architecture) else backbone_name(architecture)]
    return "-".join(words if head is None else [*words, f"custom-{head.rpartition(':')[2]}"])


def inner_architecture(backbone: Backbone) -> str:
    """Return the architecture of a recipe's trunk, of one with a head of the user that of the trunk before it."""
    return str(backbone.args["trunk"]) if backbone.architecture == CUSTOM else backbone.architecture


def copy_given_weights(network: nn.Module, backbone: Backbone) -> None:
    """Give a network that was built from classes the weights of the objects that the user gave.

    Raises:
        UsageError: `invalid-value` if an object is not what its class builds from the recorded arguments.
    """
    for part in ("trunk", "head"):
        given = given_object(str(backbone.args.get(part, "")))
        if given is None:
            continue
        try:
            getattr(network, part).load_state_dict(given.state_dict())
        except RuntimeError as error:
            args = backbone.args.get(f"{part}_args", {})
            raise UsageError(
                f"the {part} {type(given).__name__} cannot be built again from its class and the arguments that it "
                f"keeps as attributes ({args}), so that its model could never be loaded. Keep each argument of the "
                f"constructor as an attribute of the same name. ({' '.join(str(error).split())[:300]})",
                code="invalid-value",
            ) from None
