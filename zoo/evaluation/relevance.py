"""Relevance without labels: whether a result of a search is likely to show what the query shows.

The similarity alone does not tell it, and neither does the number of results: a search always finds something. The
contrast does: the similarity, less the mean similarity of an image to a sample of the gallery, in standard deviations.
Both the query and the result have such a background, and the smaller contrast counts: some results are similar to
everything. A model's `relevance.json` has a default curve from contrasts to probabilities. It was fitted to searches of
several subjects, each embedded without knowledge of the subject (docs/lab/shipped-models.md). Labels of a gallery give
a better one (zoo.evaluation.calibration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from zoo.errors import ModelFolderError
from zoo.files import read_json
from zoo.models.folder import RELEVANCE_FILE

SAMPLE, LEAST_SAMPLE = 1000, 30
"""Items of a gallery that a query is compared with for its contrast: most of them, and the least number."""

LINE = 0.5
"""Least p_same of a likely result where a gallery is calibrated by its labels."""


class Spread(NamedTuple):
    """Mean and standard deviation of the similarities of images to a sample of the gallery: numbers, or float64 [n]."""

    mean: Any
    deviation: Any

    def contrasts(self, similarities: np.ndarray) -> np.ndarray:
        """Return how many deviations similarities [n] are above the mean, float64 [n]."""
        differences = np.asarray(similarities, np.float64) - self.mean
        result: np.ndarray = differences / np.maximum(self.deviation, 1e-6)
        return result


@dataclass(frozen=True)
class RelevanceCurve:
    """Probability that a result shows what the query shows, by its contrast z: 1 / (1 + exp(-(a + b z))).

    Attributes:
        first: a and b of the first result of a search.
        later: a and b of the others.
        line: Least probability of a likely result.
    """

    first: tuple[float, float]
    later: tuple[float, float]
    line: float

    def probabilities(self, contrasts: np.ndarray) -> np.ndarray:
        """Return the probabilities, float64 [k], of the results of a search; they never rise from one to the next."""
        if not contrasts.size:
            return contrasts
        first, later = (_logistic(a + b * contrasts) for a, b in (self.first, self.later))
        return np.minimum.accumulate(np.concatenate([first[:1], later[1:]]))

    def likely(self, contrasts: np.ndarray) -> int:
        """Return how many of the first results of a search are likely."""
        return int(np.count_nonzero(self.probabilities(contrasts) >= self.line))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the curve of JSON values, which may have further keys.

        Raises:
            KeyError, TypeError, ValueError: If they are not a curve's.
        """
        own = {field.name: values[field.name] for field in fields(cls)}
        pairs = {name: (float(own[name][0]), float(own[name][1])) for name in ("first", "later")}
        curve = cls(**pairs, line=float(own["line"]))
        if not np.isfinite([*curve.first, *curve.later]).all() or not 0 <= curve.line <= 1:
            raise ValueError("expected finite numbers, and a line from 0 to 1")
        return curve


def spread_of(similarities: np.ndarray) -> Spread | None:
    """Return the spread of the similarities of one image [s], or of several [n, s], to a sample of the gallery.

    A sample of fewer than `LEAST_SAMPLE` gives None.
    """
    if similarities.shape[-1] < LEAST_SAMPLE:
        return None
    return Spread(similarities.mean(axis=-1, dtype=np.float64), similarities.std(axis=-1, dtype=np.float64))


def read_curve(folder: Path) -> RelevanceCurve | None:
    """Return the default curve of a model folder; None without one.

    Raises:
        ModelFolderError: `damaged-file` for a file that is not a curve.
    """
    path = folder / RELEVANCE_FILE
    if not path.is_file():
        return None
    try:
        return RelevanceCurve.from_json(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelFolderError(
            f"{path} is not a curve of relevance ({error}). Download the model folder again, or delete the file.",
            code="damaged-file",
        ) from None


def _logistic(values: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-np.clip(values, -50, 50)))
    return result
