"""The README.md of a published model: metadata that the Hub indexes, how to load the model, and its scores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.console import interval_text
from zoo.data.dataset import dataset_title, split_title
from zoo.models.card import Card, read_origin
from zoo.models.onnx_runtime import GRAPH_FILES, RESIZING_FILES
from zoo.models.places import CUSTOM
from zoo.models.published import published_tables
from zoo.models.results import (
    EXPORT_FLOORS,
    PARITY_FILE,
    RESIZE_FLOOR,
    damaged_record,
    data_title,
    origin_text,
    read_parity,
    read_results,
)
from zoo.render import Table, environment

ENSEMBLE = "ensemble"
"""Several networks in one, which `import zoo` does not register with timm."""

OWN_ARCHITECTURES = ("bn_inception", "conv4", CUSTOM, ENSEMBLE, "googlenet")
"""The architectures that timm knows only from this package."""

LICENCES = frozenset(
    (
        *("afl-3.0", "agpl-3.0", "apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "cc", "cc0-1.0"),
        *("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nd-4.0"),
        *("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0"),
        *("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0"),
        *("gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-3.0", "mit", "mpl-2.0", "openrail", "unknown", "unlicense"),
    )
)
"""Identifiers that the Hub accepts; any other licence is `other` there, with a name."""

SCORE_TITLES = {"map_at_r": "MAP@R", "r_precision": "R-precision", "nmi": "NMI"}
"""Metrics that are shown in addition to recall, by their keys in results.json."""

COST_TITLES = {"recall_at_1": "R@1", "map_at_r": "MAP@R"}
"""Metrics of a precision's cost, by their keys in onnx/parity.json."""


@dataclass(frozen=True)
class _ModelScore:
    """A measured score of a model, with the scores that papers print for exactly this model.

    Attributes:
        dataset: The data set's name in `zoo.data.DATASETS`.
        data: The name and short hash of the measured images.
        sha256: Their whole hash; None where it is not recorded.
        split: The measured split.
        origin: How the score came about: classes, protocol, model and date.
        classes: The number of classes; None where it is not recorded.
        variant: Runtime and precision.
        metric: The key in results.json.
        title: The printed name of the metric.
        value: a fraction.
        interval: Its 95 % interval, None if it was not measured.
        published: Pairs (value, source) of papers.
    """

    dataset: str
    data: str
    sha256: str | None
    split: str
    origin: str
    classes: int | None
    variant: str
    metric: str
    title: str
    value: float
    interval: tuple[float, float] | None
    published: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class PrecisionChange:
    """The change of a metric from fp32 and its 95 % interval, as fractions. within: it is shown to meet the target."""

    change: float
    low: float
    high: float
    within: bool


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX graph of a model folder.

    Attributes:
        file: Its path in the folder.
        size: bytes.
        cosine: The least cosine in onnx/parity.json: to torch's embeddings, or, of a graph that resizes, to the same
            graph after resizing by Pillow.
        resizes: Whether it resizes images itself.
        changes: The cost of its precision by metric, where it was measured.
        holds: Whether the cosine meets `zoo export`'s floor; False where the graph was kept by force.
        measured_on: The images of `changes`; "" without changes.
    """

    file: str
    size: int
    cosine: float | None
    resizes: bool = False
    changes: Mapping[str, PrecisionChange] = field(default_factory=dict)
    holds: bool = True
    measured_on: str = ""

    @property
    def remark(self) -> str | None:
        """A warning that a loss in retrieval is not shown to be small; None where it is, or was not measured."""
        beyond = [
            f"{title} {cost.change:+.4f}, 95 % {interval_text((cost.low, cost.high), '+')}"
            for title, cost in self.changes.items()
            if not cost.within
        ]
        return f"{self.file} is not shown to cost less than its target: {'; '.join(beyond)}" if beyond else None


def readme(folder: Path, card: Card, repo_id: str, files: Collection[str]) -> str:
    """Return the text of README.md.

    Args:
        folder: The model folder.
        card: Its card.
        repo_id: The repository on the Hub.
        files: Names of the other files that are published.

    Raises:
        ModelFolderError: If results.json or onnx/parity.json is damaged.
    """
    scores = list(_scores_of(folder, card))
    graphs = graphs_of(folder)
    table, notes = _score_table(scores)
    return (
        environment("zoo.hub")
        .get_template("README.md.j2")
        .render(
            metadata=_metadata(card, scores, files),
            card=card,
            dataset=dataset_title(card.dataset),
            recipe=read_origin(folder).text,
            heads=", ".join(f"{head.name} ({head.dim})" for head in card.heads),
            repo_id=repo_id,
            library=_library(card),
            has_onnx=_has_onnx(files),
            has_golden="golden.safetensors" in files,
            in_timm=card.architecture not in (CUSTOM, ENSEMBLE),
            scores=table if scores else None,
            origins=list(
                dict.fromkeys(
                    ", ".join(filter(None, (score.data, split_title(score.split), score.variant))) + f": {score.origin}"
                    for score in scores
                )
            ),
            notes=notes,
            graphs=graph_table(graphs) if graphs else None,
            cost_data=", ".join(dict.fromkeys(graph.measured_on for graph in graphs if graph.measured_on)),
            resizing=any(graph.resizes for graph in graphs),
        )
    )


def _library(card: Card) -> str:
    """Return the library that the Hub's page names: timm where timm alone builds the trunk."""
    return "dml-zoo" if card.architecture in OWN_ARCHITECTURES else "timm"


def _scores_of(folder: Path, card: Card) -> Iterator[_ModelScore]:
    """Read recall and `SCORE_TITLES` from results.json, each with what papers print for exactly this model.

    Measurements of other weights or preprocessing than the card's are left out.

    Raises:
        ModelFolderError: If results.json is damaged.
    """
    recipe = read_origin(folder).exact_recipe
    for result in read_results(folder):
        if result.get("fingerprint") not in (None, card.fingerprint):
            continue
        dataset, split = result["dataset"] or "unknown", result["split"] or "unknown"
        for metric, value in result["metrics"].items():
            if (title := _title(metric)) is None:
                continue
            bounds = result.get("intervals", {}).get(metric)
            yield _ModelScore(
                dataset=dataset,
                data=data_title(result),
                sha256=result["data"]["sha256"] if result.get("data") else None,
                split=split,
                origin=origin_text(result),
                classes=result.get("classes"),
                variant=" ".join(filter(None, (result["runtime"], result["precision"]))),
                metric=metric,
                title=title,
                value=value,
                interval=(bounds[0], bounds[1]) if bounds else None,
                published=tuple(_published(recipe, dataset, split, metric)),
            )


def graphs_of(folder: Path) -> list[OnnxGraph]:
    """Read the ONNX graphs of a model folder.

    Raises:
        ModelFolderError: If onnx/parity.json is not what `zoo export` writes.
    """
    parity = read_parity(folder)
    try:
        return list(_graphs(folder, parity))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged_record(folder / PARITY_FILE, error) from None


def _score_table(scores: Sequence[_ModelScore]) -> tuple[Table, list[str]]:
    """Return the table of scores, and the sources that its numbers in brackets refer to."""
    notes: list[str] = []
    rows = []
    for score in scores:
        published = "; ".join(f"{value:.4f} [{_note(notes, source)}]" for value, source in score.published)
        facts = [score.data, score.split, score.variant, str(score.classes or "")]
        rows.append([*facts, score.title, f"{score.value:.4f}", interval_text(score.interval), published])
    columns = ("data set", "split", "runtime", "classes", "metric", "here", "95 % interval", "published")
    return Table(columns, rows), notes


def graph_table(graphs: Sequence[OnnxGraph]) -> Table:
    """Return the table of ONNX graphs."""
    rows = [
        [
            f"`{graph.file}`",
            f"{graph.size / 1e6:.1f}",
            _cosine(graph),
            "; ".join(_change(title, cost) for title, cost in graph.changes.items()),
        ]
        for graph in graphs
    ]
    return Table(("file", "MB", "least cosine to torch", "change from fp32"), rows)


def _metadata(card: Card, scores: Sequence[_ModelScore], files: Collection[str]) -> str:
    """Return the YAML between the dashes, as huggingface_hub writes it."""
    from huggingface_hub import ModelCardData

    tags = ["dml-zoo", "deep-metric-learning", "image-retrieval", card.method, card.backbone, card.dataset]
    formats = ["safetensors", *(["onnx"] if _has_onnx(files) else [])]
    data = ModelCardData(
        library_name=_library(card),
        pipeline_tag="image-feature-extraction",
        tags=[*tags, *formats],
        model_name=card.name if scores else None,
        eval_results=[_eval_result(score) for score in scores] or None,
        **_licence(card.licence),
    )
    return data.to_yaml().strip()


def _licence(licence: str) -> dict[str, Any]:
    if licence.lower() in LICENCES:
        return {"license": licence.lower()}
    return {"license": "other", "license_name": licence}


def _eval_result(score: _ModelScore) -> Any:
    from huggingface_hub import EvalResult

    facts: dict[str, Any] = {"protocol": score.origin}
    if score.interval:
        facts["interval_95"] = list(score.interval)
    if score.published:
        facts["published"] = [{"value": value, "source": source} for value, source in score.published]
    return EvalResult(
        task_type="image-feature-extraction",
        task_name="Image retrieval",
        dataset_type=score.dataset,
        dataset_name=score.data,
        dataset_revision=score.sha256,
        dataset_split=score.split,
        metric_type=score.metric,
        metric_name=f"{score.title} ({score.variant})" if score.variant else score.title,
        metric_value=score.value,
        metric_args=facts,
    )


def _has_onnx(files: Collection[str]) -> bool:
    return any(name.startswith("onnx/model") for name in files)  # a text tower alone does not run the model


def _note(notes: list[str], source: str) -> int:
    """Return the number of a footnote, and add it if it is new."""
    if source not in notes:
        notes.append(source)
    return notes.index(source) + 1


def _title(metric: str) -> str | None:
    if metric.startswith("recall_at_"):
        return f"R@{metric.removeprefix('recall_at_')}"
    return SCORE_TITLES.get(metric)


def _published(recipe: str | None, dataset: str, split: str, metric: str) -> Iterator[tuple[float, str]]:
    """Return what papers print for a recipe; scores that no recipe reproduces are left out."""
    if recipe is None:
        return
    for table in published_tables():
        for score in table.scores:
            if (score.recipe, score.dataset, score.split, score.metric) == (recipe, dataset, split, metric):
                source = f"{table.paper.short}, {table.place}, {table.paper.source}"
                yield score.value, "; ".join((source, *score.marks))


def _graphs(folder: Path, parity: Mapping[str, Any]) -> Iterator[OnnxGraph]:
    for precision, file in GRAPH_FILES.items():
        if (folder / file).is_file():
            record = parity.get(precision, {})
            cosine = _number(record.get("min_cosine"))
            holds = _holds(record, cosine, EXPORT_FLOORS[precision])
            size, changes = (folder / file).stat().st_size, dict(_changes(record))
            yield OnnxGraph(file, size, cosine, False, changes, holds, data_title(record["cost"]) if changes else "")
    for precision, file in RESIZING_FILES.items():
        if (folder / file).is_file():
            record = parity.get(f"{precision}-resize", {})
            cosine = _number(record.get("min_cosine_to_pillow"))
            size = (folder / file).stat().st_size
            yield OnnxGraph(file, size, cosine, True, holds=_holds(record, cosine, RESIZE_FLOOR))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _holds(record: Mapping[str, Any], cosine: float | None, floor: float) -> bool:
    """Return whether the record says that the graph holds, and its own number confirms it."""
    confirmed = cosine is None or cosine >= floor
    return confirmed and record.get("holds", True) is True and record.get("forced", False) is False


def _changes(record: Mapping[str, Any]) -> Iterator[tuple[str, PrecisionChange]]:
    for metric, title in COST_TITLES.items():
        if row := (record.get("cost") or {}).get(metric):
            low, high = map(float, row["interval"])
            yield title, PrecisionChange(float(row["difference"]), low, high, row.get("within_target") is True)


def _change(title: str, cost: PrecisionChange) -> str:
    text = f"{title} {cost.change:+.4f} ({interval_text((cost.low, cost.high), '+')})"
    return text if cost.within else f"{text}, not shown to be within the target"


def _cosine(graph: OnnxGraph) -> str:
    value = "" if graph.cosine is None else f"{graph.cosine:.6f}"
    reference = " to the same behind Pillow" if value and graph.resizes else ""
    return value + reference + ("" if graph.holds else " (below the floor of `zoo export`)")
