"""Reliability of a line of relevance for texts, on a small CLIP that is trained here.

    python -m tests.benchmarks.bench_text_relevance [--seed 0]

The curve of `zoo.evaluation.relevance` is fitted to searches of random galleries (10 to 42 names of 2 to 11 pictures)
by texts or by pictures, of the names that the tower was trained with. It is checked on other galleries, by queries of
these names and of pairs of colours that the tower has never seen. A quarter of the queries has no relative in the
gallery. "shipped" is the curve of the model `photos`, which knows nothing of this tower.

Each line has the error of the probability of the first 20 results, by ten bins of equal size, the precision above .75,
the share of results above it, and the share of queries without a relative that show some.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy.optimize import minimize

from tests.zoo.trained_clip import NAMES, UNSEEN, draw, trained_clip
from zoo.console import print_table
from zoo.evaluation.relevance import read_curve
from zoo.paths import SHIPPED
from zoo.render import Table

PICTURES, SEARCHES, RESULTS, LINE = 12, 600, 20, 0.75
LABELS = np.repeat(np.arange(len(NAMES)), PICTURES)


def searches(queries: np.ndarray, pictures: np.ndarray, chosen: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return contrasts and whether the result is of the query's name, both [SEARCHES, RESULTS]."""
    rng = np.random.default_rng(seed)
    contrasts, same = np.empty((SEARCHES, RESULTS)), np.empty((SEARCHES, RESULTS), bool)
    for search in range(SEARCHES):
        query = rng.choice(chosen)
        others = rng.permutation(np.delete(np.arange(len(NAMES)), query))[: rng.integers(10, len(NAMES))]
        names = others if search % 4 == 0 else [query, *others]
        each = rng.integers(2, PICTURES)
        rows = np.concatenate(
            [rng.choice(np.flatnonzero(np.equal(LABELS, name)), each, replace=False) for name in names]
        )
        similarities = pictures[rows] @ queries[query]
        first = np.argsort(-similarities)[:RESULTS]
        contrasts[search] = (similarities[first] - similarities.mean()) / similarities.std()
        same[search] = LABELS[rows][first] == query
    return contrasts, same


def fitted(contrasts: np.ndarray, same: np.ndarray) -> tuple[float, float]:
    """Return a and b of the logistic curve of greatest likelihood."""
    x, y = contrasts.ravel(), same.ravel()
    found = minimize(lambda ab: np.mean(np.logaddexp(0, ab[0] + ab[1] * x) - y * (ab[0] + ab[1] * x)), [0.0, 1.0])
    return float(found.x[0]), float(found.x[1])


def row(contrasts: np.ndarray, same: np.ndarray, curve: tuple[float, float]) -> list[str]:
    """Return error, precision, share above the line, and share of queries without a relative that show some."""
    chances = 1 / (1 + np.exp(-(curve[0] + curve[1] * contrasts)))
    bins = np.array_split(np.argsort(chances.ravel()), 10)
    error = sum(abs(chances.ravel()[one].mean() - same.ravel()[one].mean()) * len(one) for one in bins) / same.size
    above, lonely = chances >= LINE, ~same.any(1)
    precision = f"{same[above].mean():.2f}" if above.any() else "-"
    return [f"{error:.3f}", precision, f"{above.mean():.3f}", f"{above[lonely].any(1).mean():.2f}"]


def main() -> None:
    """Train, fit, check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    clip, rng = trained_clip(seed), np.random.default_rng(seed + 1)
    pictures = clip.images([draw(NAMES[label], rng) for label in LABELS])
    queries = {"texts": clip.texts(NAMES), "pictures": clip.images([draw(name, rng) for name in NAMES])}
    unseen = np.array([NAMES.index(name) for name in UNSEEN])
    known = np.setdiff1d(np.arange(len(NAMES)), unseen)
    shipped = read_curve(SHIPPED / "photos")
    assert shipped is not None
    curves = {kind: fitted(*searches(rows, pictures, known, seed + 2)) for kind, rows in queries.items()}
    rows = [
        [name, kind, group, *row(*searches(queries[kind], pictures, chosen, seed + 3), curve)]
        for name, curve in {**curves, "shipped": shipped.later}.items()
        for kind in queries
        for group, chosen in (("known", known), ("unseen", unseen))
    ]
    columns = ["fitted to", "queries", "names", "error", "precision", "above", "without"]
    print_table(Table(columns, [tuple(cells) for cells in rows], numbers=tuple(columns[3:])))


if __name__ == "__main__":
    main()
