"""--set key=value; resolve a recipe.

Changing a recipe by settings: `optimizer.lr=1e-5`, as `zoo train --set` takes them.

From a recipe's name and settings to the recipe. Torch is loaded last, so that a typing error is answered at once.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from training.recipe import EnsembleRecipe, Objective, Recipe
from training.recipes import RECIPES, standard_recipe
from training.registry import check_arguments, with_defaults
from zoo import data
from zoo.errors import CardError, RecipeError, nearest
from zoo.models.card import Head

ARGUMENTS = {
    "loss": "loss_args",
    "miner": "miner_args",
    "method": "method_args",
    "sampler": "args",
    "architecture": "args",
}
"""Another choice of the first starts from its own defaults: arguments of the old one would not fit it."""

FIELD_KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "8"),
    float: ("a number", "0.001"),
    bool: ("true or false", "true"),
    (tuple, int): ("whole numbers in brackets", "[10,20]"),
    (tuple, float): ("numbers in brackets", "[0.2,1.0]"),
    (tuple, str): ("texts in brackets", '["a","b"]'),
    (tuple, Head): ("heads in brackets", '[{"name":"first","dim":64}]'),
}
"""The kinds of fields, each in words and with an example."""


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with `key=value` settings applied, all at once: they may be valid only together.

    A value is read as JSON where its field is not text. Raises `RecipeError` for an unknown key, naming the nearest,
    and for a value of another kind than the field's or out of its range. Another loss, miner, sampler or architecture
    drops the arguments of the recipe's.
    """
    tree: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise RecipeError(f"{setting!r} is no setting; write key=value, as in optimizer.lr=1e-5.")
        *groups, last = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
            if not isinstance(branch, dict):
                raise RecipeError(f"{key}: {group!r} is set as a whole already.")
        branch[last] = text
    if "name" in tree.get("backbone", {}) and "architecture" not in tree["backbone"]:
        raise RecipeError(
            "backbone.name is only the short form in model names; set backbone.architecture, as in "
            "backbone.architecture=resnet50."
        )
    try:
        changed: Recipe = _apply(recipe, tree, "")
    except CardError as error:
        raise RecipeError(str(error)) from None
    return changed


def _apply(value: Any, tree: Mapping[str, Any], prefix: str) -> Any:
    """The dataclass `value` with the branches of the tree applied to its fields."""
    hints = typing.get_type_hints(type(value))
    changes = {}
    for name, arguments in ARGUMENTS.items():
        if name in tree and arguments in hints and tree[name] != getattr(value, name):
            value = dataclasses.replace(value, **{arguments: {}})
    for name, branch in tree.items():
        key = prefix + name
        if name not in hints:
            near = nearest(key, [prefix + hint for hint in hints]) or nearest(name, _keys(value))
            raise RecipeError(f"there is no setting {key!r}.{near}", code="unknown-setting")
        changes[name] = _field(getattr(value, name), hints[name], branch, key)
    return dataclasses.replace(value, **changes)


def _field(old: Any, hint: Any, branch: Any, key: str) -> Any:
    if dataclasses.is_dataclass(old):
        if isinstance(branch, dict):
            return _apply(old, branch, f"{key}.")
        inner = ", ".join(f"{key}.{name}" for name in typing.get_type_hints(type(old)))
        raise RecipeError(f"{key} is a group; set one of {inner}.")
    if not isinstance(branch, dict):
        return _parse(branch, hint, key)
    if isinstance(old, tuple):
        name, now = next(iter(branch)), json.dumps(old, default=dataclasses.asdict)
        raise RecipeError(f"{key}.{name} is no setting: {key} is a list, which is set as a whole, as {key}={now}")
    for name, text in branch.items():
        if not isinstance(old, Mapping) or isinstance(text, dict):
            raise RecipeError(f"{key}.{name} is no setting: {key} is a plain value or holds only such.")
    return {**old, **{name: _parse(text, Any, f"{key}.{name}") for name, text in branch.items()}}


def _keys(value: Any) -> list[str]:
    """The names of all settings below a value, without those of the groups."""
    if not dataclasses.is_dataclass(value):
        return []
    names = list(typing.get_type_hints(type(value)))
    return names + [key for name in names for key in _keys(getattr(value, name))]


def _parse(text: str, hint: Any, key: str) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text in ("none", "null") and type(None) in allowed:
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if str in allowed:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text  # free-form arguments may hold words
    if hint is Any:
        return value
    if float in allowed and _is_number(value):
        return float(value)
    if int in allowed and _is_number(value) and isinstance(value, int):
        return value
    return _parse_composite(value, hint, key, text)


def _parse_composite(value: Any, hint: Any, key: str, text: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list):
        inner = typing.get_args(hint)[0]
        if inner is Head and all(_is_head(v) for v in value):
            return tuple(Head(**v) for v in value)
        if inner is float and all(_is_number(v) for v in value):
            return tuple(float(v) for v in value)
        if inner is int and all(isinstance(v, int) and _is_number(v) for v in value):
            return tuple(value)
        if inner is str and all(isinstance(v, str) for v in value):
            return tuple(value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return value
    expected, example = _wanted(hint)
    raise RecipeError(f"{key} must be {expected}, as in {key}={example}, not {text!r}.")


def _wanted(hint: Any) -> tuple[str, str]:
    """What a field takes, in words, and an example."""
    if typing.get_origin(hint) is tuple:
        return FIELD_KINDS[tuple, typing.get_args(hint)[0]]
    return FIELD_KINDS.get(hint, ("a JSON object", '{"a":1.2}'))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_head(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "dim"}
        and isinstance(value["name"], str)
        and _is_number(value["dim"])
        and isinstance(value["dim"], int)
    )


def resolve(
    name: str, settings: Iterable[str] = (), seed: int | None = None, rename: str | None = None
) -> Recipe | EnsembleRecipe:
    """The recipe of a name with `key=value` settings applied, in an ensemble to every member.

    The seeds of an ensemble's members follow one another. Raises `RecipeError` with the nearest name or key, of names
    and settings before torch is loaded.
    """
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}.{nearest(name, RECIPES)} All recipes: zoo list")
    made, settings = standard_recipe(name), list(settings)
    if isinstance(made, Recipe):
        recipe = _changed(made, settings)
        seed = recipe.seed if seed is None else seed
        return dataclasses.replace(recipe, seed=seed, name=recipe.name if rename is None else rename)
    members = [
        dataclasses.replace(
            _changed(member, settings),
            seed=member.seed + (seed or 0) * len(made.members),
            name=f"{rename or made.name}.{i}",
        )
        for i, member in enumerate(made.members)
    ]
    return dataclasses.replace(made, name=rename or made.name, members=tuple(members))


def _changed(recipe: Recipe, settings: list[str]) -> Recipe:
    changed = override(recipe, settings)
    check_names(changed)
    return changed


def with_custom_name(made: Recipe | EnsembleRecipe, name: str) -> Recipe | EnsembleRecipe:
    """Return what was made of the recipe `name`, each changed objective named by `custom`."""
    known = standard_recipe(name)
    if isinstance(made, EnsembleRecipe) and isinstance(known, EnsembleRecipe):
        pairs = zip(made.members, known.members, strict=True)
        return dataclasses.replace(made, members=tuple(name_custom(*pair) for pair in pairs))
    return name_custom(made, known) if isinstance(made, Recipe) and isinstance(known, Recipe) else made


def name_custom(recipe: Recipe, standard: Recipe) -> Recipe:
    """Name a recipe whose loss, miner or method is not its standard's: `custom-<loss>`, or `custom-<method>`.

    The papers of the standard are not the sources of such an objective, so it has none. recipe.json records the
    standard and every changed setting (`origin_facts`).

    Args:
        recipe: what was made of the standard.
        standard: the recipe that it was made of.

    Returns:
        The recipe; a method or sources that were set by name (`--set method=...`) stay.
    """
    new, old = recipe.objective, standard.objective
    if (new.method, new.loss, _miners(new)) == (old.method, old.loss, _miners(old)):
        return recipe
    method = f"custom-{new.loss if new.method == 'plain' else new.method}"
    return dataclasses.replace(
        recipe,
        method=method if recipe.method == standard.method else recipe.method,
        sources=() if recipe.sources == standard.sources else recipe.sources,
    )


def _miners(objective: Objective) -> tuple[str | None, str | None]:
    """Return the miner and the one that rho wraps (by default distance-weighted)."""
    wrapped = objective.miner_args.get("miner", "distance-weighted") if objective.miner == "rho" else None
    return objective.miner, wrapped


def with_explicit_defaults(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of its method, loss, miner and sampler written out: equal for equal models."""
    from training.losses import LOSSES
    from training.methods import METHODS
    from training.miners import MINERS
    from training.samplers import SAMPLERS

    objective, batch = recipe.objective, recipe.batch
    told = dataclasses.replace(
        objective,
        method_args=with_defaults(METHODS, objective.method, objective.method_args),
        loss_args=with_defaults(LOSSES, objective.loss, objective.loss_args),
        miner_args=with_defaults(MINERS, objective.miner, objective.miner_args),
    )
    drawn = dataclasses.replace(batch, args=with_defaults(SAMPLERS, batch.sampler, batch.args))
    return dataclasses.replace(recipe, objective=told, batch=drawn)


def check_names(recipe: Recipe) -> None:
    """Raise `RecipeError` or `DatasetError`, before any image is read, for what tables and data sets do not know,
    for heads that no network can have and for batches that a task cannot learn from.
    """
    data.check_dataset_name(recipe.data.dataset)
    from training.losses import LOSSES
    from training.methods import METHODS
    from training.miners import MINERS
    from training.optim import OPTIMIZERS
    from training.samplers import SAMPLERS
    from zoo.models.network import check_heads

    objective, batch = recipe.objective, recipe.batch
    check_arguments(METHODS, "method", objective.method, objective.method_args)
    check_arguments(SAMPLERS, "sampler", batch.sampler, batch.args)
    check_arguments(OPTIMIZERS, "optimizer", recipe.optimizer.name, {})
    if objective.loss is not None:
        check_arguments(LOSSES, "loss", objective.loss, objective.loss_args)
    if objective.miner is not None:
        known = {key: value for key, value in objective.miner_args.items() if key != "miner_args"}
        check_arguments(MINERS, "miner", objective.miner, known)
    check_heads(recipe.heads)
    _check_intra(recipe)


def _check_intra(recipe: Recipe) -> None:
    """Raise `RecipeError` where DiVA's task within classes would never see three samples of one."""
    per_class, heads = recipe.batch.per_class, [head.name for head in recipe.heads]
    if recipe.objective.method == "diva" and "intra" in heads and per_class < 3:
        raise RecipeError(
            f"the task 'intra' learns from three samples of a class, and batch.per_class is {per_class}; set it to 3 "
            "or more, or leave that head out."
        )
