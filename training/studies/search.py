"""Bayesian search over the values of losses by cross validation (Optuna), then tested reruns of the best (Reality).

A folder contains search.json, Optuna's journal, and for each loss one folder per trial and per rerun. A killed search
continues, and several processes may share a folder, because the journal is Optuna's own storage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.api import provenance
from training.overrides import named_classes, resolve
from training.recipe import Recipe
from training.repeats import PARTS
from training.studies.cross_validation import (
    CrossValidation,
    cross_validate,
    folds,
    rerun,
    result_name,
    search_results,
)
from training.studies.plan import check_images, check_recipes, read_record, study_parts
from training.studies.results import Results
from training.studies.runner import StudyContext, check_batches, claim_folder
from training.studies.search_spaces import Parameter, Space, find_space
from training.studies.study import recipe_dataset
from zoo.data.dataset import subset
from zoo.errors import DivergedError, RecipeError, TrainingError, UsageError, missing
from zoo.files import locked, write_json
from zoo.models.places import check_trusted

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

GIVEN: dict[str, float] = {}
"""The searched values of a plan without trials: none."""

SEARCH_FILE, JOURNAL_FILE = "search.json", "optuna.journal"


@dataclass(frozen=True)
class SearchPlan:
    """A search of the values of losses.

    Attributes:
        losses: Names of search spaces.
        dataset: The data set.
        trials: The number of trials of each loss; 0 searches nothing, and reruns the recipes with the values that they
            have, such as those of the published search.
        reruns: The number of tested reruns of each loss's best trial.
        folds: The number of folds of the training classes.
        patience: The number of epochs without a better one after which a model's training ends.
        seed: The seed of all trials; reruns have the seeds after it.
        settings: Changes of all recipes, as KEY=VALUE.
        data: The folder of the data set.

    Raises:
        UsageError: If a number or a loss is invalid.
        RecipeError: If a setting is invalid, or the recipe is not a single model of at least one epoch.
    """

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
            raise UsageError(
                f"name each loss once, and at least one; not {', '.join(self.losses) or 'none'}.",
                code="invalid-value",
            )
        if min(self.reruns, self.patience) < 1 or self.trials < 0:
            raise UsageError(
                f"--trials is 0 or more, --reruns and --patience are 1 or more; not {self.trials}, {self.reruns} and "
                f"{self.patience}.",
                code="invalid-value",
            )
        for loss in self.losses:
            self.lowest_recipe(find_space(loss))

    @property
    def validation(self) -> CrossValidation:
        """The cross validation of a trial."""
        return CrossValidation(self.folds, self.patience)

    @property
    def first(self) -> Recipe:
        """The recipe of a possible trial, for the properties that all of them share."""
        return self.lowest_recipe(find_space(self.losses[0]))

    def lowest_recipe(self, space: Space) -> Recipe:
        """Return the recipe with every value at its lower bound."""
        return self.recipe(space, space.lower_bounds())

    def recipe(self, space: Space, values: dict[str, float], seed: int = 0) -> Recipe:
        """Return the recipe with searched values, on all training classes until a fold is held out.

        Without values (`GIVEN`) it has its own, or those of the plan's settings.
        """
        owner = recipe_dataset(self.dataset)
        dataset = [] if owner == self.dataset else [f"data.dataset={self.dataset}"]
        searched = space.searched(values) if values else []
        settings = [*space.fixed(owner), *dataset, *self.settings, *searched, "data.validation=0"]
        recipe = resolve(space.recipe(owner), settings, seed)
        if not isinstance(recipe, Recipe) or recipe.schedule.epochs < 1:
            raise RecipeError("a search needs the recipe of one model, with at least one epoch.", code="invalid-value")
        return recipe


def usual_patience(loss: str, dataset: str) -> int:
    """Return the patience of the recipe that is searched on a data set; 9, Reality's on CUB, if it has none.

    A loss of another paper than Reality is trained for all epochs of its recipe.
    """
    space = find_space(loss)
    recipe = resolve(space.recipe(recipe_dataset(dataset)))
    assert isinstance(recipe, Recipe)
    return recipe.schedule.patience or (recipe.schedule.epochs if space.papers else 9)


def write_search(plan: SearchPlan, folder: Path) -> SearchPlan:
    """Write search.json, or continue the search in the folder, which may get more trials and reruns.

    Versions and hardware of the first start stay in search.json; each fold's result has its own.

    Returns:
        The plan with all trials and reruns that were ever requested in this folder.

    Raises:
        TrainingError: If the folder holds another search, or one whose recipes have changed since.
        UsageError: If the images are a folder that is not named.
        DatasetError: If the folder of images has no test classes.
    """
    check_images(plan.first.data.dataset, plan.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        recipes = _recipe_records(plan)
        facts = {**provenance(), "recipes": recipes, PARTS: study_parts(recipes)}
        if (folder / SEARCH_FILE).exists():
            facts = read_record(folder / SEARCH_FILE)
            old = _search_of(facts, folder, plan.settings)
            if dataclasses.replace(plan, trials=old.trials, reruns=old.reruns, data=old.data) != old:
                raise TrainingError(f"{folder} holds another search: {old}. Name another --out.", code="other-study")
            trials, reruns = max(plan.trials, old.trials), max(plan.reruns, old.reruns)
            plan = dataclasses.replace(plan, trials=trials, reruns=reruns)
        write_json(folder / SEARCH_FILE, {**facts, "search": dataclasses.asdict(plan)})
    return plan


def read_search(folder: Path, trust_code: bool = False) -> SearchPlan:
    """Return the plan in a search's folder.

    Args:
        folder: The folder.
        trust_code: Import classes that a folder outside the local zoo names.

    Raises:
        TrainingError: If the plan is damaged, or its recipes have changed since.
        RecipeError: `unsafe-file` if it names classes of a stranger.
    """
    return _search_of(read_record(folder / SEARCH_FILE), folder, trust_code=trust_code)


def _search_of(
    record: Mapping[str, Any], folder: Path, typed: Sequence[str] = (), trust_code: bool = False
) -> SearchPlan:
    """Return the plan that search.json records; the classes of `typed` settings are trusted."""
    path = folder / SEARCH_FILE
    try:
        facts: dict[str, Any] = record["search"]
        check_trusted(set(named_classes(facts["settings"])).difference(named_classes(typed)), folder, trust_code)
        plan = SearchPlan(**{**facts, "losses": tuple(facts["losses"]), "settings": tuple(facts["settings"])})
    except (KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} is not the plan of a search ({error}). Begin the search again in another folder.",
            code="damaged-file",
        ) from None
    check_recipes(_recipe_records(plan), record, folder)
    return plan


def check_search(plan: SearchPlan, context: StudyContext) -> None:
    """Check the images of a search before any training: its splits, its folds and the batches of each loss.

    Raises:
        DatasetError: If a split of the data set is not available.
        UsageError: If the training classes are too few for the folds.
        RecipeError: If the classes outside a fold are too few for the batches of a loss.
    """
    recipes = [plan.lowest_recipe(find_space(loss)) for loss in plan.losses]
    context.check_splits(recipes)
    train = context.splits.dataset(plan.first.data.dataset, "train")
    largest = folds(len(train.classes), plan.folds)[0]
    listed = dataclasses.replace(train, images=train.sources)  # drawn images need not be drawn
    check_batches(recipes, subset(listed, ~np.isin(train.labels, largest)))


def run_search(plan: SearchPlan, folder: Path, context: StudyContext, progress: Callable[[str], None]) -> int:
    """Perform all remaining trials of all losses, then the reruns of each loss's best trial.

    Args:
        plan: The search.
        folder: Its folder.
        context: Where to train and test.
        progress: Receives one line per trial and per rerun.

    Returns:
        The number of reruns that failed, or had no values to test.
    """
    failed = 0
    for loss in plan.losses:
        space, trials = find_space(loss), _open_trials(loss, folder)
        while _perform_trial(plan, space, trials, folder / loss, context, progress):
            pass
        if _is_running(trials):
            progress(f"{loss}: other processes perform the last trials, and will do the reruns.")
        elif (values := values_to_test(plan, trials)) is not None:
            failed += _perform_reruns(plan, space, values, folder / loss, context, progress)
        else:
            progress(
                f"{loss}: every trial failed, so that there are no values to test. Search with other settings (--set)."
            )
            failed += plan.reruns
    return failed


def has_remaining_work(plan: SearchPlan, folder: Path) -> bool:
    """Return whether trials or reruns are left, for this or for other processes."""
    for loss, trials in load_trials(plan, folder).items():
        if _is_running(trials) or len(trials.get_trials(deepcopy=False)) < plan.trials:
            return True
        values = values_to_test(plan, trials)
        if values is not None and len(finished_reruns(plan, loss, values, folder)) < plan.reruns:
            return True
    return False


def load_trials(plan: SearchPlan, folder: Path) -> dict[str, Study]:
    """Return the Optuna study of each loss."""
    return {loss: _open_trials(loss, folder) for loss in plan.losses}


def best_trial(trials: Study) -> FrozenTrial | None:
    """Return the finished trial with the best validation."""
    from optuna.trial import TrialState

    done = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


def values_to_test(plan: SearchPlan, trials: Study) -> dict[str, float] | None:
    """Return the values of a loss's reruns: those of its best trial, `GIVEN` without a search, None if all failed."""
    if not plan.trials:
        return GIVEN
    best = best_trial(trials)
    return None if best is None else best.params


def finished_reruns(plan: SearchPlan, loss: str, values: dict[str, float], folder: Path) -> list[dict[str, Any]]:
    """Return the results of the finished reruns of a loss with its best values.

    Args:
        plan: The plan of the search.
        loss: The name of the loss.
        values: Its best values by name; `GIVEN` without a search.
        folder: The folder of the results.
    """
    results = Results(folder)
    recipes = (_rerun_recipe(plan, find_space(loss), values, number) for number in range(plan.reruns))
    names = (f"{loss}/rerun-{recipe.digest}" for recipe in recipes)
    return [results[name] for name in names if name in results]


def tested_reruns(folder: Path) -> tuple[SearchPlan, list[tuple[str, dict[str, Any]]]]:
    """Return the plan of a search, and the finished reruns of the best values of each loss, with the loss's name.

    Raises:
        TrainingError: If the plan is damaged, or its recipes have changed since.
        MissingDependencyError: If Optuna is not installed.
    """
    plan, tested = read_search(folder), []
    for loss, trials in load_trials(plan, folder).items():
        if (values := values_to_test(plan, trials)) is not None:
            tested += [(loss, result) for result in finished_reruns(plan, loss, values, folder)]
    return plan, tested


def _recipe_records(plan: SearchPlan) -> dict[str, Any]:
    """Return for each loss the recipe of a trial in which every value is at its lower bound."""
    return {loss: plan.lowest_recipe(find_space(loss)).record for loss in plan.losses}


def _rerun_recipe(plan: SearchPlan, space: Space, values: dict[str, float], number: int) -> Recipe:
    """Return the recipe of a rerun; its seed follows those of the trials."""
    return plan.recipe(space, values, plan.seed + 1 + number)


def _open_trials(loss: str, folder: Path) -> Study:
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise missing("optuna", "train") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
    return optuna.create_study(storage=storage, study_name=loss, direction="maximize", load_if_exists=True)


def _is_running(trials: Study) -> bool:
    from optuna.trial import TrialState

    return bool(trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))


def _perform_trial(
    plan: SearchPlan, space: Space, trials: Study, folder: Path, context: StudyContext, progress: Callable[[str], None]
) -> bool:
    """Perform one trial, first one that a killed process left, and return whether there was one."""
    from optuna.trial import TrialState

    with _claim_trial(plan, space, trials, folder) as trial:
        if trial is None:
            return False
        recipe = plan.recipe(space, trial.params, plan.seed)
        title = f"{space.name}, trial {trial.number + 1} of {plan.trials}"
        try:
            score = cross_validate(recipe, plan.validation, _trial_folder(folder, trial.number), context)
        # The values do not cause other errors, such as a full disk: the trial stays open for the next process.
        except DivergedError as error:
            trials.tell(trial.number, state=TrialState.FAIL)
            progress(f"{title}: failed: {error}")
            return True
        trials.tell(trial.number, score)
        values = {key.rpartition(".")[2]: float(f"{value:.4g}") for key, value in trial.params.items()}
        progress(f"{title}: validation MAP@R {score:.4f} with {json.dumps(values)}")
    return True


@contextmanager
def _claim_trial(plan: SearchPlan, space: Space, trials: Study, folder: Path) -> Iterator[FrozenTrial | None]:
    """Yield the trial to perform now, claimed until the block ends; None if this process has none to perform."""
    from optuna.trial import TrialState

    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:

        def claim(number: int) -> bool:
            return stack.enter_context(claim_folder(_trial_folder(folder, number)))

        with locked(folder):  # two processes must not count the trials at once
            existing = trials.get_trials(deepcopy=False)
            for trial in existing:
                if trial.state == TrialState.RUNNING and claim(trial.number):
                    break
            else:
                if len(existing) >= plan.trials:
                    yield None
                    return
                number = _draw_trial(plan, space, trials, len(existing))
                claim(number)
                trial = trials.get_trials(deepcopy=False)[number]
        yield trial


def _draw_trial(plan: SearchPlan, space: Space, trials: Study, number: int) -> int:
    """Let Optuna draw the values of a new trial from the earlier ones, and return the trial's number."""
    from optuna.samplers import TPESampler

    # Optuna draws ten trials at random by default, which may be all of them.
    random = min(10, max(2, plan.trials // 4))
    trials.sampler = TPESampler(seed=plan.seed * 100_003 + number, n_startup_trials=random)
    return trials.ask({parameter.key: _distribution(parameter) for parameter in space.parameters}).number


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _trial_folder(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:03d}"


def _perform_reruns(
    plan: SearchPlan,
    space: Space,
    values: dict[str, float],
    folder: Path,
    context: StudyContext,
    progress: Callable[[str], None],
) -> int:
    """Perform the reruns that no other process holds, and return how many diverged, as the best values may."""
    failed = 0
    for number in range(plan.reruns):
        recipe = _rerun_recipe(plan, space, values, number)
        # The digest is in the name because later trials may find better values, which need other reruns.
        rerun_folder = folder / f"rerun-{recipe.digest}"
        if result_name(rerun_folder) in search_results(rerun_folder):
            continue
        title = f"{space.name}, rerun {number + 1} of {plan.reruns}"
        with claim_folder(rerun_folder) as claimed:
            if not claimed:
                continue
            try:
                scores = rerun(recipe, plan.validation, rerun_folder, context)["concatenated"]
            except DivergedError as error:
                progress(f"{title}: failed: {error}")
                failed += 1
                continue
        progress(f"{title}: test MAP@R {scores['map_at_r']:.4f}, concatenated")
    return failed
