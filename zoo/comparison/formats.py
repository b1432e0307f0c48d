"""Comparisons as text: a table for people, Markdown, CSV, JSON, or an HTML page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from zoo import markdown
from zoo.comparison.cells import COLUMNS, NUMBERS, by_table, cells, heading, source
from zoo.comparison.compare import Comparison
from zoo.comparison.page import as_html


def as_table(rows: Sequence[Comparison]) -> str:
    from zoo.console import table_text

    parts = [
        f"{heading(table)}\n{source(table)}\n{table_text(COLUMNS, [cells(row) for row in group], NUMBERS)}"
        for table, group in by_table(rows)
    ]
    return "\n".join(parts)


def as_markdown(rows: Sequence[Comparison]) -> str:
    parts, numbers = [], [COLUMNS.index(name) for name in NUMBERS]
    for table, group in by_table(rows):
        lines = markdown.table(COLUMNS, [cells(row) for row in group], numbers)
        parts.append("\n".join([f"### {heading(table)}", "", source(table), "", *lines, ""]))
    return "\n".join(parts)


def as_csv(rows: Sequence[Comparison]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, list(_facts(rows[0])) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _flat(value) for key, value in _facts(row).items()} for row in rows)
    return text.getvalue()


def as_json(rows: Sequence[Comparison]) -> str:
    return json.dumps([_facts(row) for row in rows], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "table": as_table,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
    "html": as_html,
}


def _facts(row: Comparison) -> dict[str, Any]:
    """A row for programs: everything, in fractions."""
    score, ours = row.score, row.ours
    return {
        "table": row.table.name,
        "paper": row.table.paper.short,
        "source": row.table.paper.source,
        "row": score.row,
        "recipe": score.recipe,
        "study": score.study,
        "arm": score.arm,
        "view": score.view,
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
