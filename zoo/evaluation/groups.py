"""The groups of metrics that can be asked for by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zoo.errors import UsageError, nearest
from zoo.evaluation.clustering import clustering_metrics
from zoo.evaluation.structure import structure_metrics
from zoo.evaluation.verification import verification_metrics

OF_QUERIES = ("retrieval", "ranking")
"""Groups that have a value for each query, and so an interval."""

OF_EMBEDDINGS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "clustering": clustering_metrics,
    "structure": structure_metrics,
    "verification": verification_metrics,
}
"""Groups that are measured on all embeddings [n, d] with their labels [n] at once."""

GROUPS = (*OF_QUERIES, *OF_EMBEDDINGS)


def groups_of(names: str | Iterable[str]) -> tuple[str, ...]:
    """The groups named, in their own order and each once: a name or several, "all" meaning every one.

    Raises `UsageError` for an unknown name.
    """
    asked = {names} if isinstance(names, str) else set(names)
    for name in sorted(asked - {*GROUPS, "all"}):
        known = ", ".join((*GROUPS, "all"))
        raise UsageError(f"there is no group of metrics {name!r}.{nearest(name, (*GROUPS, 'all'))} Known: {known}.")
    return GROUPS if "all" in asked else tuple(group for group in GROUPS if group in asked)


def metrics_of_embeddings(groups: Iterable[str], embeddings: Any, labels: Any) -> dict[str, float]:
    """The metrics of those groups that are measured on all embeddings at once; errors as of their functions."""
    found: dict[str, float] = {}
    for group in groups:
        if group in OF_EMBEDDINGS:
            found |= OF_EMBEDDINGS[group](embeddings, labels)
    return found
