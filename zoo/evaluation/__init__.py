"""Exact retrieval evaluation on NumPy: nearest neighbours, metrics, intervals, and the measuring of a model."""

from zoo.evaluation.evaluate import evaluate
from zoo.evaluation.intervals import bootstrap_intervals
from zoo.evaluation.metrics import PerQuery, per_query, retrieval_metrics
from zoo.evaluation.neighbours import nearest_neighbours
from zoo.results import Evaluation

__all__ = [
    "Evaluation",
    "PerQuery",
    "bootstrap_intervals",
    "evaluate",
    "nearest_neighbours",
    "per_query",
    "retrieval_metrics",
]
