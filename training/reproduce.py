"""Reproduction of a model: train its recipe again into a new folder, and compare the scores with the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.definitions import outdated
from training.named import Images, RecipeSettings, setting_texts
from training.overrides import check_names, recorded_classes
from training.own_network import check_objects
from training.recipe import GIVEN_WEIGHTS, Recipe, same_recipe
from training.repeats import check_repeatable
from zoo import paths
from zoo.console import note
from zoo.data.formats import table_of
from zoo.errors import TrainingError, UsageError, command
from zoo.evaluation.evaluate import METRICS
from zoo.files import read_object
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.models.places import check_trusted
from zoo.models.registry import ModelLike, check_new_name
from zoo.models.results import MADE, read_results, training_facts

if TYPE_CHECKING:
    from zoo.models.results import Evaluation

ENDING = "-reproduced"


@dataclass(frozen=True)
class ReproducedMetric:
    """One metric of both models.

    Attributes:
        metric: Its name.
        recorded: The value of the given model, a fraction.
        interval: The recorded 95 % interval over classes.
        reproduced: The value of the new model.
        within: True if the new value lies within the interval.
    """

    metric: str
    recorded: float
    interval: tuple[float, float]
    reproduced: float
    within: bool


@dataclass(frozen=True)
class Reproduction:
    """Outcome of a reproduction.

    Attributes:
        model: The given model's name.
        fingerprint: Its fingerprint.
        folder: The new model folder.
        made: The facts about the given model's training (`training_facts`).
        remade: Those about the new one's.
        precisions: The precision in which each trained; None where it is not recorded.
        metrics: The metrics of both.
        same_weights: True if both have the same fingerprint, bit by bit.
        changes: Settings that make another recipe than the recorded one; a model by them reproduces nothing.
    """

    model: str
    fingerprint: str
    folder: str
    made: Mapping[str, Any]
    remade: Mapping[str, Any]
    precisions: tuple[str | None, str | None]
    metrics: tuple[ReproducedMetric, ...]
    same_weights: bool
    changes: list[str]

    @property
    def within(self) -> bool:
        return all(metric.within for metric in self.metrics)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "within": self.within}


def recorded_recipe(
    model: ModelLike, seed: int | None = None, new_name: str | None = None, trust_code: bool = False
) -> Recipe:
    """Return the recipe that a model records, under a new name. What today's recipe of its name says does not matter.

    The precision is the one in which the model was trained, where that is recorded: a recipe in bf16 trains in fp32 on
    a processor that does not have it, and the two can differ by more than the interval over classes.

    Args:
        model: The model.
        seed: The seed; by default the recorded one.
        new_name: The name of the new model; by default the model's with `-reproduced`.
        trust_code: Import classes that the recipe of a folder outside the local zoo names.

    Raises:
        UsageError: If the model does not follow a recipe, or is of an object that was given to `zoo.train` and that no
            recipe holds (code "not-available"); or if a definition that its recipe names means something else today
            (code "other-definition").
        RecipeError: If the record is of another release (code "other-schema"), names something unknown, or names
            classes of a stranger (code "unsafe-file").
    """
    folder = find_model(model)
    card, record = read_card(folder), read_object(folder / "recipe.json")
    origin, recipe = record.get("origin"), record.get("recipe")
    if not isinstance(origin, str) or not isinstance(recipe, dict):
        how = next((result[MADE]["command"] for result in read_results(folder) if result.get(MADE)), None)
        advice = f" It was made by: {how}" if how else ""
        raise UsageError(
            f"{card.name} was not trained by a recipe alone, so it cannot be trained again by one.{advice}",
            code="not-available",
        )
    for name, change in outdated(recipe).items():
        settings = (part for text in setting_texts(record.get("settings") or {}) for part in ("--set", text))
        today = command("train", origin, "--as", new_name or f"{origin}-today", *settings)
        raise UsageError(
            f"{card.name} cannot be trained again: today's {name} may not be the recorded one ({change}). For a new "
            f"model by today's definitions: {today}",
            code="other-definition",
        )
    recorded = usable_recipe(recipe, folder, trust_code)
    if digest := record.get(GIVEN_WEIGHTS):
        note(
            f"the loss of {card.name} began with the weights of an object (SHA-256 {digest[:12]}), which no recipe "
            "holds; here it begins with random ones"
        )
    return replace(
        recorded,
        name=new_name or f"{card.name}{ENDING}",
        seed=recorded.seed if seed is None else seed,
        precision=_precision(folder) or recorded.precision,
    )


def usable_recipe(record: Mapping[str, Any], folder: Path, trust_code: bool = False) -> Recipe:
    """Return the recipe that a model's folder records, if a run can be made of it; versions are not checked.

    Raises:
        UsageError: If it is of an object that was given to `zoo.train` and that no recipe holds (code "not-available").
        RecipeError: If it is of another release (code "other-schema"), names something unknown, or names classes of a
            stranger (code "unsafe-file").
    """
    check_trusted(recorded_classes(record), folder, trust_code)
    recipe = Recipe.from_json(record)
    check_objects(recipe)
    check_names(recipe)
    return recipe


def recorded_result(folder: Path, dataset: str) -> dict[str, Any]:
    """Return the newest measurement of a model on its test split that has intervals, by torch if there is one.

    Raises:
        UsageError: If there is no score (code "no-results").
    """
    card = read_card(folder)
    results = [
        result
        for result in read_results(folder)
        if (result["dataset"], result["split"], result["precision"]) == (dataset, "test", "fp32")
        and result.get("fingerprint") in (None, card.fingerprint)
        and all(name in result.get("intervals", {}) for name in METRICS)
    ]
    if not results:
        raise UsageError(
            f"{card.name} records no score on the test split of {dataset} to compare with. Measure it first: "
            f"{command('evaluate', card.name, '--save')}",
            code="no-results",
        )
    return max(results, key=lambda result: (result["runtime"] == "torch", result.get("date", "")))


def reproduce(
    model: ModelLike,
    data: Images | None = None,
    *,
    settings: RecipeSettings = (),
    seed: int | None = None,
    name: str | None = None,
    device: str | None = None,
    restart: bool = False,
    trust_code: bool = False,
    progress: bool = False,
) -> Reproduction:
    """Train a model's recipe again into `ZOO_HOME/models`, and compare R@1 and MAP@R with the recorded intervals.

    The new model is trained in the precision of the given one. Other processors and versions round differently, so
    equal weights are not expected; `within` tells whether the scores are those of the record.

    Args:
        model: A model that was trained by a recipe, and whose test split was measured.
        data: The folder of the data set (default: `ZOO_DATA`, else downloaded), or your own images as for `zoo.train`.
        settings: Further changes, as for `zoo.train`, for a shorter run that cannot be expected to reach the score.
        seed: Another seed than the recorded one.
        name: The name of the new model (default: the model's, with -reproduced).
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        restart: Forget an interrupted reproduction.
        trust_code: Import the classes that a folder from elsewhere names, which runs their code.
        progress: Show progress bars.

    Raises:
        UsageError: If the model follows no recipe (code "not-available"), a definition that its recipe names means
            something else today ("other-definition"), the model that it started from is another one ("other-model"),
            the images are others ("other-images"), there is no score ("no-results"), or the new name is taken
            ("already-exists").
        RecipeError: If the record is of another release (code "other-schema"), names something unknown, or names
            classes of a stranger ("unsafe-file").
        TrainingError: If the new model could not be measured (code "no-results"), or on other images than the record
            ("other-images").
        ZooError: As `zoo.train`.
    """
    from training.api import train
    from training.overrides import override

    folder, data = find_model(model), table_of(data)
    recipe, record = recorded_recipe(folder, seed, name, trust_code), read_object(folder / "recipe.json")
    check_repeatable(record, recipe, read_card(folder).name, data)
    recorded = recorded_result(folder, recipe.data.dataset)
    changed = override(recipe, changes) if (changes := list(setting_texts(settings))) else recipe
    if same_recipe(recipe.record, changed):
        changes = []
    recipe = changed
    if (paths.local_models() / recipe.name / "card.json").is_file():
        check_new_name(recipe.name)
    outcome = train(recipe, data, device, restart, progress, origin=str(record["origin"]))
    if outcome.evaluation is None:
        raise TrainingError(f"the new model was not measured: {outcome.not_evaluated}", code="no-results")
    _check_same_test(recorded, outcome.evaluation)
    card = read_card(folder)
    return Reproduction(
        model=card.name,
        fingerprint=card.fingerprint,
        folder=str(outcome.folder),
        made=training_facts(folder),
        remade=training_facts(outcome.folder),
        precisions=(_precision(folder), _precision(outcome.folder)),
        metrics=tuple(_compare(recorded, outcome.evaluation)),
        same_weights=read_card(outcome.folder).fingerprint == card.fingerprint,
        changes=changes,
    )


def _precision(folder: Path) -> str | None:
    """Return the precision in which a model was trained; None if it is not recorded."""
    precision: str | None = read_object(folder / "recipe.json").get("precision")
    return precision


def _check_same_test(recorded: Mapping[str, Any], new: Evaluation) -> None:
    """Raise `TrainingError` (`other-images`) if the two models were measured on different images."""
    before, now = recorded.get("data"), new.data
    if before and now is not None and before["sha256"] != now.sha256:
        raise TrainingError(
            f"the recorded scores are of {before['images']} test images ({before['sha256'][:8]}), and the new ones of "
            f"{now.images} others ({now.sha256[:8]}), so that they cannot be compared. Name the recorded images.",
            code="other-images",
        )


def _compare(recorded: Mapping[str, Any], new: Evaluation) -> list[ReproducedMetric]:
    rows = []
    for name in METRICS:
        low, high = recorded["intervals"][name]
        value = new.metrics[name]
        rows.append(ReproducedMetric(name, recorded["metrics"][name], (low, high), value, low <= value <= high))
    return rows
