"""Study folder: plan.json, runs, resume.

results.jsonl: the finished runs of a study or of a search, one JSON object per line.

Study folder: plan.json, runs, resume.

A study's folder: its plan, and a folder for each run.

A study as it is on a data set: with the recalls that the data set is reported at, and a note of what is read.

Reading what runs measured.

The runs of a study and the images they come from: a mean over runs is of one set of images.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from training.recipe import Recipe, same_recipe
from training.studies.papers import find_study
from training.studies.study import (
    EMBEDDING,
    SELECTIONS,
    Arm,
    Claim,
    Measure,
    Study,
    recipe_dataset,
    resolve_recipes,
    slug,
)
from zoo.data.folder import check_splits
from zoo.data.official import RECALL_DEPTHS
from zoo.errors import TrainingError, UsageError
from zoo.files import append_json_line, complete_lines, locked, write_json

RESULTS_FILE = "results.jsonl"

Result = dict[str, Any]


class Results(Mapping[str, Result]):
    """The results in a folder by the run's name, such as "contrastive/seed-0", in the order in which runs finished.

    Several processes may append to one file. Each instance reads only what was appended since it read last, so that
    a study of n runs reads n results and not n squared. Callers must not change the values.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE
        self._results: dict[str, Result] = {}
        self._inode, self._size = 0, 0

    def add(self, run: str, result: Mapping[str, Any]) -> None:
        """Append the result of a finished run."""
        append_json_line(self.path, {"run": run, **result})

    def __getitem__(self, run: str) -> Result:
        return self._current()[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def _current(self) -> dict[str, Result]:
        """Return all results, after reading lines that are new in the file."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._results, self._inode, self._size = {}, 0, 0
            return self._results
        if (status.st_ino, status.st_size) == (self._inode, self._size):
            return self._results
        if status.st_ino != self._inode or status.st_size < self._size:  # another file, or one that was edited
            self._results, self._inode, self._size = {}, status.st_ino, 0
        for line in complete_lines(self.path, self._size):
            run, result = self._parse(line)
            self._results[run] = result
            self._size += len(line) + 1
        return self._results

    def _parse(self, line: bytes) -> tuple[str, Result]:
        try:
            value = json.loads(line)
            return str(value.pop("run")), value
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            start = line[:60].decode(errors="replace")
            raise TrainingError(
                f"{self.path} has a line that is not the result of a run ({error!r}): {start!r}. "
                "Delete that line to run it again.",
                code="damaged-results",
            ) from None


PLAN_FILE, FAILURE_FILE = "plan.json", "failure.json"


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
        (self.folder / FAILURE_FILE).unlink(missing_ok=True)


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
        return resolve_recipes(self.study, arm, self.dataset, seed, selection, self.settings)

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
            yield arm, seed, selection, f"runs/{slug(arm.label)}/{_run_name(seed, selection)}"

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.loads(json.dumps({**values, "study": self.study.name}))


def _run_name(seed: int, selection: str) -> str:
    return f"seed-{seed}" if selection == "last" else f"seed-{seed}-{selection}"


def write_plan(plan: Plan, folder: Path) -> Plan:
    """Begin or go on with a study in `folder`; the plan that holds there, with all seeds, arms and kinds of selection
    that were ever asked for.

    Raises `TrainingError` where the folder holds another study, or one whose recipes have changed since; as
    `check_images` does.
    """
    from training.api import provenance  # torch, which reading a study does not need

    check_images(plan.recipes(plan.study.arms[0])[0], plan.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (folder / PLAN_FILE).exists():
            old = read_record(folder / PLAN_FILE)
            _check_same_study(plan, old, folder)
            plan = _merge_requests(plan, old)
            _check_recipes(plan, old, folder)
            if all(plan.to_json()[key] == old.get(key, []) for key in EXTENDABLE):
                return plan
        runs = [place for *_, place in plan.places()]
        write_json(
            folder / PLAN_FILE, {**plan.to_json(), "runs": runs, "recipes": _recipe_records(plan), **provenance()}
        )
    return plan


def check_images(recipe: Recipe, root: str | Path | None) -> None:
    """Raise `UsageError` or `DatasetError` for a folder of images that is not named, or has no test classes."""
    if recipe.data.dataset != "folder":
        return
    if root is None:
        raise UsageError("which folder? Name it with --data DIR.")
    check_splits(root)


EXTENDABLE = ("seeds", "selections", "only")
"""What a study may have more of, each time it is begun again."""


def _merge_requests(plan: Plan, old: dict[str, Any]) -> Plan:
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
    if not (folder / PLAN_FILE).is_file():
        kept = (
            f" --out {folder}, as it was begun: finished runs in it stay" if (folder / RESULTS_FILE).is_file() else ""
        )
        raise UsageError(
            f"{folder} is no study: there is no {PLAN_FILE} in it. Begin one with: zoo benchmark run STUDY{kept}"
        )
    raw = read_record(folder / PLAN_FILE)
    try:
        sequences = {key: tuple(raw[key]) for key in ("selections", "settings")}
        only = tuple(raw.get("only", ()))  # older plans are of all arms
        plan = Plan(find_study(raw["study"]), raw["dataset"], raw["seeds"], data=raw["data"], only=only, **sequences)
    except (KeyError, TypeError) as error:
        raise TrainingError(
            f"{folder / PLAN_FILE} is no plan of a study ({error}); begin anew in another folder."
        ) from None
    _check_recipes(plan, raw, folder)
    return plan


def read_record(path: Path) -> dict[str, Any]:
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
    if path.name == FAILURE_FILE:
        return "Delete it to make it again."
    report = path.with_name("report.md")
    told = f" ({report} has it)" if report.is_file() else ""
    return (
        f"Delete it and give the command again that began this folder{told}, with the same --dataset, --set and --out: "
        "what is finished stays."
    )


def select_runs(runs: Iterable[Run], only: Iterable[str], study: Study) -> list[Run]:
    """The runs of the arms named, or all. Raises `UsageError` for an arm that the study lacks."""
    only = list(only)
    _check_arms(only, study)
    return [run for run in runs if not only or run.arm.label in only]


def _check_arms(labels: Iterable[str], study: Study) -> None:
    for label in labels:
        if label not in study.labels:
            raise UsageError(f"the study {study.name} has no arm {label!r}; it has {', '.join(study.labels)}.")


def _check_same_study(plan: Plan, old: dict[str, Any], folder: Path) -> None:
    new = plan.to_json()
    for key in ("study", "dataset", "settings"):
        if old.get(key) != new[key]:
            raise TrainingError(
                f"{folder} holds another study: its {key} is {old.get(key)!r}, not {new[key]!r}. Name another --out."
            )


def _check_recipes(plan: Plan, old: dict[str, Any], folder: Path) -> None:
    """Raise `TrainingError` where an arm's recipe is not what it was: runs of both would be mixed."""
    planned = old.get("recipes", {})
    for label, recipes in _recipe_records(plan).items():
        # A setting that one of them lacks is one that an older version did not have.
        if label in planned and not same_recipe(planned[label], recipes):
            raise TrainingError(
                f"the recipe of {label} has changed since {folder} was begun (with commit {old.get('commit')}). "
                "Go on with that version, or begin anew in another folder."
            )


def _recipe_records(plan: Plan) -> dict[str, dict[str, Any]]:
    """By the arm's label: member number -> recipe with the first seed, that of the last epoch."""
    return {
        arm.label: {str(number): recipe.to_json() for number, recipe in enumerate(plan.recipes(arm))}
        for arm in plan.study.arms
    }


def adapt_to_dataset(plan: Plan) -> Plan:
    """The plan, its study's measures and note fitted to the data set whose images it reads."""
    read, owner = plan.recipes(plan.study.arms[0])[0].data.dataset, recipe_dataset(plan.dataset)
    note = plan.study.note
    if read != owner:
        where = f" ({plan.data})" if plan.data else ""
        note = f"The images are those of the data set {read}{where}, the recipes those of {owner}. {note}".strip()
    measures = tuple(dict.fromkeys(new for old in plan.study.measures for new in _adapt_measure(old, read)))
    return dataclasses.replace(plan, study=dataclasses.replace(plan.study, measures=measures, note=note))


def _adapt_measure(measure: Measure, dataset: str) -> list[Measure]:
    """The measure, or instead of a recall beyond 1 all those at which the data set is reported."""
    beyond = measure.recall_at is not None and measure.recall_at > 1
    if not beyond or (measure.split, measure.view) != ("test", EMBEDDING) or dataset not in RECALL_DEPTHS:
        return [measure]
    return [Measure(f"recall_at_{k}") for k in RECALL_DEPTHS[dataset] if k > 1]


Values = dict[str, dict[int, float]]
"""By the arm's label and the seed."""


def value_of(result: Mapping[str, Any], measure: Measure) -> float:
    """The measure's value in a run's result. Raises `TrainingError` where it was not measured."""
    return float(_evaluation(result, measure)["metrics"][measure.metric])


def has_measure(result: Mapping[str, Any], measure: Measure) -> bool:
    return any(_matches(each, measure) for each in result["evaluations"])


def values_of(runs: Sequence[Run], results: Sequence[Mapping[str, Any]], measure: Measure) -> Values:
    """The measure of every finished run; results: one for each of the runs."""
    values: Values = {}
    for run, result in zip(runs, results, strict=True):
        values.setdefault(run.arm.label, {})[run.seed] = value_of(result, measure)
    return values


def duplicate_arms(runs: Sequence[Run], results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Labels of arms that are one model: the same losses and the same scores, to the last digit, in every run."""
    told: dict[str, list[tuple[int, str, str]]] = {}
    for run, result in zip(runs, results, strict=True):
        losses = [record.get("loss") for each in result["training"] for record in each["log"]]
        scores = [each["metrics"] for each in result["evaluations"]]
        told.setdefault(run.arm.label, []).append((run.seed, run.selection, json.dumps([losses, scores])))
    alike: dict[str, list[str]] = {}
    for label, runs_of_it in told.items():
        alike.setdefault(str(sorted(runs_of_it)), []).append(label)
    return [labels for labels in alike.values() if len(labels) > 1]


def _evaluation(result: Mapping[str, Any], measure: Measure) -> Mapping[str, Any]:
    for each in result["evaluations"]:
        if _matches(each, measure):
            return each
    raise TrainingError(
        f"the run of {result['arm']} with seed {result['seed']} has no {measure}: the study measures more by now. "
        "Begin anew in another folder."
    )


def _matches(evaluation: Mapping[str, Any], measure: Measure) -> bool:
    found = (evaluation["split"], evaluation["view"]) == (measure.split, measure.view)
    return found and measure.metric in evaluation["metrics"]


Images = dict[tuple[Any, ...], str]
"""From what is read of a data set to the digest of the images and labels in it."""


class RunSchedule:
    """The runs of a plan in a study's folder, and the images that the finished ones come from.

    A schedule is made once per study and passed on: each recipe is resolved once, and each result is read once.
    """

    def __init__(self, plan: Plan, folder: Path, results: Results | None = None) -> None:
        self.plan, self.folder = plan, folder
        self.results = Results(folder) if results is None else results
        self.runs = plan.runs(folder, self.results)
        self._images: dict[tuple[Any, ...], tuple[str, str]] = {}  # with the title of a run that comes from them
        self._known: set[str] = set()

    def begin(self) -> RunSchedule:
        """Write plan.json, and return the schedule of all that was ever asked for in this folder.

        Raises:
            TrainingError: if the folder holds another study, or one whose recipes have changed since.
            UsageError: if the images are a folder that is not named.
        """
        plan = write_plan(self.plan, self.folder)
        return self if plan == self.plan else RunSchedule(plan, self.folder, self.results)

    def chosen(self, only: Iterable[str]) -> list[Run]:
        """Return the runs of the arms with these labels, or all; `UsageError` for an unknown label."""
        return select_runs(self.runs, only, self.plan.study)

    def check_finished(self) -> None:
        """Read the results that are new, and raise `TrainingError` if two finished runs come from other images."""
        finished = set(self.results)
        for run in self.runs:
            if run.name in finished and run.name not in self._known:
                images = images_of(run, run.result())
                self._compare(run, images)
                self._images |= {key: (digest, run.title) for key, digest in images.items() if key not in self._images}
                self._known.add(run.name)

    def check_images(self, run: Run, images: Images) -> None:
        """Raise `TrainingError` if a finished run of the study comes from other images than these of `run`."""
        self.check_finished()
        self._compare(run, images)

    def _compare(self, run: Run, images: Images) -> None:
        for key, digest in images.items():
            other, title = self._images.get(key, (digest, run.title))
            if other != digest:
                raise TrainingError(
                    f"{run.title} comes from other images than {title} in {self.folder}: their digests are {digest} "
                    f"and {other}. A mean over both is meaningless: name the data that the study was begun with "
                    "(--data), or begin again in another folder (--out).",
                    code="other-images",
                )


def images_of(run: Run, result: Mapping[str, Any]) -> Images:
    """Return the images that a run trained on and was measured on, by its result; older results have fewer."""
    from training.data import image_key  # torch, as above

    trained = zip(run.recipes, result.get("data", ()), strict=False)
    measured = result.get("measured", {}).items()
    first = run.recipes[0]
    return {
        **{image_key(recipe): digest for recipe, digest in trained},
        **{(first.data.dataset, split, first.preprocessing): digest for split, digest in measured},
    }
