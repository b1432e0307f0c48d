"""Comparison of whitened features with plain ones, on classes that the whitening is not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zoo.data.dataset import FOLDER, WHOLE, Dataset, subset
from zoo.data.folder import split_classes
from zoo.errors import UsageError
from zoo.evaluation.selection import CHOSEN_BY, MetricChange, measure_change
from zoo.evaluation.split import LEAST_TO_SPLIT
from zoo.models.whitening import fit_whitening


@dataclass(frozen=True)
class WhiteningComparison:
    """Metrics of plain and whitened features on held-out classes.

    Attributes:
        classes: Number of held-out classes.
        images: Number of their images.
        rows: Each metric, before and after whitening.
        worse: True if MAP@R falls by the whole 95 % interval.
        kept: True if the model is whitened: it is not worse, or a dimension was asked for.
    """

    classes: int
    images: int
    rows: tuple[MetricChange, ...]
    worse: bool
    kept: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def text(self) -> str:
        """Return the comparison as a sentence."""
        changes = ", ".join(
            f"{row.metric} {row.before:.3f} to {row.after:.3f} ({row.difference:+.3f}, 95 % "
            f"{row.difference_interval[0]:+.3f} to {row.difference_interval[1]:+.3f})"
            for row in self.rows
        )
        outcome = "the whitened model is kept"
        if self.worse:
            outcome = "worse, and kept because of --dim" if self.kept else "worse, so the plain model is kept"
        return f"on {self.images:,} images of {self.classes} held-out classes, whitened: {changes}; {outcome}"


def compare_whitening(
    features: np.ndarray, classes: Sequence[str], dim: int | None, shrink: float = 0.0
) -> WhiteningComparison | None:
    """Fit whitening on a part of the classes, and compare it with plain features on the others.

    Args:
        features: Pooled features float32 [n, f].
        classes: The class of each of the n images; images without one ("") are only fitted on.
        dim: Dimensions that whitening keeps; None for all.
        shrink: As in `fit_whitening`.

    Returns:
        The comparison; None for fewer than eight classes of two images, or too few images to fit.
    """
    names, labels, counts = np.unique(np.asarray(classes), return_inverse=True, return_counts=True)
    usable = (counts > 1) & (names != "")
    if usable.sum() < LEAST_TO_SPLIT:
        return None
    places = [str(row) for row in range(len(labels))]
    images = Dataset(FOLDER, WHOLE, places, labels, tuple(names.tolist()), places)
    held_out = split_classes(subset(images, usable[labels])).test
    held = np.isin(places, held_out.sources)
    try:
        weight, bias = fit_whitening(features[~held], dim, shrink)
    except UsageError:
        return None
    plain = features[held]
    rows = measure_change(plain, plain @ weight.T + bias, held_out)
    chosen = next(row for row in rows if row.metric == CHOSEN_BY)
    worse = chosen.difference_interval[1] < 0
    return WhiteningComparison(len(held_out.classes), len(held_out), rows, worse, dim is not None or not worse)
