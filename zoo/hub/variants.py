"""What onnx/parity.json says of a model folder's graphs, for its page on the Hub and before it is sent there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.floors import EXPORT_FLOORS, RESIZE_FLOOR
from zoo.onnx_runtime import FILES, RESIZING
from zoo.parity import not_ours, read_parity

TITLES = {"recall_at_1": "R@1", "map_at_r": "MAP@R"}
"""The metrics that a precision's cost is told in, by their keys in onnx/parity.json."""


@dataclass(frozen=True)
class Loss:
    """How a metric changes from fp32, with its 95 % interval; fractions. within: it is shown to stay in the target."""

    change: float
    low: float
    high: float
    within: bool


@dataclass(frozen=True)
class Variant:
    """An ONNX graph: its file, bytes, and the least cosine that onnx/parity.json tells: to torch's embeddings, or, of a
    graph that resizes, to the same graph behind Pillow.

    losses: by metric, where it was measured what the precision costs. holds: the cosine is what `zoo export` wants;
    False where the graph was kept all the same.
    """

    file: str
    size: int
    cosine: float | None
    resizes: bool = False
    losses: Mapping[str, Loss] = field(default_factory=dict)
    holds: bool = True

    @property
    def remark(self) -> str | None:
        """That a loss in retrieval is not shown to be small; None where it is, or was not measured."""
        beyond = [
            f"{title} {100 * loss.change:+.2f} points, 95 % {100 * loss.low:+.2f} to {100 * loss.high:+.2f}"
            for title, loss in self.losses.items()
            if not loss.within
        ]
        return f"{self.file} is not shown to cost less than its target: {'; '.join(beyond)}" if beyond else None


def variants(folder: Path) -> list[Variant]:
    """The ONNX graphs of a folder. Raises `ModelFolderError` where onnx/parity.json is not what `zoo export` writes."""
    parity = read_parity(folder)
    try:
        return list(_variants(folder, parity))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise not_ours(folder, str(error)) from None


def table(graphs: Sequence[Variant]) -> str:
    """The graphs as a table in Markdown."""
    rows = ["| file | MB | least cosine to torch | change from fp32 |", "|---|---|---|---|"]
    for graph in graphs:
        changes = "; ".join(
            f"{title} {100 * loss.change:+.2f} ({100 * loss.low:+.2f} to {100 * loss.high:+.2f})"
            + ("" if loss.within else ", not shown to be within the target")
            for title, loss in graph.losses.items()
        )
        rows.append(f"| `{graph.file}` | {graph.size / 1e6:.1f} | {_cosine(graph)} | {changes} |")
    about = ["uint8 pixels in, unit float32 embeddings out."]
    if any(graph.resizes for graph in graphs):
        about.append("`_resize`: takes images of any height and width, and resizes them itself.")
    about.append("Changes in points, with 95 % intervals (paired bootstrap over classes).")
    return "\n".join([*rows, "", " ".join(about)])


def _variants(folder: Path, parity: Mapping[str, Any]) -> Iterator[Variant]:
    for precision, file in FILES.items():
        if (folder / file).is_file():
            said = parity.get(precision, {})
            cosine = _number(said.get("min_cosine"))
            holds = _holds(said, cosine, EXPORT_FLOORS[precision])
            yield Variant(file, (folder / file).stat().st_size, cosine, False, dict(_losses(said)), holds)
    for precision, file in RESIZING.items():
        if (folder / file).is_file():
            said = parity.get(f"{precision}-resize", {})
            cosine = _number(said.get("min_cosine_to_pillow"))
            size = (folder / file).stat().st_size
            yield Variant(file, size, cosine, True, holds=_holds(said, cosine, RESIZE_FLOOR))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _holds(said: Mapping[str, Any], cosine: float | None, floor: float) -> bool:
    """What is said of it, and whether its own number bears that out."""
    borne_out = cosine is None or cosine >= floor
    return borne_out and said.get("holds", True) is True and said.get("forced", False) is False


def _losses(said: Mapping[str, Any]) -> Iterator[tuple[str, Loss]]:
    for metric, title in TITLES.items():
        if row := (said.get("cost") or {}).get(metric):
            low, high = map(float, row["interval"])
            yield title, Loss(float(row["difference"]), low, high, row.get("within_target") is True)


def _cosine(graph: Variant) -> str:
    told = "" if graph.cosine is None else f"{graph.cosine:.6f}"
    behind = " to the same behind Pillow" if told and graph.resizes else ""
    return told + behind + ("" if graph.holds else " (below the floor of `zoo export`)")
