"""The reliability of p_same in a model's report, compared with loops, scikit-learn and a hand calculation."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from zoo.data.dataset import Dataset
from zoo.evaluation.calibration import Bin
from zoo.report.figures import reliability
from zoo.report.html import page
from zoo.report.model import CALIBRATION_NEIGHBOURS, calibration_bins, calibration_section


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


def pairs_by_loops(rows: np.ndarray, labels: np.ndarray) -> list[list[tuple[float, bool]]]:
    """Return for each row the cosines of its ten nearest others, and whether they share its class."""
    out = []
    for i, row in enumerate(rows.astype(np.float64)):
        others = [(float(row @ rows[j].astype(np.float64)), labels[i] == labels[j]) for j in range(len(rows)) if j != i]
        out.append(sorted(others, key=lambda pair: -pair[0])[:CALIBRATION_NEIGHBOURS])
    return out


def curve(pairs: list[tuple[float, bool]]) -> LogisticRegression:
    """Fit Platt's curve: targets a little off 0 and 1, as weights of the two outcomes."""
    similar, same = np.array([p[0] for p in pairs])[:, None], np.array([p[1] for p in pairs])
    targets = np.where(same, (same.sum() + 1) / (same.sum() + 2), 1 / ((~same).sum() + 2))
    model = LogisticRegression(C=1e9, tol=1e-10, max_iter=10_000)
    twice = np.concatenate([np.ones(len(same)), np.zeros(len(same))])
    return model.fit(np.concatenate([similar, similar]), twice, np.concatenate([targets, 1 - targets]))


@pytest.fixture(scope="module")
def expected(case: tuple[np.ndarray, np.ndarray]) -> list[Bin]:
    rows, labels = case
    searches, tenths = pairs_by_loops(rows, labels), [[] for _ in range(10)]
    for half in (0, 1):
        fitted = curve(
            [pair for pairs, label in zip(searches, labels, strict=True) if label % 2 == half for pair in pairs]
        )
        for pairs, label in zip(searches, labels, strict=True):
            for similarity, same in pairs if label % 2 != half else ():
                chance = float(fitted.predict_proba([[similarity]])[0, 1])
                tenths[int(10 * chance)].append((chance, same))
    return [
        Bin(float(np.mean([p for p, _ in pairs])), float(np.mean([s for _, s in pairs])), len(pairs))
        for pairs in tenths
        if pairs
    ]


def test_bins_are_those_of_loops_and_scikit_learn(case: tuple[np.ndarray, np.ndarray], expected: list[Bin]) -> None:
    bins = calibration_bins(case[0], dataset_of(case[1]))
    assert len(bins) > 5
    for ours, theirs in zip(bins, expected, strict=True):
        assert ours.count == theirs.count
        assert (ours.probability, ours.share) == pytest.approx((theirs.probability, theirs.share), abs=1e-3)


def test_the_section_has_the_bins_and_the_error(case: tuple[np.ndarray, np.ndarray], expected: list[Bin]) -> None:
    section = calibration_section(case[0], dataset_of(case[1]))
    body = page("", [section]).split("<main>")[1]
    cells = [float(cell) for cell in re.findall(r'<td class="number">([\d.,]+)</td>', body)]
    wanted = [value for bin_ in expected for value in (bin_.probability, bin_.share, bin_.count)]
    assert cells == pytest.approx(wanted, abs=2e-3)
    error = sum(bin_.count * abs(bin_.probability - bin_.share) for bin_ in expected) / (160 * CALIBRATION_NEIGHBOURS)
    (printed,) = re.findall(r"calibration error ([\d.]+)\.", body)
    assert float(printed) == pytest.approx(error, abs=2e-3)
    assert "1,600 neighbours" in body
    assert body.count("data:image/svg+xml") == 1


def test_by_hand() -> None:
    """Four classes of three rows on the axes: all near neighbours are of the query's class."""
    labels = np.repeat(np.arange(4), 3)
    bins = calibration_bins(np.eye(4, dtype=np.float32)[labels], dataset_of(labels))
    # Of ten neighbours of each of the twelve two are at cosine 1, and eight, of other classes, at cosine 0. Platt's
    # targets for the six queries of a half: 13 / 14 for the 12 of the class, 1 / 50 for the 48 others.
    assert [(bin_.share, bin_.count) for bin_ in bins] == [(0.0, 96), (1.0, 24)]
    assert [bin_.probability for bin_ in bins] == pytest.approx([1 / 50, 13 / 14], abs=1e-4)


def test_only_queries_search(case: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = case
    is_query = (np.arange(160) % 4 == 0).astype(np.int64)
    assert (
        sum(bin_.count for bin_ in calibration_bins(rows, dataset_of(labels, query=is_query)))
        == 40 * CALIBRATION_NEIGHBOURS
    )


@pytest.mark.parametrize("classes", [1, 3])
def test_too_few_classes_are_reported(case: tuple[np.ndarray, np.ndarray], classes: int) -> None:
    rows, labels = case
    section = calibration_section(rows[labels < classes], dataset_of(labels[labels < classes]))
    body = page("", [section]).split("<main>")[1]
    assert "at least four classes" in body
    assert "<img" not in body


def test_equal_diagrams_are_equal_bytes() -> None:
    bins = [Bin(0.1, 0.2, 10), Bin(0.9, 0.8, 1)]
    assert reliability(bins) == reliability(bins)
    assert reliability(bins).startswith(b"<?xml")
