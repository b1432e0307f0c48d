"""Coarse 8-bit products against exact integer sums, and when the prefilter is used."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.zoo.evaluation.test_knn import definition, unit
from zoo.evaluation import knn, knn_int8, nearest_neighbours
from zoo.evaluation.knn_int8 import MARGIN, CoarseProducts, coarse_products_work

EXACT, THERE = knn_int8.can_multiply_int8(64), coarse_products_work(63)
LARGEST = 127 if EXACT or not THERE else 63
"""Without VNNI a processor adds two products in 16 bits, which hold 2 x 255 x 63 and not 2 x 255 x 127."""


@pytest.fixture(autouse=True)
def layer(request):
    """Use torch's layer, or an exact one if torch lacks it."""
    if not THERE:
        request.getfixturevalue("exact_coarse_products")


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-LARGEST, LARGEST + 1, shape).astype(np.int8)


@pytest.mark.parametrize("dim", [64, 65, 512, 4096])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 33), (100, 129)])
def test_coarse_products_bound_the_sums(n, m, dim):
    rows, columns = integers(1, n + 3, dim), integers(2, m + 5, dim)
    sums = rows[2 : n + 2].astype(np.int64) @ columns[5:].T.astype(np.int64)
    products = CoarseProducts(rows, columns)
    spread = int(np.abs(sums).max()) + 1
    for levels in (np.zeros(m), np.linspace(-spread, spread, m).round(), np.full(m, float(sums.max()))):
        for step in (products.least_step, 3 * products.least_step, spread / 100 + products.least_step):
            coarse = products.block(slice(2, n + 2), slice(5, m + 5), levels, step)
            assert coarse.dtype == np.uint8
            steps = (sums - levels) / step
            assert (coarse[sums >= levels] >= 1).all()
            inner = (coarse > 0) & (coarse < 255)
            assert (steps[inner] < coarse[inner] - MARGIN).all()
            assert (steps[inner] >= coarse[inner] - 2.0).all()
            assert (steps[coarse == 255] >= 252).all()


@pytest.mark.parametrize("least", [0, 1e-30, 0.5])
def test_coarse_products_bound_the_sums_of_scaled_columns(least):
    rows, columns = integers(1, 60, 512), integers(2, 90, 512)
    scales = np.random.default_rng(6).uniform(least, 1, 90).astype(np.float32)
    scales[:2] = 1, least
    sums = scales * (rows.astype(np.int64) @ columns.T.astype(np.int64))
    products = CoarseProducts(rows, columns, scales)
    for levels in (np.zeros(90), np.linspace(0, 0.9 * sums.max(), 90)):
        steps = (sums - levels) / products.least_step
        coarse = products.block(slice(0, 60), slice(0, 90), levels, products.least_step)
        assert (coarse[sums >= levels] >= 1).all()
        inner = (coarse > 0) & (coarse < 255)
        assert (steps[inner] < coarse[inner] - MARGIN).all()
        assert (steps[inner] >= coarse[inner] - 2.0).all()


def test_the_largest_possible_sums():
    rows = np.full((2, 4096), LARGEST, np.int8)
    rows[1] = -LARGEST
    products = CoarseProducts(rows, rows)
    largest = float(LARGEST) ** 2 * 4096
    coarse = products.block(
        slice(0, 2), slice(0, 2), np.full(2, largest - 10 * products.least_step), products.least_step
    )
    np.testing.assert_array_equal(coarse, [[11, 0], [0, 11]])


def test_a_torch_whose_layer_is_wrong_is_not_used(monkeypatch):
    assert coarse_products_work() or not EXACT
    coarse_products_work.cache_clear()
    operation = torch.ops.onednn.qlinear_pointwise

    def missing(*args):
        raise RuntimeError("no such operator")

    try:
        for other in (
            missing,
            lambda *args: operation(*args) // 2,
            lambda *args: torch.full_like(operation(*args), 255),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(torch.ops.onednn, "qlinear_pointwise", other)
                assert not coarse_products_work()
            coarse_products_work.cache_clear()
    finally:
        coarse_products_work.cache_clear()


@pytest.mark.parametrize("works", [True, False])
def test_the_prefilter_does_not_change_the_neighbours(request, int8, monkeypatch, works):
    if not EXACT:  # rows are rounded to 127 steps here
        request.getfixturevalue("exact_coarse_products")
    rng = np.random.default_rng(3)
    rows = unit(rng.normal(size=(700, 64)))
    rows[50:60] = rows[40:50]
    rows[100:110] *= 30  # a block whose coarse products separate little
    calls = []
    whole = CoarseProducts.block
    monkeypatch.setattr(CoarseProducts, "block", lambda *args: calls.append(1) or whole(*args))
    monkeypatch.setattr(knn_int8, "coarse_products_work", lambda: works)
    monkeypatch.setattr(knn, "BLOCK", 64)
    monkeypatch.setattr(knn, "INT8_BLOCK", 128)
    monkeypatch.setattr(knn, "SINGLE_BLOCK", 0)
    monkeypatch.setattr(knn, "can_multiply_int8", lambda dim: True)
    for queries, exclude in ((rows, True), (rows[::-1].copy(), False)):
        expected = definition(queries, rows, 5, exclude)
        for coarse, wanted in zip(nearest_neighbours(queries, rows, 5, exclude), expected, strict=True):
            np.testing.assert_array_equal(coarse, wanted)
    assert bool(calls) == works


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [64, 100, 127, 500])
def test_no_chunk_exceeds_the_argument_although_blocks_are_wider(int8, monkeypatch, chunk):
    rows = np.random.default_rng(4).normal(size=(2100, 64)).astype(np.float32)
    expected = knn.nearest_neighbours(rows, rows, 3, True)
    monkeypatch.setattr(knn, "BLOCK", 64)
    monkeypatch.setattr(knn, "INT8_BLOCK", 128)
    monkeypatch.setattr(knn, "SINGLE_BLOCK", 0)
    monkeypatch.setattr(knn, "can_multiply_int8", lambda dim: True)
    pieces = list(knn.neighbour_chunks(rows, rows, 3, True, chunk))
    assert max(piece.stop - piece.start for piece, _, _ in pieces) == min(chunk, 128)
    np.testing.assert_array_equal(np.concatenate([indices for _, _, indices in pieces]), expected[1])


def test_the_defaults_of_torch_change_nothing():
    rows = integers(5, 40, 64)
    block = (slice(0, 40), slice(0, 40), np.zeros(40), 1000.0)
    expected = CoarseProducts(rows, rows).block(*block)
    torch.set_default_dtype(torch.float64)
    try:
        np.testing.assert_array_equal(CoarseProducts(rows, rows).block(*block), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        np.testing.assert_array_equal(CoarseProducts(rows, rows).block(*block), expected)


@pytest.mark.parametrize(
    ("queries", "largest", "prefiltered"), [(256, 2**29, True), (255, 2**29, False), (256, 700, False)]
)
def test_the_prefilter_is_used_where_it_pays(monkeypatch, queries, largest, prefiltered):
    """It needs four blocks of queries, and a second copy of the gallery in 8 bits that is not too large."""
    rows = np.random.default_rng(5).normal(size=(700, 64)).astype(np.float32)
    monkeypatch.setattr(knn_int8, "_INT8_MAX_NUMBERS", largest)
    monkeypatch.setattr(knn_int8, "coarse_products_work", lambda: True)
    assert (knn_int8.Int8Products(rows[:queries], rows, 64, 700)._prefilter is not None) == prefiltered


def test_a_failing_prefilter_is_tried_less_and_less_often():
    tries = knn_int8._Backoff()
    tried = []
    for block in range(200):
        if tries.due():
            tried.append(block)
            tries.record(False)
    assert tried[:5] == [0, 2, 5, 9, 14]  # after one block more each time
    assert len(tried) == 19  # n (n + 3) / 2 < 200
    while not tries.due():
        pass
    tries.record(True)
    assert tries.due()
