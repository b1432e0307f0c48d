"""What an embedding knows of the factors beside the class, where a data set has them (glyphs)."""

from __future__ import annotations

import numpy as np

from training.studies.study import CATEGORIES, MEASURED
from zoo.data.dataset import Dataset
from zoo.errors import DatasetError
from zoo.evaluation.factors import across_classes, order_within_classes


def factor_metrics(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    """`factor_NAME` of each factor, of unit rows [n, d].

    Of kinds the precision of the nearest neighbour of another class, of sizes how well distances within a class follow
    them (`zoo.evaluation.factors`). Raises `DatasetError` where the data set lacks a factor.
    """
    for name in (*CATEGORIES, *MEASURED):
        if name not in dataset.factors:
            raise DatasetError(f"{dataset.name} has no factor {name!r}; only glyphs has all that are measured.")
    known = dataset.factors
    across = {name: across_classes(rows, dataset.labels, known[name])["precision"] for name in CATEGORIES}
    within = {name: order_within_classes(rows, dataset.labels, known[name]) for name in MEASURED}
    return {f"factor_{name}": value for name, value in {**across, **within}.items()}
