"""What is known of one model, from whatever is at hand: its folder, its recipe, or the list of public baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.errors import ModelFolderError, ModelNotFoundError, UsageError, check_text, nearest
from zoo.hub.download import cached_model_name, cached_models
from zoo.models.baselines import (
    PRETRAINED,
    SCORE_SOURCES,
    Baseline,
    PublicTextTower,
    baselines,
    baselines_root,
    repository_of,
)
from zoo.models.card import Card, Origin, read_card, read_origin
from zoo.models.published import published_tables
from zoo.models.registry import cached_folder, exists, looks_like_path, model_folders, model_text, recipes
from zoo.models.results import read_results

STATUSES = {"shipped": "shipped", "trained": "trained here", "hub": "on the Hub", "recipe": "recipe only"}
"""Status, and how it is put for people. hub: in the Hub's cache, or a public backbone that timm hosts there."""


NETWORK_SETTINGS = ("backbone.architecture", "backbone.args", "heads", "preprocessing.mode", "members")
"""Settings that decide how many parameters there are."""


@dataclass(frozen=True)
class ModelInfo:
    """One line of `zoo list`. `status`: a key of `STATUSES`.

    folder, card: None where no file of it is on this machine. results: own measurements, as in results.json.
    published: scores that papers print for it: source, dataset, metric, value (a fraction), dim. parameters: of the
    network; None where it is not known without loading. facts: what else its recipe or the baselines' list says.
    origin: the recipe that it was trained by, to which `published` belongs, and what was changed in it. copied: the
    folder is a copy in the local zoo, as `zoo export` makes it of a model that is shipped or of the Hub.
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

    @property
    def standing(self) -> str:
        """The status for people."""
        return STATUSES[self.status] + (", exported here" if self.copied else "")

    @property
    def papers_recall(self) -> dict[str, float]:
        """R@1 by data set, the first that a paper prints: on the model's own; of a public backbone, which was trained
        on none of them, on all that there are."""
        printed: dict[str, float] = {}
        for score in self.published:
            if score["metric"] == "recall_at_1" and (self.method == PRETRAINED or score["dataset"] == self.dataset):
                printed.setdefault(score["dataset"], score["value"])
        return printed

    @property
    def size(self) -> int | None:
        """Bytes of the model folder's files; None where there is none."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file()) if self.folder else None

    def to_json(self) -> dict[str, Any]:
        names = ("name", "status", "dim", "method", "backbone", "dataset")
        facts: dict[str, Any] = {key: getattr(self, key) for key in names}
        facts |= {"size": self.size, "parameters": self.parameters, "published": self.published}
        facts["facts"] = dict(self.facts)
        facts |= {"origin": self.origin.recipe, "changed": dict(self.origin.changed)}
        facts["folder"] = str(self.folder) if self.folder else None
        facts["card"] = self.card.to_json() if self.card else None
        facts["results"] = self.results
        return facts


def info_from_folder(
    folder: Path,
    status: str,
    recipes: Mapping[str, Mapping[str, Any]],
    repository: str | None = None,
    copied: bool = False,
) -> ModelInfo:
    """A model that has a folder. repository: the name that loads it, where it lies in the Hub's cache. copied: as in
    `ModelInfo`.

    Raises `ModelFolderError` where its card or its results cannot be read.
    """
    card = read_card(folder)
    name = repository or _place_name(folder) or card.name
    origin = read_origin(folder, card.name)
    listed = baselines().get(name) if card.method == PRETRAINED else None
    return ModelInfo(
        name,
        status,
        card.dim,
        card.method,
        card.backbone,
        card.dataset,
        folder,
        card,
        read_results(folder),
        list(map(dict, listed.scores)) if listed else published_scores(origin.recipe),
        listed.parameters if listed else _parameters(origin, recipes),
        origin=origin if origin.recipe in recipes else Origin(None),
        copied=copied,
    )


def _parameters(origin: Origin, recipes: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Of the recipe's network, unless another one was made of it."""
    if any(key.startswith(NETWORK_SETTINGS) for key in origin.changed):
        return None
    known: Mapping[str, Any] = recipes.get(origin.recipe or "", {})
    return known.get("parameters")


def _place_name(folder: Path) -> str | None:
    """The name of a folder among the models, by which a copy is loaded; elsewhere a folder's name is nothing."""
    for root in (paths.SHIPPED, paths.local_models()):
        if folder.is_relative_to(root):
            return folder.relative_to(root).as_posix()
    return None


def info_from_recipe(name: str, row: Mapping[str, Any]) -> ModelInfo:
    """A model that nobody has trained here, as recipes.json has it."""
    facts = dict(row)
    dim, method, backbone, dataset = (facts.pop(key) for key in ("dim", "method", "backbone", "dataset"))
    parameters, published = facts.pop("parameters", None), published_scores(name)
    return ModelInfo(
        name,
        "recipe",
        dim,
        method,
        backbone,
        dataset,
        published=published,
        parameters=parameters,
        facts=facts,
        origin=Origin(name),
    )


def info_from_baseline(baseline: Baseline) -> ModelInfo:
    """A public backbone that was not used here yet."""
    facts = {
        "description": f"{baseline.description}: pooled features, not trained further.",
        "architecture": baseline.backbone,
        "input": f"RGB, {baseline.size} pixels",
        **({"text": _text(baseline.text)} if baseline.text else {}),
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


def _text(public: PublicTextTower) -> str:
    joint = ", for the backbone with its own projection (zoo baseline --joint)" if public.joint else ""
    return f"{public.graph} and {public.tokenizer} of https://huggingface.co/{public.repository}{joint}: zoo text-tower"


def published_scores(recipe: str | None) -> list[dict[str, Any]]:
    """The papers' scores of the model that a recipe is to make again."""
    return [] if recipe is None else list(_scores_of(recipe))


def _scores_of(recipe: str) -> Iterator[dict[str, Any]]:
    for table in published_tables():
        for score in table.scores:
            if score.recipe == recipe and score.split == "test":
                source = f"{table.paper.source}, {table.title}: {score.row}"
                facts = {"dataset": score.dataset, "metric": score.metric, "value": score.value, "dim": score.dim}
                yield {**facts, "source": source}


def list_models(
    method: str | None = None, backbone: str | None = None, dataset: str | None = None, status: str | None = None
) -> list[ModelInfo]:
    """Return every known model, sorted by name: trained here, shipped, on the Hub, or a recipe without a model yet.

    Filters are exact. Raises `UsageError`, with the nearest ones, for a value that no model has.
    """
    models = _models()
    wanted = {"method": method, "backbone": backbone, "dataset": dataset, "status": status}
    for fact, value in wanted.items():
        known = sorted({getattr(model, fact) for model in models} | (set(STATUSES) if fact == "status" else set()))
        if value is None:
            continue
        check_text(fact, value)
        if value not in known:
            hint = name_hint(value, known) or f" The nearest is {get_close_matches(value, known, 1, 0)[0]!r}."
            raise UsageError(f"no model has the {fact} {value!r}.{hint} All models: zoo list")
    return [m for m in models if all(v is None or getattr(m, k) == v for k, v in wanted.items())]


def info(name: str) -> ModelInfo:
    """Return what is known of a model, by name or path; of a timm model on the Hub after its first use here.

    Raises `ModelNotFoundError` with the nearest names, `UsageError` for a value that cannot be a name.
    """
    name = model_text(name)
    if (folder := cached_folder(name)) is not None:
        return _described(folder)
    if name in recipes():
        return info_from_recipe(name, recipes()[name])
    repository = repository_of(name)
    for baseline in baselines().values():
        if baseline.repository == repository:
            return info_from_baseline(baseline)
    advice = _advice(name, repository) if _is_of_the_hub(name) else ""
    raise ModelNotFoundError(
        f"there is no model {name!r} here.{architecture_hint(name) or name_hint(name, known_names())}{advice} "
        "All names: zoo list"
    )


def _is_of_the_hub(name: str) -> bool:
    return name.removeprefix("hf-hub:").count("/") == 1 and not looks_like_path(name)


def _advice(name: str, repository: str | None) -> str:
    """What to do about a name of the Hub of which nothing is on this machine."""
    if repository is not None:
        return f" Nothing of it is here; if timm has a model of that name on the Hub, zoo.load({name!r}) fetches it."
    return f" It is not in the Hub's cache; if the Hub has it, zoo.load({name!r}) fetches it, and then this is known."


def known_names() -> list[str]:
    """Return the names of all known models, sorted."""
    return [model.name for model in _models()]


def _models() -> list[ModelInfo]:
    """Every known model by name; what has a folder here comes before what could be had."""
    models = {name: info_from_recipe(name, row) for name, row in recipes().items()}
    models |= {name: info_from_baseline(baseline) for name, baseline in baselines().items()}
    for folder in model_folders():
        try:
            model = _described(folder)
        except ModelFolderError:
            continue  # a damaged folder must not hide the others; `damaged` names it
        models[model.name] = model
    return sorted(models.values(), key=lambda model: model.name)


def damaged_folders() -> dict[Path, str]:
    """The model folders on this machine that cannot be listed, and what is wrong with each."""
    found = {}
    for folder in model_folders():
        try:
            _described(folder)
        except ModelFolderError as error:
            found[folder] = str(error)
    return found


def _described(folder: Path) -> ModelInfo:
    copied_from = _copied_from(folder)
    return info_from_folder(
        folder, copied_from or _status(folder), recipes(), cached_model_name(folder), copied_from is not None
    )


def _status(folder: Path) -> str:
    if folder.parent.name == "snapshots":
        return "hub"
    return {paths.SHIPPED: "shipped", baselines_root(): "hub"}.get(folder.parent, "trained")


def _copied_from(folder: Path) -> str | None:
    """The status of the model that a folder of the local zoo is a copy of, as `zoo export` makes it; None of others."""
    if not folder.is_relative_to(paths.local_models()):
        return None
    name = folder.relative_to(paths.local_models()).as_posix()
    if "/" in name:  # org/name; what is trained has no such name
        return "hub"
    if _are_same(folder, paths.SHIPPED / name):
        return "shipped"
    # Models of `hub.organisation()` have bare names, as what is trained here has.
    return (
        "hub"
        if any(_are_same(folder, cached) for cached in cached_models() if cached_model_name(cached) == name)
        else None
    )


def _are_same(folder: Path, other: Path) -> bool:
    """Whether both hold the same model; False for a folder that holds none."""
    try:
        return exists(other / "card.json") and read_card(other).fingerprint == read_card(folder).fingerprint
    except ModelFolderError:
        return False


def name_hint(name: str, known: list[str]) -> str:
    """Return the known names that begin with `name`, else the nearest ones, as a sentence; "" for none."""
    begun = [each for each in known if each.startswith(name.lower())] if name else []
    if not begun:
        return nearest(name, known) or nearest(name.lower(), known)
    more = f" and {len(begun) - 5} more" if len(begun) > 5 else ""
    return f" It is the beginning of {', '.join(begun[:5])}{more}."


def architecture_hint(name: str) -> str:
    """Return the public backbones of an architecture (timm's name) as a sentence; "" for none."""
    found = [f"{each.name} ({each.repository})" for each in baselines().values() if each.backbone == name.lower()]
    return f" Public backbones of that architecture: {', '.join(found)}." if found else ""
