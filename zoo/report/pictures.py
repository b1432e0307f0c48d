"""The figures of a report, drawn by matplotlib. They hold no text from files: names stand beside them, in the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zoo.evaluation.calibration import Bin

COLOURS = (
    *("#4a7bdc", "#d9622b", "#2b9348", "#a463bd", "#d6417b"),
    *("#0f9aa5", "#a37b00", "#8d6e63", "#e53935", "#7690a0"),
)
"""Readable on white and on dark."""
OTHER = "#b4bcc6"
INK, LIGHT_INK = "#1d2430", "#e4e8ee"
SIZE = (4.8, 3.2)
"""Inches; small, so that the letters stay readable on a phone."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "zoo",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
THEMES = f"<style>svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{LIGHT_INK}}}}}</style>"


def check_available() -> None:
    """Raise `MissingDependencyError` without matplotlib."""
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "glyphs")


def embedding_map(plane: np.ndarray, groups: np.ndarray) -> bytes:
    """A PNG of points [n, 2]. groups: int [n], an index into COLOURS, or -1 for those in grey."""
    with _figure("png", (4.8, 4.2)) as (axes, out):
        for group in range(-1, int(groups.max(initial=-1)) + 1):
            x, y = plane[groups == group].T
            colour, size = (OTHER, 4) if group < 0 else (COLOURS[group], 12)
            axes.scatter(x, y, s=size, c=colour, linewidths=0)
        axes.set_axis_off()
        axes.set_aspect("equal", adjustable="datalim")
    return out.getvalue()


def spectrum(values: np.ndarray) -> bytes:
    """An SVG of singular values [k], largest first, over their sum, with the level of an even spectrum."""
    shares = 100 * values / values.sum()
    with _figure("svg") as (axes, out):
        axes.plot(np.arange(1, len(shares) + 1), shares, color=COLOURS[0])
        axes.axhline(100 / len(shares), color="#8a94a3", linestyle="--", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("singular value, by rank")
        axes.set_ylabel("share of the sum, %")
    return out.getvalue()


def spectra(several: Iterable[Sequence[float]]) -> bytes:
    """An SVG of several lists of singular values over their sums, largest first, in the order of COLOURS."""
    with _figure("svg") as (axes, out):
        for colour, shares in zip(COLOURS, several, strict=False):
            axes.plot(np.arange(1, len(shares) + 1), 100 * np.asarray(shares), color=colour)
        axes.set_yscale("log")
        axes.set_xlabel("singular value, by rank")
        axes.set_ylabel("share of the sum, %")
    return out.getvalue()


def curves(series: Mapping[str, Sequence[tuple[float, float]]], across: str = "epoch", up: str = "R@1") -> bytes:
    """An SVG of (place, value) pairs; the series in the order of COLOURS. across, up: what the axes are."""
    from matplotlib.ticker import MaxNLocator

    with _figure("svg") as (axes, out):
        for colour, points in zip(COLOURS, series.values(), strict=False):
            places, values = zip(*points, strict=True)
            axes.plot(places, values, color=colour, marker="o", markersize=3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=across == "epoch"))
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    return out.getvalue()


def reliability(bins: Sequence[Bin]) -> bytes:
    """An SVG of what was promised against what was so, a dot a bin, its area by the bin's size."""
    promised, observed, counts = np.array([(one.probability, one.share, one.count) for one in bins]).T
    with _figure("svg") as (axes, out):
        axes.plot((0, 1), (0, 1), color="#8a94a3", linestyle="--", linewidth=1)
        axes.plot(promised, observed, color=COLOURS[0], linewidth=1)
        axes.scatter(promised, observed, s=10 + 110 * counts / counts.max(), color=COLOURS[0], linewidths=0)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="promised p_same", ylabel="share of the query's class")
    return out.getvalue()


def scatter(series: Sequence[Sequence[tuple[float, float]]], across: str, up: str) -> bytes:
    """An SVG of points (across, up), those of each series numbered from 1, in the order of COLOURS."""
    with _figure("svg") as (axes, out):
        for colour, points in zip(COLOURS, series, strict=False):
            for number, (x, y) in enumerate(points, start=1):
                axes.plot(x, y, "o", markersize=4, color=colour)
                axes.annotate(str(number), (x, y), (3, 2), textcoords="offset points", fontsize=7, color=colour)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    return out.getvalue()


Point = tuple[float, float, tuple[float, float] | None]
"""Where a mean lies on the axis, the mean, and its interval, None where there is none."""


def along(points: Sequence[Point], line: tuple[float, float] | None, across: str, up: str) -> bytes:
    """An SVG of means with their intervals, numbered from 1; line: one to draw, by its slope and where it meets 0.

    Those of one place stand beside one another, so that their intervals can be told apart.
    """
    places = [x for x, _, _ in points]
    step = 0.02 * (max(places) - min(places))
    with _figure("svg") as (axes, out):
        for number, (x, mean, interval) in enumerate(points):
            beside = places[:number].count(x) - (places.count(x) - 1) / 2
            at, (low, high) = x + step * beside, interval or (mean, mean)
            axes.errorbar(at, mean, [[mean - low], [high - mean]], fmt="o", color=COLOURS[0], markersize=4, linewidth=1)
            axes.annotate(str(number + 1), (at, mean), (4, 3), textcoords="offset points", fontsize=8)
        if line is not None:
            ends = np.array([min(places), max(places)])
            axes.plot(ends, line[0] * ends + line[1], color="#8a94a3", linestyle="--", linewidth=1)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    return out.getvalue()


@contextmanager
def _figure(kind: str, size: tuple[float, float] = SIZE) -> Iterator[tuple[Axes, BytesIO]]:
    """Axes to draw on and the file that is written when the block ends; equal input gives equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = BytesIO()
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(), out
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(out, format=kind, dpi=160, transparent=True, metadata=metadata)
    if kind == "svg":
        themed = out.getvalue().replace(INK.encode(), b"currentColor")
        out.seek(0)
        out.write(themed.replace(b"<defs>", THEMES.encode() + b"<defs>", 1))
        out.truncate()
