"""The share of 95 % intervals over seeds and classes that contain the truth.

Scores by seed and class are drawn from the model of zoo/evaluation/statistics.py with a true mean of 0, at 3 and 8
seeds and 100 classes of unlike sizes. The deviation over seeds is that of the choice of classes, times a ratio. Beside
the interval stand those over seeds alone, over classes alone, and of the two halves added as squares, which earlier
reports had. The rate of false findings is one less the coverage, as the test and the interval are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from zoo.console import print_table
from zoo.evaluation.statistics import ScoresByClass, estimate
from zoo.render import Table

DRAWS, CLASSES = 4000, 100
REGIMES = [(seeds, ratio) for seeds in (3, 8) for ratio in (0.0, 0.5, 1.0, 2.0)]
REST = 1.0
"""Deviation of a class between seeds over that between classes."""


def tables(seeds: int, ratio: float, draws: int, rng: np.random.Generator) -> Iterator[ScoresByClass]:
    """Yield tables of the truth 0, whose deviation over seeds is `ratio` times that of a mean over classes."""
    for _ in range(draws):
        queries = rng.integers(10, 61, CLASSES).astype(float)
        over_seeds = rng.normal(0, ratio / math.sqrt(CLASSES), (seeds, 1))
        yield ScoresByClass(over_seeds + rng.normal(0, 1, CLASSES) + rng.normal(0, REST, (seeds, CLASSES)), queries)


def coverage(seeds: int, ratio: float, draws: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Return the coverage of the interval over both, of those over seeds and classes alone, and of added squares."""
    found = np.zeros(4)
    for table in tables(seeds, ratio, draws, rng):
        means = (table.scores @ table.queries / table.queries.sum()).tolist()
        both, over_seeds = estimate(means, table), estimate(means)
        over_classes = estimate([both.mean], ScoresByClass(table.scores.mean(0, keepdims=True), table.queries))
        halves = [one.half or 0.0 for one in (both, over_seeds, over_classes)]
        found += np.abs(both.mean) <= np.array([*halves, math.hypot(*halves[1:])])
    both_share, seeds_share, classes_share, squares = (found / draws).tolist()
    return both_share, seeds_share, classes_share, squares


def main() -> None:
    rng = np.random.default_rng(0)
    head = (
        "seeds",
        "sd of seeds / sd of classes",
        "seeds and classes",
        "seeds alone",
        "classes alone",
        "added squares",
    )
    rows = [[str(s), f"{r:g}", *(f"{share:.3f}" for share in coverage(s, r, DRAWS, rng))] for s, r in REGIMES]
    print(f"{CLASSES} classes, {DRAWS:,} draws each; the standard error of a coverage is .0034")
    print_table(Table(head, rows, head))


if __name__ == "__main__":
    main()
