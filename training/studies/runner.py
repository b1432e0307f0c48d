"""Train and measure each run.

What an embedding knows of the factors beside the class, where a data set has them (glyphs).

What of a trained network is embedded: all of it, one of its heads, its features, or these under a random head.

What a finished training is worth: every view of its network, on the splits that a study measures.

One run of a study: trained, measured, written down.

Runs that another study has finished already.

All runs of a study, one after another; several processes may share a study's folder.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.api import TrainingSetup, provenance, train_network
from training.data import image_key
from training.distributed import keep_freed_memory
from training.frozen import Samples
from training.recipe import Recipe
from training.studies.plan import (
    FAILURE_FILE,
    Plan,
    Result,
    Results,
    Run,
    RunSchedule,
    check_images,
    has_measure,
    images_of,
    value_of,
)
from training.studies.study import (
    CATEGORICAL_FACTORS,
    EMBEDDING,
    FEATURES,
    NUMERIC_FACTORS,
    RANDOM_HEAD,
    REDUCED_FEATURES,
    Study,
    changed_settings,
    recipe_name,
)
from training.trainer import CHECKPOINT, Execution, Trained
from zoo import data as datasets
from zoo.data.dataset import SPLITS, Dataset
from zoo.data.decode import Squares, decode
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DatasetError, RecipeError, UsageError, ZooError
from zoo.evaluation import evaluate
from zoo.evaluation.factors import neighbours_across_classes, order_within_classes
from zoo.evaluation.retrieval import DEFAULT_K
from zoo.files import LockHeldError, locked, write_json
from zoo.models.network import Network, PixelNetwork, feature_count
from zoo.models.torch_runtime import choose_device


def factor_metrics(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    """`factor_NAME` of each factor, of unit rows [n, d].

    Of kinds the precision of the nearest neighbour of another class, of sizes how well distances within a class follow
    them (`zoo.evaluation.factors`). Raises `DatasetError` where the data set lacks a factor.
    """
    for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS):
        if name not in dataset.factors:
            raise DatasetError(f"{dataset.name} has no factor {name!r}; only glyphs has all that are measured.")
    known = dataset.factors
    across = {
        name: neighbours_across_classes(rows, dataset.labels, known[name])["precision"] for name in CATEGORICAL_FACTORS
    }
    within = {name: order_within_classes(rows, dataset.labels, known[name]) for name in NUMERIC_FACTORS}
    return {f"factor_{name}": value for name, value in {**across, **within}.items()}


CHUNK = 256

ViewFunction = Callable[[Tensor], Tensor]


def embed_views(
    network: Network, recipe: Recipe, pixels: np.ndarray, views: Sequence[str], device: torch.device
) -> dict[str, np.ndarray]:
    """Unit rows float32 [n, d] of pixels uint8 [n, crop, crop, c] by view, from one pass through the trunk.

    Raises `RecipeError` for a head that the network lacks.
    """
    makers = {view: _view_function(network, view, recipe.seed) for view in views}
    normalised = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    found: dict[str, list[Tensor]] = {view: [] for view in views}
    with torch.inference_mode():
        for start in range(0, len(pixels), CHUNK):
            chunk = torch.from_numpy(pixels[start : start + CHUNK]).to(device)
            pooled = network.trunk(normalised.images(chunk))
            for view, make in makers.items():
                found[view].append(make(pooled).float().cpu())
    return {view: _reduce(torch.cat(rows), view).numpy() for view, rows in found.items()}


def _view_function(network: Network, view: str, seed: int) -> ViewFunction:
    """From pooled features [n, f] to the unit rows of a view."""
    if view == EMBEDDING:
        return network.embed
    if view == FEATURES:
        return lambda features: normalize(features, dim=1)
    if REDUCED_FEATURES.fullmatch(view):
        return lambda features: features
    if view == RANDOM_HEAD:
        return _random_head(network, seed)
    if view not in network.heads:
        raise RecipeError(
            f"the network has no head {view!r} to measure; its heads: {', '.join(network.heads) or 'none'}."
        )
    head = network.heads[view]
    return lambda features: normalize(head(features), dim=1)


def _reduce(rows: Tensor, view: str) -> Tensor:
    """The rows [n, f] of a reduced view along their principal components, of unit length; those of others as they are.

    As Reality reduces the features of backbones without training, to as many numbers as those of trained models.
    """
    found = REDUCED_FEATURES.fullmatch(view)
    if found is None:
        return rows
    centred = rows.double() - rows.double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[: int(found[1])]
    return normalize(centred @ directions.T, dim=1).float()


def _random_head(network: Network, seed: int) -> ViewFunction:
    """A linear map to as many numbers as the first head's, drawn as PyTorch draws a head's first weights."""
    width = feature_count(network.trunk)
    dims = [int(head.out_features) for head in network.heads.values()]  # type: ignore[arg-type]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        weights = nn.Linear(width, dims[0] if dims else width).weight.detach()
    return lambda features: normalize(features @ weights.T.to(features), dim=1)


Embeddings = Mapping[tuple[str, str], np.ndarray]
"""Embeddings by split and view."""


@dataclass
class Splits:
    """The splits of data sets with their pixels as networks take them, read when they are first asked for.

    Those of the last preprocessing are kept, since the arms of a study mostly share one.
    """

    root: str | Path | None
    known: dict[tuple[str, str], Dataset] = field(default_factory=dict)
    pixels: dict[tuple[str, str, Preprocessing], np.ndarray] = field(default_factory=dict)
    digests: dict[tuple[str, str, Preprocessing], str] = field(default_factory=dict)

    def dataset(self, name: str, split: str) -> Dataset:
        if (name, split) not in self.known:
            self.known[name, split] = datasets.load_dataset(name, split, self.root)
        return self.known[name, split]

    def images(self, name: str, split: str, how: Preprocessing) -> np.ndarray:
        """uint8 [n, crop, crop, c]. Raises `DatasetError` where an image cannot be read: no score leaves one out."""
        if (name, split, how) not in self.pixels:
            self.pixels = {key: value for key, value in self.pixels.items() if key[2] == how}
            dataset = self.dataset(name, split)
            self.pixels[name, split, how] = decode(dataset, np.arange(len(dataset)), Squares(how), split).pixels
        return self.pixels[name, split, how]

    def digest(self, name: str, split: str, how: Preprocessing) -> str:
        """Eight hexadecimal digits that differ for other pixels or labels of a split."""
        if (name, split, how) not in self.digests:
            total = hashlib.sha256()
            for array in (self.images(name, split, how), self.dataset(name, split).labels):
                total.update(f"{array.dtype} {array.shape}".encode())
                total.update(np.ascontiguousarray(array).data)
            self.digests[name, split, how] = total.hexdigest()[:8]
        return self.digests[name, split, how]


def embed_splits(
    networks: Sequence[Network], recipes: Sequence[Recipe], study: Study, splits: Splits, device: Any
) -> Embeddings:
    """Every split once through every network; the views of several networks are joined."""
    rows = {}
    for split in dict.fromkeys(split for split, _ in study.views):
        views = [view for place, view in study.views if place == split]
        members = []
        for network, recipe in zip(networks, recipes, strict=True):
            pixels = splits.images(recipe.data.dataset, split, recipe.preprocessing)
            members.append(embed_views(network, recipe, pixels, views, torch.device(device)))
        for view in views:
            joined = np.concatenate([member[view] for member in members], axis=1)
            rows[split, view] = joined / np.float32(len(members)) ** np.float32(0.5)
    return rows


def measure_views(rows: Embeddings, study: Study, splits: Splits, dataset: str) -> list[dict[str, Any]]:
    """One measurement a split and view, each as in a model's results.json with `view` added, and its spectrum."""
    found = []
    for (split, view), embedded in rows.items():
        data, groups = splits.dataset(dataset, split), study.groups(split)
        named = ("retrieval", *(name for name in groups if name != "factors"))
        outcome = evaluate(embedded, data, k=sorted({*DEFAULT_K, *study.recalls(split)}), metrics=named)
        facts = {**outcome.to_json(), "view": view}
        if "factors" in groups:
            facts["metrics"] = {**facts["metrics"], **factor_metrics(embedded, data)}
        if study.spectrum:
            facts["spectrum"] = singular_values(embedded)
        found.append(facts)
    return found


def singular_values(rows: np.ndarray) -> list[float]:
    """The singular values of uncentred rows [n, d] over their sum, the largest first (Revisiting, section 5)."""
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    return [float(value) for value in values / values.sum()]


@dataclass
class Workplace:
    """The training setup and the measured splits that the runs of a study share.

    made_with: versions, commit and hardware.
    """

    setup: TrainingSetup
    splits: Splits
    made_with: dict[str, Any] = field(default_factory=provenance)

    @property
    def device(self) -> torch.device:
        """Return the device that trains and embeds."""
        return self.setup.execution.device

    def check(self, recipes: Iterable[Recipe]) -> None:
        """Raise `DatasetError` now, where it would end every run, for a split of their data sets that cannot be had."""
        for name in dict.fromkeys(recipe.data.dataset for recipe in recipes):
            for split in SPLITS:
                self.splits.dataset(name, split)


def create_workplace(device: torch.device, root: str | Path | None) -> Workplace:
    return Workplace(TrainingSetup(Execution(device), root), Splits(root))


@contextmanager
def claim_folder(folder: Path) -> Iterator[bool]:
    """Whether this process alone holds the run's folder now; the claim goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claim").touch()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "claim", wait=False))
        except LockHeldError:
            yield False
        else:
            yield True


def perform_run(run: Run, schedule: RunSchedule, work: Workplace) -> dict[str, Any]:
    """Train the run's recipes, going on from their checkpoints, measure, and append the result to results.jsonl.

    The test split is read when training has ended. A failure is written down and raised, other images than those of the
    study's finished runs among them.
    """
    started = time.perf_counter()
    try:
        result = _train_and_measure(run, schedule, work)
        schedule.check_images(run, images_of(run, result))
    except ZooError as error:
        write_json(run.folder / FAILURE_FILE, {"error": type(error).__name__, "message": str(error)})
        raise
    run.finish({**result, "wall_seconds": time.perf_counter() - started})
    for checkpoint in run.folder.glob(f"*/{CHECKPOINT}"):
        checkpoint.unlink()
    return run.result()


def _train_and_measure(run: Run, schedule: RunSchedule, work: Workplace) -> dict[str, Any]:
    plan = schedule.plan
    trained, digests = [], []
    for recipe in run.recipes:

        def check(samples: Samples, key: tuple[Any, ...] = image_key(recipe)) -> None:
            schedule.check_images(run, {key: samples.digest})

        network, samples = train_network(recipe, work.setup, run.folder, check=check)
        trained.append(network)
        digests.append(samples.digest)
    networks = [each.network for each in trained]
    rows = embed_splits(networks, run.recipes, plan.study, work.splits, work.device)
    first = run.recipes[0]
    return {
        "arm": run.arm.label,
        "seed": run.seed,
        "selection": run.selection,
        "recipe": recipe_name(run.arm.recipe, plan.dataset, run.arm.backbone),
        "changed": changed_settings(run.arm, plan.dataset),
        "settings": list(plan.settings),
        "resolved": [recipe.to_json() for recipe in run.recipes],
        "recipes": run.digests,
        "data": digests,
        "measured": {split: work.splits.digest(first.data.dataset, split, first.preprocessing) for split, _ in rows},
        "dataset": first.data.dataset,
        "evaluations": measure_views(rows, plan.study, work.splits, first.data.dataset),
        "training": [_training_record(each) for each in trained],
        "device": str(work.device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **work.made_with,
    }


def _training_record(trained: Trained) -> dict[str, Any]:
    return {
        "epochs": len(trained.log),
        "measured_epoch": trained.best_epoch or len(trained.log),
        "seconds": trained.seconds,
        "precision": trained.precision,
        "log": trained.log,
    }


def adoptable_recipes(study: Study, others: Iterable[Path]) -> set[tuple[str, ...]]:
    """The recipes' digests of the runs that `adopt` can take over for the study. Raises `UsageError` as that does."""
    return {
        tuple(r["recipes"]) for other in others for r in _finished_results(other).values() if covers_study(study, r)
    }


def adopt_results(schedule: RunSchedule, runs: Iterable[Run], other: Path) -> int:
    """Take over results from the study in the folder `other`, for runs that have none, and return how many.

    A result serves a run of exactly the same recipes, seed and selection included, where it holds all that this study
    measures. It keeps its date, versions and hardware, and says where it is from. Raises `UsageError` where `other` has
    no finished run, and `TrainingError` where a result comes from other images than the finished runs of this study.
    """
    known = {tuple(result["recipes"]): (name, result) for name, result in _finished_results(other).items()}
    taken = 0
    for run in runs:
        name, result = known.get(tuple(run.digests), (None, None))
        if name is None or result is None or run.finished or not covers_study(schedule.plan.study, result):
            continue
        with claim_folder(run.folder) as ours:
            if ours and not run.finished:
                schedule.check_images(run, images_of(run, result))
                run.finish({**result, "arm": run.arm.label, "from": f"{other}: {name}"})
                taken += 1
    return taken


def _finished_results(other: Path) -> Mapping[str, Result]:
    """Return the results in a study's folder by the runs' names."""
    results = Results(other)
    if not results:
        raise UsageError(f"{other} holds no finished runs of a study.", code="no-finished-runs")
    return results


def covers_study(study: Study, result: Mapping[str, Any]) -> bool:
    """Whether a result holds all that the study measures."""
    spectra = all("spectrum" in each for each in result["evaluations"])
    return all(has_measure(result, measure) for measure in study.measures) and (spectra or not study.spectrum)


@dataclass(frozen=True)
class Tally:
    """What became of the runs. before: finished earlier; elsewhere: held, or finished meanwhile, by other processes."""

    done: list[Run] = field(default_factory=list)
    before: list[Run] = field(default_factory=list)
    elsewhere: list[Run] = field(default_factory=list)
    failed: list[tuple[Run, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        counts = {name: len(getattr(self, name)) for name in ("done", "before", "elsewhere")}
        return {**counts, "failed": [{"run": run.title, "message": message} for run, message in self.failed]}


def print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prepare_workplaces(
    schedules: Sequence[RunSchedule],
    root: str | Path | None = None,
    device: str | None = None,
    only: Sequence[str] = (),
    others: Sequence[Path] = (),
) -> list[Workplace]:
    """Return a workplace for each schedule; schedules that read the same data share one.

    Args:
        schedules: the studies to run.
        root: the folder of the data set (default: the plan's).
        device: cpu, cuda or cuda:N (default: cuda where available).
        only: labels of the arms to run (default: all).
        others: folders of studies whose finished runs will be taken over.

    Raises:
        DatasetError: if runs are left to do and their images are unavailable; before any folder is made.
        UsageError: if an arm is unknown, the images are a folder that is not named, or one of `others` has no results.
    """
    keep_freed_memory()
    chosen_device = choose_device(device)
    works: dict[str | Path | None, Workplace] = {}
    for schedule in schedules:
        data = root or schedule.plan.data
        if data not in works:
            works[data] = create_workplace(chosen_device, data)
        known = adoptable_recipes(schedule.plan.study, others)
        left = [run for run in schedule.chosen(only) if not run.finished and tuple(run.digests) not in known]
        if left:
            check_images(left[0].recipes[0], data)
        works[data].check(recipe for run in left for recipe in run.recipes)
    return [works[root or schedule.plan.data] for schedule in schedules]


def run_schedule(
    schedule: RunSchedule,
    work: Workplace,
    only: Sequence[str] = (),
    others: Sequence[Path] = (),
    say: Callable[[str], None] = print_progress,
) -> Tally:
    """Take over finished runs of other studies, then perform the runs that are left.

    Args:
        schedule: the study, begun (`RunSchedule.begin`).
        work: where to train and measure.
        only: labels of the arms to run (default: all).
        others: folders of studies whose finished runs are taken over.
        say: receives one line per study taken over and per run.

    Returns:
        What became of each run.

    Raises:
        UsageError: if an arm is unknown or one of `others` has no finished runs.
        TrainingError: if a run that is taken over comes from other images than those of this study.
    """
    runs = schedule.chosen(only)
    for other in others:
        say(f"{adopt_results(schedule, runs, other)} finished runs taken over from {other}.")
    return perform_runs(schedule, runs, work, say)


def perform_runs(
    schedule: RunSchedule, runs: Sequence[Run], work: Workplace, say: Callable[[str], None] = print_progress
) -> Tally:
    """Perform every run that is not finished and that no other process holds. A failure stops no other run."""
    tally = Tally()
    finished = set(schedule.results)
    tally.before.extend(run for run in runs if run.name in finished)
    waiting = [run for run in runs if run.name not in finished]
    seconds: list[float] = []
    for number, run in enumerate(waiting):
        with claim_folder(run.folder) as ours:
            if not ours or run.finished:
                tally.elsewhere.append(run)
                continue
            started = time.perf_counter()
            try:
                result = perform_run(run, schedule, work)
            except ZooError as error:
                tally.failed.append((run, str(error)))
                say(f"{run.title}: failed: {error}")
                continue
        tally.done.append(run)
        seconds.append(time.perf_counter() - started)
        finished = set(schedule.results)
        left = sum(other.name not in finished for other in waiting[number + 1 :])
        say(
            _progress_line(
                run, result, schedule.plan, len(runs) - left, len(runs), left * sum(seconds) / len(seconds), seconds[-1]
            )
        )
    return tally


def _progress_line(
    run: Run, result: dict[str, object], plan: Plan, number: int, total: int, remaining: float, seconds: float
) -> str:
    first = plan.study.measures[0]
    eta = f"; about {_duration(remaining)} to go" if remaining else ""
    return f"[{number}/{total}] {run.title}: {first} {value_of(result, first):.4f} in {_duration(seconds)}{eta}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
