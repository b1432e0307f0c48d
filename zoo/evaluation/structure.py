"""Structure of an embedding space, apart from any ranking (Roth et al. 2020, Revisiting, section 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.neighbours import as_rows


def spectral_decay(embeddings: Any) -> float:
    """rho = KL(U || S): how unevenly the embeddings use their directions; 0 where they use all alike, no upper end.

    embeddings: [n, d]. S holds the k = min(n, d) singular values, of the rows as they are (not centred), over their
    sum; U is uniform over k. In nats (Revisiting, section 5). The scale of the embeddings does not matter.

    A direction that is not used at all would make the divergence infinite. Singular values below double precision's
    rounding therefore count as that rounding, so that the result stays a number (some tens of nats at most).

    Raises `EvaluationError` for rows that are not 2-D and finite, for no rows, and where all are zero.
    """
    rows = as_rows(embeddings, "embeddings").astype(np.float64)
    if not rows.any():
        raise EvaluationError("spectral decay needs at least one row that is not zero.")
    values = np.linalg.svd(rows, compute_uv=False)
    rounding = values[0] * max(rows.shape) * np.finfo(np.float64).eps
    shares = np.maximum(values, rounding)
    shares /= shares.sum()
    return float(-np.log(len(shares) * shares).mean())
