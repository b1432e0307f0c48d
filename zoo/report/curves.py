"""Curves of training runs: a number of each epoch's record of several models, in one figure or table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.errors import UsageError, unknown
from zoo.files import write_bytes
from zoo.models.names import find_model
from zoo.models.registry import ModelLike
from zoo.render import Table, flatten_numbers
from zoo.report.figures import check_matplotlib, curves, drawn_as
from zoo.report.model import epoch_records

FORMATS = (".csv", ".pdf", ".png", ".svg")


def draw_curves(models: Sequence[ModelLike], metric: str, out: Path) -> None:
    """Write the curves of several models to one file.

    Args:
        models: Trained models, whose folders have a log.jsonl.
        metric: The name of a number of a record, such as "loss", or of one in a group: "terms own".
        out: The file; its suffix is one of `FORMATS`.

    Raises:
        UsageError: If the suffix, or for a model the metric, is unknown.
        ModelNotFoundError: If there is no such model.
    """
    if out.suffix.lower() not in FORMATS:
        raise UsageError(f"{out} is not one of {', '.join(FORMATS)}.", code="invalid-value")
    series = {str(model): _points(find_model(model), metric) for model in models}
    if out.suffix.lower() == ".csv":
        write_bytes(out, _table(series, metric).csv().encode())
        return
    check_matplotlib()
    with drawn_as(out.suffix.lower()[1:]):
        write_bytes(out, curves(series, y_label=metric))


def _points(folder: Path, metric: str) -> list[tuple[float, float]]:
    records = list(epoch_records(folder))
    values = [(record["epoch"], flatten_numbers(record, " ")) for record in records]
    known = sorted({name for _, numbers in values for name in numbers})
    if not known:
        raise UsageError(f"{folder} has no log of its training.", code="not-available")
    if metric not in known:
        raise unknown("metric", metric, known)
    return [(epoch, numbers[metric]) for epoch, numbers in values if metric in numbers]


def _table(series: Mapping[str, Sequence[tuple[float, float]]], metric: str) -> Table:
    rows = [[name, int(epoch), value] for name, points in series.items() for epoch, value in points]
    return Table(("model", "epoch", metric), rows)
