"""Re-rankings against loops over the papers' definitions, and against scipy's conjugate gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raising import raises
from zoo.errors import UsageError
from zoo.evaluation import evaluate, per_query
from zoo.evaluation.rerank.order import CANDIDATES, METHODS, SCORES, reranked
from zoo.evaluation.rerank.scores import augmented, conjugate_gradients, diffused, expanded, k_reciprocal


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def drawn(n: int, seed: int, dim: int = 4) -> np.ndarray:
    """Unit rows around a few directions."""
    draw = np.random.default_rng(seed)
    return unit(draw.normal(size=(3, dim))[draw.integers(3, size=n)] + 0.7 * draw.normal(size=(n, dim)))


def nearest_first(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows[np.argsort(-rows @ query, kind="stable")]


def test_an_expanded_query_by_hand() -> None:
    query = np.array([1.0, 0.0])
    neighbours = np.array([[0.8, 0.6], [0.6, -0.8], [-1.0, 0.0]])
    total = np.array([1.0, 0.0]) + 0.8**3 * neighbours[0] + 0.6**3 * neighbours[1]
    np.testing.assert_allclose(expanded(query, neighbours), total / np.sqrt((total**2).sum()))
    average = query + neighbours[0] + neighbours[1] + neighbours[2]
    np.testing.assert_allclose(expanded(query, neighbours, alpha=0), average / np.linalg.norm(average))
    np.testing.assert_allclose(expanded(query, neighbours[:0]), query)


def naive_reciprocal(query: np.ndarray, candidates: np.ndarray, k1: int, k2: int, keep: float) -> list[float]:
    """The paper's sets, as sets."""
    rows = [query, *candidates]
    n = len(rows)
    d = [[float(((a - b) ** 2).sum()) for b in rows] for a in rows]
    near = [sorted(range(n), key=lambda j: (d[i][j], j)) for i in range(n)]

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in near[i][: k + 1] if i in near[j][: k + 1]}

    def wider(i: int) -> set[int]:
        k = min(k1, n - 1)
        out = reciprocal(i, k)
        for j in reciprocal(i, k):
            theirs = reciprocal(j, max(1, k // 2))
            if len(reciprocal(i, k) & theirs) >= 2 / 3 * len(theirs) - 1e-12:
                out |= theirs
        return out

    v = [[np.exp(-d[i][j]) if j in wider(i) else 0.0 for j in range(n)] for i in range(n)]
    v = [[sum(v[m][j] for m in near[i][:k2]) / len(near[i][:k2]) for j in range(n)] for i in range(n)]
    jaccard = [
        1 - sum(map(min, v[0], v[i])) / sum(map(max, v[0], v[i])) for i in range(1, n)
    ]  # fmt: skip
    return [(1 - keep) * jaccard[i - 1] + keep * d[0][i] for i in range(1, n)]


@settings(max_examples=25)
@given(st.integers(1, 14), st.integers(1, 8), st.integers(1, 4), st.floats(0, 1), st.integers(0, 1000))
def test_k_reciprocal_is_the_papers(m: int, k1: int, k2: int, keep: float, seed: int) -> None:
    rows = unit(np.random.default_rng(seed).normal(size=(m + 1, 3)))
    np.testing.assert_allclose(
        k_reciprocal(rows[0], rows[1:], k1, k2, keep), naive_reciprocal(rows[0], rows[1:], k1, k2, keep), atol=1e-12
    )


def test_members_of_the_querys_cluster_come_before_an_intruder() -> None:
    draw = np.random.default_rng(0)
    mine, others = draw.normal([3, 0, 0], 0.5, (30, 3)), draw.normal([2, 2, 0], 0.15, (30, 3))
    rows = unit(np.concatenate([mine, others]))
    query = rows[0]
    order = np.argsort(k_reciprocal(query, rows[1:], keep=0.0))
    plain = np.argsort(-rows[1:] @ query)
    assert (order[:20] < 29).sum() >= (plain[:20] < 29).sum()


@pytest.mark.parametrize("same", [1, 5])
def test_duplicates_and_single_candidates_are_finite(same: int) -> None:
    rows = np.repeat(unit(np.ones((1, 4))), same + 1, axis=0)
    assert np.isfinite(k_reciprocal(rows[0], rows[1:])).all()
    assert np.isfinite(augmented(rows[0], rows[1:])).all()
    assert np.isfinite(diffused(rows[0], rows[1:])).all()


def naive_augmented(query: np.ndarray, candidates: np.ndarray, k: int, alpha: float) -> list[float]:
    def wider(row: np.ndarray, own: int | None) -> np.ndarray:
        others = [j for j in range(len(candidates)) if j != own]
        near = sorted(others, key=lambda j: -float(row @ candidates[j]))[:k]
        total = row + sum(
            (max(0.0, float(row @ candidates[j])) ** alpha * candidates[j] for j in near), np.zeros(len(row))
        )
        return np.asarray(total / np.sqrt((total**2).sum()))

    return [float(wider(query, None) @ wider(row, j)) for j, row in enumerate(candidates)]


@pytest.mark.parametrize(("m", "k", "alpha"), [(1, 3, 3.0), (7, 3, 3.0), (30, 10, 3.0), (30, 5, 1.0), (4, 10, 2.0)])
@pytest.mark.parametrize("seed", range(3))
def test_augmented_is_the_loop(m: int, k: int, alpha: float, seed: int) -> None:
    rows = drawn(m + 1, seed)
    expected = naive_augmented(rows[0], rows[1:], k, alpha)
    np.testing.assert_allclose(augmented(rows[0], rows[1:], k, alpha), expected, atol=1e-12)


def naive_graph(rows: np.ndarray, k: int, gamma: float) -> np.ndarray:
    """S of Iscen et al. 2017: mutual neighbours, similarities to the power gamma, symmetrically normalised."""
    n = len(rows)
    near = [sorted((j for j in range(n) if j != i), key=lambda j: (-float(rows[i] @ rows[j]), j))[:k] for i in range(n)]
    a = np.zeros((n, n))
    for i in range(n):
        for j in near[i]:
            if i in near[j]:
                a[i, j] = max(0.0, float(rows[i] @ rows[j])) ** gamma
    degree = a.sum(1)
    for i in range(n):
        for j in range(n):
            a[i, j] = a[i, j] / np.sqrt(degree[i] * degree[j]) if a[i, j] else 0.0
    return a


def naive_seeds(query: np.ndarray, rows: np.ndarray, query_k: int, gamma: float) -> np.ndarray:
    y, order = np.zeros(len(rows)), sorted(range(len(rows)), key=lambda j: (-float(rows[j] @ query), j))
    for j in order[:query_k]:
        y[j] = max(0.0, float(rows[j] @ query)) ** gamma
    return y


@pytest.mark.parametrize(("m", "k", "query_k"), [(1, 3, 2), (2, 5, 5), (12, 3, 2), (40, 8, 4), (40, 50, 10)])
@pytest.mark.parametrize("seed", range(3))
def test_diffusion_solves_the_papers_system(m: int, k: int, query_k: int, seed: int) -> None:
    rows = drawn(m + 1, seed)
    query, candidates = rows[0], nearest_first(rows[0], rows[1:])
    system = np.eye(m) - 0.99 * naive_graph(candidates, k, 3)
    expected = np.linalg.solve(system, naive_seeds(query, candidates, query_k, 3))
    actual = diffused(query, candidates, k, query_k, alpha=0.99, iterations=500)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_twenty_iterations_are_those_of_scipy(seed: int) -> None:
    rows = drawn(61, seed)
    query, candidates = rows[0], nearest_first(rows[0], rows[1:])
    system = np.eye(60) - 0.99 * naive_graph(candidates, 9, 3)
    y = naive_seeds(query, candidates, 10, 3)
    expected, _ = scipy.sparse.linalg.cg(system, y, rtol=0, maxiter=20)
    np.testing.assert_allclose(diffused(query, candidates, k=9, query_k=10, alpha=0.99), expected, rtol=1e-6, atol=1e-9)


def test_conjugate_gradients_solve_a_system_in_as_many_steps_as_it_has_unknowns() -> None:
    matrix, y = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    np.testing.assert_allclose(conjugate_gradients(lambda f: matrix @ f, y, 2), [1 / 11, 7 / 11], atol=1e-12)
    assert conjugate_gradients(lambda f: matrix @ f, np.zeros(2), 5).tolist() == [0, 0]


def test_diffusion_follows_a_chain_that_similarity_leaves() -> None:
    """A class forms an arc, whose far end is less similar to the query than intruders beside the arc."""
    arc = np.deg2rad(np.arange(0, 100, 5))
    chain = np.stack([np.cos(arc), np.sin(arc), np.zeros_like(arc)], 1)
    intruders = unit(np.array([[np.cos(1.3), 0, np.sin(1.3)], [np.cos(1.35), 0, np.sin(1.35)]]))
    candidates = nearest_first(chain[0], np.concatenate([chain[1:], intruders]))
    of_chain = candidates[:, 2] == 0
    order = np.argsort(-diffused(chain[0], candidates, k=3, query_k=3, alpha=0.99), kind="stable")
    assert of_chain[:19].sum() < 19  # by similarity the intruders come before the arc's end
    assert of_chain[order[:19]].all()


LABELS = np.arange(60) % 6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("apart", [False, True], ids=["leave-one-out", "queries"])
def test_scores_are_those_of_each_query_reranked_alone(method: str, apart: bool) -> None:
    draw = np.random.default_rng(1)
    rows = unit(draw.normal(size=(6, 5))[LABELS] + draw.normal(size=(60, 5))).astype(np.float32)
    query_rows = range(0, 60, 5)
    searched = [j for j in range(60) if j not in query_rows] if apart else list(range(60))
    precision = []
    for i in query_rows if apart else range(60):
        others = [j for j in searched if j != i]
        near = sorted(others, key=lambda j: -float(rows[i].astype(float) @ rows[j].astype(float)))
        if method == "expansion":
            wider = expanded(rows[i], rows[near[:10]])
            near = sorted(others, key=lambda j: -float(wider @ rows[j].astype(float)))
        elif method != "none":
            scores = SCORES[method](rows[i], rows[near])
            near = [near[j] for j in np.argsort(-scores, kind="stable")]
        r = sum(LABELS[j] == LABELS[i] for j in others)
        hits = [LABELS[j] == LABELS[i] for j in near[:r]]
        precision.append(sum(sum(hits[: p + 1]) / (p + 1) for p in range(r) if hits[p]) / r)
    if apart:
        chosen = list(query_rows)
        found = per_query(rows[searched], LABELS[searched], (1,), rows[chosen], LABELS[chosen], rerank=method)
    else:
        found = per_query(rows, LABELS, (1,), rerank=method)
    np.testing.assert_allclose(found.values["map_at_r"], precision, atol=1e-6)


@pytest.mark.parametrize("method", SCORES)
def test_rows_behind_the_candidates_keep_their_order(method: str) -> None:
    rows = drawn(CANDIDATES + 60, 0, 8)
    near = np.argsort(-rows[1:] @ rows[0], kind="stable")[None] + 1
    found = reranked(method, rows[:1], rows, near)
    assert sorted(found[0, :CANDIDATES]) == sorted(near[0, :CANDIDATES])
    assert not np.array_equal(found[0, :CANDIDATES], near[0, :CANDIDATES])
    assert np.array_equal(found[0, CANDIDATES:], near[0, CANDIDATES:])


def test_an_evaluation_names_its_reranking() -> None:
    rows = drawn(60, 0)
    assert evaluate(rows, labels=LABELS, rerank="diffusion").protocol.endswith("re-ranked by diffusion")
    assert "re-ranked" not in evaluate(rows, labels=LABELS).protocol


def test_unknown_methods_and_other_groups_are_refused() -> None:
    rows = drawn(60, 0)
    with raises(UsageError, "unknown-name"):
        evaluate(rows, labels=LABELS, rerank="difusion")
    with raises(UsageError, "unknown-name"):
        per_query(rows, LABELS, rerank="difusion")
    with raises(UsageError, "conflicting-options"):
        evaluate(rows, labels=LABELS, memory="2GiB", rerank="diffusion")
    with raises(UsageError, "conflicting-options"):
        evaluate(rows, labels=LABELS, metrics="all", rerank="diffusion")
