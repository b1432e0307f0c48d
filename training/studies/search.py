"""Bayesian search with class-disjoint folds (Optuna).

Class-disjoint cross validation: each of four models validates on a quarter of the training classes (Reality).

One set of values under cross validation: a model a fold, each stopped by its own quarter of the training classes.

What is searched for each loss, in the conventions of Reality: bounds after its supplement, widened where a published
best value lies outside them.

Reality in small: a Bayesian search over a loss's values by cross validation, then reruns of the best, tested.

A folder holds search.json, Optuna's journal, and for each loss a folder a trial and one a rerun. All of it goes on
after a kill, and several processes may share it, as the journal is Optuna's own storage.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from training.api import provenance
from training.checkpoint import check_embeddings
from training.data import TrainingData
from training.overrides import resolve
from training.recipe import Recipe, same_recipe
from training.recipes.common import PAPER_DATASETS
from training.studies.plan import Results, check_images, read_record
from training.studies.runner import Workplace, claim_folder
from training.studies.study import recipe_dataset
from training.trainer import CHECKPOINT, Trained, embed_pixels, fit
from zoo.data.dataset import Dataset
from zoo.errors import DivergedError, RecipeError, TrainingError, UsageError, missing, nearest
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.evaluate import PROTOCOL, protocol_name, search_arguments
from zoo.files import locked, write_json

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def folds(classes: int, count: int = 4) -> list[np.ndarray]:
    """`count` contiguous runs of the class numbers 0 to classes - 1, int64, as equal in size as can be.

    Of four, each is an eighth of the classes of a data set whose first half is trained on (Reality, section 4.1).
    Raises `UsageError` unless every fold has two classes, and leaves two.
    """
    if count < 2 or classes // count < 2:
        raise UsageError(f"{classes} training classes cannot be parted into {count} folds of two or more; give fewer.")
    return [part.astype(np.int64) for part in np.array_split(np.arange(classes), count)]


def hold_out(data: TrainingData, held_out: np.ndarray, labels: np.ndarray, pixels: np.ndarray) -> TrainingData:
    """The data with the classes `held_out` for validation instead of training.

    data: of all training classes. labels: int64 [n], of its n squares; pixels: uint8 [n, crop, crop, c], the same
    images as networks take them.
    """
    validates = np.isin(labels, held_out)
    rows = np.flatnonzero(~validates)
    _, codes = np.unique(labels[rows], return_inverse=True)
    turned = (codes[:, None] * data.turns + np.arange(data.turns)).ravel().astype(np.int64)
    kept = torch.from_numpy(rows)
    return replace(
        data,
        squares=data.squares[kept],
        labels=turned,
        classes=int(turned.max()) + 1,
        validation=(pixels[validates], labels[validates]),
        aspects=None if data.aspects is None else data.aspects[kept],
        sources=[data.sources[row] for row in rows.tolist()] if data.sources else (),
    )


METRICS = ("precision_at_1", "r_precision", "map_at_r")


@dataclass(frozen=True)
class CrossValidation:
    """How many folds, and after how many epochs without a better MAP@R on its fold a model's training ends."""

    folds: int = 4
    patience: int = 9


def cross_validate(recipe: Recipe, how: CrossValidation, folder: Path, work: Workplace) -> float:
    """The mean over folds of the best epoch's MAP@R on the fold. Finished folds in `folder` are not repeated.

    folder: SEARCH/LOSS/TRIAL, for checkpoints and logs; the results of all trials are in SEARCH/results.jsonl.
    """
    return float(np.mean([_train_fold(recipe, how, number, folder, work)["map_at_r"] for number in range(how.folds)]))


def search_results(folder: Path) -> Results:
    """Return the results of the search that `folder` (SEARCH/LOSS/TRIAL) belongs to."""
    return Results(folder.parents[1])


def result_name(folder: Path) -> str:
    """Return the name of a trial or a rerun among the results of its search: LOSS/TRIAL."""
    return f"{folder.parent.name}/{folder.name}"


def rerun(recipe: Recipe, how: CrossValidation, folder: Path, work: Workplace) -> dict[str, Any]:
    """Train the folds' models and test them; separated: the mean of their scores; concatenated: of their embeddings,
    joined and so of folds x dim numbers (Reality, section 4.1). Who searches what is as in `zoo.evaluation.evaluate`.
    """
    results = search_results(folder)
    if result_name(folder) in results:
        return results[result_name(folder)]
    rows = []
    name, preprocessing = recipe.data.dataset, recipe.preprocessing
    known = work.splits.dataset(name, "test")
    protocol = _check_protocol(protocol_name(known), results)

    def test(trained: Trained) -> None:
        pixels = work.splits.images(name, "test", preprocessing)
        rows.append(embed_pixels(trained.network.to(work.device), recipe, pixels, work.device))
        check_embeddings(rows[-1], f"the weights of fold {len(rows) - 1}")

    kept = [_train_fold(recipe, how, number, folder, work, test) for number in range(how.folds)]
    alone = [_scores(each, known) for each in rows]
    joined = _scores(np.concatenate(rows, axis=1), known)
    result = {
        "seed": recipe.seed,
        "validation_map_at_r": float(np.mean([each["map_at_r"] for each in kept])),
        "separated": {metric: float(np.mean([scores[metric] for scores in alone])) for metric in METRICS},
        "concatenated": {metric: joined[metric] for metric in METRICS},
        "protocol": protocol,
        "folds": kept,
        "date": _now(),
        **work.made_with,
    }
    results.add(result_name(folder), result)
    _delete_checkpoints(folder)
    return result


def _scores(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    return retrieval_metrics(**search_arguments(rows, dataset.labels, dataset), k=(1,))


def rerun_protocol(result: Mapping[str, Any]) -> str:
    """How a rerun was tested; versions that wrote nothing of it let every image search all others."""
    return str(result.get("protocol", PROTOCOL))


def _check_protocol(protocol: str, results: Results) -> str:
    """The protocol; `UsageError`, before anything is trained for it, where other reruns were tested by another."""
    protocols = (rerun_protocol(result) for result in results.values() if "concatenated" in result)
    other = next((tested for tested in protocols if tested != protocol), None)
    if other is not None:
        raise UsageError(
            f"{results.path.parent} holds reruns that were tested by another protocol: {other}, not {protocol}. A mean "
            "over both would be of nothing: begin anew in another folder (--out)."
        )
    return protocol


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _train_fold(
    recipe: Recipe,
    how: CrossValidation,
    number: int,
    folder: Path,
    work: Workplace,
    use: Callable[[Trained], None] | None = None,
) -> dict[str, Any]:
    """One fold's model: its best epoch and scores. With `use` the network is wanted, and comes from its checkpoint."""
    results, name = search_results(folder), f"{result_name(folder)}/fold-{number}"
    if use is None and name in results:
        return results[name]
    place = folder / f"fold-{number}"
    data, _ = work.setup.prepare(recipe)
    assert isinstance(data, TrainingData)  # spaces have no recipes on cached features
    digest = _check_images(data.digest, folder.parent, results)
    split = work.splits.dataset(recipe.data.dataset, "train")
    pixels = work.splits.images(recipe.data.dataset, "train", recipe.preprocessing)
    held_out = folds(len(split.classes), how.folds)[number]
    parts = hold_out(data, held_out, split.labels, pixels)
    trained = fit(recipe, parts, place, work.setup.execution, progress=False, patience=how.patience)
    assert trained.best_epoch is not None  # a fold is always validated, and epochs are at least one
    record = trained.log[trained.best_epoch - 1]
    scores = {metric: record[f"validation_{metric}"] for metric in ("recall_at_1", "map_at_r")}
    result = {"fold": number, "best_epoch": trained.best_epoch, "epochs": len(trained.log), **scores}
    facts = {"data": digest, "seconds": trained.seconds, "log": trained.log, "date": _now(), **work.made_with}
    if name not in results:  # else only its network was wanted again
        results.add(name, {**result, **facts})
    if use is None:
        _delete_checkpoints(place)
    else:
        use(trained)
    return result


def _check_images(digest: str, folder: Path, results: Results) -> str:
    """The digest of the training data; `UsageError`, which is no failure of a trial, where other folds had others.

    folder: SEARCH/LOSS.
    """
    trained = (result for name, result in results.items() if name.startswith(f"{folder.name}/") and "data" in result)
    other = next((result["data"] for result in trained), digest)
    if other != digest:
        raise UsageError(
            f"the images are others than those that {folder} was searched with: their digests are {digest} "
            f"and {other}. Name the data that the search was begun with (--data), or begin anew in another folder."
        )
    return digest


def _delete_checkpoints(folder: Path) -> None:
    for checkpoint in folder.rglob(CHECKPOINT):
        checkpoint.unlink()


CONVENTIONS = {
    "same": lambda value: value,
    "root": math.sqrt,
    "radians": math.radians,
    "twice": lambda value: 2 * value,
}
"""From Reality's value to ours: its ProxyNCA scales squared distances, its angles are degrees, its regulariser of
SoftTriple is a mean over pairs, ours half of it."""


@dataclass(frozen=True)
class Parameter:
    """A setting and its bounds; log: drawn evenly in its logarithm. convention: a key of CONVENTIONS."""

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    convention: str = "same"

    def setting(self, value: float) -> str:
        """The `key=value` of a value in Reality's convention."""
        ours = CONVENTIONS[self.convention](value)
        return f"{self.key}={int(ours) if self.whole else repr(float(ours))}"


@dataclass(frozen=True)
class Space:
    """A loss's parameters. small: the method whose recipe is searched on small data sets, with `settings`; the papers'
    data sets have a recipe of their own. per_class: samples a class of a batch of 32 (1 with proxies)."""

    name: str
    small: str
    parameters: tuple[Parameter, ...]
    settings: tuple[str, ...] = ()
    per_class: int = 4

    def recipe(self, dataset: str) -> str:
        """The name of the recipe that is searched on a data set."""
        papers = dataset in PAPER_DATASETS
        return f"reality-{self.name}-ibn-{dataset}" if papers else f"{self.small}-conv4-{dataset}"

    def fixed(self, dataset: str) -> list[str]:
        """The settings of that recipe that are not searched."""
        if dataset in PAPER_DATASETS:
            return []
        batch = ["batch.size=32", f"batch.per_class={self.per_class}"]
        return [*self.settings, *batch, "schedule.name=constant", "schedule.average=0"]

    def searched(self, values: Mapping[str, float]) -> list[str]:
        """The settings of a trial: key -> value in Reality's convention."""
        return [parameter.setting(values[parameter.key]) for parameter in self.parameters]


def _loss_parameter(name: str, low: float, high: float, log: bool = False, convention: str = "same") -> Parameter:
    return Parameter(f"objective.loss_args.{name}", low, high, log, convention=convention)


ALL_PAIRS = "objective.miner=none"
ACTIVE = "objective.loss_args.active_only=true"
BY_TRIPLETS = "objective.loss_args.by_triplets=true"
PROXY_LR = Parameter("optimizer.loss_lr", 1e-6, 1.0, log=True)
MS = (_loss_parameter("alpha", 0.001, 100), _loss_parameter("beta", 0.01, 200), _loss_parameter("base", 0, 1))
MARGIN = (_loss_parameter("margin", -0.2, 2), _loss_parameter("beta", -0.2, 2), PROXY_LR)
PAIRS = ("positive_margin", "negative_margin")

SPACES = {
    space.name: space
    for space in (
        Space("contrastive", "contrastive", tuple(_loss_parameter(m, -0.2, 2) for m in PAIRS), (ALL_PAIRS, ACTIVE)),
        Space("triplet", "triplet-r", (_loss_parameter("margin", -0.2, 2),), (ALL_PAIRS, ACTIVE)),
        Space("ntxent", "ntxent", (_loss_parameter("temperature", 1e-4, 100, log=True),)),
        Space(
            "proxynca",
            "proxynca",
            (_loss_parameter("scale", 0.01, 100, convention="root"), PROXY_LR),
            ("objective.loss_args.positive_in_denominator=true",),
            per_class=1,
        ),
        Space("margin", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS, "objective.loss_args.per_class=false")),
        Space("margin-class", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS)),
        Space("softmax", "softmax", (_loss_parameter("temperature", 1e-2, 100, log=True), PROXY_LR), per_class=1),
        Space(
            "cosface",
            "cosface",
            (_loss_parameter("margin", 0, 1), _loss_parameter("scale", 0.01, 250), PROXY_LR),
            per_class=1,
        ),
        Space(
            "arcface",
            "arcface",
            (_loss_parameter("margin", 0, 90, convention="radians"), _loss_parameter("scale", 0.01, 250), PROXY_LR),
            per_class=1,
        ),
        Space("fastap", "fastap", (Parameter("objective.loss_args.bins", 2, 100, whole=True),)),
        Space(
            "snr",
            "snr-contrastive",
            (*(_loss_parameter(m, 0, 2) for m in PAIRS), _loss_parameter("nu", 0, 1)),
            (ALL_PAIRS, ACTIVE),
        ),
        Space("ms", "ms", MS, (ALL_PAIRS, "objective.loss_args.kept_only=false")),
        Space("ms-miner", "ms", (*MS, Parameter("objective.miner_args.epsilon", 0, 1))),
        Space(
            "softtriple",
            "softtriple",
            (
                *(
                    _loss_parameter("scale", 0.01, 100),
                    _loss_parameter("gamma", 1e-4, 100),
                    _loss_parameter("delta", 0, 1),
                    PROXY_LR,
                ),
                _loss_parameter("tau", 0, 1, convention="twice"),
            ),
            per_class=1,
        ),
    )
}
"""By Reality's losses."""


def find_space(name: str) -> Space:
    """The space of that loss. Raises `UsageError` with the nearest names."""
    if name not in SPACES:
        raise UsageError(f"there is no search for {name!r}.{nearest(name, SPACES)} Known: {', '.join(SPACES)}.")
    return SPACES[name]


SEARCH_FILE, JOURNAL_FILE = "search.json", "optuna.journal"


@dataclass(frozen=True)
class SearchPlan:
    """What is searched and tested: `trials` a loss, then `reruns` of its best; settings: of all recipes."""

    losses: tuple[str, ...]
    dataset: str
    trials: int = 50
    reruns: int = 10
    folds: int = 4
    patience: int = 9
    seed: int = 0
    settings: tuple[str, ...] = ()
    data: str | None = None

    def __post_init__(self) -> None:
        if not self.losses or len(set(self.losses)) < len(self.losses):
            raise UsageError(f"name each loss once, and at least one; not {', '.join(self.losses) or 'none'}.")
        if min(self.trials, self.reruns, self.patience) < 1:
            raise UsageError("trials, reruns and patience are 1 or more.")
        for loss in self.losses:
            self.recipe(find_space(loss), _lower_bounds(find_space(loss)))

    @property
    def how(self) -> CrossValidation:
        return CrossValidation(self.folds, self.patience)

    @property
    def first(self) -> Recipe:
        """A trial's recipe, for what all of them have in common."""
        space = find_space(self.losses[0])
        return self.recipe(space, _lower_bounds(space))

    def recipe(self, space: Space, values: dict[str, float], seed: int = 0) -> Recipe:
        """The recipe with searched values, on all training classes until a fold is held out."""
        owner = recipe_dataset(self.dataset)
        read = [] if owner == self.dataset else [f"data.dataset={self.dataset}"]
        settings = [*space.fixed(owner), *read, *self.settings, *space.searched(values), "data.validation=0"]
        made = resolve(space.recipe(owner), settings, seed)
        if not isinstance(made, Recipe) or made.schedule.epochs < 1:
            raise RecipeError("what is searched is one model, of at least one epoch.")
        return made


def write_search(search: SearchPlan, folder: Path) -> SearchPlan:
    """Write the plan, or find it there: trials and reruns may be more than before, nothing else may differ.

    What the search was begun with stays as it was written then; each fold's result has its own. Raises `TrainingError`
    where the folder holds another search, or one whose recipes have changed since; as `check_images` does.
    """
    check_images(search.first, search.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        facts = {**provenance(), "recipes": _recipe_records(search)}
        if (folder / SEARCH_FILE).exists():
            old, facts = read_search(folder), read_record(folder / SEARCH_FILE)
            fewer = dataclasses.replace(search, trials=old.trials, reruns=old.reruns, data=old.data)
            if fewer != old:
                raise TrainingError(f"{folder} holds another search: {old}. Name another --out.")
            more = max(search.trials, old.trials), max(search.reruns, old.reruns)
            search = dataclasses.replace(search, trials=more[0], reruns=more[1])
        write_json(folder / SEARCH_FILE, {**facts, "search": dataclasses.asdict(search)})
    return search


def read_search(folder: Path) -> SearchPlan:
    """The plan in a folder. Raises `TrainingError` where it is none, or its recipes have changed since."""
    raw = read_record(folder / SEARCH_FILE)
    try:
        facts: dict[str, Any] = raw["search"]
        search = SearchPlan(**{**facts, "losses": tuple(facts["losses"]), "settings": tuple(facts["settings"])})
    except (KeyError, TypeError) as error:
        raise TrainingError(f"{folder / SEARCH_FILE} is no plan of a search ({error}); begin anew elsewhere.") from None
    _check_recipes(search, raw, folder)
    return search


def _recipe_records(search: SearchPlan) -> dict[str, Any]:
    """By loss: the recipe of a trial in which every value is at its lower bound."""
    spaces = [find_space(loss) for loss in search.losses]
    return {space.name: search.recipe(space, _lower_bounds(space)).to_json() for space in spaces}


def _lower_bounds(space: Space) -> dict[str, float]:
    return {parameter.key: parameter.low for parameter in space.parameters}


def _check_recipes(search: SearchPlan, raw: dict[str, Any], folder: Path) -> None:
    """Raise `TrainingError` where a loss's recipe is not what it was: trials of both would be compared."""
    planned = raw.get("recipes", {})
    for loss, recipe in _recipe_records(search).items():
        if loss in planned and not same_recipe(planned[loss], json.loads(json.dumps(recipe))):
            raise TrainingError(
                f"the recipe of {loss} has changed since {folder} was begun (with commit {raw.get('commit')}). "
                "Go on with that version, or begin anew in another folder."
            )


def run_search(search: SearchPlan, folder: Path, work: Workplace, say: Callable[[str], None]) -> int:
    """All trials of all losses that are left, then the reruns of each loss's best; how many reruns there are not."""
    failed = 0
    for loss in search.losses:
        space, trials = find_space(loss), _load_trials(search, loss, folder)
        while _perform_trial(search, space, trials, folder / loss, work, say):
            pass
        if _is_running(trials):
            say(f"{loss}: the last trials are with other processes, which do the reruns.")
        elif (best := best_trial(trials)) is not None:
            failed += _perform_reruns(search, space, best.params, folder / loss, work, say)
        else:
            say(f"{loss}: every trial failed, so that there are no values to test. Search with other settings (--set).")
            failed += search.reruns
    return failed


def has_remaining_work(search: SearchPlan, folder: Path) -> bool:
    """Whether trials or reruns are to be performed yet, here or by other processes."""
    for loss, trials in load_trials(search, folder).items():
        if _is_running(trials) or len(trials.get_trials(deepcopy=False)) < search.trials:
            return True
        best = best_trial(trials)
        if best is not None and len(finished_reruns(search, loss, best.params, folder)) < search.reruns:
            return True
    return False


def load_trials(search: SearchPlan, folder: Path) -> dict[str, Study]:
    """The trials by loss."""
    return {loss: _load_trials(search, loss, folder) for loss in search.losses}


def best_trial(trials: Study) -> FrozenTrial | None:
    """The finished trial with the best validation."""
    from optuna.trial import TrialState

    done = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


def _is_running(trials: Study) -> bool:
    from optuna.trial import TrialState

    return bool(trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))


def _load_trials(search: SearchPlan, loss: str, folder: Path) -> Study:
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise missing("optuna", "train") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
    return optuna.create_study(storage=storage, study_name=loss, direction="maximize", load_if_exists=True)


def _perform_trial(
    search: SearchPlan, space: Space, trials: Study, folder: Path, work: Workplace, say: Callable[[str], None]
) -> bool:
    """Perform one trial: one that a killed process left, else a new one; False where there is none left for us."""
    from optuna.trial import TrialState

    with _claim_trial(search, space, trials, folder) as trial:
        if trial is None:
            return False
        recipe = search.recipe(space, trial.params, search.seed)
        title = f"{space.name}, trial {trial.number + 1} of {search.trials}"
        try:
            score = cross_validate(recipe, search.how, _trial_folder(folder, trial.number), work)
        # All other errors, as of a full disk, are none of the values: the trial is left to the next who goes on.
        except DivergedError as error:
            trials.tell(trial.number, state=TrialState.FAIL)
            say(f"{title}: failed: {error}")
            return True
        trials.tell(trial.number, score)
        say(f"{title}: validation MAP@R {score:.4f} with {_values_text(trial.params)}")
    return True


@contextmanager
def _claim_trial(search: SearchPlan, space: Space, trials: Study, folder: Path) -> Iterator[FrozenTrial | None]:
    """The trial to perform now, claimed as long as the block lasts."""
    from optuna.trial import TrialState

    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with locked(folder):  # two processes must not count the trials at once
            known = trials.get_trials(deepcopy=False)
            for trial in known:
                if trial.state == TrialState.RUNNING and stack.enter_context(
                    claim_folder(_trial_folder(folder, trial.number))
                ):
                    break
            else:
                if len(known) >= search.trials:
                    yield None
                    return
                number = _draw_trial(search, space, trials, len(known))
                stack.enter_context(claim_folder(_trial_folder(folder, number)))
                trial = trials.get_trials(deepcopy=False)[number]
        yield trial


def _draw_trial(search: SearchPlan, space: Space, trials: Study, number: int) -> int:
    """The number of a new trial, whose values Optuna draws from what is known so far."""
    from optuna.samplers import TPESampler

    # Of a few trials ten at random, Optuna's default, would be all.
    random = min(10, max(2, search.trials // 4))
    trials.sampler = TPESampler(seed=search.seed * 100_003 + number, n_startup_trials=random)
    return trials.ask({parameter.key: _distribution(parameter) for parameter in space.parameters}).number


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _trial_folder(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:03d}"


def _perform_reruns(
    search: SearchPlan,
    space: Space,
    values: dict[str, float],
    folder: Path,
    work: Workplace,
    say: Callable[[str], None],
) -> int:
    """Reruns with the seeds that follow the trials', each with its models; what another process holds is left to it.

    How many diverged, as the best values may with another seed.
    """
    failed = 0
    for number in range(search.reruns):
        recipe = search.recipe(space, values, search.seed + 1 + number)
        # Of other values, as later trials may find, they would be other reruns.
        place = folder / f"rerun-{recipe.digest}"
        if result_name(place) in search_results(place):
            continue
        with claim_folder(place) as ours:
            if not ours:
                continue
            try:
                scores = rerun(recipe, search.how, place, work)["concatenated"]
            except DivergedError as error:
                say(f"{space.name}, rerun {number + 1} of {search.reruns}: failed: {error}")
                failed += 1
                continue
        say(f"{space.name}, rerun {number + 1} of {search.reruns}: test MAP@R {scores['map_at_r']:.4f}, concatenated")
    return failed


def finished_reruns(search: SearchPlan, loss: str, values: dict[str, float], folder: Path) -> list[dict[str, Any]]:
    """The finished reruns of the best values."""
    results = Results(folder)
    recipes = (search.recipe(find_space(loss), values, search.seed + 1 + number) for number in range(search.reruns))
    names = (f"{loss}/rerun-{recipe.digest}" for recipe in recipes)
    return [results[name] for name in names if name in results]


def _values_text(values: dict[str, float]) -> str:
    return json.dumps({key.rpartition(".")[2]: float(f"{value:.4g}") for key, value in values.items()})
