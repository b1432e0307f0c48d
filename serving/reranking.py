"""Second thoughts about the first results: query expansion, and k-reciprocal neighbours.

Both work on the embeddings of the nearest candidates alone, so that they cost the same in a gallery of any size.
"""

from __future__ import annotations

import numpy as np

NONE, EXPANSION, RECIPROCAL = "none", "expansion", "reciprocal"
KINDS = (NONE, EXPANSION, RECIPROCAL)


def expanded(query: np.ndarray, neighbours: np.ndarray, alpha: float = 3.0) -> np.ndarray:
    """The unit vector of the query and its first neighbours, each weighted by its similarity to the power `alpha`.

    query: unit row [d]; neighbours: unit rows [m, d], the nearest first. The expanded query is searched with once more
    (Radenovic et al. 2019, Fine-tuning CNN Image Retrieval with No Human Annotation, section 3.5; alpha 0 is the
    average query expansion of Chum et al. 2007). Neighbours on the other side of the sphere have no weight.
    """
    weights = np.clip(neighbours @ query, 0, None) ** alpha
    total = query + weights @ neighbours
    return total / np.linalg.norm(total)


def k_reciprocal(query: np.ndarray, candidates: np.ndarray, k1: int = 20, k2: int = 6, keep: float = 0.3) -> np.ndarray:
    """Distances [m] of the candidates by the neighbours that they share with the query; smaller is nearer.

    query: unit row [d]; candidates: unit rows [m, d]. (1 - keep) times the Jaccard distance of k-reciprocal neighbours
    plus keep times the squared Euclidean distance (Zhong et al. 2017, Re-ranking Person Re-identification with
    k-reciprocal Encoding, equations 2 to 12; k1, k2 and keep are its section 4). The paper's gallery is the candidates
    here. O(m^2 d) time, O(m^2) memory.
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


def _expanded_sets(order: np.ndarray, k: int) -> np.ndarray:
    """Bool [n, n]: row i marks R*(i, k), its k-reciprocal neighbours and those of theirs (equation 5)."""
    whole, half = _reciprocal(order, k), _reciprocal(order, max(1, k // 2))
    common = whole.astype(np.int32) @ half.T.astype(np.int32)
    taken = whole & (3 * common >= 2 * half.sum(axis=1))
    return whole | (taken.astype(np.int32) @ half.astype(np.int32) > 0)


def _reciprocal(order: np.ndarray, k: int) -> np.ndarray:
    """Bool [n, n]: both are among the other's `k` nearest; each is its own neighbour besides (equation 3)."""
    near = np.zeros(order.shape, bool)
    np.put_along_axis(near, order[:, : k + 1], True, axis=1)
    return near & near.T
