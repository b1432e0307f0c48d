"""A study's folder: its plan, and a folder for each run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from training.output import provenance
from training.recipe import Recipe, agree
from training.studies.arms import SELECTIONS, recipes_of
from training.studies.results_file import RESULTS, Results
from training.studies.study import Arm, Claim, Study, slug
from training.studies.table import study_of
from zoo.data.folder import check_parted
from zoo.errors import TrainingError, UsageError
from zoo.files import locked, write_json

PLAN, FAILURE = "plan.json", "failure.json"


@dataclass(frozen=True)
class Run:
    """One arm with one seed, the epoch chosen by `selection`; its recipes (several for an ensemble).

    folder: its checkpoints, logs and failure while it runs. results: those of its study.
    """

    arm: Arm
    seed: int
    selection: str
    recipes: tuple[Recipe, ...]
    folder: Path
    results: Results

    @property
    def name(self) -> str:
        """The run's name among the study's results, such as "contrastive/seed-0"."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def title(self) -> str:
        chosen = "" if self.selection == "last" else ", selected by validation"
        return f"{self.arm.label}, seed {self.seed}{chosen}"

    @property
    def digests(self) -> list[str]:
        return [recipe.digest for recipe in self.recipes]

    @property
    def finished(self) -> bool:
        return self.name in self.results

    def result(self) -> dict[str, Any]:
        """Return what the run measured. Raises `KeyError` for an unfinished run, `TrainingError` for a damaged file."""
        return self.results[self.name]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Append the run's result to those of the study, and remove the record of an earlier failure."""
        self.results.add(self.name, result)
        (self.folder / FAILURE).unlink(missing_ok=True)


@dataclass(frozen=True)
class Plan:
    """A study on a data set, with the seeds 0 to seeds - 1; settings: of all arms; data: where the data set lies.

    only: labels of the arms that were chosen; none: all of them. Raises `UsageError` for an arm that the study lacks.
    """

    study: Study
    dataset: str
    seeds: int
    selections: tuple[str, ...] = ("last",)
    settings: tuple[str, ...] = ()
    data: str | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"a study needs at least one seed, not {self.seeds}.")
        if not self.selections or not set(self.selections) <= set(SELECTIONS):
            raise UsageError(f"epochs are selected by {' or '.join(SELECTIONS)}, not {', '.join(self.selections)}.")
        _check_arms(self.only, self.study)

    @property
    def arms(self) -> list[Arm]:
        """Those that were chosen."""
        return [arm for arm in self.study.arms if not self.only or arm.label in self.only]

    @property
    def claims(self) -> list[Claim]:
        """Those whose two arms were chosen."""
        labels = {arm.label for arm in self.arms}
        return [each for each in self.study.claims if {each.better, each.than or self.study.reference} <= labels]

    def recipes(self, arm: Arm, seed: int = 0, selection: str = "last") -> tuple[Recipe, ...]:
        """The arm's recipe, or those of an ensemble's members."""
        return recipes_of(self.study, arm, self.dataset, seed, selection, self.settings)

    def runs(self, folder: Path, results: Results | None = None) -> list[Run]:
        """Return every run, seed by seed, so that paired runs finish together; results: those of the folder."""
        results = Results(folder) if results is None else results
        return [
            Run(arm, seed, selection, self.recipes(arm, seed, selection), folder / place, results)
            for arm, seed, selection, place in self.places()
        ]

    def places(self) -> Iterator[tuple[Arm, int, str, str]]:
        """Yield the arm, the seed, the selection and the folder of every run."""
        for seed, arm, selection in product(range(self.seeds), self.arms, self.selections):
            yield arm, seed, selection, f"runs/{slug(arm.label)}/{_name(seed, selection)}"

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.loads(json.dumps({**values, "study": self.study.name}))


def _name(seed: int, selection: str) -> str:
    return f"seed-{seed}" if selection == "last" else f"seed-{seed}-{selection}"


def write_plan(plan: Plan, folder: Path) -> Plan:
    """Begin or go on with a study in `folder`; the plan that holds there, with all seeds, arms and kinds of selection
    that were ever asked for.

    Raises `TrainingError` where the folder holds another study, or one whose recipes have changed since; as
    `check_images` does.
    """
    check_images(plan.recipes(plan.study.arms[0])[0], plan.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (folder / PLAN).exists():
            old = read(folder / PLAN)
            _check_same(plan, old, folder)
            plan = _grown(plan, old)
            check_recipes(plan, old, folder)
            if all(plan.to_json()[key] == old.get(key, []) for key in GROWING):
                return plan
        runs = [place for *_, place in plan.places()]
        write_json(folder / PLAN, {**plan.to_json(), "runs": runs, "recipes": _recipes(plan), **provenance()})
    return plan


def check_images(recipe: Recipe, root: str | Path | None) -> None:
    """Raise `UsageError` or `DatasetError` for a folder of images that is not named, or has no test classes."""
    if recipe.data.dataset != "folder":
        return
    if root is None:
        raise UsageError("which folder? Name it with --data DIR.")
    check_parted(root)


GROWING = ("seeds", "selections", "only")
"""What a study may have more of, each time it is begun again."""


def _grown(plan: Plan, old: dict[str, Any]) -> Plan:
    """The plan with what was asked for before."""
    selections = {*plan.selections, *old["selections"]}
    before = old.get("only", [])
    labels = {*plan.only, *before} if plan.only and before else set()  # all and some are all
    return dataclasses.replace(
        plan,
        seeds=max(plan.seeds, int(old["seeds"])),
        selections=tuple(each for each in SELECTIONS if each in selections),
        only=tuple(label for label in plan.study.labels if label in labels),
    )


def read_plan(folder: Path) -> Plan:
    """The plan in a study's folder. Raises `UsageError` where there is none, `TrainingError` as `write_plan` does."""
    if not (folder / PLAN).is_file():
        kept = f" --out {folder}, as it was begun: finished runs in it stay" if (folder / RESULTS).is_file() else ""
        raise UsageError(
            f"{folder} is no study: there is no {PLAN} in it. Begin one with: zoo benchmark run STUDY{kept}"
        )
    raw = read(folder / PLAN)
    try:
        sequences = {key: tuple(raw[key]) for key in ("selections", "settings")}
        only = tuple(raw.get("only", ()))  # older plans are of all arms
        plan = Plan(study_of(raw["study"]), raw["dataset"], raw["seeds"], data=raw["data"], only=only, **sequences)
    except (KeyError, TypeError) as error:
        raise TrainingError(f"{folder / PLAN} is no plan of a study ({error}); begin anew in another folder.") from None
    check_recipes(plan, raw, folder)
    return plan


def read(path: Path) -> dict[str, Any]:
    """A JSON file of a study's folder. Raises `TrainingError` where it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read as JSON: {error}. {_remedy(path)}") from None
    if not isinstance(value, dict):
        raise TrainingError(f"{path} does not hold what a study writes. {_remedy(path)}")
    return value


def _remedy(path: Path) -> str:
    """What helps where a file of a study or a search is damaged: a plan is written by the command that begins one."""
    if path.name == FAILURE:
        return "Delete it to make it again."
    report = path.with_name("report.md")
    told = f" ({report} has it)" if report.is_file() else ""
    return (
        f"Delete it and give the command again that began this folder{told}, with the same --dataset, --set and --out: "
        "what is finished stays."
    )


def chosen(runs: Iterable[Run], only: Iterable[str], study: Study) -> list[Run]:
    """The runs of the arms named, or all. Raises `UsageError` for an arm that the study lacks."""
    only = list(only)
    _check_arms(only, study)
    return [run for run in runs if not only or run.arm.label in only]


def _check_arms(labels: Iterable[str], study: Study) -> None:
    for label in labels:
        if label not in study.labels:
            raise UsageError(f"the study {study.name} has no arm {label!r}; it has {', '.join(study.labels)}.")


def _check_same(plan: Plan, old: dict[str, Any], folder: Path) -> None:
    new = plan.to_json()
    for key in ("study", "dataset", "settings"):
        if old.get(key) != new[key]:
            raise TrainingError(
                f"{folder} holds another study: its {key} is {old.get(key)!r}, not {new[key]!r}. Name another --out."
            )


def check_recipes(plan: Plan, old: dict[str, Any], folder: Path) -> None:
    """Raise `TrainingError` where an arm's recipe is not what it was: runs of both would be mixed."""
    planned = old.get("recipes", {})
    for label, recipes in _recipes(plan).items():
        # A setting that one of them lacks is one that an older version did not have.
        if label in planned and not agree(planned[label], recipes):
            raise TrainingError(
                f"the recipe of {label} has changed since {folder} was begun (with commit {old.get('commit')}). "
                "Go on with that version, or begin anew in another folder."
            )


def _recipes(plan: Plan) -> dict[str, dict[str, Any]]:
    """By the arm's label: member number -> recipe with the first seed, that of the last epoch."""
    return {
        arm.label: {str(number): recipe.to_json() for number, recipe in enumerate(plan.recipes(arm))}
        for arm in plan.study.arms
    }
