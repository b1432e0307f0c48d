"""Study folders: the plan in plan.json, the runs of the plan, and the images that they come from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from training.definitions import outdated
from training.overrides import differences
from training.recipe import Recipe, without_remarks
from training.repeats import PARTS, parts_of
from training.studies.own import check_own_arms, own_study
from training.studies.papers import find_study
from training.studies.results import Result, Results, has_results
from training.studies.study import (
    EMBEDDING,
    SELECTIONS,
    Arm,
    Claim,
    Measure,
    Study,
    foreign_weights,
    recipe_owner,
    resolve_recipes,
    slug,
)
from training.studies.trials import (
    TRIAL_SEED,
    TRIALS_FILE,
    TrialScore,
    TrialSearch,
    TrialValues,
    check_rates,
    main_constant,
    merge_trials,
    read_trials,
    scores_by_values,
    trial_name,
    trial_settings,
    trial_title,
)
from zoo.data import load_dataset
from zoo.data.dataset import FOLDER, SPLITS, DataIdentity
from zoo.data.folder import check_splits
from zoo.data.official import RECALL_DEPTHS
from zoo.errors import DatasetError, TrainingError, UsageError, command
from zoo.evaluation.statistics import check_margins, parse_margins
from zoo.files import locked, read_object, write_json
from zoo.models.registry import exists
from zoo.paths import expand

PLAN_FILE, FAILURE_FILE = "plan.json", "failure.json"

EXTENDABLE = ("seeds", "selections", "only", "trials", "arms")
"""Fields of a plan that may grow when the study is begun again in the same folder."""

Images = dict[tuple[Any, ...], str]
"""Digest of the images and labels by what is read of a data set."""


@dataclass(frozen=True)
class Run:
    """One arm with one seed.

    Attributes:
        arm: The arm.
        seed: The seed.
        selection: How the measured epoch is selected, a member of `SELECTIONS`.
        recipes: The recipes that are trained; several for an ensemble.
        folder: Its checkpoints and logs while it runs, and its failure.
        results: The results of the study.
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
        """The run's name for people."""
        selection = "" if self.selection == "last" else ", selected by validation"
        return f"{self.arm.label}, seed {self.seed}{selection}"

    @property
    def digests(self) -> list[str]:
        """The digests of its recipes."""
        return [recipe.digest for recipe in self.recipes]

    @property
    def finished(self) -> bool:
        """True if the study has the run's result."""
        return self.name in self.results

    def result(self) -> Result:
        """Return the run's result. Raises `KeyError` for an unfinished run, `TrainingError` for a damaged file."""
        return self.results[self.name]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Append the run's result to those of the study, and remove the record of an earlier failure."""
        self.results.add(self.name, result)
        (self.folder / FAILURE_FILE).unlink(missing_ok=True)


@dataclass(frozen=True)
class Plan:
    """A study on a data set, with the seeds 0 to seeds - 1.

    Attributes:
        study: The study.
        dataset: The data set.
        seeds: The number of seeds.
        selections: How measured epochs are selected, members of `SELECTIONS`.
        settings: Changes of the recipes of all arms, as KEY=VALUE.
        data: The folder of the data set.
        only: Labels of the arms to run; empty for all.
        weights: BACKBONE=DIR: the weights that recipes with this backbone start from (`zoo convert` makes such a
            folder). Public weights do not count as a change.
        rates: The learning rates that trials of each arm begin with; empty for the recipes' own.
        budget: The number of trials of each arm, if they are more than the rates (`TrialSearch`).
        trials: The finished trials.
        margins: METRIC=MARGIN: the differences on the test split below which two arms are equivalent, stated before
            the runs.

    Raises:
        UsageError: If a value is invalid, or the study lacks an arm.
    """

    study: Study
    dataset: str
    seeds: int
    selections: tuple[str, ...] = ("last",)
    settings: tuple[str, ...] = ()
    data: str | None = None
    only: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    trials: tuple[TrialScore, ...] = ()
    margins: tuple[str, ...] = ()
    budget: int = 0

    def __post_init__(self) -> None:
        check_rates(self.rates, self.budget)
        if self.seeds < 1:
            raise UsageError(f"a study needs at least one seed, not {self.seeds}.", code="invalid-value")
        if not self.selections or not set(self.selections) <= set(SELECTIONS):
            raise UsageError(
                f"epochs are selected by {' or '.join(SELECTIONS)}, not {', '.join(self.selections) or 'nothing'}.",
                code="unknown-name",
            )
        _check_arms(self.only, self.study)
        check_margins(
            parse_margins(self.margins), [measure.metric for measure in self.study.measures if measure.split == "test"]
        )

    def margin(self, measure: Measure) -> float | None:
        """Return the margin of equivalence of a measure; None if none was stated."""
        return parse_margins(self.margins).get(measure.metric) if measure.split == "test" else None

    @property
    def arms(self) -> list[Arm]:
        """The arms to run."""
        return [arm for arm in self.study.arms if not self.only or arm.label in self.only]

    @property
    def claims(self) -> list[Claim]:
        """The claims about two arms that are run."""
        labels = {arm.label for arm in self.arms}
        return [claim for claim in self.study.claims if {claim.better, claim.than or self.study.reference} <= labels]

    def recipes(self, arm: Arm, seed: int = 0, selection: str = "last") -> tuple[Recipe, ...]:
        """Return the arm's recipe, or those of an ensemble's members, with the values that its trials have chosen."""
        return self._resolve(arm, seed, selection, self.chosen_values(arm))

    def trial_recipes(self, arm: Arm, values: TrialValues) -> tuple[Recipe, ...]:
        """Return the recipes of a trial: on the first seed, with held-out training classes."""
        return self._resolve(arm, TRIAL_SEED, "validation", values)

    def _resolve(self, arm: Arm, seed: int, selection: str, values: TrialValues | None) -> tuple[Recipe, ...]:
        def resolve(trial: tuple[str, ...] = ()) -> tuple[Recipe, ...]:
            return resolve_recipes(self.study, arm, self.dataset, seed, selection, self.settings, self.weights, trial)

        recipes = resolve()
        return recipes if values is None else resolve(trial_settings(values, recipes[0]))

    def search_of(self, arm: Arm) -> TrialSearch | None:
        """Return the trials of an arm; None without any, and for an arm that is not trained."""
        recipes = self._resolve(arm, TRIAL_SEED, "last", None) if self.rates else ()
        if not any(recipe.learns for recipe in recipes):
            return None
        return TrialSearch(self.rates, self.budget, main_constant(recipes[0]) is not None)

    def next_values(self, arm: Arm) -> TrialValues | None:
        """Return the values of the arm's next trial; None without one."""
        search = self.search_of(arm)
        return None if search is None else search.next_values(scores_by_values(arm.label, self.trials))

    def chosen_values(self, arm: Arm) -> TrialValues | None:
        """Return the values that the arm's trials have chosen; None without trials, and before they ended."""
        search = self.search_of(arm)
        return None if search is None else search.chosen(scores_by_values(arm.label, self.trials))

    def lacks_values(self, arm: Arm) -> bool:
        """Return whether the arm cannot be run yet, because its trials have chosen nothing."""
        search = self.search_of(arm)
        return search is not None and search.chosen(scores_by_values(arm.label, self.trials)) is None

    def changes(self, recipes: Sequence[Recipe]) -> list[str]:
        """Return the settings that change the recipes of a run; public weights do not count as a change."""
        rates = dict.fromkeys(f"optimizer.lr={recipe.optimizer.lr!r}" for recipe in recipes if self.rates)
        constants = [main_constant(recipe) for recipe in recipes if self.budget]
        factors = dict.fromkeys(f"{constant[0]}={constant[1]!r}" for constant in constants if constant)
        return [*self.settings, *(foreign_weights(recipes) if self.weights else ()), *rates, *factors]

    def runs(self, folder: Path, results: Results | None = None) -> list[Run]:
        """Return every run, seed by seed, so that paired runs finish together.

        Args:
            folder: The study's folder.
            results: The results in it, if they are open already.
        """
        results = Results(folder) if results is None else results
        return [
            Run(arm, seed, selection, self.recipes(arm, seed, selection), folder / path, results)
            for arm, seed, selection, path in self.run_folders()
        ]

    def run_folders(self) -> Iterator[tuple[Arm, int, str, str]]:
        """Yield the arm, the seed, the selection and the folder of every run, relative to that of the study."""
        for seed, arm, selection in product(range(self.seeds), self.arms, self.selections):
            suffix = "" if selection == "last" else f"-{selection}"
            yield arm, seed, selection, f"runs/{slug(arm.label)}/seed-{seed}{suffix}"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plan.json has it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        chosen = {arm.label: best._asdict() for arm in self.arms if (best := self.chosen_values(arm)) is not None}
        trials = [dataclasses.asdict(trial) for trial in self.trials]
        own = {"arms": self.study.own_arms} if self.study.own_arms else {}
        return json.loads(json.dumps({**values, "study": self.study.name, **own, "trials": trials, "chosen": chosen}))


def weights_by_study(
    weights: Iterable[str], studies: Iterable[Study], dataset: str, settings: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return for each study, by its name, the weights of the backbones that it has; paths are made absolute.

    Args:
        weights: BACKBONE=DIR, as `--weights` takes them.
        studies: The studies of one command.
        dataset: The data set.
        settings: Changes of the recipes of all arms.

    Raises:
        UsageError: If a text has another form, a backbone is given twice, or no study has it.
    """
    places: dict[str, str] = {}
    for text in weights:
        name, equals, place = (part.strip() for part in text.partition("="))
        if not (name and equals and place) or name in places:
            raise UsageError(
                f"--weights {text}: expected BACKBONE=DIR, once for each backbone, as ibn=weights/bn_inception.",
                code="invalid-value",
            )
        path = expand(place)
        places[name] = str(path.absolute()) if exists(path) else place
    if not places:
        return {study.name: () for study in studies}
    backbones = {study.name: _backbones(study, dataset, tuple(settings)) for study in studies}
    known = sorted(set().union(*backbones.values()))
    for name in places:
        if name not in known:
            raise UsageError(
                f"no arm has the backbone {name!r} of --weights; the arms have {', '.join(known)}.",
                code="unknown-name",
            )
    return {
        study: tuple(f"{name}={place}" for name, place in places.items() if name in own)
        for study, own in backbones.items()
    }


def _backbones(study: Study, dataset: str, settings: tuple[str, ...]) -> set[str]:
    """Return the short names of the backbones of all arms."""
    recipes = (recipe for arm in study.arms for recipe in resolve_recipes(study, arm, dataset, 0, settings=settings))
    return {recipe.backbone.name for recipe in recipes}


class RunSchedule:
    """The runs of a plan in a study's folder, and the images that the finished ones come from.

    A schedule is made once per study and passed on, so that each result is read once. Its recipes come from
    `training.studies.study.resolve_recipes`, which remembers them: other readers of the plan (the adaptation to a data
    set, plan.json, a longer schedule, the report) get the same objects, and nothing is resolved again.
    """

    def __init__(self, plan: Plan, folder: Path, results: Results | None = None) -> None:
        self.plan, self.folder = plan, folder
        self.results = Results(folder) if results is None else results
        self.runs = plan.runs(folder, self.results)
        self._images: dict[tuple[Any, ...], tuple[str, str]] = {}  # digest and title of a run that comes from them
        self._checked: set[str] = set()

    def begin(self) -> RunSchedule:
        """Write plan.json, and return the schedule of everything that was ever requested in this folder.

        Raises:
            TrainingError: If the folder holds another study, or one whose recipes have changed since, or a run by
                another recipe.
            UsageError: If the images are a folder that is not named.
        """
        if not (self.folder / PLAN_FILE).exists():
            self._check_recipes()
        plan = write_plan(self.plan, self.folder)
        return self if plan == self.plan else RunSchedule(plan, self.folder, self.results)

    def _check_recipes(self) -> None:
        """Check that what a folder without plan.json holds was made by the recipes of this plan."""
        trials = Results(self.folder, TRIALS_FILE)
        plan = dataclasses.replace(self.plan, trials=read_trials(trials.values()) if self.plan.rates else ())
        made = [(run.title, run.digests, run.result()) for run in plan.runs(self.folder, self.results) if run.finished]
        for trial in plan.trials:
            values = TrialValues(trial.rate, trial.factor)
            for arm in (arm for arm in plan.arms if arm.label == trial.arm):
                digests = [recipe.digest for recipe in plan.trial_recipes(arm, values)]
                made.append((trial_title(trial.arm, values), digests, trials[trial_name(trial.arm, values)]))
        for title, digests, record in made:
            if (recorded := record.get("recipes", digests)) != digests:
                raise TrainingError(
                    f"{title} in {self.folder} was made by another recipe ({' '.join(recorded)}) than this study's "
                    f"({' '.join(digests)}). Results of both would be mixed: begin again in another folder (--out).",
                    code="other-study",
                )

    def select(self, only: Iterable[str]) -> list[Run]:
        """Return the runs of the arms with these labels, or all.

        Raises:
            UsageError: If the study has no such arm.
        """
        labels = list(only)
        _check_arms(labels, self.plan.study)
        return [run for run in self.runs if not labels or run.arm.label in labels]

    def check_finished(self) -> None:
        """Read the results that are new, and raise `TrainingError` if two finished runs come from different images."""
        finished = set(self.results)
        for run in self.runs:
            if run.name in finished and run.name not in self._checked:
                images = images_of(run, run.result())
                self._compare(run, images)
                self._images |= {key: (digest, run.title) for key, digest in images.items() if key not in self._images}
                self._checked.add(run.name)

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
                    code="other-study",
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


def adapt_to_dataset(plan: Plan) -> Plan:
    """Return the plan with its study's measures and note adapted to the data set that supplies the images."""
    dataset, owner = plan.recipes(plan.study.arms[0])[0].data.dataset, recipe_owner(plan.dataset)
    note = plan.study.note
    if dataset != owner and not plan.study.own_arms:
        folder = f" ({plan.data})" if plan.data else ""
        note = f"The images are those of the data set {dataset}{folder}, the recipes those of {owner}. {note}".strip()
    measures, normalised = (
        tuple(dict.fromkeys(new for old in measures for new in _adapt_measure(old, dataset)))
        for measures in (plan.study.measures, plan.study.normalised)
    )
    study = dataclasses.replace(plan.study, measures=measures, normalised=normalised, note=note)
    return dataclasses.replace(plan, study=study)


def write_plan(plan: Plan, folder: Path) -> Plan:
    """Write plan.json, together with the seeds, arms, selections and trials of the plan that the folder has.

    Returns:
        The plan of everything that was ever requested in this folder, with its finished trials.

    Raises:
        TrainingError: If the folder holds another study, one of other images or weights, or one whose recipes have
            changed since.
        UsageError: If the images are a folder that is not named.
        DatasetError: If the folder of images has no test classes.
    """
    from training.api import provenance  # torch, which reading a study does not need

    first = plan.recipes(plan.study.arms[0])[0]
    check_images(first.data.dataset, plan.data)
    images = _own_images(first.data.dataset, plan.data)
    folder.mkdir(parents=True, exist_ok=True)
    recipes = _recipe_records(plan)
    parts = study_parts(recipes)
    with locked(folder):
        if (folder / PLAN_FILE).exists():
            old = read_record(folder / PLAN_FILE)
            _check_same_study(plan, old, folder)
            _check_same_images(images, old, folder)
            check_own_arms(old.get("arms", ()), (), folder, plan.study)
            images, parts = images or old.get("images", {}), {**old.get(PARTS, {}), **parts}
            plan = _extend(plan, old)
            check_recipes(recipes, old, folder)
            if all(plan.to_json().get(key, []) == old.get(key, []) for key in EXTENDABLE):
                return plan
        runs = [path for *_, path in plan.run_folders()]
        facts = {"images": images, PARTS: parts, "runs": runs, "recipes": recipes, **provenance()}
        write_json(folder / PLAN_FILE, {**plan.to_json(), **facts})
    return plan


def read_plan(folder: Path, trust_code: bool = False) -> Plan:
    """Return the plan in a study's folder. Its note says which recipes have changed since (`check_unchanged`).

    Args:
        folder: The folder.
        trust_code: Import classes that a folder outside the local zoo names.

    Raises:
        RecipeError: `unsafe-file` if it names classes of a stranger.
        UsageError: If the folder has no plan.
        TrainingError: If the plan is damaged.
    """
    path = folder / PLAN_FILE
    if not path.is_file():
        again = has_results(folder)
        begin = command("benchmark", "run", "STUDY", "--dataset", "D", *(("--out", folder) if again else ()))
        raise UsageError(
            f"{folder} is not a study: it has no {PLAN_FILE}.{' Its finished runs stay.' * again} Begin one: {begin}",
            code="no-results",
        )
    record = read_record(path)
    try:
        check_own_arms(record.get("arms", ()), record["settings"], folder, trust_code=trust_code)
        plan = Plan(
            own_study(record["arms"]) if "arms" in record else find_study(record["study"]),
            record["dataset"],
            record["seeds"],
            tuple(record["selections"]),
            tuple(record["settings"]),
            record["data"],
            tuple(record.get("only", ())),  # older plans are of all arms
            tuple(record.get("weights", ())),
            tuple(record.get("rates", ())),
            read_trials(record.get("trials", ())),
            tuple(record.get("margins", ())),
            record.get("budget", 0),
        )
    except (KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} is not the plan of a study ({error}). Begin the study again in another folder.",
            code="damaged-file",
        ) from None
    return _with_note(plan, _recipe_changes(_recipe_records(plan), record))


def _with_note(plan: Plan, changes: Mapping[str, str]) -> Plan:
    """Return the plan whose note names the arms with other recipes than today's, by what has changed since."""
    if not changes:
        return plan
    arms = {change: ", ".join(arm for arm in changes if changes[arm] == change) for change in changes.values()}
    older = "; ".join(f"{names} ({change})" for change, names in arms.items())
    note = f"Runs by older recipes or definitions, which today's runs cannot join: {older}."
    study = dataclasses.replace(plan.study, note=f"{plan.study.note} {note}".strip())
    return dataclasses.replace(plan, study=study)


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a study's or a search's folder.

    Raises:
        TrainingError: If the file cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read as JSON: {error}. {_remedy(path)}", code="damaged-file") from None
    if not isinstance(value, dict):
        raise TrainingError(f"{path} is not a JSON object. {_remedy(path)}", code="damaged-file")
    return value


def check_images(dataset: str, root: str | Path | None) -> None:
    """Check that recipes for a folder of images have a folder with training and test classes.

    Raises:
        UsageError: If the folder is not named.
        DatasetError: If it has no test classes.
    """
    if dataset != FOLDER:
        return
    if root is None:
        raise UsageError("which folder of images? Name it with --data DIR.", code="missing-value")
    check_splits(root)


def check_unchanged(plan: Plan, folder: Path) -> None:
    """Check, before a run, that a study's recipes are those that its plan.json records; runs of both would be mixed.

    Raises:
        TrainingError: If a recipe has changed, a definition or code that it names, or the model that it starts from.
    """
    check_recipes(_recipe_records(plan), read_record(folder / PLAN_FILE), folder)


def check_source(folder: Path, source: Path) -> None:
    """Check that a study whose results another one adopts has the same images, weights and code.

    Args:
        folder: The folder of the study that adopts them.
        source: That of the other one.

    Raises:
        TrainingError: If both plans say which they are, and they differ.
    """
    own, other = read_object(folder / PLAN_FILE), read_object(source / PLAN_FILE)
    _check_same_images(own.get("images", {}), other, source)
    _check_same_parts(own.get(PARTS, {}), other, source)


def check_recipes(recipes: Mapping[str, Any], record: Mapping[str, Any], folder: Path) -> None:
    """Check that recipes, the models that they start from and the code are those that plan.json or search.json records.

    Args:
        recipes: Arm or loss -> its recipes as JSON.
        record: The content of the file.
        folder: The folder of the study or the search.

    Raises:
        TrainingError: If a recipe has changed, a definition or code that it names, or the model that it starts from.
    """
    _check_same_parts(study_parts(recipes), record, folder)
    for name, change in _recipe_changes(recipes, record).items():
        raise TrainingError(
            f"the recipe of {name} has changed since {folder} was begun with commit {record.get('commit')} ({change}). "
            "Continue with that version, or begin again in another folder.",
            code="other-study",
        )


def _recipe_changes(recipes: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
    """Return the arms or losses whose recipes differ from the recorded ones, each with what has changed."""
    recorded = record.get("recipes", {})
    changes = {name: _change(recorded[name], recipe) for name, recipe in recipes.items() if name in recorded}
    return {name: change for name, change in changes.items() if change}


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return how a recipe, or several by number, differ from the recorded ones; "" if they do not."""
    if "objective" not in new:
        texts = [_change(old.get(number, {}), recipe) for number, recipe in new.items()]
        return next(filter(None, texts), "" if old.keys() == new.keys() else "the number of members")
    if without_remarks(old) == without_remarks(new):
        return ""
    definitions = [f"{name}: {change}" for name, change in outdated(old).items()]
    return "; ".join(definitions) or ", ".join(key for key, _ in differences(new, old)) or "its name"


def _adapt_measure(measure: Measure, dataset: str) -> list[Measure]:
    """Return the measure; for a recall beyond 1 all those at which the data set is reported."""
    beyond_1 = measure.recall_at is not None and measure.recall_at > 1
    if not beyond_1 or (measure.split, measure.view) != ("test", EMBEDDING) or dataset not in RECALL_DEPTHS:
        return [measure]
    return [Measure(f"recall_at_{k}") for k in RECALL_DEPTHS[dataset] if k > 1]


def _extend(plan: Plan, old: dict[str, Any]) -> Plan:
    """Return the plan with the seeds, selections, arms and trials of an earlier one."""
    selections = {*plan.selections, *old["selections"]}
    labels = {*plan.only, *old["only"]} if plan.only and old.get("only") else set()  # empty: all arms
    if plan.study.own_arms:
        own = own_study([*old["arms"], *plan.study.own_arms])
        study = dataclasses.replace(plan.study, arms=own.arms, own_arms=own.own_arms)
        plan = dataclasses.replace(plan, study=study)
    return dataclasses.replace(
        plan,
        seeds=max(plan.seeds, int(old["seeds"])),
        selections=tuple(selection for selection in SELECTIONS if selection in selections),
        only=tuple(label for label in plan.study.labels if label in labels),
        trials=merge_trials(plan.trials, read_trials(old.get("trials", ()))),
    )


def _recipe_records(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return each arm's recipes by member number, with the first seed, the last epoch and their own learning rate."""
    untried = dataclasses.replace(plan, trials=())
    return {
        arm.label: {str(number): recipe.record for number, recipe in enumerate(untried.recipes(arm))}
        for arm in plan.study.arms
    }


def _check_arms(labels: Iterable[str], study: Study) -> None:
    for label in labels:
        if label not in study.labels:
            raise UsageError(
                f"the study {study.name} has no arm {label!r}; it has {', '.join(study.labels)}.", code="unknown-name"
            )


def _check_same_study(plan: Plan, old: dict[str, Any], folder: Path) -> None:
    new = plan.to_json()
    for key in ("study", "dataset", "settings", "weights", "rates", "margins", "budget"):
        if old.get(key, {"weights": [], "rates": [], "margins": [], "budget": 0}.get(key)) != new[key]:
            raise TrainingError(
                f"{folder} holds another study: its {key} is {old.get(key)!r}, not {new[key]!r}. Name another --out.",
                code="other-study",
            )


def _own_images(dataset: str, root: str | None) -> dict[str, dict[str, Any]]:
    """Return the identity of each split of a user's own images; {} for a data set, whose name says which they are.

    Also {} if the images are not there: finished runs are reported and adopted without them.
    """
    if dataset != FOLDER:
        return {}
    try:
        return {split: dataclasses.asdict(load_dataset(FOLDER, split, root).identity) for split in SPLITS}
    except DatasetError:
        return {}


def _check_same_images(images: Mapping[str, Mapping[str, Any]], old: Mapping[str, Any], folder: Path) -> None:
    """Raise `TrainingError` if the study was begun with other images; older plans do not say with which."""
    for split, identity in old.get("images", {}).items():
        if split in images and images[split]["sha256"] != identity["sha256"]:
            raise TrainingError(
                f"{folder} holds a study on other images: its {split} split is {DataIdentity(**identity)}, not "
                f"{DataIdentity(**images[split])}. Name the data that it was begun with (--data), or begin again in "
                "another folder (--out).",
                code="other-study",
            )


def study_parts(recipes: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of several recipes (`training.repeats.parts_of`).

    Args:
        recipes: Arm or loss -> its recipes as JSON, as for `check_recipes`.
    """
    members = [recipe for value in recipes.values() for recipe in ([value] if "objective" in value else value.values())]
    return {name: digest for recipe in members for name, digest in parts_of(recipe).items()}


def _check_same_parts(parts: Mapping[str, str], old: Mapping[str, Any], folder: Path) -> None:
    """Raise `TrainingError` if a study's runs have other models to start from, or other code; older plans do not say.

    Args:
        parts: Those of today.
        old: The content of plan.json.
        folder: The folder of the study.
    """
    for name, digest in old.get(PARTS, {}).items():
        if parts.get(name, digest) != digest:
            raise TrainingError(
                f"{folder} holds runs with {name} as it was before ({digest[:12]}); today it is another "
                f"({parts[name][:12]}). Put it back, or begin again in another folder (--out).",
                code="other-study",
            )


def _remedy(path: Path) -> str:
    """Return the advice for a damaged file: the command that began a folder writes its plan again."""
    if path.name == FAILURE_FILE:
        return "Delete it; the next attempt writes it again."
    report = path.with_name("report.md")
    source = f" ({report} has it)" if report.is_file() else ""
    return (
        f"Delete it and give the command again that began this folder{source}, with the same --dataset, --set and "
        "--out: finished runs stay."
    )
