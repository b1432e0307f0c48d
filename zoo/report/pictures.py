"""The figures of a report, drawn by matplotlib. They hold no text from files: names stand beside them, in the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    *("#3366cc", "#d9622b", "#2b9348", "#8e44ad", "#c2185b"),
    *("#00838f", "#9e7700", "#5d4037", "#e53935", "#607d8b"),
)
OTHER = "#d5dae1"
SIZE = (4.8, 3.2)
"""Inches; small, so that the letters stay readable on a phone."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "zoo",
}


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


def curves(series: Mapping[str, Sequence[tuple[int, float]]]) -> bytes:
    """An SVG of (epoch, fraction) pairs; the series in the order of COLOURS."""
    from matplotlib.ticker import MaxNLocator

    with _figure("svg") as (axes, out):
        for colour, points in zip(COLOURS, series.values(), strict=False):
            epochs, values = zip(*points, strict=True)
            axes.plot(epochs, values, color=colour, marker="o", markersize=3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch")
        axes.set_ylabel("R@1")
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
        figure.savefig(out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else {"Software": None})
