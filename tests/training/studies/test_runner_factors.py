"""Factors of glyphs, measured on rows that are constructed from known factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.raising import raises
from training.studies.measure import factor_metrics
from training.studies.study import CATEGORICAL_FACTORS, NUMERIC_FACTORS, Measure
from zoo.data.dataset import Dataset
from zoo.errors import DatasetError

CLASSES, EACH = 4, 6
LABELS = np.repeat(np.arange(CLASSES), EACH)


def dataset(**factors: Any) -> Dataset:
    image = np.zeros((2, 2, 3), np.uint8)
    sources = [str(i) for i in range(len(LABELS))]
    return Dataset("toy", "test", [image] * len(LABELS), LABELS, tuple("abcd"), sources, factors)


def test_each_factor_is_found_where_it_lies() -> None:
    draw = np.random.default_rng(0)
    angle = np.tile(np.array([0, 1, 4, 10, 12, 17]) / 17, CLASSES)  # no two differences alike
    ink = np.tile(np.arange(EACH), CLASSES)
    # The rows are points of an arc at the angle: it orders them, and the same angle is the same ink.
    rows = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    noise = {name: draw.integers(0, 1000, len(LABELS)) for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)}
    found = factor_metrics(rows, dataset(**{**noise, "ink": ink, "angle": angle}))
    assert set(found) == {f"factor_{name}" for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)}
    assert found["factor_ink"] == 1
    assert found["factor_angle"] == pytest.approx(1)
    assert found["factor_face"] < 0.2
    assert abs(found["factor_scale"]) < 0.6


def test_a_data_set_without_factors_is_refused() -> None:
    with raises(DatasetError, "missing-factor") as caught:
        factor_metrics(np.eye(len(LABELS), dtype=np.float32), dataset())
    assert "'ink'" in str(caught.value)


def test_studies_know_the_metrics() -> None:
    assert Measure("factor_ink", "test", "intra").groups == ("factors",)
