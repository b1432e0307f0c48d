"""The demonstration of what each metric sees: three embeddings and single rankings, with their scores.

The embeddings are clustered well, less so and hardly. R@1 looks for one relative near each query, NMI and F1 for the
cluster of a point; neither sees the distance between clusters. R-precision and MAP@R do (Musgrave et al. 2020, A Metric
Learning Reality Check, proposes them for that). The points are made here; no paper published them. Its figure 2, random
embeddings by the number of classes, shows that NMI rises with the classes although nothing is learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from zoo.evaluation import clustering_metrics, retrieval_metrics
from zoo.evaluation.retrieval import measure_hits
from zoo.render import Table
from zoo.report import figures
from zoo.report.html import Paragraph, Picture, Section, page

CLASSES, POINTS_PER_CLASS = 8, 30
SHARES = {"well clustered": 0.3, "less so": 0.75, "hardly": 0.94}
"""The share of its sector of the plane that each class fills. Above a half, a query at the edge of its class is
nearer to other classes than to its farthest relatives."""

METRICS = {
    "recall_at_1": "R@1",
    "nmi": "NMI",
    "f1_clusters": "F1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
}
"""Printed names by key of `zoo.evaluation`. F1 and NMI measure the same clusters."""
RANKING_METRICS = {name: METRICS[name] for name in ("recall_at_1", "r_precision", "map_at_r")}

RELATIVES = 10
RANKINGS = {
    "only the 1st": (1,),
    "the 1st and the 10th": (1, 10),
    "the 1st and the 2nd": (1, 2),
    "all ten": tuple(range(1, RELATIVES + 1)),
}
"""Ranks of relatives among the first ten results of a query with ten relatives."""

ABOUT = (
    f"Classes are colours, {POINTS_PER_CLASS} points each. Similarity is the cosine: only the direction from the "
    "centre counts.",
    "R@1, NMI and F1 cannot tell the three apart. The points are made for this picture: no paper's.",
)


RANDOM_POINTS, RANDOM_DIM = 10_000, 64
RANDOM_CLASSES = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Numbers of classes of random embeddings; Reality does not print those of its figure 2."""


@dataclass(frozen=True)
class ToyEmbedding:
    """A made-up embedding and its scores.

    Attributes:
        name: The key in SHARES.
        share: The value in SHARES.
        points: float64 [n, 2].
        labels: int64 [n].
        metrics: The scores in METRICS.
    """

    name: str
    share: float
    points: np.ndarray
    labels: np.ndarray
    metrics: dict[str, float]


@dataclass(frozen=True)
class ToyRanking:
    """A made-up ranking and its scores.

    Attributes:
        name: The key in RANKINGS.
        ranks: The ranks of the relatives, from 1.
        metrics: The scores in RANKING_METRICS.
    """

    name: str
    ranks: tuple[int, ...]
    metrics: dict[str, float]


def embeddings(seed: int = 0) -> list[ToyEmbedding]:
    """Return one measured embedding for each of SHARES, from the same draws."""
    return [_embedding(name, share, seed) for name, share in SHARES.items()]


def rankings() -> list[ToyRanking]:
    """Return the measured RANKINGS."""
    return [ToyRanking(name, ranks, scores_of(ranks)) for name, ranks in RANKINGS.items()]


def scores_of(ranks: Sequence[int], relatives: int = RELATIVES) -> dict[str, float]:
    """Return the scores of one query.

    Args:
        ranks: The ranks, from 1, at which it finds relatives among its first `relatives` results.
        relatives: The number of relatives that the query has.
    """
    hits = np.isin(np.arange(1, relatives + 1), ranks)
    measured = measure_hits(hits[None], np.array([relatives]), k=(1,))
    return {name: float(measured[name][0]) for name in RANKING_METRICS}


def sectors(share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the points of all classes.

    Each class has a sector and fills the middle `share` of it, one point per step, moved by at most half a step.
    Similarity is the cosine, so only directions count; a point's distance from the centre, 0.75 to 1.25, is only for
    the eye. The gap between two classes is always wider than between neighbours of one class.

    Args:
        share: The share of its sector that a class fills.
        seed: That of the draws.

    Returns:
        Points, float64 [n, 2] with n = CLASSES * POINTS_PER_CLASS, and their classes, int64 [n].
    """
    draw = np.random.default_rng(seed)
    steps = (np.arange(POINTS_PER_CLASS) + draw.uniform(0.25, 0.75, (CLASSES, POINTS_PER_CLASS))) / POINTS_PER_CLASS
    angles = 2 * np.pi / CLASSES * (np.arange(CLASSES)[:, None] + 0.5 + share * (steps - 0.5))
    radii = draw.uniform(0.75, 1.25, angles.shape)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=-1)
    return points.reshape(-1, 2), np.repeat(np.arange(CLASSES), POINTS_PER_CLASS)


def random_scores(
    seed: int = 0, points: int = RANDOM_POINTS, classes: Sequence[int] = RANDOM_CLASSES
) -> dict[int, dict[str, float]]:
    """Return the METRICS of random embeddings with random labels, by the number of classes (Reality, figure 2).

    Args:
        seed: That of the draws.
        points: The number of embeddings, of `RANDOM_DIM` numbers from the standard normal distribution.
        classes: The numbers of classes.
    """
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(points, RANDOM_DIM)).astype(np.float32)
    scores = {}
    for number in classes:
        labels = draw.integers(number, size=points)
        measured = {**retrieval_metrics(rows, labels, k=(1,)), **clustering_metrics(rows, labels, seed, restarts=1)}
        scores[number] = {key: measured[key] for key in METRICS}
    return scores


def random_table(scores: Mapping[int, Mapping[str, float]]) -> Table:
    """Return the table of `random_scores`, in percent."""
    rows = [[f"{number:,}", *(percent(by_name[name]) for name in METRICS)] for number, by_name in scores.items()]
    return Table(("classes", *METRICS.values()), rows, ("classes", *METRICS.values()))


def percent(value: float) -> str:
    """Return a fraction as percent with one digit."""
    return f"{100 * value:.1f}"


def embedding_table(measured: Sequence[ToyEmbedding], corner: str = "%") -> Table:
    """Return the table of embeddings by metrics, in percent. corner: the head of the first column."""
    rows = [[item.name, *(percent(item.metrics[name]) for name in METRICS)] for item in measured]
    return Table((corner, *METRICS.values()), rows, tuple(METRICS.values()))


def ranking_table(measured: Sequence[ToyRanking], corner: str = "%") -> Table:
    """Return the table of rankings by metrics, in percent. corner: the head of the first column."""
    rows = [[item.name, *(percent(item.metrics[name]) for name in RANKING_METRICS)] for item in measured]
    return Table((corner, *RANKING_METRICS.values()), rows, tuple(RANKING_METRICS.values()))


def as_html(embedded: Sequence[ToyEmbedding], ranked: Sequence[ToyRanking]) -> str:
    """Return the demonstration as one HTML page that needs no other file."""
    sections = [
        Section("Three embeddings", [Paragraph(" ".join(ABOUT)), embedding_table(embedded)]),
        *map(_map_section, embedded),
        Section(f"A query with {RELATIVES} relatives, by what it finds", [ranking_table(ranked)], "half"),
    ]
    return page("What each metric sees", sections)


def draw(embedded: Sequence[ToyEmbedding], ranked: Sequence[ToyRanking], kind: str) -> bytes:
    """Draw the embeddings with their scores, and below them the rankings with theirs, on white.

    Args:
        embedded: The measured embeddings.
        ranked: The measured rankings.
        kind: a format that matplotlib writes: png, svg, pdf.

    Returns:
        The file's bytes; equal input gives equal bytes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = BytesIO()
    with rc_context(figures.STYLE):
        figure = Figure(figsize=(3.6 * len(embedded), 6.8), facecolor="white", layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(2.4, 1), hspace=0.04)
        upper, lower = halves
        figure.suptitle("\n".join(ABOUT), fontsize=10)
        for axes, item in zip(upper.subplots(1, len(embedded)), embedded, strict=True):
            _draw_points(axes, item)
        _draw_rankings(lower.subplots(), ranked)
        metadata: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}}.get(kind, {"CreationDate": None})
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
    return file.getvalue()


def _embedding(name: str, share: float, seed: int) -> ToyEmbedding:
    points, labels = sectors(share, seed)
    measured = {**retrieval_metrics(points, labels, k=(1,)), **clustering_metrics(points, labels)}
    return ToyEmbedding(name, share, points, labels, {key: measured[key] for key in METRICS})


def _map_section(item: ToyEmbedding) -> Section:
    image = figures.embedding_map(item.points, item.labels)
    picture = Picture(image, "image/png", f"Points of classes: {item.name}")
    return Section(item.name.capitalize(), [picture], "half")


def _draw_points(axes: Any, item: ToyEmbedding) -> None:
    for label, colour in zip(sorted(set(item.labels.tolist())), figures.COLOURS, strict=False):
        x, y = item.points[item.labels == label].T
        axes.scatter(x, y, s=9, c=colour, linewidths=0)
    axes.plot(0, 0, "+", color=figures.OTHER)
    axes.set(title=item.name, aspect="equal", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    axes.set_axis_off()
    names = list(METRICS)
    for line, line_names, weight in ((0, names[:3], "normal"), (1, names[3:], "bold")):
        text = "   ".join(f"{METRICS[name]} {percent(item.metrics[name])}" for name in line_names)
        axes.text(0.5, -0.06 - 0.1 * line, text, transform=axes.transAxes, ha="center", weight=weight)


def _draw_rankings(axes: Any, ranked: Sequence[ToyRanking]) -> None:
    """Draw one row per ranking with one square per rank, full where a relative is found."""
    columns: Mapping[str, float] = {name: RELATIVES + 2.5 + 3 * i for i, name in enumerate(RANKING_METRICS)}
    for row, item in enumerate(ranked):
        for rank in range(1, RELATIVES + 1):
            fill = "full" if rank in item.ranks else "none"
            axes.plot(rank, row, "s", markersize=9, color=figures.COLOURS[0], fillstyle=fill)
        axes.text(0, row, item.name, ha="right", va="center")
        for name, x in columns.items():
            axes.text(x, row, percent(item.metrics[name]), ha="right", va="center")
    axes.text(0, -1, f"of {RELATIVES} relatives found", ha="right", va="center", color=figures.INK, weight="bold")
    for name, x in columns.items():
        axes.text(x, -1, RANKING_METRICS[name], ha="right", va="center", weight="bold")
    axes.set(xlim=(-6, max(columns.values()) + 1), ylim=(len(ranked) - 0.5, -1.5))
    axes.set_axis_off()
