"""Figures of reports: drawings by matplotlib, and embeddings in the plane by principal components or t-SNE.

The figures hold no text from files: the page prints names next to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import MissingDependencyError, missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zoo.evaluation.calibration import Bin

COLOURS = (
    *("#4a7bdc", "#d9622b", "#2b9348", "#a463bd", "#d6417b"),
    *("#0f9aa5", "#a37b00", "#8d6e63", "#e53935", "#7690a0"),
)
"""Colours of classes and series, readable on white and on dark."""
OTHER = "#b4bcc6"
GUIDE = "#8a94a3"
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

Point = tuple[float, float, tuple[float, float] | None]
"""The place on the axis, the mean, and the mean's interval (None if it has no interval)."""


def check_matplotlib() -> None:
    """Raise an error unless matplotlib is installed.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "glyphs")


def check_scikit_learn() -> None:
    """Raise an error unless t-SNE is available.

    Raises:
        MissingDependencyError: If scikit-learn is not installed.
    """
    if find_spec("sklearn") is None:
        raise MissingDependencyError(
            "t-SNE needs scikit-learn, which is not installed. Install it, or use principal components: --map pca"
        )


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Project rows onto their two directions of largest variance.

    Each direction points to where its entry of largest absolute value is positive, so that the result does not depend
    on the linear algebra library.

    Args:
        rows: [n, d], n and d at least 1.

    Returns:
        The projection, float64 [n, 2] (with d = 1 the second coordinate is zero), and its share of the variance.
    """
    centred = np.asarray(rows, np.float64) - np.mean(rows, axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    directions = vectors[:, ::-1][:, :2]
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    plane = np.zeros((len(centred), 2))
    plane[:, : directions.shape[1]] = centred @ directions
    total = values.sum()
    return plane, float(values[::-1][:2].sum() / total) if total > 0 else 1.0


def tsne(rows: np.ndarray) -> np.ndarray:
    """Return t-SNE of rows (van der Maaten & Hinton 2008, Visualizing Data using t-SNE).

    Needs scikit-learn; see `check_scikit_learn`.

    Args:
        rows: [n, d] with n at least 3.

    Returns:
        Places in the plane, [n, 2].
    """
    manifold = import_module("sklearn.manifold")
    plane: np.ndarray = manifold.TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), random_state=0).fit_transform(rows)
    return plane


def embedding_map(plane: np.ndarray, groups: np.ndarray) -> bytes:
    """Draw points in the plane as a PNG.

    Args:
        plane: [n, 2].
        groups: int [n], an index into COLOURS, or -1 for grey points.
    """
    with _figure("png", (4.8, 4.2)) as (axes, file):
        for group in range(-1, int(groups.max(initial=-1)) + 1):
            x, y = plane[groups == group].T
            colour, size = (OTHER, 4) if group < 0 else (COLOURS[group], 12)
            axes.scatter(x, y, s=size, c=colour, linewidths=0)
        axes.set_axis_off()
        axes.set_aspect("equal", adjustable="datalim")
    return file.getvalue()


def spectrum(values: np.ndarray) -> bytes:
    """Draw singular values [k], largest first, as shares of their sum, with the level of an even spectrum (SVG)."""
    shares = 100 * values / values.sum()
    with _figure("svg") as (axes, file):
        axes.plot(np.arange(1, len(shares) + 1), shares, color=COLOURS[0])
        axes.axhline(100 / len(shares), color=GUIDE, linestyle="--", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("singular value, by rank")
        axes.set_ylabel("share of the sum, %")
    return file.getvalue()


def spectra(shares_of_arms: Iterable[Sequence[float]]) -> bytes:
    """Draw several spectra (shares of the sum, largest first) in the order of COLOURS (SVG)."""
    with _figure("svg") as (axes, file):
        for colour, shares in zip(COLOURS, shares_of_arms, strict=False):
            axes.plot(np.arange(1, len(shares) + 1), 100 * np.asarray(shares), color=colour)
        axes.set_yscale("log")
        axes.set_xlabel("singular value, by rank")
        axes.set_ylabel("share of the sum, %")
    return file.getvalue()


def curves(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str = "epoch", y_label: str = "R@1") -> bytes:
    """Draw series of (x, y) points as lines in the order of COLOURS (SVG)."""
    from matplotlib.ticker import MaxNLocator

    with _figure("svg") as (axes, file):
        for colour, points in zip(COLOURS, series.values(), strict=False):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour, marker="o", markersize=3)
        if _FORMAT.get() != "svg":
            axes.legend([*series][: len(COLOURS)], fontsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=x_label == "epoch"))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return file.getvalue()


def reliability(bins: Sequence[Bin]) -> bytes:
    """Draw observed shares against predicted probabilities, one dot per bin with an area by its size (SVG)."""
    predicted, observed, counts = np.array([(bin_.probability, bin_.share, bin_.count) for bin_ in bins]).T
    with _figure("svg") as (axes, file):
        axes.plot((0, 1), (0, 1), color=GUIDE, linestyle="--", linewidth=1)
        axes.plot(predicted, observed, color=COLOURS[0], linewidth=1)
        axes.scatter(predicted, observed, s=10 + 110 * counts / counts.max(), color=COLOURS[0], linewidths=0)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="promised p_same", ylabel="share of the query's class")
    return file.getvalue()


def scatter(series: Sequence[Sequence[tuple[float, float]]], x_label: str, y_label: str) -> bytes:
    """Draw points (x, y), those of each series numbered from 1, in the order of COLOURS (SVG)."""
    with _figure("svg") as (axes, file):
        for colour, points in zip(COLOURS, series, strict=False):
            for number, (x, y) in enumerate(points, start=1):
                axes.plot(x, y, "o", markersize=4, color=colour)
                axes.annotate(str(number), (x, y), (3, 2), textcoords="offset points", fontsize=7, color=colour)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return file.getvalue()


def trend(points: Sequence[Point], line: tuple[float, float] | None, x_label: str, y_label: str) -> bytes:
    """Draw means with their intervals, numbered from 1 (SVG).

    Points with the same place are drawn side by side, so that their intervals do not overlap.

    Args:
        points: The means.
        line: Slope and intercept of a line to draw, or None.
        x_label: The name of the axis of places.
        y_label: The name of the axis of means.
    """
    places = [x for x, _, _ in points]
    step = 0.02 * (max(places) - min(places))
    with _figure("svg") as (axes, file):
        for number, (x, mean, interval) in enumerate(points):
            shift = places[:number].count(x) - (places.count(x) - 1) / 2
            at, (low, high) = x + step * shift, interval or (mean, mean)
            axes.errorbar(at, mean, [[mean - low], [high - mean]], fmt="o", color=COLOURS[0], markersize=4, linewidth=1)
            axes.annotate(str(number + 1), (at, mean), (4, 3), textcoords="offset points", fontsize=8)
        if line is not None:
            ends = np.array([min(places), max(places)])
            axes.plot(ends, line[0] * ends + line[1], color=GUIDE, linestyle="--", linewidth=1)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return file.getvalue()


def trade_off(points: Sequence[tuple[float, float, int]], x_label: str, y_label: str) -> bytes:
    """Draw points (x, y, colour number), numbered from 1, over a logarithmic axis (SVG)."""
    with _figure("svg") as (axes, file):
        for number, (x, y, colour) in enumerate(points, start=1):
            axes.plot(x, y, "o", markersize=4, color=COLOURS[colour])
            axes.annotate(str(number), (x, y), (3, 2), textcoords="offset points", fontsize=7, color=COLOURS[colour])
        axes.set(xscale="log", xlabel=x_label, ylabel=y_label)
    return file.getvalue()


_FORMAT = ContextVar("format", default="svg")


@contextmanager
def drawn_as(form: str) -> Iterator[None]:
    """Let figures be files of another format than SVG: "pdf" or "png", with the names of their lines inside."""
    token = _FORMAT.set(form)
    try:
        yield
    finally:
        _FORMAT.reset(token)


@contextmanager
def _figure(kind: str, size: tuple[float, float] = SIZE) -> Iterator[tuple[Axes, BytesIO]]:
    """Give axes to draw on and the file that is written when the block ends; equal input gives equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = _FORMAT.get() if kind == "svg" else kind
    file = BytesIO()
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(), file
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
        figure.savefig(file, format=kind, dpi=160, transparent=True, metadata=metadata)
    if kind == "svg":
        themed = _themed(file.getvalue())
        file.seek(0)
        file.write(themed)
        file.truncate()


def _themed(svg: bytes) -> bytes:
    """Return the drawing with ink that follows the reader's light or dark theme."""
    theme = f"<style>svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{LIGHT_INK}}}}}</style>"
    definitions = b"<defs>"
    return svg.replace(INK.encode(), b"currentColor").replace(definitions, theme.encode() + definitions, 1)
