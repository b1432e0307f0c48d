from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gallery.search import expanded, k_reciprocal


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_an_expanded_query_by_hand():
    query = np.array([1.0, 0.0])
    neighbours = np.array([[0.8, 0.6], [0.6, -0.8], [-1.0, 0.0]])
    total = np.array([1.0, 0.0]) + 0.8**3 * neighbours[0] + 0.6**3 * neighbours[1]
    np.testing.assert_allclose(expanded(query, neighbours), total / np.sqrt((total**2).sum()))
    average = query + neighbours[0] + neighbours[1] + neighbours[2]
    np.testing.assert_allclose(expanded(query, neighbours, alpha=0), average / np.linalg.norm(average))
    np.testing.assert_allclose(expanded(query, neighbours[:0]), query)


def naive(query: np.ndarray, candidates: np.ndarray, k1: int, k2: int, keep: float) -> list[float]:
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
def test_k_reciprocal_is_the_papers(m, k1, k2, keep, seed):
    rows = unit(np.random.default_rng(seed).normal(size=(m + 1, 3)))
    np.testing.assert_allclose(
        k_reciprocal(rows[0], rows[1:], k1, k2, keep), naive(rows[0], rows[1:], k1, k2, keep), atol=1e-12
    )


def test_members_of_the_querys_cluster_come_before_an_intruder():
    draw = np.random.default_rng(0)
    mine, others = draw.normal([3, 0, 0], 0.5, (30, 3)), draw.normal([2, 2, 0], 0.15, (30, 3))
    rows = unit(np.concatenate([mine, others]))
    query = rows[0]
    order = np.argsort(k_reciprocal(query, rows[1:], keep=0.0))
    plain = np.argsort(-rows[1:] @ query)
    assert (order[:20] < 29).sum() >= (plain[:20] < 29).sum()


@pytest.mark.parametrize("same", [1, 5])
def test_duplicates_and_single_candidates_are_finite(same):
    rows = np.repeat(unit(np.ones((1, 4))), same + 1, axis=0)
    assert np.isfinite(k_reciprocal(rows[0], rows[1:])).all()
