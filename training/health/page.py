"""A diagnosis for readers: the table of indicators with a plot of each, as text, picture and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.health.diagnosis import FEWEST_CLASSES, FEWEST_IMAGES, LEARNT_STEPS, Finding, History
from zoo.errors import UsageError
from zoo.files import write_bytes
from zoo.report import figures
from zoo.report.html import SVG, Paragraph, Picture, Section, page

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32
"""The largest number of bars of an indicator's plot in the terminal."""
MEANINGS = {
    "loss": "mean loss of the epoch",
    "recall_at_1": "R@1 on held-out classes; at the start, of the untrained trunk",
    "spread": "1 - mean cosine of two embeddings; 0: collapsed",
    "separation": "pairs of one class nearer than pairs of two; .5: chance",
    "spectral_decay": "how unevenly directions are used; 0: evenly",
    "directions": "number of directions that the embeddings use",
    "active": "tuples above zero, or samples with a gradient",
    "violation": "mean distance by which tuples miss the margin",
    "hard_negatives": "negatives beyond the mined one; 1: always the nearest",
    "norm": "length of the embeddings before normalisation",
    "gradient": "length of the gradient",
    "update": "change of the weights by a step, as a share of their length",
    "dead_proxies": "class vectors as far from their own images as from others",
    "own_proxy": "images nearest to their own class vector",
}
"""Indicator -> what it says. Those of several parts, as norm, have a row for each part."""


@dataclass(frozen=True)
class Curve:
    """An indicator of a run: its name, its value at the start (None if it has none), and (epoch, value)."""

    name: str
    start: float | None
    points: Sequence[tuple[int, float]]

    @property
    def meaning(self) -> str:
        """The meaning of the indicator, as a short text."""
        return MEANINGS[self.name.partition(" ")[0]]


def curves(history: History) -> list[Curve]:
    """Return the curve of each indicator that a run has."""
    start = _flat({**history.start, "recall_at_1": history.start.get("trunk_recall_at_1")})
    series: dict[str, list[tuple[int, float]]] = {}
    for record in history.records:
        values = {
            "loss": record.get("loss"),
            "recall_at_1": record.get("validation_recall_at_1"),
            **(record.get("indicators") or {}),
        }
        for name, value in _flat(values).items():
            series.setdefault(name, []).append((record["epoch"], value))
    names = [name for known in MEANINGS for name in series if name.partition(" ")[0] == known]
    return [Curve(name, start.get(name), series[name]) for name in names]


def rows(history: History) -> list[list[str]]:
    """Return the rows of the table: indicator, start, last value, plot by epoch, meaning."""
    return [
        [curve.name, _number(curve.start), _number(curve.points[-1][1]), bars(curve), curve.meaning]
        for curve in curves(history)
    ]


def bars(curve: Curve) -> str:
    """Return a plot of one line: a bar for each epoch, from the curve's lowest value to its highest."""
    values = [value for _, value in curve.points]
    step = max(1, -(-len(values) // WIDTH))
    shown = values[step - 1 :: step] if len(values) > WIDTH else values
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / (high - low or 1) * (len(BARS) - 1))] for value in shown)


def write_page(path: Path, title: str, history: History, findings: Sequence[Finding]) -> None:
    """Write the curves and the findings as an HTML page."""
    write_bytes(path, page(f"Health of {title}", _sections(history, findings)).encode())


def check_page(path: Path) -> None:
    """Check that a page can be written to a path.

    Raises:
        UsageError: If the path does not end in .html.
        MissingDependencyError: If matplotlib is not installed.
    """
    if path.suffix.lower() != ".html":
        raise UsageError(f"--out {path}: its name ends in .html.", code="unknown-format")
    figures.check_matplotlib()


def health(history: History) -> str:
    """Return what to say of a run without findings: healthy, or too short to judge; and if labels are not judged."""
    unseen = (
        f" Wrong labels are not judged: that needs {FEWEST_CLASSES} held-out classes of like size and {FEWEST_IMAGES} "
        "images (data.validation), since fewer classes may look alike."
    )
    labels = unseen if history.few_held_out() and not history.gains() else ""
    if history.judged:
        return f"Healthy: no indicator left its range.{labels}"
    return (
        "Too short to judge whether the run learns; no indicator left its range. That needs half of the schedule and "
        f"{LEARNT_STEPS} steps, or training classes that are told apart.{labels}"
    )


def _sections(history: History, findings: Sequence[Finding]) -> list[Section]:
    found = [
        Section(
            f"{finding.code} (epoch {finding.epoch})",
            [Paragraph(finding.happened), Paragraph(finding.cause), Paragraph(finding.setting)],
        )
        for finding in findings
    ]
    drawn = [
        Section(
            curve.name,
            [
                Picture(figures.curves({curve.name: _with_start(curve)}, y_label=curve.name), SVG, curve.meaning),
                Paragraph(curve.meaning),
            ],
            "half",
        )
        for curve in curves(history)
    ]
    return [*(found or [Section("No findings", [Paragraph(health(history))])]), *drawn]


def _with_start(curve: Curve) -> list[tuple[float, float]]:
    start = [] if curve.start is None else [(0.0, curve.start)]
    return [*start, *((float(epoch), value) for epoch, value in curve.points)]


def _flat(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers, those of several parts as "norm PART"."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {part}": number for part, number in value.items() if isinstance(number, int | float)}
        elif isinstance(value, int | float):
            flat[name] = value
    return flat


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
