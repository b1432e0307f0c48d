"""Comparison of whitened features with plain ones, on classes that the whitening is not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zoo.data.dataset import FOLDER, Dataset
from zoo.errors import UsageError
from zoo.evaluation.selection import CHOSEN_BY, MetricChange, measure_change
from zoo.evaluation.split import LEAST_TO_SPLIT

HELD_OUT = 0.3
"""Share of the classes that are held out."""


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
        classes: The class of each of the n images.
        dim: Dimensions that whitening keeps; None for all.
        shrink: As in `fit_whitening`.

    Returns:
        The comparison; None for fewer than eight classes of two images, or too few images to fit.
    """
    from zoo.models.baseline_folder import fit_whitening

    names, labels, counts = np.unique(np.asarray(classes), return_inverse=True, return_counts=True)
    usable = np.flatnonzero(counts > 1)
    if len(usable) < LEAST_TO_SPLIT:
        return None
    drawn = np.random.default_rng(0).choice(usable, max(2, round(HELD_OUT * len(usable))), replace=False)
    held = np.isin(labels, drawn)
    try:
        weight, bias = fit_whitening(features[~held], dim, shrink)
    except UsageError:
        return None
    plain = features[held]
    _, own = np.unique(labels[held], return_inverse=True)
    places = [str(row) for row in np.flatnonzero(held)]
    images = Dataset(FOLDER, "test", places, own, tuple(names[np.unique(labels[held])]), places)
    rows = measure_change(plain, plain @ weight.T + bias, images)
    chosen = next(row for row in rows if row.metric == CHOSEN_BY)
    worse = chosen.difference_interval[1] < 0
    return WhiteningComparison(len(drawn), int(held.sum()), rows, worse, dim is not None or not worse)
