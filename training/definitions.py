"""Definitions that a recipe names: the arguments that it leaves to them, and their versions.

A definition is a loss, miner, sampler, method, auxiliary task or transfer by its name, or another function of ours that
decides what a run learns. Its version is raised when the same values begin to mean something else. Recipes of two
versions are different recipes: neither their models nor their runs are mixed. `tests/training/test_definitions.py`
holds a value of each, and fails if it changes without its version. Optimisers, our backbones, what learns and what is
frozen, the squares of images, held-out classes, cached views and the average of weights are definitions, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from training.construction import with_defaults
from training.losses import LOSSES
from training.methods import AUXILIARY, METHODS, TRANSFERS
from training.miners import MINERS
from training.samplers import SAMPLERS

TABLES: dict[str, Mapping[str, Any]] = {
    "loss": LOSSES,
    "miner": MINERS,
    "sampler": SAMPLERS,
    "method": METHODS,
    "auxiliary task": AUXILIARY,
    "transfer": TRANSFERS,
}
"""The tables of definitions by kind, as in "loss margin"."""

_FAISS = "FAISS's k-means groups the samples, before one of ours"

CHANGES: dict[str, tuple[str, ...]] = {
    "auxiliary task deepcluster": (_FAISS,),
    "auxiliary task shared": ("positives of triplets across classes are drawn by distance; before, evenly",),
    "method mic": (
        "an epoch has a fixed number of steps on groups; before, each step on classes was followed by one by chance",
        _FAISS,
    ),
    "method sharing": (
        "positives of triplets across classes are drawn by distance, before evenly; and an iteration is two steps, "
        "before one",
        _FAISS,
    ),
}
"""What changed with each version of a definition after the first; a definition that is not listed has version 1."""

GIVEN_BY_THE_RUN = {"method": ("miner",), "loss": ("class_sizes", "num_classes"), "sampler": ("seed",)}
"""Parameters with a default that the run fills in; they are no arguments of a recipe."""

ADDED_LATER: dict[str, dict[str, Any]] = {
    "triplet": {"smooth_loss": False, "swap": False},
    "margin": {"nu": 0.0},
    "npair": {"mined_negatives": True},
    "angular": {"mined_negatives": True},
}
"""Arguments of losses that came after the first recipes, with the values that mean what the loss meant before: a recipe
with these values is the same as an older record, which lacks them."""

WRAPPED = "distance-weighted"
"""The miner that rho wraps by default."""

INNER = {
    "miner rho": ("miner", "miner"),
    "method mic": ("auxiliary_loss", "loss"),
    "method sharing": ("shared_loss", "loss"),
    "method distillation": ("transfer", "transfer"),
}
"""Definition -> the argument that names another one, whose arguments are KEY_args, and the kind of that."""


def version(definition: str) -> int:
    """Return the version of a definition, such as "loss margin"."""
    return 1 + len(CHANGES.get(definition, ()))


def recipe_record(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a recipe: its values with the defaults of what it names, and the versions of these.

    Args:
        recipe: The recipe as JSON.
    """
    objective, batch = dict(recipe["objective"]), dict(recipe["batch"])
    for kind in ("loss", "miner", "method"):
        heads = [head["name"] for head in recipe["heads"]] if kind == "method" else ()
        objective[f"{kind}_args"] = _explicit(kind, objective[kind], objective[f"{kind}_args"], heads)
    batch["args"] = _explicit("sampler", batch["sampler"], batch["args"])
    record = {**recipe, "objective": objective, "batch": batch}
    later = (name for name in unnamed_definitions(recipe) if version(name) > 1)
    return {**record, "definitions": {name: version(name) for name in sorted({*named_definitions(record), *later})}}


def named_definitions(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield definitions of which a record names every version. Nothing is imported.

    Args:
        record: The recipe as `recipe_record` returns it. What it lacks names nothing.
    """
    yield "augmentation"
    if name := _setting(record, "schedule", "name"):
        yield f"schedule {name}"
    if (start := record.get("head_start", "random")) != "random":
        yield f"head start {start}"
    if (end := record.get("head_end", "trained")) != "trained":
        yield f"head end {end}"
    for kind in ("loss", "miner", "method"):
        yield from _named(kind, _setting(record, "objective", kind), _setting(record, "objective", f"{kind}_args"))
    yield from _named("sampler", _setting(record, "batch", "sampler"), None)


def _named(kind: str, name: Any, args: Any) -> Iterator[str]:
    """Yield the definition with this name, and those that its arguments name."""
    if name is None:
        return
    yield f"{kind} {name}"
    args = args if isinstance(args, Mapping) else {}
    key, inner = INNER.get(f"{kind} {name}", ("", ""))
    yield from _named(inner, args.get(key), args.get(f"{key}_args"))
    if (kind, name) == ("method", "diva") and isinstance(tasks := args.get("auxiliary"), Mapping):
        yield from (f"auxiliary task {task}" for task in tasks)


def unnamed_definitions(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield definitions of which a record names the second version and later ones, so that older records stay the same.

    Args:
        recipe: The recipe as JSON. Settings that it lacks name nothing.
    """
    settings = {
        "optimizer": _setting(recipe, "optimizer", "name"),
        "backbone": _setting(recipe, "backbone", "architecture"),
        "tuning": _setting(recipe, "backbone", "tune"),
        "frozen norms": _setting(recipe, "backbone", "freeze_norm"),
        "training images": _setting(recipe, "data", "fit"),
    }
    yield from (f"{kind} {name}" for kind, name in settings.items() if name)
    if _setting(recipe, "data", "validation"):
        yield from ("held-out classes", "epoch selection")
    if _setting(recipe, "data", "views"):
        yield "cached views"
    if _setting(recipe, "backbone", "frozen_stages"):
        yield "frozen stages"
    if _setting(recipe, "schedule", "average"):
        yield "weight average"


def _setting(recipe: Mapping[str, Any], group: str, key: str) -> Any:
    values = recipe.get(group)
    return values.get(key) if isinstance(values, Mapping) else None


def _explicit(kind: str, name: str | None, args: Mapping[str, Any] | None, heads: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arguments of a definition with all defaults, at every level."""
    if name is None:
        return dict(args or {})
    given = GIVEN_BY_THE_RUN.get(kind, ())
    explicit = {key: value for key, value in with_defaults(TABLES[kind], name, args or {}).items() if key not in given}
    key, inner = INNER.get(f"{kind} {name}", (None, ""))
    if key is not None:
        explicit[key] = explicit[key] or (WRAPPED if name == "rho" else None)
        if explicit[key] is not None:
            explicit[f"{key}_args"] = _explicit(inner, explicit[key], explicit.get(f"{key}_args"))
    if kind == "method" and name == "diva":
        tasks, own = [head for head in heads if head in AUXILIARY], explicit["auxiliary"] or {}
        explicit["auxiliary"] = {task: _explicit("auxiliary task", task, own.get(task)) for task in tasks}
    return explicit


def without_later(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded recipe without the arguments of its losses that `ADDED_LATER` has with these values."""
    kept = {key: without_later(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for key in ("loss", *(key for key, kind in INNER.values() if kind == "loss")):
        args, later = kept.get(f"{key}_args"), ADDED_LATER.get(str(kept.get(key)), {})
        if isinstance(args, dict):
            kept[f"{key}_args"] = {name: value for name, value in args.items() if (name, value) not in later.items()}
    return kept


def outdated_names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all definitions of recorded recipes that have another version today, sorted."""
    return sorted({name for record in records for name in outdated(record)})


def outdated(record: Mapping[str, Any]) -> dict[str, str]:
    """Return definitions of a recorded recipe of which today's is another, or may be, each with what changed since.

    Args:
        record: The recipe, as `recipe_record` returns it, or another object of a file that calls itself one.
    """
    versions = record.get("definitions")
    if not isinstance(versions, Mapping):
        return {"recipe": "the versions of its definitions are not recorded"}
    texts = {name: "its version is not recorded" for name in named_definitions(record) if name not in versions}
    for name, number in {**dict.fromkeys(unnamed_definitions(record), 1), **versions}.items():
        if number != version(name):
            since = CHANGES.get(name, ())[max(0, number - 1) :] if isinstance(number, int) else ()
            texts[name] = "; ".join(since) or f"version {number} is of a later release"
    return texts
