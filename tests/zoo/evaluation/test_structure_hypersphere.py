from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.structure import alignment, uniformity


def clustered(seed, sizes, dim=6):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return (rng.normal(size=(len(sizes), dim))[labels] + rng.normal(size=(len(labels), dim))).astype(np.float32), labels


def test_alignment_by_single_steps():
    rows, labels = clustered(0, (4, 1, 7, 2))
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    scores = []
    for i, label in enumerate(labels):
        relatives = [j for j in range(len(labels)) if j != i and labels[j] == label]
        if relatives:
            scores.append(sum(((unit[i] - unit[j]) ** 2).sum() for j in relatives) / len(relatives))
    assert alignment(rows, labels) == pytest.approx(sum(scores) / len(scores), rel=1e-6)


@pytest.mark.parametrize("t", [2.0, 0.5])
def test_uniformity_agrees_with_torch(t):
    rows, _ = clustered(1, (10, 20))
    unit = torch.nn.functional.normalize(torch.from_numpy(rows).double())
    expected = torch.pdist(unit).square().mul(-t).exp().mean().log()
    assert uniformity(rows, t) == pytest.approx(float(expected), rel=1e-5)


def test_by_hand():
    # Four corners of the circle: each has two at squared distance 2 and one at 4.
    corners = [[1, 0], [0, 1], [-1, 0], [0, -1]]
    assert uniformity(corners) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    assert alignment(corners, [0, 0, 1, 1]) == pytest.approx(2)
    assert alignment(corners, [0, 1, 0, 1]) == pytest.approx(4)


def test_one_point_and_lengths():
    point = np.tile([[0.6, 0.8]], (5, 1))
    assert uniformity(point) == pytest.approx(0, abs=1e-5)
    assert alignment(point, [0, 0, 0, 1, 1]) == pytest.approx(0, abs=1e-12)
    rows, labels = clustered(2, (5, 4))
    scaled = rows * np.linspace(0.1, 9, 9)[:, None]
    assert uniformity(scaled) == pytest.approx(uniformity(rows), rel=1e-5)
    assert alignment(scaled, labels) == pytest.approx(alignment(rows, labels), rel=1e-5)


def test_chunks_do_not_change_uniformity(monkeypatch):
    rows, _ = clustered(3, (12, 9))
    expected = uniformity(rows)
    monkeypatch.setattr("zoo.evaluation.structure.CHUNK_BYTES", 4 * 21 * 2)
    assert uniformity(rows) == pytest.approx(expected, rel=1e-6)


def test_directions_at_random_are_the_most_uniform():
    random = np.random.default_rng(4).normal(size=(400, 8))
    assert uniformity(random) < uniformity(random + 1) < uniformity(random + 5) < 0


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: alignment(np.eye(3), [0, 1, 2]), "too-few-samples", ""),
        (lambda: alignment(np.eye(3), [0, 0]), "invalid-labels", "3"),
        (lambda: alignment(np.diag([1, 0]), [0, 0]), "invalid-embedding", "row 1 of embeddings"),
        (lambda: uniformity([[1, 0]]), "too-few-samples", ""),
        (lambda: uniformity(np.diag([1, np.nan])), "not-finite", "row 1 of embeddings"),
    ],
)
def test_invalid_input_is_refused(call, code, value):
    with raises(EvaluationError, code) as caught:
        call()
    assert value in str(caught.value)
