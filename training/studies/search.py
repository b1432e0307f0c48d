"""Reality in small: a Bayesian search over a loss's values by cross validation, then reruns of the best, tested.

A folder holds search.json, Optuna's journal, and for each loss a folder a trial and one a rerun. All of it goes on
after a kill, and several processes may share it, as the journal is Optuna's own storage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.output import provenance
from training.recipe import Recipe, agree
from training.resolving import resolve
from training.studies.crossval import Validation, name_of, rerun, results_of, validate
from training.studies.plan import check_images, read
from training.studies.results_file import Results
from training.studies.single import Workplace, claimed
from training.studies.spaces import Parameter, Space, space_of
from training.studies.stand_ins import with_recipes
from zoo.errors import DivergedError, RecipeError, TrainingError, UsageError, missing
from zoo.files import locked, write_json

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

PLAN, JOURNAL = "search.json", "optuna.journal"


@dataclass(frozen=True)
class Search:
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
            self.recipe(space_of(loss), _lowest(space_of(loss)))

    @property
    def how(self) -> Validation:
        return Validation(self.folds, self.patience)

    @property
    def first(self) -> Recipe:
        """A trial's recipe, for what all of them have in common."""
        space = space_of(self.losses[0])
        return self.recipe(space, _lowest(space))

    def recipe(self, space: Space, values: dict[str, float], seed: int = 0) -> Recipe:
        """The recipe with searched values, on all training classes until a fold is held out."""
        owner = with_recipes(self.dataset)
        read = [] if owner == self.dataset else [f"data.dataset={self.dataset}"]
        settings = [*space.fixed(owner), *read, *self.settings, *space.searched(values), "data.validation=0"]
        made = resolve(space.recipe(owner), settings, seed)
        if not isinstance(made, Recipe) or made.schedule.epochs < 1:
            raise RecipeError("what is searched is one model, of at least one epoch.")
        return made


def begin(search: Search, folder: Path) -> Search:
    """Write the plan, or find it there: trials and reruns may be more than before, nothing else may differ.

    What the search was begun with stays as it was written then; each fold's result has its own. Raises `TrainingError`
    where the folder holds another search, or one whose recipes have changed since; as `check_images` does.
    """
    check_images(search.first, search.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        facts = {**provenance(), "recipes": _recipes(search)}
        if (folder / PLAN).exists():
            old, facts = read_search(folder), read(folder / PLAN)
            fewer = dataclasses.replace(search, trials=old.trials, reruns=old.reruns, data=old.data)
            if fewer != old:
                raise TrainingError(f"{folder} holds another search: {old}. Name another --out.")
            more = max(search.trials, old.trials), max(search.reruns, old.reruns)
            search = dataclasses.replace(search, trials=more[0], reruns=more[1])
        write_json(folder / PLAN, {**facts, "search": dataclasses.asdict(search)})
    return search


def read_search(folder: Path) -> Search:
    """The plan in a folder. Raises `TrainingError` where it is none, or its recipes have changed since."""
    raw = read(folder / PLAN)
    try:
        facts: dict[str, Any] = raw["search"]
        search = Search(**{**facts, "losses": tuple(facts["losses"]), "settings": tuple(facts["settings"])})
    except (KeyError, TypeError) as error:
        raise TrainingError(f"{folder / PLAN} is no plan of a search ({error}); begin anew elsewhere.") from None
    _check_recipes(search, raw, folder)
    return search


def _recipes(search: Search) -> dict[str, Any]:
    """By loss: the recipe of a trial in which every value is at its lower bound."""
    spaces = [space_of(loss) for loss in search.losses]
    return {space.name: search.recipe(space, _lowest(space)).to_json() for space in spaces}


def _lowest(space: Space) -> dict[str, float]:
    return {parameter.key: parameter.low for parameter in space.parameters}


def _check_recipes(search: Search, raw: dict[str, Any], folder: Path) -> None:
    """Raise `TrainingError` where a loss's recipe is not what it was: trials of both would be compared."""
    planned = raw.get("recipes", {})
    for loss, recipe in _recipes(search).items():
        if loss in planned and not agree(planned[loss], json.loads(json.dumps(recipe))):
            raise TrainingError(
                f"the recipe of {loss} has changed since {folder} was begun (with commit {raw.get('commit')}). "
                "Go on with that version, or begin anew in another folder."
            )


def run(search: Search, folder: Path, work: Workplace, say: Callable[[str], None]) -> int:
    """All trials of all losses that are left, then the reruns of each loss's best; how many reruns there are not."""
    failed = 0
    for loss in search.losses:
        space, trials = space_of(loss), _storage(search, loss, folder)
        while _one_trial(search, space, trials, folder / loss, work, say):
            pass
        if _is_running(trials):
            say(f"{loss}: the last trials are with other processes, which do the reruns.")
        elif (best := best_of(trials)) is not None:
            failed += _rerun_all(search, space, best.params, folder / loss, work, say)
        else:
            say(f"{loss}: every trial failed, so that there are no values to test. Search with other settings (--set).")
            failed += search.reruns
    return failed


def is_left(search: Search, folder: Path) -> bool:
    """Whether trials or reruns are to be performed yet, here or by other processes."""
    for loss, trials in open_trials(search, folder).items():
        if _is_running(trials) or len(trials.get_trials(deepcopy=False)) < search.trials:
            return True
        best = best_of(trials)
        if best is not None and len(reruns_of(search, loss, best.params, folder)) < search.reruns:
            return True
    return False


def open_trials(search: Search, folder: Path) -> dict[str, Study]:
    """The trials by loss."""
    return {loss: _storage(search, loss, folder) for loss in search.losses}


def best_of(trials: Study) -> FrozenTrial | None:
    """The finished trial with the best validation."""
    from optuna.trial import TrialState

    done = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


def _is_running(trials: Study) -> bool:
    from optuna.trial import TrialState

    return bool(trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))


def _storage(search: Search, loss: str, folder: Path) -> Study:
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise missing("optuna", "train") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.create_study(storage=storage, study_name=loss, direction="maximize", load_if_exists=True)


def _one_trial(
    search: Search, space: Space, trials: Study, folder: Path, work: Workplace, say: Callable[[str], None]
) -> bool:
    """Perform one trial: one that a killed process left, else a new one; False where there is none left for us."""
    from optuna.trial import TrialState

    with _held(search, space, trials, folder) as trial:
        if trial is None:
            return False
        recipe = search.recipe(space, trial.params, search.seed)
        title = f"{space.name}, trial {trial.number + 1} of {search.trials}"
        try:
            score = validate(recipe, search.how, _place(folder, trial.number), work)
        # All other errors, as of a full disk, are none of the values: the trial is left to the next who goes on.
        except DivergedError as error:
            trials.tell(trial.number, state=TrialState.FAIL)
            say(f"{title}: failed: {error}")
            return True
        trials.tell(trial.number, score)
        say(f"{title}: validation MAP@R {score:.4f} with {_shown(trial.params)}")
    return True


@contextmanager
def _held(search: Search, space: Space, trials: Study, folder: Path) -> Iterator[FrozenTrial | None]:
    """The trial to perform now, claimed as long as the block lasts."""
    from optuna.trial import TrialState

    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with locked(folder):  # two processes must not count the trials at once
            known = trials.get_trials(deepcopy=False)
            for trial in known:
                if trial.state == TrialState.RUNNING and stack.enter_context(claimed(_place(folder, trial.number))):
                    break
            else:
                if len(known) >= search.trials:
                    yield None
                    return
                number = _ask(search, space, trials, len(known))
                stack.enter_context(claimed(_place(folder, number)))
                trial = trials.get_trials(deepcopy=False)[number]
        yield trial


def _ask(search: Search, space: Space, trials: Study, number: int) -> int:
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


def _place(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:03d}"


def _rerun_all(
    search: Search,
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
        if name_of(place) in results_of(place):
            continue
        with claimed(place) as ours:
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


def reruns_of(search: Search, loss: str, values: dict[str, float], folder: Path) -> list[dict[str, Any]]:
    """The finished reruns of the best values."""
    results = Results(folder)
    recipes = (search.recipe(space_of(loss), values, search.seed + 1 + number) for number in range(search.reruns))
    names = (f"{loss}/rerun-{recipe.digest}" for recipe in recipes)
    return [results[name] for name in names if name in results]


def _shown(values: dict[str, float]) -> str:
    return json.dumps({key.rpartition(".")[2]: float(f"{value:.4g}") for key, value in values.items()})
