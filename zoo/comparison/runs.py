"""Which models are runs of one recipe with several seeds, and how each was selected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo.catalogue import ModelInfo, list_models
from zoo.files import read_object
from zoo.paths import home
from zoo.published.scores import WHOLE

SEEDED = re.compile(r"(?P<name>.+)-seed(?P<seed>\d{1,9})")
"""How the seeds of a model are named: `zoo train NAME --seed 1 --as NAME-seed1`."""

UNRECORDED = "how it was trained is not recorded"


@dataclass(frozen=True)
class Run:
    """A trained model, or a finished run of a study.

    settings: its resolved recipe but for name, seed and sources; None where none is recorded. changed: whether a model
    was trained by its recipe with changes (`--set`). Of a study's run alone: recipe: the name of its recipe, unless its
    arm changes it; changes: in how many ways the whole study departs from its recipes; curves: recall at 1 by epoch;
    study, arm: what it is a run of; parts: what was measured of other views than the whole embedding.
    """

    name: str
    dim: int
    seed: int | None
    selection: str
    settings: dict[str, Any] | None
    results: Sequence[dict[str, Any]] = field(default_factory=list)
    recipe: str | None = None
    changes: int = 0
    curves: dict[str, list[tuple[int, float]]] | None = None
    changed: bool = False
    study: str | None = None
    arm: str | None = None
    parts: Sequence[dict[str, Any]] = field(default_factory=list)

    def view(self, name: str) -> Run | None:
        """The run as its measurements of a view have it; None where there are none."""
        if name == WHOLE:
            return self
        known = [part for part in self.parts if part["view"] == name]
        if not known:
            return None
        # Its epochs are those of the whole.
        return replace(self, name=f"{self.name}:{name}", dim=int(known[0]["dim"]), results=known, curves={})


def find_runs(folders: Iterable[Path] = ()) -> list[Run]:
    """Every model that is trained here or shipped, by name; then the finished runs of the studies in `ZOO_HOME`, and of
    those in the folders. Raises `UsageError` for a folder that is not there."""
    from zoo.comparison.studies import study_runs

    own = home() / "studies"
    models = [_run(model, model.folder) for model in list_models() if model.folder is not None]
    return [*models, *(run for folder in (*([own] if own.is_dir() else []), *folders) for run in study_runs(folder))]


def runs_of(recipe: str, runs: Iterable[Run]) -> list[Run]:
    """The runs of a recipe, one a seed, by seed.

    The model called as the recipe sets the standard, unless it was trained with changes; where it is missing, the one
    called RECIPE-seedN with the lowest N. Every other model or run counts, whatever its name, whose recipe agrees in
    all but name and seed. Without a recipe.json (an ensemble, a model from elsewhere) the model stands alone. A study's
    run of the recipe, of the last epoch and without settings first, sets a standard of its own; of the two that with
    more seeds is taken.
    """
    runs = list(runs)
    named, studied = _standard(recipe, runs), _studied([run for run in runs if run.recipe == recipe], runs)
    return max([] if named is None else seeds_of(named, runs), studied, key=len)


def runs_of_arm(study: str, arm: str, dataset: str, runs: Iterable[Run]) -> list[Run]:
    """The runs of a study's arm on a data set, one a seed, by seed: of whole studies the least changed, as `runs_of`.

    Runs of other studies count where the recipes agree."""
    runs = list(runs)
    known = [run for run in runs if (run.study, run.arm) == (study, arm)]
    return _studied([run for run in known if any(each["dataset"] == dataset for each in run.results)], runs)


def seeds_of(standard: Run, runs: Iterable[Run]) -> list[Run]:
    """The standard and the runs of its recipe with other seeds, by seed."""
    if standard.settings is None:
        return [standard]
    found = {standard.seed: standard}
    for run in runs:
        if run.settings is not None and _same(run.settings, standard.settings):
            found.setdefault(run.seed, run)
    return sorted(found.values(), key=lambda run: run.seed or 0)


def _standard(recipe: str, runs: Sequence[Run]) -> Run | None:
    runs = [run for run in runs if run.curves is None and not run.changed]
    matches = [(SEEDED.fullmatch(run.name), run) for run in runs]
    numbered = [(int(match["seed"]), run) for match, run in matches if match and match["name"] == recipe]
    named = [(-1, run) for run in runs if run.name == recipe]
    return min(named + numbered, key=lambda pair: pair[0], default=(0, None))[1]


def _studied(known: Sequence[Run], runs: Sequence[Run]) -> list[Run]:
    """Of studies' runs the least changed, each with the other seeds of its recipe: those with the most seeds."""
    fewest = min((run.changes for run in known), default=0)
    groups: list[list[Run]] = []
    for run in sorted(known, key=lambda run: run.seed or 0):
        if run.changes == fewest and not any(run is each for group in groups for each in group):
            groups.append(seeds_of(run, runs))
    return max(groups, key=len, default=[])


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two resolved recipes agree; one model's and an ensemble's, which have no key in common, do not."""
    return bool(a.keys() & b.keys()) and agree(a, b)


def agree(a: Any, b: Any, name: str = "") -> bool:
    """Whether two settings say the same. A field that only one of them has is one that older versions did not write;
    of free arguments (`args`, `loss_args`) both must have the same."""
    if isinstance(a, dict) and isinstance(b, dict) and not name.endswith("args"):
        return all(agree(a[key], b[key], key) for key in a.keys() & b.keys())
    return bool(a == b)


def _run(model: ModelInfo, folder: Path) -> Run:
    record = read_object(folder / "recipe.json")  # one that cannot be read hides no score
    recipe = record.get("recipe")
    if not isinstance(recipe, dict):
        members = record.get("ensemble")
        selection = f"{len(members)} models joined" if isinstance(members, list) else UNRECORDED
        return Run(model.name, model.dim, None, selection, None, model.results)
    settings = {key: value for key, value in recipe.items() if key not in ("name", "seed", "sources")}
    seed = recipe["seed"] if type(recipe.get("seed")) is int else None
    changed = bool(model.origin.changed)
    return Run(model.name, model.dim, seed, _selection(record, recipe), settings, model.results, changed=changed)


def _selection(record: dict[str, Any], recipe: dict[str, Any]) -> str:
    schedule = recipe.get("schedule")
    epochs = schedule.get("epochs") if isinstance(schedule, dict) else None
    best = record.get("best_epoch")
    if best is not None:
        return f"best epoch on held-out training classes ({best} of {epochs})"
    return f"last of {epochs} epochs"
