"""Recipes as the authors' published code has them: what `authors_code/<paper>.toml` says, and a recipe with it.

The files were written from the newest state of the repositories they name. Each lists the departures of the code from
the paper, in the order in which they are shown:

- `objective`: settings of losses, miners and methods, for every recipe of the paper;
- `protocol`: other settings, for recipes of the papers' data sets, because other recipes have a protocol of their own;
- `unswitched`: departures that no setting copies.

An entry counts if a recipe has one of the values of each setting in `when`, and none of those in `unless`. A setting
that is absent has the value "". Beside settings there are `heads` (the names, of which one must be listed),
`heads.names` (all of them in one text, sorted) and `heads.count`. `set` has the code's values as `--set` takes them:
"none" removes a value, a table is merged into the arguments that the recipe has, and one of cub, cars and sop has a
value per data set. Entries about one setting are shown as one. `paper` has the paper's arguments where the recipe has
none.

The user's own settings take precedence over all of these.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from training.construction import with_defaults
from training.definitions import TABLES
from training.overrides import check_names, override, resolve
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import standard_recipe
from training.recipes.common import DIVA, GROUP, MIC, PAPER_DATASETS, REALITY, REVISITING, SHARING, TABLE_2
from zoo.models.card import setting_text

SUFFIX = "-as-published"
"""End of the names of models and studies that are trained as published."""

FILES = {REVISITING: "revisiting", MIC: "mic", DIVA: "diva", GROUP: "group", REALITY: "reality"}
"""Paper -> the file of its code. Sharing has none; the shared task in DiVA's repository is that of DiVA."""

METHODS = {"sharing": SHARING, "mic": MIC, "diva": DIVA, "group": GROUP}
"""Method -> the paper that defines it."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between the paper's recipe and the published code.

    Attributes:
        key: The setting.
        paper: Its value in the paper's recipe.
        code: Its value in the code.
        reason: What the code does.
    """

    key: str
    paper: Any
    code: Any
    reason: str

    @property
    def setting(self) -> str:
        """Return KEY=VALUE with the code's value, as `--set` takes it."""
        return f"{self.key}={setting_text(self.code)}"


@dataclass(frozen=True)
class Unswitched:
    """A departure of the published code that no setting copies, and the reason."""

    subject: str
    reason: str


@dataclass(frozen=True)
class Switch:
    """The differences of a recipe's published code.

    Attributes:
        name: The name of the recipe.
        paper: Its paper; None for another than the five.
        repository: The repository of the paper's authors; None if they published no code.
        differences: The settings that are switched.
        unswitched: The departures that are not.
    """

    name: str
    paper: str | None
    repository: str | None = None
    differences: tuple[Difference, ...] = ()
    unswitched: tuple[Unswitched, ...] = ()

    @property
    def summary(self) -> str:
        """Return in a sentence what the switch does."""
        if self.paper is None:
            return f"{self.name} is not of one of the papers whose published code is known here; nothing is switched."
        if self.repository is None:
            return f"{self.name}: its authors published no code of this paper; nothing is switched."
        if not self.differences:
            return f"{self.name} has no settings that differ from the published code, {self.repository}."
        return f"{self.name}: settings of the published code, {self.repository}."

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def resolve_as_published(
    name: str, settings: Iterable[str] = (), seed: int | None = None, rename: str | None = None
) -> Recipe | EnsembleRecipe:
    """Return a recipe as `training.overrides.resolve` does, with the settings of the authors' published code.

    The name ends with `SUFFIX` unless `rename` gives another. A recipe without differences is returned unchanged.

    Args:
        name: A name of `RECIPES`.
        settings: Settings of the user, which take precedence over those of the code.
        seed: The seed, as in `resolve`.
        rename: The name of the new model.

    Raises:
        RecipeError: If the name, a key or a value is wrong.
    """
    settings = list(settings)
    resolved = resolve(name, settings, seed, rename)
    dataset = standard_recipe(name).data.dataset
    if isinstance(resolved, Recipe):
        switched = _switched(resolved, dataset, settings)
        if switched is resolved or rename is not None:
            return switched
        return dataclasses.replace(switched, name=f"{switched.name}{SUFFIX}")
    members = tuple(_switched(member, dataset, settings) for member in resolved.members)
    if members == resolved.members:
        return resolved
    if rename is not None:
        return dataclasses.replace(resolved, members=members)
    renamed = f"{resolved.name}{SUFFIX}"
    named = tuple(dataclasses.replace(member, name=f"{renamed}.{i}") for i, member in enumerate(members))
    return dataclasses.replace(resolved, name=renamed, members=named)


def published_switch(name: str, settings: Iterable[str] = ()) -> Switch:
    """Return what `resolve_as_published` switches, of an ensemble that of its first member.

    Args:
        name: A name of `RECIPES`.
        settings: Settings of the user.

    Raises:
        RecipeError: If the name, a key or a value is wrong.
    """
    settings = list(settings)
    resolved = resolve(name, settings)
    recipe = resolved if isinstance(resolved, Recipe) else resolved.members[0]
    return _switch(name, recipe, standard_recipe(name).data.dataset, settings)


def _switched(recipe: Recipe, dataset: str, settings: list[str]) -> Recipe:
    """Return a recipe with the settings of the published code that differ, or the same recipe if none does."""
    switch = _switch(recipe.name, recipe, dataset, settings)
    if not switch.differences:
        return recipe
    changed = override(recipe, [difference.setting for difference in switch.differences])
    check_names(changed)
    departures = (
        f"Trained as in the authors' published code, {switch.repository}, where it departs from the paper.",
        *(f"{difference.key}: {difference.reason}" for difference in switch.differences),
        *(f"Not as in that code, {departure.subject}: {departure.reason}" for departure in switch.unswitched),
    )
    return dataclasses.replace(changed, as_published=True, departures=departures)


def _switch(name: str, recipe: Recipe, dataset: str, settings: list[str]) -> Switch:
    """Return the differences of the published code for a recipe, less the settings that the user has set.

    Args:
        name: The name that is shown.
        recipe: The recipe with its settings.
        dataset: The data set of the recipe's name, whose constants apply.
        settings: Settings of the user.
    """
    paper = _paper(recipe)
    if paper not in FILES:
        return Switch(name, paper)
    code, facts = _read(FILES[paper]), _facts(recipe, dataset)
    entries = [*code.get("objective", ()), *(code.get("protocol", ()) if dataset in PAPER_DATASETS else ())]
    differences = _differences(recipe, [entry for entry in entries if _applies(entry, facts)], dataset, settings)
    unswitched = [Unswitched(e["subject"], e["reason"]) for e in code.get("unswitched", ()) if _applies(e, facts)]
    return Switch(name, paper, code["repository"], tuple(differences), tuple(unswitched))


def _paper(recipe: Recipe) -> str | None:
    """Return the paper whose definitions a recipe has; of another method, the paper whose protocol it has."""
    if recipe.objective.method in METHODS:
        return METHODS[recipe.objective.method]
    if recipe.method.startswith("reality-"):
        return REALITY
    if recipe.method.removeprefix("r-") in TABLE_2 or REVISITING in recipe.sources:
        return REVISITING
    # What these compare with their method, such as Proxy-NCA beside the group loss, is trained by their protocol.
    return next((paper for paper in (GROUP, SHARING) if paper in recipe.sources), None)


@cache
def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "authors_code" / f"{file}.toml").read_text(encoding="utf-8"))


def _facts(recipe: Recipe, dataset: str) -> dict[str, Any]:
    """Return what the conditions of an entry are about."""
    names = [head.name for head in recipe.heads]
    heads = {"heads": names, "heads.names": " ".join(sorted(names)), "heads.count": len(names)}
    return {**recipe.to_json(), **heads, "dataset": dataset}


def _applies(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    required, excluded = entry.get("when", {}), entry.get("unless", {})
    return all(_has(facts, *item) for item in required.items()) and not any(_has(facts, *i) for i in excluded.items())


def _has(facts: Mapping[str, Any], key: str, listed: Any) -> bool:
    """Return whether a recipe has a listed value of a setting."""
    value = facts[key] if key in facts else _value(facts, key)
    values = value if isinstance(value, list) else ["" if value is None else value]
    return any(value in (listed if isinstance(listed, list) else [listed]) for value in values)


def _differences(
    recipe: Recipe, entries: Iterable[Mapping[str, Any]], dataset: str, settings: Iterable[str]
) -> Iterator[Difference]:
    """Yield the changes of the code to values that the recipe does not have and the user has not set."""
    given = {setting.partition("=")[0].strip() for setting in settings}
    if "objective.miner_args.published" in given:  # the distance follows the form of rho
        given.add("objective.loss_args.squared")
    if "schedule.name" in given:  # the code's values belong to its schedule
        given |= {"schedule.milestones", "schedule.gamma"}
    own, explicit = recipe.to_json(), _with_defaults(recipe).to_json()
    changes: dict[str, Difference] = {}
    for entry in entries:
        for key, value in entry["set"].items():
            before = changes.get(key) or Difference(key, _value(explicit, key), _value(own, key), "")
            code = value[dataset] if isinstance(value, dict) and value.keys() == set(PAPER_DATASETS) else value
            paper = before.paper
            if isinstance(code, dict) and _value(explicit, key) is None:
                paper = {**(paper or {}), **entry.get("paper", {})}
            changes[key] = Difference(
                key, paper, _merged(before.code, code), f"{before.reason} {entry['reason']}".strip()
            )
    for change in changes.values():
        overlaps = any(
            f"{key}.".startswith(f"{change.key}.") or f"{change.key}.".startswith(f"{key}.") for key in given
        )
        if change.paper != change.code and not overlaps:
            yield change


def _with_defaults(recipe: Recipe) -> Recipe:
    """Return the recipe with the defaults of its method, loss, miner and sampler."""
    objective, batch = recipe.objective, recipe.batch
    arguments: dict[str, Any] = {
        f"{kind}_args": with_defaults(TABLES[kind], getattr(objective, kind), getattr(objective, f"{kind}_args"))
        for kind in ("method", "loss", "miner")
    }
    return dataclasses.replace(
        recipe,
        objective=dataclasses.replace(objective, **arguments),
        batch=dataclasses.replace(batch, args=with_defaults(TABLES["sampler"], batch.sampler, batch.args)),
    )


def _merged(old: Any, new: Any) -> Any:
    """Return the new value of a setting; of arguments, the old ones with the new."""
    if isinstance(new, dict):
        old = old or {}
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return None if new == "none" else new


def _value(tree: Any, key: str) -> Any:
    """Return the value of a setting in a recipe as JSON; None if it is absent."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree
