"""Relevance without labels: whether a result of a search is likely to show what the query shows.

The similarity alone does not tell it, and neither does the number of results: a search always finds something. The
contrast does: the similarity, less the mean similarity of the query to a sample of the gallery, in standard deviations.
A model's `relevance.json` has a default curve from contrasts to probabilities. It was fitted to searches of several
subjects, each embedded without knowledge of the subject (docs/lab/shipped-models.md). Labels of a gallery give a better
one (zoo.evaluation.calibration).
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
    """Mean and standard deviation of the similarities of a query to a sample of the gallery."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class RelevanceCurve:
    """Probability that a result shows what the query shows, by its contrast z: 1 / (1 + exp(-(a + b z))).

    Attributes:
        first: a and b of the first result of a search.
        later: a and b of the others, which never get more than the first.
        line: Least probability of a likely result.
    """

    first: tuple[float, float]
    later: tuple[float, float]
    line: float

    def probabilities(self, similarities: np.ndarray, spread: Spread) -> np.ndarray:
        """Return the probabilities, float64 [k], of the similarities of a search's results, highest first."""
        contrasts = (np.asarray(similarities, np.float64) - spread.mean) / max(spread.deviation, 1e-6)
        if not contrasts.size:
            return contrasts
        first, later = (_logistic(a + b * contrasts) for a, b in (self.first, self.later))
        return np.concatenate([first[:1], np.minimum(first[0], later[1:])])

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
    """Return the spread of a query's similarities to a sample of the gallery; None for fewer than `LEAST_SAMPLE`."""
    if len(similarities) < LEAST_SAMPLE:
        return None
    return Spread(float(similarities.mean(dtype=np.float64)), float(similarities.std(dtype=np.float64)))


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
