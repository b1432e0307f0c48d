"""How far p_same, the probability that a neighbour is of the query's class, can be believed of a model."""

from __future__ import annotations

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.evaluation.calibration import Bin, expected_calibration_error, held_out, reliability
from zoo.report import pictures
from zoo.report.examples import neighbours
from zoo.report.page import Section, paragraph, picture, table

NEIGHBOURS, QUERIES = 10, 2000
"""As a gallery calibrates itself: the nearest of so many queries, drawn at random where there are more."""


def held_out_bins(rows: np.ndarray, dataset: Dataset) -> list[Bin]:
    """The reliability of p_same on neighbours of queries whose class it was not fitted to.

    rows: unit embeddings float32 [n, d] of the data set's images. Fitted to the queries of every second class and read
    at the others, and the other way round. Empty where either half allows no fit, as with fewer than four classes.
    """
    queries, similarities, found = neighbours(rows, dataset, NEIGHBOURS)
    chosen = np.sort(np.random.default_rng(0).permutation(len(queries))[:QUERIES])
    classes = dataset.labels[queries[chosen]]
    same = dataset.labels[found[chosen]] == classes[:, None]
    chances = held_out(similarities[chosen], same, classes)
    return [] if chances is None else reliability(chances, same)


def certainty(rows: np.ndarray, dataset: Dataset) -> Section:
    """The reliability diagram of p_same with its numbers."""
    bins = held_out_bins(rows, dataset)
    if not bins:
        text = "Not measured: that takes queries of at least four classes, with and without neighbours of their class."
        return Section("p_same", paragraph(text), "half")
    image = picture(pictures.reliability(bins), "image/svg+xml", "How often neighbours are of the query's class")
    return Section("p_same", image + paragraph(_text(bins)) + table(*_numbers(bins)), "half")


def _text(bins: list[Bin]) -> str:
    return (
        "The probability that a neighbour is of the query's class, by its similarity: what was promised and what was "
        f"so, in tenths of it, of {sum(one.count for one in bins):,} neighbours; on the dashed line the two agree. "
        f"Expected calibration error {expected_calibration_error(bins):.3f}. The curve was fitted to one half of the "
        "classes and judged on the other, and the other way round."
    )


def _numbers(bins: list[Bin]) -> tuple[tuple[str, ...], list[list[str]], tuple[str, ...]]:
    columns = ("promised", "observed", "neighbours")
    return columns, [[f"{one.probability:.3f}", f"{one.share:.3f}", f"{one.count:,}"] for one in bins], columns
