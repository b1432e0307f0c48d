"""Demonstration of what each metric sees: three embeddings of the plane, and four rankings of one query, with scores.

    python examples/metrics_demo.py                       the tables
    python examples/metrics_demo.py --out metrics.png     and a picture (or .svg, .pdf)
    python examples/metrics_demo.py --random              10,000 random embeddings by the number of classes

The embeddings are clustered well, less so and hardly. R@1 looks for one relative near each query, NMI and F1 for the
cluster of a point; neither sees the distance between clusters. R-precision and MAP@R do (Musgrave et al. 2020, A Metric
Learning Reality Check, proposes them for that). The points are made here; the paper did not publish those of its figure
1. Its figure 2, random embeddings by the number of classes, shows that NMI rises with the classes although nothing is
learnt.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.console import print_table
from zoo.evaluation import clustering_metrics, retrieval_metrics
from zoo.render import Table

CLASSES, POINTS_PER_CLASS = 8, 30
SHARES = {"well clustered": 0.3, "less so": 0.75, "hardly": 0.94}
"""The share of its sector of the plane that each class fills. Above a half, a query at the edge of its class is
nearer to other classes than to its farthest relatives."""

METRICS = {"recall_at_1": "R@1", "nmi": "NMI", "f1_clusters": "F1", "r_precision": "R-precision", "map_at_r": "MAP@R"}
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

RANDOM_POINTS, RANDOM_DIM = 10_000, 64
RANDOM_CLASSES = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""Numbers of classes of random embeddings; Reality does not print those of its figure 2."""

Scores = Mapping[str, float]


def sectors(share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the points of all classes.

    Each class has a sector and fills the middle `share` of it, one point per step, moved by at most half a step.
    Similarity is the cosine, so only directions count; a point's distance from the centre, 0.75 to 1.25, is only for
    the eye. The gap between two classes is always wider than between neighbours of one class.

    Returns:
        Points, float64 [n, 2] with n = CLASSES * POINTS_PER_CLASS, and their classes, int64 [n].
    """
    draw = np.random.default_rng(seed)
    steps = (np.arange(POINTS_PER_CLASS) + draw.uniform(0.25, 0.75, (CLASSES, POINTS_PER_CLASS))) / POINTS_PER_CLASS
    angles = 2 * np.pi / CLASSES * (np.arange(CLASSES)[:, None] + 0.5 + share * (steps - 0.5))
    radii = draw.uniform(0.75, 1.25, angles.shape)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=-1)
    return points.reshape(-1, 2), np.repeat(np.arange(CLASSES), POINTS_PER_CLASS)


def embedding_scores(points: np.ndarray, labels: np.ndarray, seed: int = 0, restarts: int = 10) -> dict[str, float]:
    """Return the METRICS of an embedding [n, d]."""
    measured = retrieval_metrics(points, labels, k=(1,)) | clustering_metrics(points, labels, seed, restarts=restarts)
    return {name: measured[name] for name in METRICS}


def ranking_scores(ranks: Sequence[int], relatives: int = RELATIVES) -> dict[str, float]:
    """Return the RANKING_METRICS of one query that finds relatives at these ranks (from 1) of its first `relatives`.

    The gallery turns away from the query step by step, so that its order is the ranking. The relatives that are not
    among the first come last.
    """
    found = np.isin(np.arange(1, relatives + 1), ranks)
    labels = np.concatenate([found, np.ones(relatives - found.sum())]).astype(np.int64)
    angles = np.linspace(0.1, 1.5, len(labels))
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    query, label = np.array([[1.0, 0.0]]), np.array([1])
    measured = retrieval_metrics(gallery, labels, k=(1,), queries=query, query_labels=label)
    return {name: measured[name] for name in RANKING_METRICS}


def random_scores(
    seed: int = 0, points: int = RANDOM_POINTS, classes: Sequence[int] = RANDOM_CLASSES
) -> dict[str, dict[str, float]]:
    """Return the METRICS of random embeddings with random labels, by the number of classes (Reality, figure 2)."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(points, RANDOM_DIM)).astype(np.float32)
    return {f"{n:,}": embedding_scores(rows, draw.integers(n, size=points), seed, restarts=1) for n in classes}


def print_scores(corner: str, metrics: Mapping[str, str], scores: Mapping[str, Scores]) -> None:
    """Print a row per name."""
    rows = [[name, *(f"{values[metric]:.4f}" for metric in metrics)] for name, values in scores.items()]
    print_table(Table([corner, *metrics.values()], rows, list(metrics.values())))


def draw(path: Path, seed: int, embeddings: Mapping[str, Scores], rankings: Mapping[str, Scores]) -> None:
    """Draw the embeddings with their scores, and below them the rankings with theirs, on white."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), facecolor="white", layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2.4, 1))
    upper, lower = halves
    figure.suptitle("Classes are colours. Similarity is the cosine: only the direction from the centre counts.")
    for axes, (name, scores) in zip(upper.subplots(1, len(embeddings)), embeddings.items(), strict=True):
        points, labels = sectors(SHARES[name], seed)
        axes.scatter(*points.T, s=9, c=labels, cmap="tab10")
        axes.plot(0, 0, "+", color="grey")
        axes.set(aspect="equal", title=name)
        axes.set_axis_off()
        lines = "\n".join(f"{METRICS[metric]} {value:.3f}" for metric, value in scores.items())
        axes.text(0.5, -0.02, lines, transform=axes.transAxes, ha="center", va="top")
    _draw_rankings(lower.subplots(), rankings)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _draw_rankings(axes: Any, rankings: Mapping[str, Scores]) -> None:
    """Draw one row per ranking with one square per rank, full where a relative is found."""
    for row, (name, scores) in enumerate(rankings.items()):
        for rank in range(1, RELATIVES + 1):
            fill = "full" if rank in RANKINGS[name] else "none"
            axes.plot(rank, row, "s", markersize=9, color="tab:blue", fillstyle=fill)
        axes.text(0, row, name, ha="right", va="center")
        text = "   ".join(f"{RANKING_METRICS[metric]} {value:.3f}" for metric, value in scores.items())
        axes.text(RELATIVES + 1, row, text, va="center")
    axes.set(xlim=(-6, 24), ylim=(len(rankings) - 0.5, -0.5))
    axes.set_axis_off()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that the command line asks for, and draw the picture."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also draw a picture: .png, .svg or .pdf")
    parser.add_argument("--random", action="store_true", help="instead: random embeddings by the number of classes")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.random:
        print(f"{RANDOM_POINTS:,} random embeddings of {RANDOM_DIM} numbers with random labels")
        print_scores("classes", METRICS, random_scores(chosen.seed))
        return
    embeddings = {name: embedding_scores(*sectors(share, chosen.seed)) for name, share in SHARES.items()}
    rankings = {name: ranking_scores(ranks) for name, ranks in RANKINGS.items()}
    print(f"{CLASSES} classes of {POINTS_PER_CLASS} points in the plane, made for this table (no paper's)")
    print_scores("classes are", METRICS, embeddings)
    print(f"\na query with {RELATIVES} relatives, by which of its first {RELATIVES} results are such")
    print_scores("found", RANKING_METRICS, rankings)
    if chosen.out is not None:
        draw(chosen.out, chosen.seed, embeddings, rankings)
        print(f"\nThe picture: {chosen.out}")


if __name__ == "__main__":
    main()
