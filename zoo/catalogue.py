"""What is known of one model, from whatever is at hand: its folder, its recipe, or the list of public baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.baselines import METHOD, SEARCHED, Baseline, PublicText, baselines
from zoo.cards import Card, read_card
from zoo.origins import Origin, read_origin
from zoo.published import tables
from zoo.results import read_results

STATUSES = {"shipped": "shipped", "trained": "trained here", "hub": "on the Hub", "recipe": "recipe only"}
"""Status, and how it is put for people. hub: in the Hub's cache, or a public backbone that timm hosts there."""


NETWORK = ("backbone.architecture", "backbone.args", "heads", "preprocessing.mode", "members")
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
            if score["metric"] == "recall_at_1" and (self.method == METHOD or score["dataset"] == self.dataset):
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


def from_folder(
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
    listed = baselines().get(name) if card.method == METHOD else None
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
    if any(key.startswith(NETWORK) for key in origin.changed):
        return None
    known: Mapping[str, Any] = recipes.get(origin.recipe or "", {})
    return known.get("parameters")


def _place_name(folder: Path) -> str | None:
    """The name of a folder among the models, by which a copy is loaded; elsewhere a folder's name is nothing."""
    for root in (paths.SHIPPED, paths.local_models()):
        if folder.is_relative_to(root):
            return folder.relative_to(root).as_posix()
    return None


def from_recipe(name: str, row: Mapping[str, Any]) -> ModelInfo:
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


def from_baseline(baseline: Baseline) -> ModelInfo:
    """A public backbone that was not used here yet."""
    facts = {
        "description": f"{baseline.description}: pooled features, not trained further.",
        "architecture": baseline.backbone,
        "input": f"RGB, {baseline.size} pixels",
        **({"text": _text(baseline.text)} if baseline.text else {}),
        "licence": baseline.licence,
        **({} if baseline.scores else {"published scores": f"none in {SEARCHED}"}),
        "sources": [baseline.source, f"https://huggingface.co/{baseline.repository}"],
    }
    return ModelInfo(
        baseline.name,
        "hub",
        baseline.dim,
        METHOD,
        baseline.backbone,
        baseline.dataset,
        published=list(map(dict, baseline.scores)),
        parameters=baseline.parameters,
        facts=facts,
    )


def _text(public: PublicText) -> str:
    joint = ", for the backbone with its own projection (zoo baseline --joint)" if public.joint else ""
    return f"{public.graph} and {public.tokenizer} of https://huggingface.co/{public.repository}{joint}: zoo text-tower"


def published_scores(recipe: str | None) -> list[dict[str, Any]]:
    """The papers' scores of the model that a recipe is to make again."""
    return [] if recipe is None else list(_scores_of(recipe))


def _scores_of(recipe: str) -> Iterator[dict[str, Any]]:
    for table in tables():
        for score in table.scores:
            if score.recipe == recipe and score.split == "test":
                source = f"{table.paper.source}, {table.title}: {score.row}"
                facts = {"dataset": score.dataset, "metric": score.metric, "value": score.value, "dim": score.dim}
                yield {**facts, "source": source}
