"""The reliability of p_same in a model's report, compared with loops, scikit-learn and a hand calculation."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from zoo.data.dataset import Dataset
from zoo.evaluation.calibration import Bin
from zoo.report.figures import reliability
from zoo.report.html import page
from zoo.report.model import calibration_bins, calibration_section


def dataset_of(labels: np.ndarray, **factors: np.ndarray) -> Dataset:
    n, images = len(labels), [np.zeros((4, 4, 3), np.uint8)] * len(labels)
    classes = tuple(f"class {number}" for number in range(int(labels.max()) + 1))
    return Dataset("d", "test", images, labels, classes, [str(number) for number in range(n)], factors)


@pytest.fixture(scope="module")
def case() -> tuple[np.ndarray, np.ndarray]:
    """Eight classes that overlap: rows float32 [160, 6] and labels."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(8), 20)
    rows = rng.normal(size=(8, 6))[labels] + 0.9 * rng.normal(size=(160, 6))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


Searches = list[list[tuple[float, bool, float]]]
"""For each row the contrasts of its fifty nearest others, whether they share its class, and their weights."""


def searches_by_loops(rows: np.ndarray, labels: np.ndarray) -> Searches:
    out = []
    for i, row in enumerate(rows.astype(np.float64)):
        others = [(float(row @ rows[j].astype(np.float64)), labels[i] == labels[j]) for j in range(len(rows)) if j != i]
        nearest = sorted(others, key=lambda pair: -pair[0])[:50]
        base = np.mean([similarity for similarity, _ in nearest[20:]])
        out.append([(s - base, same, 0.9**rank) for rank, (s, same) in enumerate(nearest)])
    return out


def curve(pairs: list[tuple[float, bool, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Fit scikit-learn's isotonic regression to the shares of groups of one weight, the last one halved."""
    pairs = sorted(pairs)
    contrasts, same, weights = np.array(pairs, float).T
    count = int(np.clip(weights.sum() // 25, 2, 40))
    group = np.minimum(count * (np.cumsum(weights) - weights) / weights.sum(), count - 1).astype(int)
    while (size := int((group == group[-1]).sum())) >= 50:
        group[-(size - size // 2) :] += 1
    parts = [group == number for number in np.unique(group)]
    means = np.array([np.average(contrasts[part], weights=weights[part]) for part in parts])
    shares = [(np.average(same[part], weights=weights[part]) * part.sum() + 0.5) / (part.sum() + 1) for part in parts]
    totals = np.array([weights[part].sum() for part in parts])
    fitted = IsotonicRegression().fit_transform(np.arange(len(parts)), shares, sample_weight=totals)
    blocks = [np.isclose(fitted, value, rtol=0, atol=1e-12) for value in np.unique(fitted.round(12))]
    centres = np.array([np.average(means[block], weights=totals[block]) for block in blocks])
    return centres, np.array([fitted[block].mean() for block in blocks])


@pytest.fixture(scope="module")
def expected(case: tuple[np.ndarray, np.ndarray]) -> list[tuple[float, float, int]]:
    """Mean probability, share and number of the pairs in each tenth.

    The first result of a search has a curve of its own, which bounds the others.
    """
    rows, labels = case
    searches, tenths = searches_by_loops(rows, labels), [[] for _ in range(10)]
    for half in (0, 1):
        known = [pairs for pairs, label in zip(searches, labels, strict=True) if label % 2 == half]
        first, later = curve([pairs[0] for pairs in known]), curve([pair for pairs in known for pair in pairs[1:]])
        for pairs, label in zip(searches, labels, strict=True):
            for rank, (contrast, same, weight) in enumerate(pairs if label % 2 != half else ()):
                bound = float(np.interp(pairs[0][0], *first))
                chance = min(bound, float(np.interp(contrast, *later))) if rank else bound
                tenths[int(10 * chance)].append((chance, same, weight))
    tables = [np.array(pairs, float) for pairs in tenths if pairs]
    return [(*np.average(table[:, :2], axis=0, weights=table[:, 2]), len(table)) for table in tables]


def test_bins_are_those_of_loops_and_scikit_learn(
    case: tuple[np.ndarray, np.ndarray], expected: list[tuple[float, float, int]]
) -> None:
    bins = calibration_bins(case[0], dataset_of(case[1]))
    assert len(bins) > 5
    for ours, (probability, share, count) in zip(bins, expected, strict=True):
        assert ours.count == pytest.approx(count, abs=2)  # float32 similarities next to the border of a tenth
        assert (ours.probability, ours.share) == pytest.approx((probability, share), abs=2e-3)


def test_the_section_has_the_bins_and_the_error(case: tuple[np.ndarray, np.ndarray]) -> None:
    bins = calibration_bins(case[0], dataset_of(case[1]))
    body = page("", [calibration_section(case[0], dataset_of(case[1]))]).split("<main>")[1]
    for bin_ in bins:
        for cell in (f"{bin_.probability:.3f}", f"{bin_.share:.3f}", f"{bin_.low:.3f} to {bin_.high:.3f}"):
            assert cell in body
    total = 160 * sum(0.9**rank for rank in range(50))
    error = sum(bin_.weight * abs(bin_.probability - bin_.share) for bin_ in bins) / total
    (printed,) = re.findall(r"calibration error ([\d.]+)\.", body)
    assert float(printed) == pytest.approx(error, abs=1e-3)
    assert "8,000 neighbours" in body
    assert body.count("data:image/svg+xml") == 1


def test_only_queries_search(case: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = case
    is_query = (np.arange(160) % 4 == 0).astype(np.int64)
    assert sum(bin_.count for bin_ in calibration_bins(rows, dataset_of(labels, query=is_query))) == 40 * 50


@pytest.mark.parametrize("classes", [1, 3])
def test_too_few_classes_are_reported(case: tuple[np.ndarray, np.ndarray], classes: int) -> None:
    rows, labels = case
    section = calibration_section(rows[labels < classes], dataset_of(labels[labels < classes]))
    body = page("", [section]).split("<main>")[1]
    assert "at least four classes" in body
    assert "<img" not in body


def test_equal_diagrams_are_equal_bytes() -> None:
    bins = [Bin(0.1, 0.2, 10, 0.1, 0.3, 9.5), Bin(0.9, 0.8, 1, 0.0, 1.0, 1.0)]
    assert reliability(bins) == reliability(bins)
    assert reliability(bins).startswith(b"<?xml")
