"""Comparison of whitened features with plain ones, on classes that the whitening is not fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from zoo.console import count
from zoo.data.dataset import DataIdentity, Dataset, subset
from zoo.data.folder import split_classes
from zoo.errors import UsageError
from zoo.evaluation.evaluate import PROTOCOL
from zoo.evaluation.selection import CHOSEN_BY, MetricChange, measure_change
from zoo.evaluation.split import LEAST_TO_SPLIT, RECIPE_FILE
from zoo.files import read_object
from zoo.models.baselines import WHITENING_COMPARISON
from zoo.models.whitening import POWER, SHRINK, default_dim, fit_whitening


@dataclass(frozen=True)
class WhiteningComparison:
    """Metrics of plain and whitened features on held-out classes.

    Attributes:
        model: Name and fingerprint of the plain model; weights outside a model folder have None for it.
        data: The held-out images. The compared whitening is not fitted on their classes.
        fitted_images: Number of images of its fit; the kept model is whitened on the held-out ones too.
        dim: Numbers of the compared whitening.
        protocol: The search protocol.
        share: The share of the classes to hold out.
        seed: The seed that draws them.
        rows: Each metric, before and after whitening.
        worse: True if MAP@R falls by the whole 95 % interval.
        kept: True if the model is whitened: it is not worse, or a dimension was asked for.
        date: ISO 8601, UTC.
    """

    model: Mapping[str, str | None]
    data: DataIdentity
    fitted_images: int
    dim: int
    protocol: str
    share: float
    seed: int
    rows: tuple[MetricChange, ...]
    worse: bool
    kept: bool
    date: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the comparison of JSON values. Raises `KeyError` or `TypeError` for others."""
        rows = tuple(MetricChange(**row) for row in values["rows"])
        return cls(**{**values, "data": DataIdentity(**values["data"]), "rows": rows})

    @property
    def text(self) -> str:
        """Return the comparison as a sentence, then its origin."""
        changes = ", ".join(
            f"{row.metric} {row.before:.3f} to {row.after:.3f} ({row.difference:+.3f}, 95 % "
            f"{row.difference_interval[0]:+.3f} to {row.difference_interval[1]:+.3f})"
            for row in self.rows
        )
        outcome = "the whitened model is kept"
        if self.worse:
            outcome = "worse, and kept because of --dim" if self.kept else "worse, so the plain model is kept"
        fingerprint = self.model["fingerprint"]
        plain = f"{self.model['name']} ({fingerprint[:8]})" if fingerprint else f"{self.model['name']}"
        held_out = f"{self.data.images:,} images of {self.data.classes} held-out classes of {self.data}"
        return (
            f"on {held_out}, whitened to {self.dim}: {changes}; {outcome}. Plain model {plain}, whitening fitted on "
            f"the other {count(self.fitted_images, 'image')}; {self.protocol}; seed {self.seed}; {self.date}"
        )


def read_whitening_comparison(folder: Path) -> WhiteningComparison | None:
    """Return the comparison that the recipe.json of a model folder has; None without one."""
    try:
        return WhiteningComparison.from_json(read_object(folder / RECIPE_FILE)[WHITENING_COMPARISON])
    except (KeyError, TypeError):
        return None


def compare_whitening(
    features: np.ndarray,
    images: Dataset,
    model: Mapping[str, str | None],
    dim: int | None,
    shrink: float = SHRINK,
    power: float = POWER,
) -> WhiteningComparison:
    """Fit whitening on a part of the classes, and compare it with plain features on the others.

    Args:
        features: Pooled features float32 [n, f].
        images: The n images and their classes; images without one ("") are only fitted on.
        model: Name and fingerprint of the plain model.
        dim: Dimensions that whitening keeps; None for `default_dim`.
        shrink: As in `fit_whitening`, as is `power`.

    Raises:
        UsageError: `too-few-samples` for fewer than eight classes of two images, or too few images to fit.
    """
    usable = (np.bincount(images.labels, minlength=len(images.classes)) > 1) & (np.array(images.classes) != "")
    if usable.sum() < LEAST_TO_SPLIT:
        raise UsageError(
            f"the images have {count(int(usable.sum()), 'class')} of two images or more, and {LEAST_TO_SPLIT} are "
            "needed to hold some out",
            code="too-few-samples",
        )
    listed = replace(images, images=images.sources)  # of drawn images, a subset would draw each again
    parts = split_classes(subset(listed, usable[images.labels]))
    held = np.isin(images.sources, parts.test.sources)
    fitted = features[~held]
    weight, bias = fit_whitening(fitted, default_dim(*fitted.shape) if dim is None else dim, shrink, power)
    plain = features[held]
    rows = measure_change(plain, plain @ weight.T + bias, parts.test)
    worse = next(row for row in rows if row.metric == CHOSEN_BY).difference_interval[1] < 0
    return WhiteningComparison(
        model=model,
        data=parts.test.identity,
        fitted_images=len(fitted),
        dim=len(weight),
        protocol=PROTOCOL,
        share=parts.share,
        seed=parts.seed,
        rows=rows,
        worse=worse,
        kept=dim is not None or not worse,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
