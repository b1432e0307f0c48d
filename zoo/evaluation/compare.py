"""Comparison of two sets of embeddings of the same images: scores, differences, intervals, verdicts: `zoo.compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zoo.console import interval_text, score_text
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation.evaluate import METRICS, evaluate
from zoo.evaluation.statistics import (
    VERDICT_RULE,
    Estimate,
    Verdict,
    check_margins,
    difference_over_classes,
    judge,
    parse_margins,
)
from zoo.models.results import Evaluation
from zoo.render import Table


@dataclass(frozen=True, repr=False)
class EmbeddingComparison:
    """The scores of two sets of embeddings of the same images, and their paired differences.

    Attributes:
        results: Both evaluations.
        differences: By metric, the first score less the second, over classes, with a 95 % interval.
        verdicts: By metric: better, worse, equivalent or undecided.
    """

    results: tuple[Evaluation, Evaluation]
    differences: Mapping[str, Estimate]
    verdicts: Mapping[str, Verdict]

    def __repr__(self) -> str:
        found = (f"{name} {score_text(row.mean, sign='+')}" for name, row in self.differences.items())
        return f"EmbeddingComparison({', '.join(found)})"

    def _repr_html_(self) -> str:
        """Return the scores and differences as a table, for notebooks."""
        return self.table().html()

    def table(self, names: Sequence[str] = ("first", "second")) -> Table:
        """Return one row per metric, with both scores below the names."""
        rows = [
            [
                *(metric, *(score_text(result.metrics[metric]) for result in self.results)),
                *(score_text(difference.mean, sign="+"), interval_text(difference.interval, "+")),
                *(self.verdicts[metric].p_text, str(self.verdicts[metric])),
            ]
            for metric, difference in self.differences.items()
        ]
        return Table(("metric", *names, "difference", "95 %", "p (Holm)", "verdict"), rows)

    def to_json(self) -> dict[str, Any]:
        differences = {
            metric: {**asdict(row), "note": row.note, **asdict(self.verdicts[metric])}
            for metric, row in self.differences.items()
        }
        results = [result.to_json() for result in self.results]
        return {"results": results, "differences": differences, "verdict_rule": VERDICT_RULE}


def compare(
    first: np.ndarray,
    second: np.ndarray,
    labels: Any,
    *,
    queries: Any = None,
    margins: Mapping[str, float] | None = None,
    k: Sequence[int] | None = None,
) -> EmbeddingComparison:
    """Compare two sets of embeddings of the same images by R@1 and MAP@R, class by class.

    >>> ours, theirs = (zoo.embed(model, "birds/") for model in ("mine", "photos"))
    >>> zoo.compare(ours.rows, theirs.rows, ours.labels, margins={"map_at_r": 0.005})

    Args:
        first: [n, d].
        second: [n, e] of the same images, in the same order.
        labels: The labels [n].
        queries: Bool [n], the rows that search; the others are the gallery (default: each row searches all others).
        margins: By metric, the difference below which two are equivalent, stated before the results (default: nothing
            is called equivalent).
        k: The K of recall_at_K, as in `zoo.evaluate`.

    Raises:
        UsageError: If a margin is of no metric, or not above 0.
        ZooError: As `zoo.evaluate`.
    """
    limits = parse_margins(f"{metric}={margin}" for metric, margin in (margins or {}).items())
    check_margins(limits, METRICS)
    results = []
    for name, rows in (("first", first), ("second", second)):
        with named(name):
            results.append(evaluate(rows, labels=labels, k=k, queries=queries))
    return compare_evaluations(results[0], results[1], limits)


@contextmanager
def named(subject: object) -> Iterator[None]:
    """Put the name of the embeddings before the message of an `EvaluationError`."""
    try:
        yield
    except EvaluationError as error:
        raise EvaluationError(f"{subject}: {error}", code=error.code) from None


def compare_evaluations(first: Evaluation, second: Evaluation, margins: Mapping[str, float]) -> EmbeddingComparison:
    """Return the comparison of two evaluations of the same images.

    Raises:
        UsageError: If their images have other labels (code "other-images").
    """
    if first.data is None or second.data is None or first.data.sha256 != second.data.sha256:
        raise UsageError("the two are not of the same labels.", code="other-images")
    differences = [difference_over_classes(first.class_scores or {}, second.class_scores or {}, m) for m in METRICS]
    verdicts = judge(differences, [margins.get(metric) for metric in METRICS])
    return EmbeddingComparison(
        (first, second),
        dict(zip(METRICS, differences, strict=True)),
        dict(zip(METRICS, verdicts, strict=True)),
    )
