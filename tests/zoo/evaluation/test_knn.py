from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.neighbors import NearestNeighbors

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import gpu, knn, knn_int8, matmul, nearest_neighbours
from zoo.evaluation.knn import neighbour_chunks
from zoo.evaluation.knn_int8 import QuantizedRows


def oracle(queries, gallery, k, exclude_self=False):
    """The definition, pair by pair: double precision, rounded to float32, sorted by (-similarity, index)."""
    similarities, indices = [], []
    for i, query in enumerate(queries.astype(np.float64)):
        pairs = [
            (-np.float32(sum(a * b for a, b in zip(query, row, strict=True))), j)
            for j, row in enumerate(gallery.astype(np.float64))
            if not (exclude_self and i == j)
        ]
        best = sorted(pairs)[:k]
        similarities.append([-s for s, _ in best])
        indices.append([j for _, j in best])
    return np.array(similarities, np.float32), np.array(indices)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


# Small whole numbers: products are exact and ties abound, at the k-th place too.
whole_rows = hnp.arrays(np.float32, st.tuples(st.integers(2, 12), st.integers(1, 3)), elements=st.integers(-2, 2))


@settings(max_examples=50)
@given(whole_rows, st.data(), st.booleans())
def test_ties_go_to_the_lower_index_also_at_the_last_place(gallery, data, exclude_self):
    queries = (
        gallery
        if exclude_self
        else data.draw(hnp.arrays(np.float32, (5, gallery.shape[1]), elements=st.integers(-2, 2)))
    )
    k = data.draw(st.integers(1, len(gallery) - exclude_self))
    chunk = data.draw(st.sampled_from([None, 1, 2, 3, 100]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "BLOCK", data.draw(st.sampled_from([1, 2, 5, 1024])))
        patch.setattr(knn, "SINGLE_BLOCK", data.draw(st.sampled_from([0, 8192])))
        similarities, indices = nearest_neighbours(queries, gallery, k, exclude_self, chunk)
    expected = oracle(queries, gallery, k, exclude_self)
    np.testing.assert_array_equal(similarities, expected[0])
    np.testing.assert_array_equal(indices, expected[1])
    assert similarities.dtype == np.float32
    assert indices.dtype == np.int64
    if exclude_self:
        assert not (indices == np.arange(len(gallery))[:, None]).any()


def test_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    gallery, queries = unit(rng.normal(size=(700, 24))), unit(rng.normal(size=(90, 24)))
    distances, expected = (
        NearestNeighbors(n_neighbors=9, metric="cosine", algorithm="brute").fit(gallery).kneighbors(queries)
    )
    similarities, indices = nearest_neighbours(queries, gallery, 9)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(similarities, 1 - distances, atol=1e-6)


def test_order_below_the_precision_of_a_float32_product():
    # All rows lie within 1e-6 of one another: a float32 product alone cannot order them.
    rng = np.random.default_rng(1)
    gallery = unit(rng.normal(size=(1, 200)) + 2e-6 * rng.normal(size=(150, 200)))
    naive = np.argsort(-(gallery @ gallery.T), axis=1, kind="stable")[:, :5]
    similarities, indices = nearest_neighbours(gallery[:20], gallery, 5)
    expected = oracle(gallery[:20], gallery, 5)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_array_equal(similarities, expected[0])
    assert (naive[:20] != indices).any()  # else the case is too easy to tell


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 7, 37, 129])
def test_duplicates_tie_at_any_place_and_for_any_chunk(dim):
    rng = np.random.default_rng(dim)
    rows = unit(rng.normal(size=(211, dim)))
    gallery = np.concatenate([rows, rows[::-1], rows, rows[:3]])
    whole = nearest_neighbours(gallery, gallery, 12, exclude_self=True)
    for chunk in (1, 64, 635):
        pieces = nearest_neighbours(gallery, gallery, 12, exclude_self=True, chunk=chunk)
        np.testing.assert_array_equal(pieces[0], whole[0])
        np.testing.assert_array_equal(pieces[1], whole[1])
    similarities, indices = whole
    falling = similarities[:, :-1] > similarities[:, 1:]
    level = similarities[:, :-1] == similarities[:, 1:]
    assert (falling | (level & (indices[:, :-1] < indices[:, 1:]))).all()
    if dim > 1:  # each row stands three or four times: its two or three twins come first
        twins = gallery[indices[:, :2]]
        np.testing.assert_array_equal(twins, np.repeat(gallery[:, None], 2, axis=1))


def test_collapsed_embeddings_are_all_ties():
    gallery = np.repeat(unit(np.random.default_rng(2).normal(size=(1, 50))), 300, axis=0)
    _, indices = nearest_neighbours(gallery, gallery, 4, exclude_self=True)
    assert indices[0].tolist() == [1, 2, 3, 4]
    assert indices[2].tolist() == [0, 1, 3, 4]
    assert (indices[5:] == [0, 1, 2, 3]).all()


def test_the_whole_gallery_can_be_ranked():
    rng = np.random.default_rng(3)
    queries, gallery = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(40, 5)).astype(np.float32)
    similarities, indices = nearest_neighbours(queries, gallery, 40)
    expected = oracle(queries, gallery, 40)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_array_equal(similarities, expected[0])


# The products of the second underflow: what is left of them are a few of float32's smallest steps.
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-12, 1e15])
def test_rows_of_any_length_are_ordered(scale):
    rng = np.random.default_rng(4)
    queries = (rng.normal(size=(40, 30)) * scale).astype(np.float32)
    gallery = (rng.normal(size=(300, 30)) * scale).astype(np.float32)
    products = (queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)
    indices = nearest_neighbours(queries, gallery, 7)[1]
    np.testing.assert_array_equal(indices, np.argsort(-products, axis=1, kind="stable")[:, :7])


def test_negative_zero_ties_with_zero():
    gallery = np.array([[0, -1], [0, 1], [-0.0, -1]], np.float32)
    _, indices = nearest_neighbours(np.array([[1, 0], [-1, 0]], np.float32), gallery, 2)
    assert indices.tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "convert", [np.ndarray.tolist, torch.from_numpy, lambda a: a.astype(np.float64), np.asfortranarray]
)
def test_takes_anything_that_is_an_array(convert):
    rows = unit(np.random.default_rng(5).normal(size=(20, 6)))
    expected = nearest_neighbours(rows, rows, 3)
    neighbours = nearest_neighbours(convert(rows), convert(rows), 3)
    np.testing.assert_array_equal(neighbours[1], expected[1])


def kinds_of_rows():
    rng = np.random.default_rng(7)
    noise = unit(rng.normal(size=(403, 40)))
    yield "noise", noise
    classes = unit(noise[np.arange(403) // 7] + 0.3 * noise)
    yield "classes, in order", classes
    yield "classes, mixed", classes[rng.permutation(403)]
    yield "heavy tails", (rng.standard_t(1.5, size=(403, 40)) ** 3).astype(np.float32)
    yield "one long row", np.concatenate([noise[:300], 1e4 * noise[:1], noise[300:]])
    yield "duplicates", np.repeat(noise[:57], 7, axis=0)
    yield "nearly one point", unit(noise[:1] + 1e-6 * noise)
    yield "half collapsed", np.concatenate([np.repeat(noise[:1], 200, axis=0), noise[:203]])
    yield "zeros", np.where(np.arange(403)[:, None] % 3 == 0, np.float32(0), noise)
    yield "tiny", (noise * 1e-21).astype(np.float32)


def definition(queries, gallery, k, exclude_self):
    """Double precision, rounded to float32; -0 is 0."""
    exact = (queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32) + np.float32(0)
    if exclude_self:
        np.fill_diagonal(exact, -np.inf)
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(exact, order, axis=1), order


KINDS = dict(kinds_of_rows())


@cache
def expected_of(name, k, exclude_self):
    """The queries of a kind of rows and what they find by definition, which takes longer than any way of finding it."""
    rows = KINDS[name]
    queries = rows if exclude_self else rows[::-1][:130]
    return queries, definition(queries, rows, k, exclude_self)


# The prefilter is not used for a single block (8192 rows), and a device has blocks of its own.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "whole"),
    [("float32", 0), ("float32", 8192), ("int8", 0), ("int8", 8192), ("prefilter", 0), ("device", 0)],
)
@pytest.mark.parametrize("name", KINDS)
def test_many_blocks_give_the_exact_neighbours(request, monkeypatch, name, whole, kind):
    rows = KINDS[name]
    if kind in ("int8", "prefilter"):
        request.getfixturevalue(kind)
    if kind == "device":  # the code for a GPU runs on the CPU
        monkeypatch.setattr(gpu, "device", lambda: "cpu")
        monkeypatch.setattr(gpu, "_SEARCH_PRODUCTS", 64 * len(rows))
        monkeypatch.setattr(gpu, "_GATHER_NUMBERS", 2**12)
    monkeypatch.setattr(knn, "BLOCK", 64)
    monkeypatch.setattr(knn, "SINGLE_BLOCK", whole)
    monkeypatch.setattr(knn, "can_multiply_int8", lambda dim: kind == "int8")
    monkeypatch.setattr(knn, "can_prefilter", lambda dim: kind == "prefilter")
    monkeypatch.setattr(knn, "prefilter_pays", lambda *sizes: True)
    for k, exclude_self in ((1, True), (9, True), (100, True), (9, False)):
        queries, expected = expected_of(name, k, exclude_self)
        similarities, indices = nearest_neighbours(queries, rows, k, exclude_self)
        np.testing.assert_array_equal(indices, expected[1], f"{name}, k = {k}")
        np.testing.assert_array_equal(similarities, expected[0])
        chunks = list(neighbour_chunks(queries, rows, k, exclude_self, exact=False))
        np.testing.assert_array_equal(np.concatenate([neighbours for _, _, neighbours in chunks]), expected[1])
        assert [rows.start for rows, _, _ in chunks] == sorted(rows.start for rows, _, _ in chunks)


def test_a_gpu_is_used_if_the_rows_fit(monkeypatch, tmp_path):
    rows = unit(np.random.default_rng(2).normal(size=(1500, 16)))
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")  # cannot be written, which torch warns of
    expected = nearest_neighbours(rows, rows, 3)
    assert gpu.search_on_gpu(rows, rows) is None or torch.cuda.is_available()
    monkeypatch.setattr(gpu, "device", lambda: "cpu")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)  # as some programs do; it must not matter
    try:
        for neighbours, wanted in zip(nearest_neighbours(mapped, mapped, 3), expected, strict=True):
            np.testing.assert_array_equal(neighbours, wanted)
        assert torch.get_float32_matmul_precision() == "high"  # the setting of the program is restored
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_default_dtype(torch.float32)

    def full(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gpu, "GpuSearch", full)
    np.testing.assert_array_equal(nearest_neighbours(rows, rows, 3)[1], expected[1])


def test_a_gpu_with_little_memory_searches_in_smaller_chunks(monkeypatch):
    rows = unit(np.random.default_rng(2).normal(size=(1500, 16)))
    expected = nearest_neighbours(rows, rows, 3, exclude_self=True)
    monkeypatch.setattr(gpu, "device", lambda: "cpu")
    whole, sizes = gpu.GpuSearch._nearest, []

    def crowded(self, rows, *args):
        sizes.append(rows.stop - rows.start)
        if sizes[-1] > most:
            raise torch.OutOfMemoryError
        return whole(self, rows, *args)

    monkeypatch.setattr(gpu.GpuSearch, "_nearest", crowded)
    most = 400
    neighbours = nearest_neighbours(rows, rows, 3, exclude_self=True)
    assert sizes == [1500, 750, 375, 375, 375, 375]
    for ours, theirs in zip(neighbours, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    sizes.clear()
    assert len(nearest_neighbours(rows[:1200], rows, 3, chunk=200)[0]) == 1200
    assert sizes == [200] * 6
    most = 0
    neighbours = nearest_neighbours(rows[:7], rows, 3)  # not even one row fits
    np.testing.assert_array_equal(neighbours[1], definition(rows[:7], rows, 3, False)[1])


def test_no_8_bit_products_where_torch_is_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert not knn_int8.can_multiply_int8(512)


def test_8_bit_products_that_saturate_are_not_used(int8, monkeypatch):
    def saturating(a, b, out):  # two products at a time come to 16 bits, as without VNNI
        unsigned, signed = a.numpy().astype(np.int64) + 128, b.numpy().astype(np.int64)
        pairs = [unsigned[:, i : i + 2] @ signed[i : i + 2] for i in range(0, len(signed), 2)]
        whole = sum(np.clip(pair, -(2**15), 2**15 - 1) for pair in pairs) - 128 * signed.sum(0)
        out.copy_(torch.from_numpy(whole.astype(np.int32)))

    knn_int8._sums_are_exact.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "_int_mm", saturating)
            assert not knn_int8.can_multiply_int8(64)
        knn_int8._sums_are_exact.cache_clear()
        assert knn_int8.can_multiply_int8(64)
    finally:
        knn_int8._sums_are_exact.cache_clear()


@pytest.mark.parametrize("kind", ["int8", "prefilter"])
def test_8_bit_products_miss_no_pair_that_float32_finds(request, monkeypatch, kind):
    request.getfixturevalue(kind)
    monkeypatch.setattr(knn_int8, "_AVX2_SPARSITY", 1)  # no block falls back to float32 for having many pairs
    products = {"int8": knn_int8.Int8Products, "prefilter": knn_int8.PrefilteredProducts}[kind]
    for name, rows in kinds_of_rows():
        exact = rows.astype(np.float64) @ rows.astype(np.float64).T
        floors = np.sort(exact, axis=1)[:, -12].astype(np.float32)
        if kind == "prefilter" and name == "tiny":  # the coarse products are too coarse for these rows
            exact -= knn._slack(rows, rows)[:, None]
        short = products(rows, rows, 128, 128)
        for a, b in ((slice(0, 128), slice(128, 256)), (slice(128, 256), slice(256, 384))):
            r, c, _ = short.reaching(a, b, floors[a], floors[b])
            block = exact[a, b]
            wanted = (block >= floors[a][:, None].astype(np.float64)) | (block >= floors[b].astype(np.float64))
            assert set(np.flatnonzero(wanted)) <= set(r * 128 + c), name
            assert (np.diff(r * 128 + c) > 0).all()


def test_the_prefilter_is_used_for_large_galleries_on_avx2(prefilter, monkeypatch):
    rows = np.random.default_rng(5).normal(size=(700, 64)).astype(np.float32)
    monkeypatch.setattr(knn, "can_multiply_int8", lambda dim: False)

    def products_of(queries=rows, gallery=rows, columns=64):
        return type(knn._choose_products(queries, gallery, 64, columns))

    assert products_of() is knn_int8.PrefilteredProducts
    assert products_of(columns=700) is matmul.Float32Products  # all at once: no floors are known
    assert products_of(rows[:255]) is matmul.Float32Products
    assert products_of(rows[:, :63].copy(), rows[:, :63].copy()) is matmul.Float32Products
    with monkeypatch.context() as patch:
        patch.setattr(knn, "AVX2_MAX_NUMBERS", 700 * 64 - 1)
        assert products_of() is matmul.Float32Products
    with monkeypatch.context() as patch:
        patch.setattr(knn_int8, "_processor_has_avx2", lambda: False)
        assert products_of() is matmul.Float32Products
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        assert products_of() is matmul.Float32Products


@pytest.mark.filterwarnings("error")
def test_rows_of_very_different_lengths_are_prefiltered_without_a_warning(prefilter):
    rows = np.random.default_rng(8).normal(size=(256, 64)).astype(np.float32)
    rows[:128] *= np.float32(1e-30)
    short = knn_int8.PrefilteredProducts(rows, rows, 128, 128)
    floors = np.full(128, np.float32(1e9))
    assert len(short.reaching(slice(0, 128), slice(128, 256), floors, floors)[0]) == 0


@pytest.mark.parametrize(("largest", "singly"), [(127, False), (64, True), (64, False)])
def test_rounding_changes_no_product_by_more_than_its_bound(largest, singly):
    for name, rows in kinds_of_rows():
        ours, theirs = QuantizedRows(rows[:200], 50), QuantizedRows(rows, 64, largest, singly)
        assert np.abs(theirs.integers).max() <= largest
        steps = theirs.steps if singly else np.repeat(theirs.steps, 64)[: len(rows)]
        rounded = (ours.integers * np.repeat(ours.steps, 50)[:, None]) @ (theirs.integers * steps[:, None]).T
        wrong = np.abs(rounded - rows[:200].astype(np.float64) @ rows.T.astype(np.float64))
        for block in range(7):
            bound = ours.error_bounds(slice(0, 200), theirs, block)[:, None]
            assert (wrong[:, 64 * block : 64 * (block + 1)] <= bound).all(), name


def test_memory_mapped_rows(tmp_path):
    rows = unit(np.random.default_rng(6).normal(size=(30, 4)))
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    np.testing.assert_array_equal(
        nearest_neighbours(mapped, mapped, 3, True)[1], nearest_neighbours(rows, rows, 3, True)[1]
    )


def test_no_queries_give_no_rows():
    similarities, indices = nearest_neighbours(np.empty((0, 3), np.float32), np.eye(3), 2)
    assert similarities.shape == indices.shape == (0, 2)


EYE = np.eye(4, dtype=np.float32)
SPOILT = np.where(np.arange(4)[:, None] == 2, np.float32(np.nan), EYE)


@pytest.mark.parametrize(
    ("queries", "gallery", "k", "exclude_self", "code", "value"),
    [
        (EYE, EYE, 5, False, "too-few-samples", "only 4 row"),
        (EYE, EYE, 4, True, "too-few-samples", "only 3 row"),
        (EYE, EYE[:0], 1, False, "too-few-samples", "only 0 row"),
        (EYE, EYE, 0, False, "invalid-value", "0"),
        (EYE, EYE, 1.5, False, "invalid-value", "1.5"),
        (EYE, EYE[:, :3], 1, False, "invalid-embedding", "4 dimensions"),
        (EYE[0], EYE, 1, False, "invalid-embedding", "queries"),
        (EYE, np.array([["a"]]), 1, False, "invalid-embedding", "gallery"),
        (EYE, [[1.0, 2.0], [3.0]], 1, False, "invalid-embedding", "gallery"),
        (SPOILT, EYE, 1, False, "not-finite", "row 2 of queries"),
        (EYE, np.eye(4) * 1e300, 1, False, "not-finite", "row 0 of gallery"),
        (EYE * 1e20, EYE * 1e20, 1, False, "too-large", ""),
        (EYE, EYE[::-1], 1, True, "evaluation", ""),
        (EYE, EYE[:3], 1, True, "evaluation", ""),
    ],
)
def test_invalid_arguments_are_refused(queries, gallery, k, exclude_self, code, value):
    with raises(EvaluationError, code) as caught:
        nearest_neighbours(queries, gallery, k, exclude_self)
    assert value in str(caught.value)


def test_a_chunk_below_one_is_refused_before_any_work():
    with raises(EvaluationError, "invalid-value"):
        neighbour_chunks(EYE, EYE, 1, chunk=0)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from([1, 7, 128, 2048]), st.integers(-24, 21))
def test_bounds_on_lengths_hold_and_are_tight(seed, dim, exponent):
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((5, dim)) * 10.0 ** (exponent + rng.integers(-3, 1, (5, 1)))).astype(np.float32)
    true = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
    bounds = matmul.norm_bounds(rows)
    assert (bounds >= true).all()
    assert (bounds <= true * 1.0003 + 1e-17).all()
