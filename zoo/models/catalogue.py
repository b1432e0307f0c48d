"""Catalogue: `ModelInfo` of every known model, from its folder, its recipe or the list of public baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.errors import ModelFolderError, ModelNotFoundError, UsageError, check_text
from zoo.files import read_object
from zoo.hub.download import cached_model_name, cached_models
from zoo.models import recipes
from zoo.models.baselines import (
    PRETRAINED,
    SCORE_SOURCES,
    UNTRAINED,
    Baseline,
    PublicTextTower,
    baselines,
    baselines_root,
    repository_of,
)
from zoo.models.card import Card, Origin, read_card, read_head, read_kept, read_origin, read_training_data
from zoo.models.folder import RELEVANCE_FILE, count_parameters
from zoo.models.names import name_hint, similar_names
from zoo.models.pretrained.packages import PACKAGES, WeightsPackage, installed_package
from zoo.models.published import published_tables
from zoo.models.registry import (
    ModelLike,
    cached_folder,
    exists,
    folder_name,
    looks_like_path,
    model_folders,
    model_text,
)
from zoo.models.results import read_results

RECIPE = "recipe"
"""Status of a recipe, which can be trained."""

FEW_VALUES = 20
"""Most values of a fact that an error lists."""

STATUSES = {
    "shipped": "shipped",
    "trained": "trained here",
    "package": "from a package",
    "hub": "on the Hub",
}
"""Status of a model -> text for people. package: an installed Python package holds the weights. hub: in the Hub's
cache, or a public backbone that timm hosts there."""


@dataclass(frozen=True, repr=False)
class ModelInfo:
    """Facts about one model or recipe, a row of `zoo list`.

    Attributes:
        status: A key of `STATUSES`, or `RECIPE`.
        folder: The model folder; None, as `card`, if this machine has no file of the model.
        results: Own measurements, as in results.json.
        published: Scores that papers print for this model: source, dataset, metric, value (a fraction), dim; `of` names
            the variant that was measured, if it was one; `marks` are those of `PublishedScore`, if it has any.
        parameters: Number of the network's parameters; None if it is not known without loading.
        facts: Further facts of its recipe or of the list of baselines.
        origin: The recipe that it was trained by, and the changes to it.
        copied: True for a copy in the local zoo of a shipped model or a model of the Hub, as `zoo export` makes it.
        training_data: The images that it was trained on, as recipe.json has them; empty where it does not, and for a
            finetune that kept its base or start.
        kept: What a finetuned model is: "base", "start" or "trained"; None for another model.
        head: What makes the embedding of a recipe's model: "method", its trained heads; "LDA" or "PCA" of the trained
            trunk's features; or "none", the features themselves. "" for another model.
    """

    name: str
    status: str
    dim: int
    method: str
    backbone: str
    dataset: str
    folder: Path | None = None
    card: Card | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    parameters: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=lambda: Origin(None))
    copied: bool = False
    training_data: Mapping[str, Any] = field(default_factory=dict)
    kept: str | None = None
    head: str = ""

    def __repr__(self) -> str:
        return f"ModelInfo({self.name!r}: {self.status}, {self.dim} numbers, {self.method} on {self.dataset})"

    @property
    def status_text(self) -> str:
        """Return the status for people; a model that has a recipe's name and was not made by it is marked."""
        other = self.name in recipes() and self.origin.exact_recipe != self.name
        marks = (", exported here" if self.copied else "") + (", not by the recipe" if other else "")
        untrained = self.status == "trained" and self.method in (PRETRAINED, UNTRAINED)
        return ("made here" if untrained else STATUSES.get(self.status, "recipe only")) + marks

    @property
    def own_results(self) -> list[dict[str, Any]]:
        """Return the measurements without those of other weights or preprocessing than the card's."""
        known = None if self.card is None else self.card.fingerprint
        return [result for result in self.results if result.get("fingerprint") == known]

    def learnt(self, result: Mapping[str, Any]) -> bool:
        """Return whether a measurement is of the images that the model was trained on."""
        images = (result.get("data") or {}).get("sha256")
        return images is not None and images == self.training_data.get("sha256")

    @property
    def published_recall(self) -> dict[str, float]:
        """Return the first published R@1 of exactly this model by data set: its own, or all for a public backbone."""
        recall: dict[str, float] = {}
        for score in self.published:
            exact = score["metric"] == "recall_at_1" and "of" not in score
            if exact and (self.method == PRETRAINED or score["dataset"] == self.dataset):
                recall.setdefault(score["dataset"], score["value"])
        return recall

    @property
    def size(self) -> int | None:
        """Return the bytes of the model folder's files; None without a folder."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file()) if self.folder else None

    @property
    def judges_relevance(self) -> bool:
        """True if searches without labels tell likely results from others (zoo.evaluation.relevance)."""
        return self.folder is not None and (self.folder / RELEVANCE_FILE).is_file()

    def to_json(self) -> dict[str, Any]:
        names = ("name", "status", "dim", "method", "head", "backbone", "dataset")
        facts: dict[str, Any] = {key: getattr(self, key) for key in names}
        facts |= {"size": self.size, "parameters": self.parameters, "published": self.published}
        facts["facts"] = dict(self.facts)
        facts |= {"origin": self.origin.recipe, "changed": self.origin.changed}
        facts |= {"training_data": dict(self.training_data), "kept": self.kept}
        facts["judges_relevance"] = self.judges_relevance
        facts["folder"] = str(self.folder) if self.folder else None
        facts["fingerprint"] = self.card.fingerprint if self.card else None
        facts["card"] = self.card.to_json() if self.card else None
        facts["results"] = self.results
        return facts


def list_models(
    pattern: str | Sequence[str] = "*",
    *,
    method: str | None = None,
    backbone: str | None = None,
    dataset: str | None = None,
    status: str | None = None,
) -> list[ModelInfo]:
    """Return the models that `zoo.load` loads, sorted by name.

    >>> zoo.list_models("*dino*")
    >>> zoo.list_models(status="shipped", dataset="cub2010")

    Args:
        pattern: A pattern of names with wildcards, or several of which one must match.
        method: The method of the models to keep; None keeps all.
        backbone: Their backbone, in the same way.
        dataset: Their data set.
        status: Their status, a key of `STATUSES`: shipped, trained, package or hub.

    Raises:
        UsageError: `unknown-name` for a value that no model and no recipe has; the message has the nearest values.
    """
    filters = {"method": method, "backbone": backbone, "dataset": dataset, "status": status}
    return _chosen(_known_models(), "model", pattern, filters)


def list_recipes(
    pattern: str | Sequence[str] = "*",
    *,
    method: str | None = None,
    backbone: str | None = None,
    dataset: str | None = None,
) -> list[ModelInfo]:
    """Return the recipes that `zoo.train` trains, sorted by name, each with the scores that papers print for it.

    >>> zoo.list_recipes("margin-*", dataset="cub")

    Args:
        pattern: As in `list_models`.
        method: The method of the recipes to keep; None keeps all.
        backbone: Their backbone, in the same way.
        dataset: Their data set.

    Raises:
        UsageError: `unknown-name` for a value that no recipe has; the message has the nearest values.
    """
    known = [_recipe_info(name, row) for name, row in recipes().items()]
    return _chosen(known, RECIPE, pattern, {"method": method, "backbone": backbone, "dataset": dataset})


def _chosen(
    known: Sequence[ModelInfo], kind: str, pattern: str | Sequence[str], filters: Mapping[str, str | None]
) -> list[ModelInfo]:
    """Return the models or recipes whose names match the pattern, and whose facts are those of the filters."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    for text in patterns:
        check_text("pattern", text)
    for fact, value in filters.items():
        if value is None:
            continue
        check_text(fact, value)
        values = sorted({getattr(model, fact) for model in known} | (set(STATUSES) if fact == "status" else set()))
        if value not in values and value not in {row.get(fact) for row in recipes().values()}:
            hint = name_hint(value, values) or (f" Known: {', '.join(values)}." if len(values) <= FEW_VALUES else "")
            message = f"no {kind} has the {fact} {value!r}.{hint} All models: zoo list; all recipes: zoo list --recipes"
            raise UsageError(message, code="unknown-name")
    return [
        model
        for model in known
        if any(fnmatchcase(model.name, text) for text in patterns)
        and all(value is None or getattr(model, fact) == value for fact, value in filters.items())
    ]


def info(name: ModelLike) -> ModelInfo:
    """Return the facts about a model, by name or path; about a timm model on the Hub after its first use here.

    Raises:
        ModelNotFoundError: If there is no such model or recipe; the message names the nearest ones.
        UsageError: If the name cannot be that of a model.
    """
    name = model_text(name)
    if (folder := cached_folder(name)) is not None:
        return _folder_info(folder)
    if name in recipes():
        return _recipe_info(name, recipes()[name])
    if (package := installed_package(name)) is not None:
        return _package_info(package)
    repository = repository_of(name)
    for baseline in baselines().values():
        if baseline.repository == repository:
            return _baseline_info(baseline)
    fetch = "" if looks_like_path(name) else f" If the Hub has it, zoo.load({name!r}) fetches it."
    raise ModelNotFoundError(f"there is no model {name!r}.{similar_names(name)}{fetch} All models: zoo list")


def damaged_folders() -> dict[Path, str]:
    """Return the model folders on this machine that cannot be listed, and the error of each."""
    errors = {}
    for folder in model_folders():
        try:
            _folder_info(folder)
        except ModelFolderError as error:
            errors[folder] = str(error)
    return errors


def _known_models() -> list[ModelInfo]:
    """Return every model that can be loaded, by name; a folder on this machine replaces a baseline or package."""
    models = {name: _baseline_info(baseline) for name, baseline in baselines().items()}
    models |= {package.name: _package_info(package) for package in PACKAGES if package.path}
    for folder in model_folders():
        try:
            model = _folder_info(folder)
        except ModelFolderError:
            continue  # a damaged folder must not hide the others; `damaged_folders` names it
        models[model.name] = model
    return sorted(models.values(), key=lambda model: model.name)


def _folder_info(folder: Path) -> ModelInfo:
    """Return the facts about a model folder. Raises `ModelFolderError` if its card or results cannot be read."""
    card = read_card(folder)
    original_status = _original_status(folder)
    name = folder_name(folder) or card.name
    origin = read_origin(folder)
    kept = read_kept(folder)
    baseline = _baseline_of(folder)
    return ModelInfo(
        name,
        original_status or _status(folder),
        card.dim,
        card.method,
        card.backbone,
        card.dataset,
        folder,
        card,
        read_results(folder),
        list(map(dict, baseline.scores)) if baseline else _published_scores(origin.exact_recipe),
        baseline.parameters if baseline else count_parameters(folder, card),
        origin=origin if origin.recipe in recipes() else Origin(None, origin.changed),
        copied=original_status is not None,
        training_data={} if kept in ("base", "start") else read_training_data(folder),
        kept=kept,
        head=read_head(folder),
    )


def _baseline_of(folder: Path) -> Baseline | None:
    """Return the public backbone that a folder holds unaltered; None for another model of its name."""
    record = read_object(folder / "recipe.json").get("baseline")
    repository = record.get("repository") if isinstance(record, dict) else None
    return next((baseline for baseline in baselines().values() if baseline.repository == repository), None)


def _status(folder: Path) -> str:
    if folder.parent.name == "snapshots":
        return "hub"
    if folder.parent == baselines_root():
        origin = read_object(folder / "recipe.json").get("baseline")
        places = {"package": "package", "repository": "hub"}
        return next((status for place, status in places.items() if place in (origin or ())), "trained")
    return "shipped" if folder.parent == paths.SHIPPED else "trained"


def _original_status(folder: Path) -> str | None:
    """Return the status of the model that a folder of the local zoo is a copy of; None if it is not a copy."""
    if not folder.is_relative_to(paths.local_models()):
        return None
    name = folder.relative_to(paths.local_models()).as_posix()
    if "/" in name:  # org/name; models trained here have no such name
        return "hub"
    if _same_model(folder, paths.SHIPPED / name):
        return "shipped"
    # Models of the Hub's default organisation have bare names, like models that are trained here.
    same_name = (cached for cached in cached_models() if cached_model_name(cached) == name)
    return "hub" if any(_same_model(folder, cached) for cached in same_name) else None


def _same_model(folder: Path, other: Path) -> bool:
    """Return whether both folders hold the same model."""
    try:
        return exists(other / "card.json") and read_card(other).fingerprint == read_card(folder).fingerprint
    except ModelFolderError:
        return False


def _recipe_info(name: str, row: Mapping[str, Any]) -> ModelInfo:
    """Return the facts about a recipe without a model, from what the catalogue of recipes has of it."""
    facts = dict(row)
    dim, method, head, backbone, dataset = (facts.pop(key) for key in ("dim", "method", "head", "backbone", "dataset"))
    return ModelInfo(
        name,
        RECIPE,
        dim,
        method,
        backbone,
        dataset,
        published=_published_scores(name),
        parameters=facts.pop("parameters", None),
        facts=facts,
        origin=Origin(name),
        head=head,
    )


def _baseline_info(baseline: Baseline) -> ModelInfo:
    """Return the facts about a public backbone that was not used on this machine yet."""
    facts = {
        "description": f"{baseline.description}: pooled features, not trained further.",
        "architecture": baseline.backbone,
        "input": f"RGB, {baseline.size} pixels",
        **({"text": _text_tower_note(baseline.text)} if baseline.text else {}),
        "licence": baseline.licence,
        **({} if baseline.scores else {"published scores": f"none in {SCORE_SOURCES}"}),
        "sources": [baseline.source, f"https://huggingface.co/{baseline.repository}"],
    }
    return ModelInfo(
        baseline.name,
        "hub",
        baseline.dim,
        PRETRAINED,
        baseline.backbone,
        baseline.dataset,
        published=list(map(dict, baseline.scores)),
        parameters=baseline.parameters,
        facts=facts,
    )


def _package_info(package: WeightsPackage) -> ModelInfo:
    """Return the facts about an installed package of weights that was not used on this machine yet."""
    facts = {
        "description": f"{package.architecture} with the weights of {package.distribution}: pooled features, not "
        "trained further.",
        "architecture": package.architecture,
        "input": f"RGB, {package.preprocessing.crop} pixels",
        "licence": package.licence,
        "weights": str(package.path),
        "sources": [package.source],
    }
    return ModelInfo(
        package.name,
        "package",
        package.dim,
        PRETRAINED,
        package.architecture,
        package.dataset,
        parameters=package.parameters,
        facts=facts,
    )


def _text_tower_note(text: PublicTextTower) -> str:
    return f"{text.graph} of https://huggingface.co/{text.repository}: zoo baseline NAME --joint"


def _published_scores(recipe: str | None) -> list[dict[str, Any]]:
    """Return the papers' test scores of the model that a recipe reproduces."""
    return list(map(dict, _scores_by_recipe().get(recipe, ())))


@cache
def _scores_by_recipe() -> dict[str | None, list[dict[str, Any]]]:
    scores: dict[str | None, list[dict[str, Any]]] = {}
    for table in published_tables():
        for score in table.scores:
            if score.recipe and score.split == "test":
                source = f"{table.paper.source}, {table.place}: {score.row}"
                facts = {"dataset": score.dataset, "metric": score.metric, "value": score.value, "dim": score.dim}
                marks = {"marks": list(score.marks)} if score.marks else {}
                scores.setdefault(score.recipe, []).append({**facts, **marks, "source": source})
    return scores
