"""Execution of studies: train and measure each run, share runs among processes, adopt runs of other studies."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from training.api import TrainingSetup, provenance, train_network
from training.build import create_sampler
from training.cached.samples import Samples
from training.data import image_key, training_labels
from training.definitions import outdated_names
from training.distributed import keep_freed_memory
from training.execution import Execution
from training.overrides import fit_to_classes, override
from training.recipe import Recipe
from training.studies.measure import Splits, curve_scores, embed_splits, measure_views
from training.studies.plan import (
    FAILURE_FILE,
    PLAN_FILE,
    Plan,
    Run,
    RunSchedule,
    check_images,
    check_source,
    images_of,
    read_record,
)
from training.studies.results import Result, Results, has_measure, lacks_head, value_of
from training.studies.study import Arm, Study, changed_settings, recipe_name
from training.studies.trials import (
    TRIAL_METRIC,
    TRIAL_SEED,
    TRIALS_FILE,
    TrialValues,
    merge_trials,
    read_trials,
    trial_folder,
    trial_name,
    trial_title,
)
from training.trainer import CHECKPOINT, Trained
from zoo.data.dataset import SPLITS, Dataset
from zoo.errors import DivergedError, RecipeError, UsageError, ZooError
from zoo.files import LockHeldError, locked, read_object, write_json
from zoo.models.torch_runtime import choose_device


@dataclass
class StudyContext:
    """The training setup and the measured splits that the runs of a study share.

    Attributes:
        setup: The device and the data of the training runs.
        splits: The measured splits.
        made_with: Versions, commit and hardware.
    """

    setup: TrainingSetup
    splits: Splits
    made_with: dict[str, Any] = field(default_factory=provenance)

    @property
    def device(self) -> torch.device:
        """The device that trains and embeds."""
        return self.setup.execution.device

    def check_splits(self, recipes: Iterable[Recipe]) -> None:
        """Raise `DatasetError` before any training if a split of the recipes' data sets is not available."""
        for name in dict.fromkeys(recipe.data.dataset for recipe in recipes):
            for split in SPLITS:
                self.splits.dataset(name, split)


@dataclass(frozen=True)
class Tally:
    """The outcome of every run.

    Attributes:
        done: Runs that were performed now.
        before: Runs that had finished earlier.
        elsewhere: Runs that other processes hold, or finished meanwhile.
        failed: Runs that failed, with the error.
    """

    done: list[Run] = field(default_factory=list)
    before: list[Run] = field(default_factory=list)
    elsewhere: list[Run] = field(default_factory=list)
    failed: list[tuple[Run, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the number of runs by outcome, and each failure."""
        counts = {name: len(getattr(self, name)) for name in ("done", "before", "elsewhere")}
        return {**counts, "failed": [{"run": run.title, "message": message} for run, message in self.failed]}


def print_progress(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def create_study_context(device: torch.device, root: str | Path | None) -> StudyContext:
    """Return a context on a device, with the data set in the folder `root`."""
    return StudyContext(TrainingSetup(Execution(device), root), Splits(root))


def prepare_contexts(
    schedules: Sequence[RunSchedule],
    root: str | Path | None = None,
    device: str | None = None,
    only: Sequence[str] = (),
    sources: Sequence[Path] = (),
) -> list[StudyContext]:
    """Return a context for each schedule; schedules that read the same data share one.

    Args:
        schedules: The studies to run.
        root: The folder of the data set (default: the plan's).
        device: Cpu, cuda or cuda:N (default: cuda where available).
        only: Labels of the arms to run (default: all).
        sources: Folders of studies whose finished runs will be adopted.

    Raises:
        DatasetError: If runs are left to do and their images are unavailable; before any folder is made.
        RecipeError: If their training classes are too few for the batches of a run; likewise.
        UsageError: If an arm is unknown, the images are a folder that is not named, or one of `sources` has no results.
    """
    keep_freed_memory()
    chosen_device = choose_device(device)
    contexts: dict[str | Path | None, StudyContext] = {}
    for schedule in schedules:
        data = root or schedule.plan.data
        if data not in contexts:
            contexts[data] = create_study_context(chosen_device, data)
        adoptable = adoptable_recipes(schedule.plan.study, sources)
        runs, plan = schedule.select(only), schedule.plan
        left = [
            run
            for run in runs
            if not run.finished and (plan.lacks_values(run.arm) or tuple(run.digests) not in adoptable)
        ]
        untried = dict.fromkeys(run.arm for run in left if plan.lacks_values(run.arm))
        if left:
            check_images(left[0].recipes[0].data.dataset, data)
        recipes = [recipe for run in left for recipe in run.recipes]
        recipes += [recipe for arm in untried for recipe in plan.trial_recipes(arm, TrialValues(plan.rates[0]))]
        contexts[data].check_splits(recipes)
        for name in dict.fromkeys(recipe.data.dataset for recipe in recipes):
            own = [recipe for recipe in recipes if recipe.data.dataset == name]
            check_batches(own, contexts[data].splits.dataset(name, "train"))
    return [contexts[root or schedule.plan.data] for schedule in schedules]


def check_batches(recipes: Iterable[Recipe], train: Dataset) -> None:
    """Check, before any training, that the classes of the images that runs train on fill the batches of all runs.

    Batches of one study are not made smaller by themselves: its runs are compared, and shall have what is asked for.

    Args:
        recipes: The recipes of the runs, on one data set.
        train: The images, before a recipe holds out classes for validation.

    Raises:
        RecipeError: The error of the first recipe that does not fit, with the settings by which all of them fit.
    """
    listed = replace(train, images=train.sources)  # drawn images need not be drawn
    distinct = list({str((recipe.batch, recipe.data, recipe.dim)): recipe for recipe in recipes}.values())
    for recipe in distinct:
        if (error := _batch_error(recipe, listed)) is not None:
            settings = _fitting_settings(distinct, listed)
            add = f" All runs fit with: {shlex.join(f for s in settings for f in ('--set', s))}" if settings else ""
            raise RecipeError(f"{recipe.name}: {error}{add}", code=error.code)


def _batch_error(recipe: Recipe, train: Dataset) -> RecipeError | None:
    try:
        create_sampler(recipe, training_labels(train, recipe.data, recipe.seed))
    except RecipeError as error:
        return error
    return None


def _fitting_settings(recipes: Sequence[Recipe], train: Dataset) -> tuple[str, ...]:
    """Return the first recipe's settings of `fit_to_classes` with which all recipes fit; none if there are no such."""
    for recipe in recipes:
        with suppress(RecipeError):
            settings = fit_to_classes(recipe, train.labels, ())[1]
            if settings and all(_batch_error(override(other, settings), train) is None for other in recipes):
                return settings
    return ()


def run_trials(
    schedule: RunSchedule,
    context: StudyContext,
    only: Sequence[str] = (),
    sources: Sequence[Path] = (),
    progress: Callable[[str], None] = print_progress,
) -> RunSchedule:
    """Perform the trials that are left, and return the schedule with the values that they choose.

    A trial trains an arm on the first seed with held-out training classes. Nothing is measured on test classes. A trial
    that ends is appended to trials.jsonl and stated in plan.json. One that fails ends those of its arm, which is not
    run until the trial is repeated.

    Args:
        schedule: The study, begun (`RunSchedule.begin`).
        context: Where to train.
        only: Labels of the arms to try (default: all).
        sources: Folders of studies whose finished trials of the same recipes are adopted.
        progress: Receives a line of text after each trial.

    Raises:
        UsageError: If an arm is unknown.
        TrainingError: If an adopted trial comes from other images or weights than those of this study.
    """
    folder, results = schedule.folder, Results(schedule.folder, TRIALS_FILE)
    for source in sources:
        check_source(folder, source)
    adoptable = [_finished_trials(schedule.plan, source) for source in sources]
    plan = replace(schedule.plan, trials=merge_trials(schedule.plan.trials, read_trials(results.values())))
    for arm in dict.fromkeys(run.arm for run in schedule.select(only)):
        while (values := plan.next_values(arm)) is not None:
            name, place = trial_name(arm.label, values), trial_folder(folder, arm.label, values)
            with claim_folder(place) as claimed:
                if not claimed:
                    break
                if name not in results:
                    try:
                        record = _adopted_trial(plan, arm, values, adoptable) or _perform_trial(
                            plan, arm, values, place, context
                        )
                    except ZooError as error:
                        _keep_failure(place, error)
                        progress(f"{trial_title(arm.label, values)}: failed: {error}")
                        break
                    results.add(name, record)
                    (place / FAILURE_FILE).unlink(missing_ok=True)
                    _remove_checkpoints(place)
                    if "from" not in record:
                        progress(f"{trial_title(arm.label, values)}: {_score_of(record)}")
            plan = replace(plan, trials=merge_trials(plan.trials, read_trials(results.values())))
    if plan.trials == schedule.plan.trials:
        return schedule
    return RunSchedule(plan, folder, schedule.results).begin()


def _score_of(record: Mapping[str, Any]) -> str:
    return "diverged" if record["score"] is None else f"held-out {TRIAL_METRIC} {record['score']:.4f}"


def run_schedule(
    schedule: RunSchedule,
    context: StudyContext,
    only: Sequence[str] = (),
    sources: Sequence[Path] = (),
    progress: Callable[[str], None] = print_progress,
) -> Tally:
    """Adopt finished runs of other studies, then perform the runs that are left.

    Arms whose trials have chosen nothing are not run (`run_trials`).

    Args:
        schedule: The study, begun (`RunSchedule.begin`).
        context: Where to train and measure.
        only: Labels of the arms to run (default: all).
        sources: Folders of studies whose finished runs are adopted.
        progress: Receives one line per adopted study and per run.

    Raises:
        UsageError: If an arm is unknown or one of `sources` has no finished runs.
        TrainingError: If an adopted run comes from other images or weights than those of this study.
    """
    selected, plan = schedule.select(only), schedule.plan
    runs = [run for run in selected if not plan.lacks_values(run.arm)]
    for source in sources:
        adopted, older = adopt_results(schedule, runs, source), _older_definitions(source)
        left = f" Runs by an older {' and '.join(older)} are left there." if older else ""
        progress(f"{adopted} finished runs taken over from {source}.{left}")
    tally = perform_runs(schedule, runs, context, progress)
    for run in selected:
        if plan.lacks_values(run.arm):
            message = _failed_trials(schedule, run.arm)
            if message:
                tally.failed.append((run, message))
            else:
                tally.elsewhere.append(run)
    return tally


def perform_runs(
    schedule: RunSchedule, runs: Sequence[Run], context: StudyContext, progress: Callable[[str], None] = print_progress
) -> Tally:
    """Perform every run that is not finished and that no other process holds. A failure stops no other run.

    Args:
        schedule: The schedule of the runs.
        runs: The runs to perform, in this order.
        context: What the runs share.
        progress: Receives a line of text after each run that succeeds or fails.

    Returns:
        The outcome of every run.
    """
    tally = Tally()
    finished = set(schedule.results)
    tally.before.extend(run for run in runs if run.name in finished)
    waiting = [run for run in runs if run.name not in finished]
    seconds: list[float] = []
    for number, run in enumerate(waiting, start=1):
        with claim_folder(run.folder) as claimed:
            if not claimed or run.finished:
                tally.elsewhere.append(run)
                continue
            started = time.perf_counter()
            try:
                result = perform_run(run, schedule, context)
            except ZooError as error:
                tally.failed.append((run, str(error)))
                progress(f"{run.title}: failed: {error}")
                continue
        tally.done.append(run)
        seconds.append(time.perf_counter() - started)
        finished = set(schedule.results)
        left = sum(later.name not in finished for later in waiting[number:])
        eta = f"; about {_duration(left * sum(seconds) / len(seconds))} to go" if left else ""
        measure = schedule.plan.study.measures[0]
        score = f"{measure} {value_of(result, measure):.4f} in {_duration(seconds[-1])}"
        progress(f"[{len(runs) - left}/{len(runs)}] {run.title}: {score}{eta}")
    return tally


def perform_run(run: Run, schedule: RunSchedule, context: StudyContext) -> Result:
    """Train the run's recipes from their checkpoints, measure, and append the result to results.jsonl.

    The test split is read when training has ended.

    Raises:
        ZooError: If the run failed, or its images differ from those of the finished runs. The failure is also written
            to the run's folder.
    """
    started = time.perf_counter()
    try:
        result = _train_and_measure(run, schedule, context)
        schedule.check_images(run, images_of(run, result))
    except ZooError as error:
        _keep_failure(run.folder, error)
        raise
    run.finish({**result, "wall_seconds": time.perf_counter() - started})
    _remove_checkpoints(run.folder)
    return run.result()


@contextmanager
def claim_folder(folder: Path) -> Iterator[bool]:
    """Claim a run's folder for this process, and yield whether it succeeded; the claim ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claim").touch()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "claim", wait=False))
        except LockHeldError:
            yield False
        else:
            yield True


def adoptable_recipes(study: Study, sources: Iterable[Path]) -> set[tuple[str, ...]]:
    """Return the recipes' digests of the runs that `adopt_results` can adopt for the study.

    Raises:
        UsageError: If one of the folders `sources` has no finished run.
    """
    results = [result for source in sources for result in _finished_results(source).values()]
    return {tuple(result["recipes"]) for result in results if _covers_study(study, result)}


def adopt_results(schedule: RunSchedule, runs: Iterable[Run], source: Path) -> int:
    """Adopt results from the study in the folder `source` for runs that have none, and return their number.

    A result is adopted for a run of exactly the same recipes, including seed and selection, if it has all measures of
    this study. It keeps its date, versions and hardware, and records its origin.

    Raises:
        UsageError: `source` has no finished run.
        TrainingError: If a result comes from other images or weights than those of this study.
    """
    check_source(schedule.folder, source)
    source_results = {tuple(result["recipes"]): (name, result) for name, result in _finished_results(source).items()}
    adopted = 0
    for run in runs:
        name, result = source_results.get(tuple(run.digests), (None, None))
        if name is None or result is None or run.finished or not _covers_study(schedule.plan.study, result):
            continue
        with claim_folder(run.folder) as claimed:
            if claimed and not run.finished:
                schedule.check_images(run, images_of(run, result))
                run.finish({**result, "arm": run.arm.label, "from": f"{source}: {name}"})
                adopted += 1
    return adopted


def _older_definitions(source: Path) -> list[str]:
    """Return the definitions of the runs in the folder `source` that have another version today."""
    arms = read_object(source / PLAN_FILE).get("recipes", {}).values()
    planned = (recipe for members in arms for recipe in members.values())  # some runs do not record theirs
    resolved = (recipe for result in Results(source).values() for recipe in result.get("resolved", ()))
    return outdated_names((*planned, *resolved))


def _finished_trials(plan: Plan, source: Path) -> dict[tuple[str, ...], Result]:
    """Return the trials of another study that were scored as the plan's, by their recipes, with their origin."""
    return {
        tuple(record["recipes"]): {**record, "from": f"{source}: {name}"}
        for name, record in Results(source, TRIALS_FILE).items()
        if record.get("best_epoch", False) == _scores_best_epoch(plan)
    }


def _adopted_trial(
    plan: Plan, arm: Arm, values: TrialValues, sources: Sequence[Mapping[tuple[str, ...], Result]]
) -> Result | None:
    """Return the trial of exactly the same recipes in another study; None without one."""
    digests = tuple(recipe.digest for recipe in plan.trial_recipes(arm, values))
    trial = next((source[digests] for source in sources if digests in source), None)
    return None if trial is None else {**trial, "arm": arm.label}


def _covers_study(study: Study, result: Mapping[str, Any]) -> bool:
    """Return whether a result has all measures of the study that its heads allow, and its spectra and curves."""
    spectra = all("spectrum" in evaluation for evaluation in result["evaluations"])
    logs = [training["log"] for training in result["training"]]
    curves = all(any("training_recall_at_1" in epoch for epoch in log) for log in logs)
    measured = all(has_measure(result, measure) or lacks_head(result, measure) for measure in study.measures)
    return measured and (spectra or not study.spectrum) and (curves or not study.curves)


def _finished_results(source: Path) -> Results:
    results = Results(source)
    if not results and not Results(source, TRIALS_FILE):
        raise UsageError(f"{source} holds no finished runs or trials of a study.", code="no-results")
    return results


def _perform_trial(plan: Plan, arm: Arm, values: TrialValues, folder: Path, context: StudyContext) -> Result:
    """Train an arm with a trial's values, and return the record with its score; None if training diverged."""
    recipes = plan.trial_recipes(arm, values)
    facts = {
        "arm": arm.label,
        **values._asdict(),
        "seed": TRIAL_SEED,
        "recipes": [recipe.digest for recipe in recipes],
        "device": str(context.device),
        **context.made_with,
    }
    try:
        runs = [train_network(recipe, context.setup, folder) for recipe in recipes]
    except DivergedError as error:
        return {**facts, "score": None, "diverged": str(error), "date": _date()}
    best = _scores_best_epoch(plan)
    scores = [
        trained.validation[TRIAL_METRIC] if best else trained.log[-1][f"validation_{TRIAL_METRIC}"]
        for trained, _ in runs
    ]
    return {
        **facts,
        "score": sum(scores) / len(scores),
        "best_epoch": best,
        "data": [samples.digest for _, samples in runs],
        "training": [_training_record(trained) for trained, _ in runs],
        "date": _date(),
    }


def _scores_best_epoch(plan: Plan) -> bool:
    """Return whether trials are scored by their best epoch, not by the last."""
    return plan.selections == ("validation",)


def _failed_trials(schedule: RunSchedule, arm: Arm) -> str:
    """Return why the trials of an arm chose nothing; "" if another process performs them."""
    values = schedule.plan.next_values(arm)
    if values is None:
        return "its trials diverged with every learning rate. Begin again in another folder (--out) with lower rates."
    path = trial_folder(schedule.folder, arm.label, values) / FAILURE_FILE
    return f"{trial_title(arm.label, values)}: {read_record(path)['message']}" if path.exists() else ""


def _keep_failure(folder: Path, error: ZooError) -> None:
    """Write the error of a run or a trial to its folder."""
    write_json(folder / FAILURE_FILE, {"error": type(error).__name__, "message": str(error)})


def _remove_checkpoints(folder: Path) -> None:
    for checkpoint in folder.glob(f"*/{CHECKPOINT}"):
        checkpoint.unlink()


def _date() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _train_and_measure(run: Run, schedule: RunSchedule, context: StudyContext) -> Result:
    plan, splits = schedule.plan, context.splits
    trained, digests = [], []
    for recipe in run.recipes:

        def check(samples: Samples, key: tuple[Any, ...] = image_key(recipe)) -> None:
            schedule.check_images(run, {key: samples.digest})

        observe = curve_scores if plan.study.curves else None
        model, samples = train_network(recipe, context.setup, run.folder, check=check, observe=observe)
        trained.append(model)
        digests.append(samples.digest)
    networks = [model.network for model in trained]
    embeddings = embed_splits(networks, run.recipes, plan.study, splits, context.device)
    dataset, preprocessing = run.recipes[0].data.dataset, run.recipes[0].preprocessing
    return {
        "arm": run.arm.label,
        "seed": run.seed,
        "selection": run.selection,
        "recipe": recipe_name(run.arm.recipe, plan.dataset, run.arm.backbone),
        "changed": changed_settings(run.arm, plan.dataset),
        "settings": plan.changes(run.recipes),
        "resolved": [recipe.record for recipe in run.recipes],
        "recipes": run.digests,
        "data": digests,
        "measured": {split: splits.digest(dataset, split, preprocessing) for split, _ in embeddings},
        "dataset": dataset,
        "evaluations": measure_views(embeddings, plan.study, splits, dataset),
        "training": list(map(_training_record, trained)),
        "device": str(context.device),
        "date": _date(),
        **context.made_with,
    }


HEALTH = ("indicators", "start")
"""Entries of an epoch's record that only the doctor reads, in the log of the run's folder."""


def _training_record(trained: Trained) -> dict[str, Any]:
    """Return the facts of a training run that a study keeps."""
    return {
        "epochs": len(trained.log),
        "steps": trained.steps,
        "images": trained.images,
        "measured_epoch": len(trained.log) if trained.best_epoch is None else trained.best_epoch,
        "seconds": trained.seconds,
        "precision": trained.computation.precision,
        "log": [{key: value for key, value in epoch.items() if key not in HEALTH} for epoch in trained.log],
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
