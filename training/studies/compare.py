"""Published scores next to ours; the measured models and runs, and the images that they were measured on.

Ours are the models of the local zoo, the shipped ones, and the finished runs of studies and searches. Models whose
recipes differ only in name and seed are seeds of one recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from training.definitions import outdated_names
from training.recipe import without_remarks
from training.recipes import RECIPES, standard_recipe
from training.repeats import BASE, PARTS
from training.studies.results import RESULTS_FILE, archived_lines, has_results
from training.studies.statistics import metric_bounds
from zoo.console import count
from zoo.data.dataset import FOLDER, WHOLE
from zoo.errors import UsageError, ZooError
from zoo.evaluation.statistics import CLASSES, class_table, estimate
from zoo.files import complete_lines, read_object
from zoo.models.baselines import PRETRAINED, WHITENING_HEAD
from zoo.models.card import TRAINING_DATA, read_training_data
from zoo.models.catalogue import ModelInfo, list_models
from zoo.models.published import WHOLE_EMBEDDING, PublishedScore, PublishedTable
from zoo.models.results import data_title, flattery_note, read_class_scores
from zoo.paths import home
from zoo.report.model import recalls_of

SEEDED = re.compile(r"(?P<name>.+)-seed(?P<seed>\d{1,9})")
"""Names of a model's seeds: `zoo train NAME --seed 1 --as NAME-seed1`."""

UNRECORDED = "how it was trained is not recorded"
NOT_TRAINED = "pretrained weights, not trained further"
WHITENED = "pretrained weights, whitened"
MAYBE_WHITENED = "the images of its whitening are not recorded, and may be among these"
NO_EPOCH = "not trained (0 epochs)"
SEEN = "it may have learnt from these images"
LEARNT = "it learnt from these images"
BASE_KEPT = "the unchanged base, as no epoch was better on held-out training classes"

Record = dict[str, Any]


@dataclass(frozen=True, order=True)
class MeasuredImages:
    """The images of measurements that may be compared with one another.

    Attributes:
        dataset: The name of the data set.
        split: The split.
        key: The hash of the images; where it is not recorded "" for a published data set, and the model's name for a
            folder or table, which may be any.
        title: The name and short hash of the images, as `data_title`.
    """

    dataset: str
    split: str
    key: str
    title: str = field(compare=False)


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, or a finished run of a study.

    Attributes:
        name: The model's name, or STUDY/ARM/RUN.
        dim: Numbers per embedding.
        seed: The seed, None where it is not recorded.
        selection: How its epoch was selected, in words.
        settings: Its resolved recipe except name, seed and sources; None where no recipe is recorded.
        results: Measurements, as in results.json.
        recipe: Of a study's run: the name of its recipe, unless its arm changes the recipe.
        changes: Of a study's run: the number of ways in which the whole study departs from its recipes.
        curves: Of a study's run: recall at 1 by epoch. None for a model.
        changed: Whether a model was trained by its recipe with changes (`--set`).
        study: Of a study's run: the study's name.
        arm: Of a study's run: its arm.
        parts: Of a study's run: measurements of other views than the whole embedding.
        search: Of a search's rerun: LOSS/KIND, as in `PublishedScore`.
        pixels: Of a model: the side of its input.
        head: Of a model: what makes its embedding, as in `ModelInfo`.
    """

    name: str
    dim: int
    seed: int | None
    selection: str
    settings: Record | None
    results: Sequence[Record] = field(default_factory=list)
    recipe: str | None = None
    changes: int = 0
    curves: dict[str, list[tuple[int, float]]] | None = None
    changed: bool = False
    study: str | None = None
    arm: str | None = None
    parts: Sequence[Record] = field(default_factory=list)
    search: str | None = None
    pixels: int | None = None
    head: str = ""

    @property
    def seedless(self) -> bool:
        """Return whether it has no seed because nothing was trained; every seed of another compares with it."""
        return self.seed is None and self.selection in (NOT_TRAINED, WHITENED)

    def measurements(self) -> Iterator[tuple[MeasuredImages, Record]]:
        """Yield each measurement on a data set with its images; plain embeddings have none."""
        for result in self.results:
            dataset, split, data = result["dataset"], result["split"], result.get("data")
            if dataset is None or split is None:
                continue
            title, key = data_title(result), data["sha256"] if data else ""
            if data is None and dataset == FOLDER:
                title, key = f"{title}, of {self.name}", self.name
            yield MeasuredImages(dataset, split, key, title), result

    def view(self, name: str) -> TrainedModel | None:
        """Return the model with its measurements of a view, or None without such measurements."""
        if name == WHOLE_EMBEDDING:
            return self
        results = [part for part in self.parts if part["view"] == name]
        if not results:
            return None
        # Its epochs are those of the whole embedding.
        return replace(self, name=f"{self.name}:{name}", dim=int(results[0]["dim"]), results=results, curves={})


@dataclass(frozen=True)
class MeasuredScore:
    """A score that was measured here.

    Attributes:
        value: The mean over runs.
        sd: The standard deviation over runs, None for a single run.
        interval: 95 %, None where it is not known.
        over: "seeds and classes", "seeds" or, of a single run, "classes": another seed is not in that interval.
        runs: Names of the runs.
        seeds: Their seeds.
        protocol: How the epoch was selected and the score measured.
        data: The name and short hash of the images.
        models: The runs themselves.
        fingerprints: Of the models, None where it is not recorded.
        dates: Of the measurements.
    """

    value: float
    sd: float | None
    interval: tuple[float, float] | None
    over: str | None
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    protocol: str
    data: str
    models: tuple[TrainedModel, ...] = ()
    fingerprints: tuple[str | None, ...] = ()
    dates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A published score next to ours.

    Attributes:
        table: The published table.
        score: The published score.
        status: "measured"; "not measured" for a model without this metric; "not run" without a model; "no recipe" if
            neither a model nor a study of this project measures the same.
        ours: Our score if the status is "measured".
    """

    table: PublishedTable
    score: PublishedScore
    status: str
    ours: MeasuredScore | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the published score."""
        return None if self.ours is None else self.ours.value - self.score.value


Measurement = tuple[TrainedModel, Record]
"""A model and a measurement of it, as in results.json."""


def compare_tables(
    tables: Iterable[PublishedTable], dataset: str | None = None, runs: Sequence[TrainedModel] | None = None
) -> list[Comparison]:
    """Compare each score of published tables with ours.

    Args:
        tables: The published tables.
        dataset: Compare only scores on this data set.
        runs: Models and runs; by default all models that are trained here or shipped, and all studies run here.
    """
    models = find_runs() if runs is None else list(runs)
    return [
        _comparison(table, score, models)
        for table in tables
        for score in table.scores
        if dataset is None or score.dataset == dataset
    ]


def find_runs(folders: Iterable[Path] = ()) -> list[TrainedModel]:
    """Find every model that is trained here or shipped, and every finished run of a study or rerun of a search.

    Args:
        folders: Folders of studies in addition to the one in `ZOO_HOME`.

    Returns:
        The models by name, then the runs.

    Raises:
        UsageError: If a folder does not exist.
    """
    own = home() / "studies"
    models = [_read_model(model, model.folder) for model in list_models() if model.folder is not None]
    return [*models, *(run for folder in (*([own] if own.is_dir() else []), *folders) for run in _study_runs(folder))]


def _study_runs(folder: Path) -> list[TrainedModel]:
    """Read every finished run of a study, or of the studies in a folder, in the order of their names.

    A result that cannot be read is skipped.

    Raises:
        UsageError: If the folder does not exist.
    """
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder {folder}; name a study's folder, or one that contains studies.", code="not-found"
        )
    studies = [folder] if has_results(folder) else sorted(folder.iterdir())
    return [run for study in studies for run in (*_read_study_runs(study), *_read_reruns(study))]


def runs_of_recipe(recipe: str, runs: Iterable[TrainedModel]) -> list[TrainedModel]:
    """Return one run of a recipe per seed, in the order of the seeds.

    The model named like the recipe sets the standard, unless it was trained with changes; where it is missing, the one
    named RECIPE-seedN with the lowest N. Every other model or run counts if its recipe agrees in everything except name
    and seed. Without a recipe.json (an ensemble, a model from elsewhere) the model stands alone.
    A study's run of the recipe, of the last epoch and without settings first, sets a standard of its own; of the two
    groups the one with more seeds is returned.
    """
    runs = list(runs)
    named, studied = _standard_model(recipe, runs), _least_changed([run for run in runs if run.recipe == recipe], runs)
    return max([] if named is None else seeds_of(named, runs), studied, key=len)


def _runs_of_arm(study: str, arm: str, dataset: str, runs: Iterable[TrainedModel]) -> list[TrainedModel]:
    """Return one run of a study's arm on a data set per seed, of the least changed study, in the order of the seeds.

    Runs of other studies count where the recipes agree.

    Args:
        study: The name of the study.
        arm: The label of the arm.
        dataset: The data set on which the runs were measured.
        runs: All runs.
    """
    runs = list(runs)
    of_arm = [run for run in runs if (run.study, run.arm) == (study, arm)]
    measured = [run for run in of_arm if any(result["dataset"] == dataset for result in run.results)]
    return _least_changed(measured, runs)


def seeds_of(standard: TrainedModel, runs: Iterable[TrainedModel]) -> list[TrainedModel]:
    """Return the standard and the runs of its recipe with other seeds, by seed."""
    if standard.settings is None:
        return [standard]
    by_seed = {standard.seed: standard}
    for run in runs:
        if run.settings is not None and _is_same_recipe(run.settings, standard.settings):
            by_seed.setdefault(run.seed, run)
    return sorted(by_seed.values(), key=lambda run: run.seed or 0)


def newest_measurements(runs: Iterable[TrainedModel], images: MeasuredImages, metric: str) -> list[Measurement]:
    """Return the newest measurement of a metric of each run that has one, with torch in fp32 where there is one.

    Args:
        runs: The runs.
        images: The images that were measured.
        metric: The metric that the measurement must have.
    """
    return [(run, result) for run in runs if (result := _newest_measurement(run, images, metric)) is not None]


def average_measurements(metric: str, measurements: Sequence[Measurement]) -> MeasuredScore:
    """Return the mean of a metric over one or more measurements, one per seed."""
    values = [float(result["metrics"][metric]) for _, result in measurements]
    table = class_table([read_class_scores(result) for _, result in measurements], metric)
    mean = estimate(values, table, metric_bounds(metric))
    recorded = _interval_over_classes(measurements[0][1], metric) if mean.error is None else None
    return MeasuredScore(
        value=mean.mean,
        sd=mean.sd,
        interval=mean.interval or recorded,
        over=CLASSES if recorded else mean.over,
        runs=tuple(run.name for run, _ in measurements),
        seeds=tuple(run.seed for run, _ in measurements),
        protocol="; ".join(
            dict.fromkeys([*(run.selection for run, _ in measurements), *(_protocol(*each) for each in measurements)])
        ),
        data=data_title(measurements[0][1]),
        models=tuple(run for run, _ in measurements),
        fingerprints=tuple(result.get("fingerprint") for _, result in measurements),
        dates=tuple(str(result.get("date", "")) for _, result in measurements),
    )


def _runs_of_search(search: str, runs: Iterable[TrainedModel]) -> list[list[TrainedModel]]:
    """Return the reruns of a loss of the least changed searches, one list per search."""
    reruns = [run for run in runs if run.search == search]
    fewest = min((run.changes for run in reruns), default=0)
    least = sorted((run for run in reruns if run.changes == fewest), key=lambda run: (run.selection, run.seed))
    return [list(group) for _, group in groupby(least, key=lambda run: run.selection)]


def _comparison(table: PublishedTable, score: PublishedScore, models: Sequence[TrainedModel]) -> Comparison:
    if score.recipe is score.study is score.search is None:
        return Comparison(table, score, "no recipe")
    groups = list(_candidates(score, models))
    choices = [
        pairs
        for runs in groups
        for images in measured_images(runs, score.dataset)
        if images.split == score.split and (pairs := newest_measurements(runs, images, score.metric))
    ]
    if not choices:
        return Comparison(table, score, "not measured" if any(groups) else "not run")
    return Comparison(table, score, "measured", average_measurements(score.metric, max(choices, key=len)))


def _candidates(score: PublishedScore, models: Sequence[TrainedModel]) -> list[list[TrainedModel]]:
    """Return the runs of the score's recipe, arm and search, each with the measurements of the score's view."""
    groups = [] if score.recipe is None else [runs_of_recipe(score.recipe, models)]
    if score.study is not None and score.arm is not None:
        groups.append(_runs_of_arm(score.study, score.arm, score.dataset, models))
    if score.search is not None:
        groups += _runs_of_search(score.search, models)
    views = [[view for run in group if (view := run.view(score.view)) is not None] for group in groups]
    # A model trained under the recipe's name with another dimension is another model.
    return [[run for run in group if run.dim == score.dim] for group in views]


def _newest_measurement(run: TrainedModel, images: MeasuredImages, metric: str) -> Record | None:
    results = [result for of, result in run.measurements() if of == images and metric in result["metrics"]]
    exact = [result for result in results if (result["runtime"], result["precision"]) == ("torch", "fp32")]
    return next(reversed(exact or results), None)


def _interval_over_classes(result: Record, metric: str) -> tuple[float, float] | None:
    bounds = result.get("intervals", {}).get(metric)
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))


def _protocol(run: TrainedModel, result: Record) -> str:
    """Return how a score was measured, and whether the model may have learnt from the images."""
    data = (run.settings or {}).get("data")
    learnt = data.get("dataset") if isinstance(data, dict) else None
    seen = result["dataset"] == FOLDER == learnt and result["split"] == WHOLE
    images = result.get("data") or {}
    if images and images["sha256"] == (run.settings or {}).get(TRAINING_DATA):
        named = f"; {LEARNT}"
    else:
        named = f"; {SEEN}" * seen
    if run.selection == WHITENED and result.get("whitened_classes") is None:
        named += f"; {MAYBE_WHITENED}"
    elif note := flattery_note(result):
        named += f"; {note}"
    return f"{result['protocol']}; {result['runtime']} {result['precision']}{named}"


def _standard_model(recipe: str, runs: Sequence[TrainedModel]) -> TrainedModel | None:
    runs = [run for run in runs if run.curves is None and not run.changed]
    matches = [(SEEDED.fullmatch(run.name), run) for run in runs]
    numbered = [(int(match["seed"]), run) for match, run in matches if match and match["name"] == recipe]
    named = [(-1, run) for run in runs if run.name == recipe]
    return min(named + numbered, key=lambda pair: pair[0], default=(0, None))[1]


def _least_changed(candidates: Sequence[TrainedModel], runs: Sequence[TrainedModel]) -> list[TrainedModel]:
    """Return the least changed runs of studies with the other seeds of their recipe: the group with the most seeds."""
    fewest = min((run.changes for run in candidates), default=0)
    groups: list[list[TrainedModel]] = []
    for run in sorted(candidates, key=lambda run: run.seed or 0):
        if run.changes == fewest and not any(run is member for group in groups for member in group):
            groups.append(seeds_of(run, runs))
    return max(groups, key=len, default=[])


def _is_same_recipe(a: Record, b: Record) -> bool:
    """Return whether two recorded recipes are the same, of the same images and weights as far as both name them."""
    known = [{record[key] for record in (a, b) if key in record} for key in (TRAINING_DATA, BASE)]
    recipes = [{key: value for key, value in record.items() if key not in (TRAINING_DATA, BASE)} for record in (a, b)]
    return max(map(len, known)) < 2 and recipes[0] == recipes[1]


def _definitions_note(recipes: Iterable[Record]) -> str:
    """Return which definitions of recorded recipes have changed since, to add to how an epoch was selected."""
    names = outdated_names(recipes)
    return f", by an older definition of the {' and the '.join(names)}" if names else ""


def _read_model(model: ModelInfo, folder: Path) -> TrainedModel:
    record = read_object(folder / "recipe.json")  # an unreadable one hides no score
    recipe, pixels = record.get("recipe"), model.card.preprocessing.crop if model.card else None
    if not isinstance(recipe, dict):
        members = record.get("ensemble")
        selection = _selection_without_recipe(model)
        if isinstance(members, list):
            selection = f"{count(len(members), 'model')} joined"
        return TrainedModel(model.name, model.dim, None, selection, None, model.own_results, pixels=pixels)
    settings = without_remarks(recipe, "name", "seed")
    if "backbone.pretrained" not in model.origin.changed:
        settings = _with_public_weights(settings, model.origin.recipe)
    if images := _training_images(folder, recipe, model.name):
        settings[TRAINING_DATA] = images
    if isinstance(base := record.get(BASE), dict):
        settings[BASE] = str(base.get("fingerprint"))
    seed = recipe["seed"] if type(recipe.get("seed")) is int else None
    note = _definitions_note([recipe])
    selection = _selection_of_model(record, recipe) + note
    changed = "origin" in record and (model.origin.exact_recipe is None or bool(note))
    facts = (model.name, model.dim, seed, selection, settings, model.own_results)
    return TrainedModel(*facts, changed=changed, pixels=pixels, head=model.head)


def _with_public_weights(settings: Record, recipe: str | None) -> Record:
    """Return the settings of a model that starts from its recipe's weights, by the recipe's own name of these.

    A folder of the same weights (`--weights`) has another name on every machine.
    """
    backbone = settings.get("backbone")
    if recipe not in RECIPES or not isinstance(backbone, dict) or not isinstance(backbone.get("pretrained"), str):
        return settings
    standard = standard_recipe(recipe).backbone.pretrained
    return {**settings, "backbone": {**backbone, "pretrained": standard}}


def _training_images(folder: Path, recipe: Record, name: str) -> str | None:
    """Return the hash of the images that a model was trained on; of unrecorded own ones a text that equals no other."""
    images = read_training_data(folder).get("sha256")
    data = recipe.get("data")
    own = isinstance(data, dict) and data.get("dataset") == FOLDER
    return f"not recorded, of {name}" if images is None and own else images


def _selection_without_recipe(model: ModelInfo) -> str:
    if model.method != PRETRAINED:
        return UNRECORDED
    whitened = model.card is not None and any(head.name == WHITENING_HEAD for head in model.card.heads)
    return WHITENED if whitened else NOT_TRAINED


def _selection_of_model(record: Record, recipe: Record) -> str:
    schedule = recipe.get("schedule")
    epochs = schedule.get("epochs") if isinstance(schedule, dict) else None
    best = record.get("best_epoch")
    if epochs == 0:
        return NO_EPOCH
    if record.get("kept") == "base":
        return BASE_KEPT
    if best is not None:
        return f"best epoch on held-out training classes ({best} of {epochs})"
    return f"last of {count(epochs, 'epoch')}" if isinstance(epochs, int) else UNRECORDED


def _read_study_runs(study: Path) -> Iterator[TrainedModel]:
    plan = read_object(study / "plan.json")
    for name, result in sorted(_read_results(study), key=lambda pair: pair[0].split("/")):
        try:
            run = _read_study_run(study, name, result, plan)
        except (KeyError, TypeError, IndexError):
            continue
        if run is not None:
            yield run


def _read_results(study: Path) -> Iterator[tuple[str, Record]]:
    """Yield the run's name and the result of each line that can be read."""
    path = study / RESULTS_FILE
    for line in (*archived_lines(path), *complete_lines(path)):
        try:
            result = json.loads(line)
            yield str(result["run"]), result
        except (ValueError, KeyError, TypeError):
            continue


def _read_reruns(folder: Path) -> Iterator[TrainedModel]:
    """Yield each rerun of a search's best values by kind; none if it cannot be read, or its recipes have changed."""
    if not (folder / "search.json").is_file():
        return
    from training.studies.cross_validation import KINDS  # with torch, which other comparisons do not need
    from training.studies.search import tested_reruns

    try:
        plan, tested = tested_reruns(folder)
    except ZooError:
        return
    values = f"the best of {plan.trials} trials" if plan.trials else "the values of the recipe"
    changed = f" with {', '.join(plan.settings)}" if plan.settings else ""
    models = f"{plan.folds} models, one per fold of the training classes"
    how = f"best epoch on the fold, {values}, search {folder.name}{changed}"
    facts = {"dataset": plan.first.data.dataset, "split": "test", "runtime": "torch", "precision": "fp32"}
    for (loss, result), kind in product(tested, KINDS):
        joined = kind == "concatenated"
        yield TrainedModel(
            name=f"{folder.name}/{loss}/seed-{result['seed']}, {kind}",
            dim=result["dim"] * (plan.folds if joined else 1),
            seed=result["seed"],
            selection=f"{models}, {'joined' if joined else 'whose scores are averaged'}, {how}",
            settings=None,
            results=[{**facts, **result, "data": result["images"], "metrics": result[kind]}],
            changes=len(plan.settings),
            curves={},
            search=f"{loss}/{kind}",
        )


def _read_study_run(study: Path, name: str, result: Record, plan: Record) -> TrainedModel | None:
    """Return a run of a study with the plan `plan`; None where the trained recipe is not known."""
    if "resolved" not in result:
        return None
    measured = [{**evaluation, "runtime": "torch", "precision": "fp32"} for evaluation in result["evaluations"]]
    whole = [evaluation for evaluation in measured if evaluation["view"] == WHOLE_EMBEDDING]
    note = _definitions_note(result["resolved"])
    members = [_with_start(without_remarks(recipe, "name", "seed"), plan) for recipe in result["resolved"]]
    if not any(setting.partition("=")[0] == "backbone.pretrained" for setting in result["settings"]):
        members = [_with_public_weights(member, str(result["recipe"])) for member in members]
    return TrainedModel(
        name=f"{study.name}/{name}",
        dim=int(whole[0]["dim"]),
        seed=int(result["seed"]),
        selection=_selection_of_run(study, result) + note,
        settings=members[0] if len(members) == 1 else {"members": members},
        results=whole,
        recipe=None if result["changed"] or note or members[0].get("as_published") else str(result["recipe"]),
        changes=len(result["settings"]) + (result["selection"] != "last"),
        curves=recalls_of(result["training"][0]["log"]),
        study=plan.get("study"),
        arm=result.get("arm"),
        parts=[evaluation for evaluation in measured if evaluation["view"] != WHOLE_EMBEDDING],
    )


def _with_start(settings: Record, plan: Record) -> Record:
    """Return a run's settings with the fingerprint of the model that it starts from, if the plan has it."""
    parts, backbone = plan.get(PARTS), settings.get("backbone")
    if not isinstance(parts, dict) or not isinstance(backbone, dict):
        return settings
    start = parts.get(str(backbone.get("pretrained")))
    return {**settings, BASE: start} if start else settings


def _selection_of_run(study: Path, result: Record) -> str:
    trained, models = result["training"][0], len(result["training"])
    selection = f"last of {count(trained['epochs'], 'epoch')}" if trained["epochs"] else "not trained"
    if result["selection"] != "last":
        selection = f"best epoch on held-out training classes ({trained['measured_epoch']} of {trained['epochs']})"
    joined = f"{models} models joined, " if models > 1 else ""
    return f"{joined}{selection}, study {study.name}" + (
        f" with {', '.join(result['settings'])}" if result["settings"] else ""
    )


def measured_images(group: Sequence[TrainedModel], dataset: str | None = None) -> list[MeasuredImages]:
    """Return the images that the runs were measured on, all or those of one data set, folder (by its name) or table."""
    found = {images for run in group for images, _ in run.measurements()}
    names = {images: (None, images.dataset, images.title.rpartition(" (")[0]) for images in found}
    return sorted(images for images in found if dataset in names[images])
