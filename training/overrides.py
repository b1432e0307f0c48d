"""Settings: a recipe's name and `--set key=value` give a recipe. Torch is loaded last, after simple checks."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from training.construction import check_arguments, check_name
from training.definitions import WRAPPED
from training.losses import LOSSES
from training.methods import METHODS
from training.miners import MINERS
from training.own_network import OwnHead, inner_architecture, with_own_network
from training.recipe import OPTIMIZERS, REMARKS, EnsembleRecipe, Objective, Recipe
from training.recipes import RECIPES, standard_recipe
from training.recipes.common import ARCHITECTURES, DIRECTIONS, backbone_name, with_head_end
from training.samplers import SAMPLERS
from zoo import data
from zoo.data.preprocessing import same_statistics
from zoo.errors import CardError, RecipeError, ZooError, closest, nearest, unknown
from zoo.evaluation.split import LEAST_TO_SPLIT
from zoo.models.card import Head, setting_text
from zoo.models.places import places_in

ARGUMENTS = {
    "loss": "loss_args",
    "miner": "miner_args",
    "method": "method_args",
    "sampler": "args",
    "architecture": "args",
}
"""Choice -> its arguments, which a new choice resets, since the arguments of the old one do not fit it."""

SQUARED = "objective.loss_args.squared"

IDENTITY_KEYS = ("name", "method", "seed", *REMARKS, "backbone.name", "definitions")
"""Keys that do not count as changed settings: papers print means over seeds, and the other keys are no settings."""

CLASSES_OF = ("objective", "head", "backbone", "batch.sampler", "batch.args")
"""Beginnings of keys whose values name classes or their arguments; those of our own recipes fit."""

IMPORTED = ("objective", "head", "head_args", "backbone", "batch", "optimizer")
"""Groups of settings whose texts of the form "module:Class" are imported, except the places of weights."""

WEIGHTS = "pretrained"

FIELD_KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "8"),
    float: ("a number", "0.001"),
    bool: ("true or false", "true"),
    (tuple, int): ("whole numbers in brackets", "[10,20]"),
    (tuple, float): ("numbers in brackets", "[0.2,1.0]"),
    (tuple, str): ("texts in brackets", '["a","b"]'),
    (tuple, Head): ("heads in brackets", '[{"name":"first","dim":64}]'),
}
"""Type of a field -> its description and an example."""


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Return the recipe with `key=value` settings applied, all at once: they may be valid only together.

    Another loss, miner, sampler or architecture resets its arguments. A departure that names a setting, as
    "(key=value)", is left out if the recipe has another value.

    Args:
        recipe: The recipe.
        settings: Values are read as JSON, except those of text fields.

    Raises:
        RecipeError: If a key is unknown (the message names the nearest), or a value has the wrong type or range.
    """
    tree: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise RecipeError(
                f"{setting!r} is not a setting; write key=value, as in optimizer.lr=1e-5.", code="unknown-setting"
            )
        *groups, last = ("backbone.architecture" if key == "backbone" else key).split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
            if not isinstance(branch, dict):
                raise RecipeError(f"{key}: {group!r} is set as a whole already.", code="conflicting-settings")
        branch[last] = text
    head = _own_head(tree.pop("head", None), tree.pop("head_args", {}))
    if "name" in tree.get("backbone", {}) and "architecture" not in tree["backbone"]:
        raise RecipeError(
            "backbone.name is only the short form in model names; set backbone.architecture, as in "
            "backbone.architecture=resnet50.",
            code="missing-value",
        )
    if "as_published" in tree:
        raise RecipeError(
            "as_published is not a setting; --as-published selects the settings of the authors' published code.",
            code="unknown-setting",
        )
    try:
        changed: Recipe = _apply(recipe, tree, "")
    except CardError as error:
        raise RecipeError(str(error), code=error.code) from None
    if "method" in tree:
        _check_method_name(changed.method, recipe.method)
    facts = changed.to_json()
    changed = dataclasses.replace(
        changed, departures=tuple(each for each in changed.departures if _agrees(each, facts))
    )
    changed = with_head_end(changed, changed.head_end)
    changed = _with_backbone_name(changed, recipe, "name" in tree.get("backbone", {}))
    return with_own_network(changed, head, tree.get("backbone", {}))


def _own_head(place: Any, args: Any) -> OwnHead | None:
    """Return the head that the settings `head` and `head_args` name; a recipe has no such fields."""
    if place is None and args:
        raise RecipeError("head_args are set, but no head that takes them.", code="option-without-effect")
    return None if place is None else OwnHead(place, _field({}, Mapping[str, Any], args, "head_args") if args else {})


_NAMED = re.compile(r"\(([\w.]+)=([^\s()]+)\)")
"""A setting that a departure names."""


def _agrees(departure: str, facts: Mapping[str, Any]) -> bool:
    """Return whether a recipe, as JSON, has the values that a departure names."""
    return all(_text_at(facts, key) == value for key, value in _NAMED.findall(departure))


def _text_at(facts: Any, key: str) -> str | None:
    """Return the value of a setting as text; None if it is not set."""
    for part in key.split("."):
        if not isinstance(facts, Mapping) or part not in facts:
            return None
        facts = facts[part]
    return setting_text(facts)


def _check_method_name(method: str, before: str) -> None:
    """Refuse the name of a method of recipes, in any spelling, which a change of the objective alone does not make."""
    if method != before and (known := closest(method, _methods(), cutoff=1)):
        raise RecipeError(
            f"method={method} is the name of recipes' method. Train one of them (zoo list --recipes --method "
            f"{known[0]}), or choose a name of your own.",
            code="unknown-name",
        )


def check_head_in_name(recipe: Recipe | EnsembleRecipe) -> None:
    """Refuse a model's name that begins with a method and has "lda" or "pca" though the model does not, or lacks it."""
    first, parts = recipe if isinstance(recipe, Recipe) else recipe.members[0], recipe.name.split("-")
    ends = [end for end in DIRECTIONS if end == first.head_end]
    if [part for part in parts if part in DIRECTIONS] == ends or not recipe.name.startswith(
        tuple(f"{method}-" for method in _methods())
    ):
        return
    fitting = "-".join([*(part for part in parts if part not in DIRECTIONS), *ends])
    how = f"Train the recipe {fitting}" if fitting in RECIPES else f"Name it with --as {fitting} (name= in Python)"
    raise RecipeError(
        f"{recipe.name} names other heads than head_end={first.head_end} gives. {how}, or choose a name of your own.",
        code="unknown-name",
    )


def _methods() -> set[str]:
    return {standard_recipe(name).method for name in RECIPES}


def _with_backbone_name(recipe: Recipe, before: Recipe, is_named: bool) -> Recipe:
    """Return the recipe with the backbone's name that fits its architecture.

    Raises:
        RecipeError: If the name was set to that of another architecture.
    """
    backbone = recipe.backbone
    if not is_named and backbone.architecture != before.backbone.architecture:
        return dataclasses.replace(
            recipe, backbone=dataclasses.replace(backbone, name=backbone_name(backbone.architecture))
        )
    if is_named and backbone.name in ARCHITECTURES and backbone.name != backbone_name(backbone.architecture):
        raise RecipeError(
            f"backbone.name={backbone.name} is the name of {ARCHITECTURES[backbone.name]}, and the architecture is "
            f"{backbone.architecture}. Leave the name out: it follows from the architecture.",
            code="unknown-name",
        )
    return recipe


def _apply(value: Any, tree: Mapping[str, Any], prefix: str) -> Any:
    """Apply the branches of the tree to the fields of a dataclass."""
    hints = typing.get_type_hints(type(value))
    changes = {}
    for name, arguments in ARGUMENTS.items():
        if name in tree and arguments in hints and tree[name] != getattr(value, name):
            value = dataclasses.replace(value, **{arguments: {}})
    errors: list[RecipeError] = []
    for name, branch in tree.items():
        key = prefix + name
        with _collected(errors):
            if name not in hints:
                near = _nearest_setting(name, prefix, value)
                raise RecipeError(f"there is no setting {key!r}.{near}", code="unknown-setting")
            changes[name] = _field(getattr(value, name), hints[name], branch, key)
    _raise_all(errors)
    return dataclasses.replace(value, **changes)


@contextmanager
def _collected(errors: list[RecipeError]) -> Iterator[None]:
    """Append an error of the block to `errors` instead of raising it."""
    try:
        yield
    except RecipeError as error:
        errors.append(error)


def _raise_all(errors: Sequence[ZooError]) -> None:
    """Raise the errors, if there are any, as one with all their texts and the code of the first."""
    if errors:
        raise RecipeError(" ".join(map(str, errors)), code=errors[0].code)


def _field(old: Any, hint: Any, branch: Any, key: str) -> Any:
    if dataclasses.is_dataclass(old):
        if isinstance(branch, dict):
            return _apply(old, branch, f"{key}.")
        inner = ", ".join(f"{key}.{name}" for name in typing.get_type_hints(type(old)))
        raise RecipeError(f"{key} is a group; set one of {inner}.", code="invalid-value")
    if not isinstance(branch, dict):
        return _parse(branch, hint, key)
    if isinstance(old, tuple):
        name, now = next(iter(branch)), json.dumps(old, default=dataclasses.asdict)
        raise RecipeError(
            f"{key}.{name} is not a setting: {key} is a list, which is set as a whole, as {key}={now}",
            code="unknown-setting",
        )
    for name, text in branch.items():
        if not isinstance(old, Mapping) or isinstance(text, dict):
            raise RecipeError(
                f"{key}.{name} is not a setting: {key} is a plain value or holds only plain values.",
                code="unknown-setting",
            )
    return {**old, **{name: _parse(text, Any, f"{key}.{name}") for name, text in branch.items()}}


def _nearest_setting(name: str, prefix: str, value: Any) -> str:
    """Return the hint with the settings that end as the name does, or else with the nearest ones, in full."""
    keys = list(_keys(value, prefix))
    if exact := [key for key in keys if key.rpartition(".")[2] == name]:
        return f" Did you mean {' or '.join(map(repr, exact))}?"
    level = [key for key in keys if key.count(".") == prefix.count(".")]
    return nearest(f"{prefix}{name}", level) or nearest(name, keys)


def _keys(value: Any, prefix: str) -> Iterator[str]:
    """Yield the full names of all settings below a value, with the groups."""
    for name in typing.get_type_hints(type(value)) if dataclasses.is_dataclass(value) else ():
        yield f"{prefix}{name}"
        yield from _keys(getattr(value, name), f"{prefix}{name}.")


_WITHOUT_ZERO = re.compile(r"^([+-]?)\.(?=\d)")
"""The beginning of a number such as .3, which JSON would write as 0.3."""


def _parse(text: str, hint: Any, key: str) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text == "none" and (hint is Any or type(None) in allowed):
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if str in allowed:
        return text
    try:
        value = json.loads(_WITHOUT_ZERO.sub(r"\g<1>0.", text))
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
    expected, example = _describe(hint)
    raise RecipeError(f"{key} must be {expected}, as in {key}={example}, not {text!r}.", code="invalid-value")


def _describe(hint: Any) -> tuple[str, str]:
    """Return a description of a field's values and an example."""
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
    """Return the recipe of a name with `key=value` settings applied; for an ensemble, to every member.

    Names and settings are checked before torch is loaded.

    Args:
        name: A name of `RECIPES`.
        settings: The settings, see `override`.
        seed: The seed (default: the recipe's); the seeds of an ensemble's members follow one another.
        rename: The name of the new model (default: the recipe's).

    Raises:
        RecipeError: If the name, a key or a value is wrong; the message names the nearest.
    """
    settings = list(settings)
    _check_recipe_name(name, settings)
    standard = standard_recipe(name)
    if isinstance(standard, Recipe):
        recipe = _override_and_check(standard, settings)
        seed = recipe.seed if seed is None else seed
        return dataclasses.replace(recipe, seed=seed, name=recipe.name if rename is None else rename)
    members = [
        dataclasses.replace(
            _override_and_check(member, settings),
            seed=member.seed + (seed or 0) * len(standard.members),
            name=f"{rename or standard.name}.{i}",
        )
        for i, member in enumerate(standard.members)
    ]
    return dataclasses.replace(standard, name=rename or standard.name, members=tuple(members))


def _check_recipe_name(name: str, settings: list[str]) -> None:
    """Raise `RecipeError` for an unknown recipe, with the mistakes in settings, judged by the nearest one."""
    if name in RECIPES:
        return
    error = unknown("recipe", name, RECIPES, "All recipes: zoo list --recipes.", RecipeError)
    similar = standard_recipe(closest(name, RECIPES, 1, 0)[0])
    _raise_all([error, *_setting_errors(similar if isinstance(similar, Recipe) else similar.members[0], settings)[1]])


def _override_and_check(recipe: Recipe, settings: list[str]) -> Recipe:
    changed, errors = _setting_errors(recipe, settings)
    _raise_all(errors)
    if any(key.startswith(CLASSES_OF) for key in setting_keys(settings)):
        check_names(changed)  # loads torch
    else:
        data.check_dataset_name(changed.data.dataset)
        _check_intra(changed)
    return changed


def _setting_errors(recipe: Recipe, settings: list[str]) -> tuple[Recipe, list[RecipeError]]:
    """Return the recipe with the settings applied, or with those that are valid alone, and all wrong settings."""
    errors: list[RecipeError] = []
    with _collected(errors):
        implied = [*rho_settings(recipe, settings), *_stated_settings(recipe, settings)]
        recipe = override(recipe, [*settings, *implied])
    for setting in settings if errors else ():
        with suppress(RecipeError):
            recipe = override(recipe, [setting])
    return recipe, [*errors, *_name_errors(recipe)]


def rho_settings(recipe: Recipe, settings: Sequence[str]) -> list[str]:
    """Return the distance of a triplet loss that fits a changed form of rho, unless it is given too.

    The published form (a, a, p) needs squared distances (`training.recipes.common.regularised`), the paper's exchange
    (a, p, p) has those of the paper's triplet loss, which are not squared.
    """
    if {setting.partition("=")[0].strip() for setting in settings} & {SQUARED, "objective.loss_args"}:
        return []
    parts = recipe.objective, override(recipe, settings).objective
    if any((part.miner, part.loss) != ("rho", "triplet") for part in parts):
        return []
    before, after = (bool(part.miner_args.get("published")) for part in parts)
    return [] if before == after else [f"{SQUARED}={json.dumps(after)}"]


def _stated_settings(recipe: Recipe, settings: Sequence[str]) -> list[str]:
    """Return the settings that weights of a `backbone.pretrained` setting state: architecture, mean and deviation.

    Args:
        recipe: The recipe.
        settings: The settings that are given; they come before the returned ones.

    Raises:
        RecipeError: `weights-mismatch` for all given settings that contradict what the weights state, or the error of
            weights that are not there.
    """
    keys = {setting.partition("=")[0].strip() for setting in settings}
    if "backbone.pretrained" not in keys:
        return []
    from zoo.models.pretrained.weights import check_place, stated_model

    given = override(recipe, settings)
    check_place(given.backbone.pretrained)
    model = stated_model(inner_architecture(given.backbone), given.backbone.pretrained)
    if model is None:
        return []
    other: dict[str, tuple[Any, Any]] = {}
    named = inner_architecture(given.backbone)
    same = named.partition(".")[0] == model.architecture.partition(".")[0]
    if not same:
        other["backbone.architecture"] = named, model.architecture
    images, own = model.preprocessing, given.preprocessing
    for key in ("mean", "std") if images.channels == own.channels else ():
        ours, theirs = getattr(own, key), getattr(images, key)
        if not same_statistics(ours, theirs):
            other[f"preprocessing.{key}"] = list(ours), list(theirs)
    if wrong := [f"{key}={ours}, they state {theirs}" for key, (ours, theirs) in other.items() if key in keys]:
        raise RecipeError(
            f"the weights {given.backbone.pretrained!r} contradict {'; '.join(wrong)}. Leave these settings out.",
            code="weights-mismatch",
        )
    args = {**(given.backbone.args if same else {}), **model.args}
    stated = [f"{key}={theirs}" for key, (_, theirs) in other.items()]
    if not any(key.startswith("backbone.args") for key in keys) and args != dict(given.backbone.args):
        stated.append(f"backbone.args={json.dumps(args)}")
    return stated


def with_custom_name(recipe: Recipe | EnsembleRecipe, name: str) -> Recipe | EnsembleRecipe:
    """Return a recipe that was made from the recipe `name`, each changed objective named by `name_custom`."""
    standard = standard_recipe(name)
    if isinstance(recipe, EnsembleRecipe) and isinstance(standard, EnsembleRecipe):
        pairs = zip(recipe.members, standard.members, strict=True)
        return dataclasses.replace(recipe, members=tuple(name_custom(*pair) for pair in pairs))
    if isinstance(recipe, Recipe) and isinstance(standard, Recipe):
        return name_custom(recipe, standard)
    return recipe


def name_custom(recipe: Recipe, standard: Recipe) -> Recipe:
    """Name a recipe whose loss, miner or method is not its standard's: `custom-<loss>`, or `custom-<method>`.

    The papers of the standard are not the sources of such an objective, so it has none. recipe.json records the
    standard and every changed setting (`origin_facts`).

    Args:
        recipe: The recipe that was made from the standard.
        standard: The recipe it was made from.

    Returns:
        The recipe; a method or sources that were set by name (`--set method=...`) stay.
    """
    new, old = recipe.objective, standard.objective
    if (new.method, new.loss, _miners(new)) == (old.method, old.loss, _miners(old)):
        return recipe
    named = new.loss if new.method == "plain" else new.method
    method = f"custom-{str(named).rpartition(':')[2]}"
    return dataclasses.replace(
        recipe,
        method=method if recipe.method == standard.method else recipe.method,
        sources=() if recipe.sources == standard.sources else recipe.sources,
    )


def _miners(objective: Objective) -> tuple[str | None, str | None]:
    """Return the miner and the one that rho wraps (by default distance-weighted)."""
    wrapped = objective.miner_args.get("miner", WRAPPED) if objective.miner == "rho" else None
    return objective.miner, wrapped


def changed_settings(recipe: Recipe | EnsembleRecipe, standard: Recipe | EnsembleRecipe) -> dict[str, Any]:
    """Return setting -> value, as `--set` takes them, where `recipe` differs from `standard`.

    A model without changes is the standard's model: only then the scores that papers print for it are the model's
    (`zoo.models.card.Origin.exact_recipe`). For an ensemble, the changes that all members share are named once, the
    others with the member's number.
    """
    if isinstance(recipe, Recipe) and isinstance(standard, Recipe):
        changed = dict(differences(recipe.record, standard.record))
        if standard.backbone.pretrained is True and "backbone.pretrained" in changed and has_public_weights(recipe):
            del changed["backbone.pretrained"]
        return changed
    members, standard_members = (
        value.members if isinstance(value, EnsembleRecipe) else (value,) for value in (recipe, standard)
    )
    if len(members) != len(standard_members):
        return {"members": len(members)}
    changes = [changed_settings(a, b) for a, b in zip(members, standard_members, strict=True)]
    common = {key: value for key, value in changes[0].items() if all(c.get(key, ...) == value for c in changes)}
    own = {
        f"members.{i}.{key}": v for i, change in enumerate(changes) for key, v in change.items() if key not in common
    }
    return {**common, **own}


def differences(new: Mapping[str, Any], old: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield setting and value where a recipe, as JSON, differs from an older one in more than texts and seed."""
    for key, value in new.items():
        before = old.get(key, ...)
        if value == before or f"{prefix}{key}" in IDENTITY_KEYS:
            continue
        if isinstance(value, dict) and isinstance(before, dict) and before.keys() <= value.keys():
            yield from differences(value, before, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def has_public_weights(recipe: Recipe) -> bool:
    """Return whether the recipe names, as a folder or a name, the weights that its architecture has by default."""
    from zoo.models.pretrained.weights import is_public

    start = recipe.backbone.pretrained
    return isinstance(start, str) and is_public(recipe.backbone.architecture, start)


def named_classes(settings: Iterable[str]) -> Iterator[str]:
    """Yield the places of the classes that `key=value` settings name; nothing is imported."""
    for setting in settings:
        key, _, text = (part.strip() for part in setting.partition("="))
        group, _, rest = key.partition(".")
        if group in IMPORTED and rest != WEIGHTS:
            try:
                value = json.loads(text)
            except ValueError:
                value = text
            yield from places_in(value)


def recorded_classes(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places of the classes that a recipe, as recipe.json records it, names; nothing is imported."""
    for group in IMPORTED:
        values = recipe.get(group)
        if isinstance(values, Mapping):
            yield from places_in({key: value for key, value in values.items() if key != WEIGHTS})


def setting_keys(settings: Iterable[str]) -> set[str]:
    """Return the keys of `key=value` settings."""
    return {setting.partition("=")[0].strip() for setting in settings}


def fit_to_classes(
    recipe: Recipe | EnsembleRecipe, labels: np.ndarray, settings: Iterable[str]
) -> tuple[Recipe | EnsembleRecipe, tuple[str, ...]]:
    """Return the recipe with validation and batches that its classes allow, and what was changed, as key=value.

    Args:
        recipe: The recipe.
        labels: The labels of the training images, int64 [n].
        settings: The settings that the user gave, which are not changed.
    """
    given = setting_keys(settings)
    if isinstance(recipe, EnsembleRecipe):
        fitted = [_fit_to_classes(member, labels, given) for member in recipe.members]
        return dataclasses.replace(recipe, members=tuple(member for member, _ in fitted)), fitted[0][1]
    return _fit_to_classes(recipe, labels, given)


def _fit_to_classes(recipe: Recipe, labels: np.ndarray, given: Collection[str]) -> tuple[Recipe, tuple[str, ...]]:
    from training.data import held_out_classes

    classes, numbers = np.unique(labels, return_inverse=True)
    data, batch = recipe.data, recipe.batch
    if data.validation and round(len(classes) * data.validation) < 2 and "data.validation" not in given:
        # Two classes are the fewest that can be held out.
        data = dataclasses.replace(data, validation=2 / len(classes) if len(classes) >= LEAST_TO_SPLIT else 0.0)
    held_out = held_out_classes(len(classes), data, recipe.seed)
    sizes = np.bincount(numbers[~np.isin(numbers, held_out)])
    sizes = sizes[sizes > 0]
    if recipe.batch.per_class > 1 and sizes.max(initial=0) < 2:
        raise RecipeError(
            f"{recipe.name} needs two images of a class in a batch, but of {len(sizes)} training classes none has two. "
            "Add images to the classes.",
            code="too-few-samples",
        )
    if "batch.per_class" not in given:
        batch = dataclasses.replace(batch, per_class=min(batch.per_class, int(sizes.max())))
    if "batch.size" not in given:
        unit = batch.per_class * int(batch.args.get("together", 1))
        most = min(batch.size, batch.per_class * len(sizes) * data.turns)
        batch = dataclasses.replace(batch, size=max(unit, most - most % unit))
    fitted = dataclasses.replace(recipe, data=data, batch=batch)
    changes = (
        ("data.validation", f"{data.validation:.3g}", data.validation != recipe.data.validation),
        ("batch.per_class", batch.per_class, batch.per_class != recipe.batch.per_class),
        ("batch.size", batch.size, batch.size != recipe.batch.size),
    )
    return fitted, tuple(f"{key}={value}" for key, value, changed in changes if changed)


def check_names(recipe: Recipe) -> None:
    """Check names, arguments, heads and the batch of a recipe, before any image is read.

    Raises:
        RecipeError: If a table lacks a name or an argument, or the heads or the batch cannot be used.
        DatasetError: If the data set is unknown.
    """
    data.check_dataset_name(recipe.data.dataset)
    _raise_all(_name_errors(recipe))
    # From here on torch is loaded: arguments are those of the classes.
    from zoo.models.network import check_heads

    objective, batch = recipe.objective, recipe.batch
    check_arguments(METHODS, "method", objective.method, objective.method_args)
    check_arguments(SAMPLERS, "sampler", batch.sampler, batch.args)
    if objective.loss is not None:
        check_arguments(LOSSES, "loss", objective.loss, objective.loss_args)
    if objective.miner is not None:
        miner_args = {key: value for key, value in objective.miner_args.items() if key != "miner_args"}
        check_arguments(MINERS, "miner", objective.miner, miner_args)
    check_heads(recipe.heads)
    _check_intra(recipe)


def _name_errors(recipe: Recipe) -> list[RecipeError]:
    """Return an error for each part of a recipe that no table has.

    timm, which loads torch, is only asked for an architecture that no recipe of ours has.
    """
    objective, batch = recipe.objective, recipe.batch
    errors: list[RecipeError] = []
    for table, kind, name in (
        (METHODS, "method", objective.method),
        (LOSSES, "loss", objective.loss),
        (MINERS, "miner", objective.miner),
        (SAMPLERS, "sampler", batch.sampler),
        (OPTIMIZERS, "optimizer", recipe.optimizer.name),
    ):
        if name is not None:
            with _collected(errors):
                check_name(table, kind, name)
    if recipe.backbone.architecture not in ARCHITECTURES.values():
        from zoo.models.network import check_architecture

        with _collected(errors):
            check_architecture(recipe.backbone.architecture)
    return errors


def _check_intra(recipe: Recipe) -> None:
    """Check that DiVA's task within classes sees three samples per class."""
    per_class, heads = recipe.batch.per_class, [head.name for head in recipe.heads]
    if recipe.objective.method == "diva" and "intra" in heads and per_class < 3:
        raise RecipeError(
            f"the task 'intra' learns from three samples of a class, and batch.per_class is {per_class}; set it to 3 "
            "or more, or leave that head out.",
            code="conflicting-settings",
        )
