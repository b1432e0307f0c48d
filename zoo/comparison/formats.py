"""Comparisons as text: a table for people, Markdown, CSV, JSON, or an HTML page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import groupby
from typing import Any

from zoo.comparison.compare import Comparison, Ours
from zoo.published import Table
from zoo.published.scores import scale

COLUMNS = ("row", "data set", "metric", "published", "ours", "95 %", "seeds", "difference", "how ours came about")
NUMBERS = ("published", "ours", "seeds", "difference")


def as_table(rows: Sequence[Comparison]) -> str:
    from zoo.cli.output import table_text

    parts = [
        f"{_heading(table)}\n{_source(table)}\n{table_text(COLUMNS, [_cells(row) for row in group], NUMBERS)}"
        for table, group in _by_table(rows)
    ]
    return "\n".join(parts)


def as_markdown(rows: Sequence[Comparison]) -> str:
    rule = ["---:" if name in NUMBERS else "---" for name in COLUMNS]
    parts = []
    for table, group in _by_table(rows):
        lines = [_line(cells) for cells in (COLUMNS, rule, *map(_cells, group))]
        parts.append("\n".join([f"### {_heading(table)}", "", _source(table), "", *lines, ""]))
    return "\n".join(parts)


def as_csv(rows: Sequence[Comparison]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, list(_facts(rows[0])) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _flat(value) for key, value in _facts(row).items()} for row in rows)
    return text.getvalue()


def as_json(rows: Sequence[Comparison]) -> str:
    return json.dumps([_facts(row) for row in rows], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_html(rows: Sequence[Comparison]) -> str:
    from zoo.report.page import Section, page, paragraph, table

    sections = [
        Section(_heading(published), paragraph(_source(published)) + table(COLUMNS, map(_cells, group), NUMBERS))
        for published, group in _by_table(rows)
    ]
    return page("Published numbers and ours", sections)


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "table": as_table,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
    "html": as_html,
}


def _by_table(rows: Sequence[Comparison]) -> list[tuple[Table, list[Comparison]]]:
    grouped = groupby(rows, key=lambda row: row.table.name)
    return [(group[0].table, group) for _, same in grouped if (group := list(same))]


def _heading(table: Table) -> str:
    return f"{table.name}: {table.title}"


def _source(table: Table) -> str:
    return f"{table.paper.citation} ({table.paper.source}). Published: {table.protocol}."


def _cells(row: Comparison) -> list[str]:
    """What people read of a row: percent where papers print percent."""
    score, ours = row.score, row.ours
    published = _number(score.metric, score.value, score.sd)
    head = [score.row, score.dataset, score.metric, published]
    if ours is None or row.difference is None:
        return [*head, row.status, "", "", "", f"zoo train {score.recipe}" if row.status == "not run" else ""]
    seeds = str(len(ours.runs))
    difference = _number(score.metric, row.difference, sign="+")
    return [*head, _number(score.metric, ours.value, ours.sd), _interval(row, ours), seeds, difference, ours.protocol]


def _interval(row: Comparison, ours: Ours) -> str:
    if ours.interval is None:
        return ""
    low, high = (_number(row.score.metric, bound) for bound in ours.interval)
    return f"{low} to {high} over {ours.over}"


def _number(metric: str, value: float, sd: float | None = None, sign: str = "") -> str:
    factor, digits = scale(metric), 2 if scale(metric) == 100 else 3
    text = f"{factor * value:{sign}.{digits}f}"
    return text if sd is None else f"{text} ± {factor * sd:.{digits}f}"


def _facts(row: Comparison) -> dict[str, Any]:
    """A row for programs: everything, in fractions."""
    score, ours = row.score, row.ours
    return {
        "table": row.table.name,
        "paper": row.table.paper.short,
        "source": row.table.paper.source,
        "row": score.row,
        "recipe": score.recipe,
        "dataset": score.dataset,
        "split": score.split,
        "backbone": score.backbone,
        "dim": score.dim,
        "metric": score.metric,
        "published": score.value,
        "published_sd": score.sd,
        "published_runs": row.table.runs,
        "published_protocol": row.table.protocol,
        "status": row.status,
        "ours": ours and ours.value,
        "ours_sd": ours and ours.sd,
        "ours_interval": ours and ours.interval and list(ours.interval),
        "ours_interval_over": ours and ours.over,
        "ours_runs": ours and list(ours.runs),
        "ours_seeds": ours and list(ours.seeds),
        "ours_protocol": ours and ours.protocol,
        "difference": row.difference,
    }


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
