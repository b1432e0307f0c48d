"""Scores of re-ranking without labels: query expansion, augmented rows, diffusion and k-reciprocal neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NEIGHBOURS = 10
"""Neighbours that a query is expanded by, and a row augmented by."""


def expanded(query: np.ndarray, neighbours: np.ndarray, alpha: float = 3.0) -> np.ndarray:
    """Return the unit vector of the query and its first neighbours, weighted by their similarity to the power `alpha`.

    The expanded query is searched with once more (Radenovic et al. 2019, Fine-tuning CNN Image Retrieval with No Human
    Annotation, section 3.5; alpha 0 is the average query expansion of Chum et al. 2007). Neighbours on the other side
    of the sphere have no weight.

    Args:
        query: Unit row [d].
        neighbours: Unit rows [m, d], the nearest first.
        alpha: Exponent of the similarities.
    """
    weights = np.clip(neighbours @ query, 0, None) ** alpha
    total = query + weights @ neighbours
    return total / np.linalg.norm(total)


def augmented(query: np.ndarray, candidates: np.ndarray, k: int = NEIGHBOURS, alpha: float = 3.0) -> np.ndarray:
    """Return cosines [m] of the query and the candidates, each of them `expanded` by its k nearest other candidates.

    Database-side augmentation (Arandjelovic and Zisserman 2012, Three Things Everyone Should Know to Improve Object
    Retrieval, section 4) with the weights of Radenovic et al. 2019. O(m^2 d) time, O(m^2) memory.

    Args:
        query: Unit row [d].
        candidates: Unit rows [m, d].
        k: Number of neighbours.
        alpha: Exponent of the similarities.
    """
    rows = np.concatenate([query[None], candidates]).astype(np.float64)
    similarities = rows @ rows[1:].T
    similarities[1:][np.diag_indices(len(candidates))] = -np.inf
    near = _nearest(similarities, k) & (similarities > -np.inf)
    weights = np.where(near, np.clip(similarities, 0, None) ** alpha, 0.0)
    total = rows + weights @ rows[1:]
    total /= np.linalg.norm(total, axis=1, keepdims=True)
    scores: np.ndarray = total[1:] @ total[0]
    return scores


def diffused(
    query: np.ndarray,
    candidates: np.ndarray,
    k: int = 10,
    query_k: int = 10,
    gamma: float = 3.0,
    alpha: float = 0.8,
    iterations: int = 20,
) -> np.ndarray:
    """Return what reaches each candidate, [m], when the query's similarities diffuse over the candidates' graph.

    f solves (I - alpha S) f = y by conjugate gradients. S is the normalised graph of mutual k nearest neighbours, whose
    edges are similarities to the power gamma, and y has those of the query to its `query_k` nearest (Iscen et al. 2017,
    Efficient Diffusion on Region Manifolds, sections 3 and 4, for global descriptors). The graph is truncated to the
    candidates (its section 4.3). A candidate that nothing reaches has 0. O(m^2 d) time, O(m^2) memory.

    query_k, gamma and the iterations are the paper's. Its k 50 and alpha .99 lose on classes of 30 images; those here
    were chosen on training classes of birds and cars.

    Args:
        query: Unit row [d].
        candidates: Unit rows [m, d].
        k: Neighbours in the graph.
        query_k: Neighbours of the query.
        gamma: Exponent of the similarities.
        alpha: Share that moves on, from 0 to below 1.
        iterations: Most iterations of the conjugate gradients.
    """
    rows = candidates.astype(np.float64)
    similarities = rows @ rows.T
    np.fill_diagonal(similarities, -np.inf)
    near = _nearest(similarities, min(k, len(rows) - 1))
    edges = np.where(near & near.T, np.clip(similarities, 0, None) ** gamma, 0.0)
    degrees = edges.sum(axis=1)
    scale = np.where(degrees > 0, degrees, 1.0) ** -0.5
    graph = scale[:, None] * edges * scale
    seeds = (rows @ query.astype(np.float64))[None]
    y = np.where(_nearest(seeds, query_k), np.clip(seeds, 0, None) ** gamma, 0.0)[0]
    return conjugate_gradients(lambda f: f - alpha * (graph @ f), y, iterations)


def conjugate_gradients(operator: Callable[[np.ndarray], np.ndarray], y: np.ndarray, iterations: int) -> np.ndarray:
    """Return f [m] after these iterations towards operator(f) = y, from 0 (Nocedal and Wright 2006, algorithm 5.2).

    Args:
        operator: A symmetric positive definite map.
        y: [m].
        iterations: Most iterations; fewer if f solves the equation to about 10 digits.
    """
    f, residual = np.zeros_like(y), y.copy()
    direction, power = residual.copy(), float(residual @ residual)
    least = 1e-20 * power
    for _ in range(iterations):
        if power <= least:
            break
        moved = operator(direction)
        step = power / float(direction @ moved)
        f += step * direction
        residual -= step * moved
        before, power = power, float(residual @ residual)
        direction = residual + (power / before) * direction
    return f


def k_reciprocal(query: np.ndarray, candidates: np.ndarray, k1: int = 20, k2: int = 6, keep: float = 0.3) -> np.ndarray:
    """Return distances [m] of the candidates by the neighbours that they share with the query; smaller is nearer.

    (1 - keep) times the Jaccard distance of k-reciprocal neighbours plus keep times the squared Euclidean distance
    (Zhong et al. 2017, Re-ranking Person Re-identification with k-reciprocal Encoding, equations 2 to 12; k1, k2 and
    keep are its section 4). O(m^2 d) time, O(m^2) memory.

    Args:
        query: Unit row [d].
        candidates: Unit rows [m, d].
        k1: Neighbours that are compared.
        k2: Neighbours over which a row's set is averaged.
        keep: Weight of the distance itself.
    """
    rows = np.concatenate([query[None], candidates]).astype(np.float64)
    distances = np.clip(2 - 2 * rows @ rows.T, 0, None)
    np.fill_diagonal(distances, 0)
    order = np.argsort(distances, axis=1, kind="stable")
    members = _expanded_sets(order, min(k1, len(rows) - 1))
    weights = np.where(members, np.exp(-distances), 0.0)  # equation 7
    weights = np.stack([weights[nearest].mean(axis=0) for nearest in order[:, : min(k2, len(rows))]])  # equation 11
    shared = np.minimum(weights[0], weights[1:]).sum(axis=1)
    together = np.maximum(weights[0], weights[1:]).sum(axis=1)
    return (1 - keep) * (1 - shared / together) + keep * distances[0, 1:]


def _nearest(similarities: np.ndarray, k: int) -> np.ndarray:
    """Return whether a column is among the k largest of its row, bool [r, m]; of equal ones the first."""
    near = np.zeros(similarities.shape, bool)
    np.put_along_axis(near, np.argsort(-similarities, axis=1, kind="stable")[:, :k], True, axis=1)
    return near


def _expanded_sets(order: np.ndarray, k: int) -> np.ndarray:
    """Return bool [n, n], whose row i marks R*(i, k): its k-reciprocal neighbours and those of theirs (equation 5)."""
    whole, half = _reciprocal(order, k), _reciprocal(order, max(1, k // 2))
    common = whole.astype(np.int32) @ half.T.astype(np.int32)
    taken = whole & (3 * common >= 2 * half.sum(axis=1))
    return whole | (taken.astype(np.int32) @ half.astype(np.int32) > 0)


def _reciprocal(order: np.ndarray, k: int) -> np.ndarray:
    """Return whether two are among each other's `k` nearest, bool [n, n]; each is its own neighbour (equation 3)."""
    near = np.zeros(order.shape, bool)
    np.put_along_axis(near, order[:, : k + 1], True, axis=1)
    return near & near.T
