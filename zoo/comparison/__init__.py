"""Published numbers beside those measured on models of the local zoo and the shipped ones."""

from zoo.comparison.compare import Comparison, Ours, compare
from zoo.comparison.formats import FORMATS
from zoo.comparison.page import as_html
from zoo.comparison.runs import Run, find_runs, runs_of

__all__ = ["FORMATS", "Comparison", "Ours", "Run", "as_html", "compare", "find_runs", "runs_of"]
