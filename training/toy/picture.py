"""The toy's picture: the lines, one seed's embeddings in each form, and the measures over all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from training.toy.lines import FORMS, LABELS, Split, draw_lines
from training.toy.study import Outcome
from zoo.files import atomic_path

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")
"""Told apart by the colour-blind (Okabe & Ito 2008) and, by shape, in grey."""

INK, FAINT = "#222222", "#BBBBBB"

PANELS = {
    "test_recall_at_1": "test lines: R@1",
    "test_between_lines": "test lines: distance between means",
    "test_separation": "test lines: between / within",
    "train_spectral_decay": "training lines: spectral decay",
}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "svg.hashsalt": "toy",
}


def draw(outcomes: Sequence[Outcome], path: Path, seed: int = 0) -> None:
    """Write the picture, in the format that the path's suffix names; the circles show that seed."""
    shown = chosen(outcomes)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.6 * (len(shown) + 1), 10.8), facecolor="white", layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.2, 1), hspace=0.03)
        _draw_circles(halves[0], shown, seed)
        _draw_measures(halves[1], outcomes)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=110)


def chosen(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """For the circles: no regularisation, no positive term, and each regularised form at its largest probability."""
    trained = [outcome for outcome in outcomes if outcome.setting.trained]
    found = [outcome for outcome in trained if not outcome.setting.probability]
    for name in FORMS:
        exchanged = [o for o in trained if o.setting.form == name and o.setting.probability]
        found += sorted(exchanged, key=lambda outcome: outcome.setting.probability)[-1:]
    return found


def _draw_circles(figure: SubFigure, shown: Sequence[Outcome], seed: int) -> None:
    figure.suptitle(
        "Four diagonal lines, trained with contrastive loss, and four lines never trained on, embedded on the circle\n"
        f"(seed {seed}; training lines' mean on top; arcs outside: each line's extent; inside: the same, magnified)",
        fontsize=11,
    )
    axes = figure.subplots(2, len(shown) + 1)
    for row, (name, points) in enumerate(zip(Split._fields, draw_lines(seed), strict=True)):
        _draw_data(axes[row, 0], points, name)
    for column, outcome in enumerate(shown, start=1):
        embeddings = outcome.embeddings[seed]
        middle = np.arctan2(*embeddings.train.mean(axis=0)[::-1])
        for row, rows in enumerate(embeddings):
            _draw_circle(axes[row, column], unrolled(np.arctan2(rows[:, 1], rows[:, 0]) - middle))
        axes[0, column].set_title(outcome.setting.title)


def unrolled(angles: np.ndarray) -> np.ndarray:
    """Angles in radians [n] with whole turns added so that the circle is cut in the widest gap between them."""
    turned = np.mod(angles, 2 * np.pi)
    ordered = np.sort(turned)
    gaps = np.diff(ordered, append=ordered[0] + 2 * np.pi)
    widest = int(gaps.argmax())
    return turned - 2 * np.pi * (turned > ordered[widest])


def _draw_data(axes: Axes, points: np.ndarray, split: str) -> None:
    for line, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        x, y = points[line == LABELS].T
        axes.plot(x, y, marker, color=colour, markersize=4, alpha=0.8, label=f"{line + 1}")
    axes.set(xlim=(0, 1.15), ylim=(0, 1.15), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_title({"train": "training lines", "test": "test lines"}[split])
    axes.legend(loc="upper left" if split == "train" else "upper right", frameon=False, handletextpad=0.1)


def _draw_circle(axes: Axes, angles: np.ndarray) -> None:
    """Angles in radians [60], unrolled; 0 is on top and left is ahead."""
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=FAINT, linewidth=1, zorder=0)
    centre, span = (angles.max() + angles.min()) / 2, np.ptp(angles)
    for line, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        own = angles[line == LABELS]
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "", "markeredgewidth": 0, "alpha": 0.7}
        axes.plot(-np.sin(own), np.cos(own), markersize=5, **style)
        magnified = (centre - own) * 1.3 / max(span, 1e-9)
        axes.plot(magnified, np.full(len(own), 0.4 - 0.2 * line), markersize=4, **style)
        extent, radius = np.linspace(own.min(), own.max(), 50), 1.13 + 0.1 * line
        axes.plot(-radius * np.sin(extent), radius * np.cos(extent), color=colour, linewidth=3)
    axes.text(0, -0.5, f"{np.degrees(span):.0f}° in all", ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    axes.axis("off")


def _draw_measures(figure: SubFigure, outcomes: Sequence[Outcome]) -> None:
    seeds = len(outcomes[0].measures)
    figure.suptitle(
        f"{seeds} seeds (faint), their mean and standard deviation; orange: without the loss's positive term",
        fontsize=11,
    )
    all_axes = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, title) in zip(all_axes, PANELS.items(), strict=True):
        _draw_panel(axes, outcomes, name)
        axes.set_title(title)
    all_axes[0].set_yticks(range(len(outcomes)), [outcome.setting.title for outcome in outcomes])
    all_axes[0].invert_yaxis()


def _draw_panel(axes: Axes, outcomes: Sequence[Outcome], name: str) -> None:
    for row, outcome in enumerate(outcomes):
        colour = COLOURS[0] if FORMS[outcome.setting.form].positive_term else "#D55E00"
        values, mean, deviation = outcome.values(name), outcome.mean(name), outcome.deviation(name)
        axes.plot(values, [row] * len(values), "o", color=colour, markersize=4, alpha=0.25, markeredgewidth=0)
        axes.errorbar(mean, row, xerr=deviation, fmt="o", color=colour, markersize=5, capsize=3, linewidth=1.5)
        axes.text(0.99, row, f"{mean:.2f}", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    largest = max(max(*o.values(name), o.mean(name) + o.deviation(name)) for o in outcomes)
    axes.set_xlim(0, 1.16 * largest or 1)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
