"""Comparisons with published scores as terminal text, JSON or one HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from training.studies.compare import Comparison, MeasuredImages, MeasuredScore, TrainedModel
from training.studies.study import DRAWN_DECAY, R1
from zoo.console import count, interval_text, score_text, table_text
from zoo.data.dataset import split_title
from zoo.evaluation.statistics import CLASSES, ONE_SEED, correlation_triangle, pearson
from zoo.models.names import find_model
from zoo.models.published import PublishedScore, PublishedTable
from zoo.render import Table
from zoo.report import figures
from zoo.report.html import (
    SVG,
    Block,
    Details,
    ForestLine,
    ForestPlot,
    HeatMap,
    Legend,
    NumberedList,
    Paragraph,
    Picture,
    Section,
    figure_section,
    page,
)
from zoo.report.model import recall_by_epoch

COLUMNS = ("row", "data set", "metric", "published", "ours", "95 %", "seeds", "difference", "how ours came about")
NUMBERS = ("published", "ours", "seeds", "difference")
MARKS = "marks"
"""Column of what a reader must know about published numbers; only tables with such numbers have it."""
NAMED_MODELS = 3
"""The largest number of fingerprints in a cell; JSON has all."""
FEWEST_POINTS = 3
"""Fewer points say nothing about how two measures go together."""


def as_text(rows: Sequence[Comparison]) -> str:
    """Return one table for a terminal per published table."""
    return "\n".join(
        f"{_heading(table)}\n{_source(table)}\n{table_text(_table(group))}{_left_out(group)}"
        for table, group in _by_table(rows)
    )


def as_latex(rows: Sequence[Comparison]) -> str:
    """Return one LaTeX table (booktabs) per published table."""
    return "".join(f"{_table(group).latex(_heading(table))}\n" for table, group in _by_table(rows))


def as_csv(rows: Sequence[Comparison]) -> str:
    """Return all comparisons as one CSV, with the name of the published table in the first column."""
    cells = [[_heading(table), *row] for table, group in _by_table(rows) for row in _table(group).rows]
    width = max(map(len, cells), default=0)
    columns = ("table", *COLUMNS, MARKS)[:width]
    return Table(columns, [[*row, *[""] * (width - len(row))] for row in cells]).csv()


def as_json(rows: Sequence[Comparison]) -> str:
    """Return the comparisons as JSON, in fractions."""
    return json.dumps([_comparison_record(row) for row in rows], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_html(rows: Sequence[Comparison], shown: Sequence[Section] = ()) -> str:
    """Return the HTML page; text from files is escaped.

    Args:
        rows: The comparisons.
        shown: Sections that come last, as those of `zoo.report.model`.
    """
    parts = [_table_section(group) for _, group in _by_table(rows)]
    runs = list({run.name: run for row in rows if row.ours for run in row.ours.models}.values())
    sections = [*parts, *_decay_sections(rows), *_correlation_sections(runs), *_epoch_sections(runs), *shown]
    return page("Published numbers and ours", sections)


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "table": as_text,
    "json": as_json,
    "csv": as_csv,
    "latex": as_latex,
    "html": as_html,
}


def interval_over(bounds: tuple[float, float] | None, over: str | None) -> str:
    """Return the printed bounds and the population that they refer to; nothing without bounds."""
    return f"{interval_text(bounds)} over {over}" if bounds else ""


def origin_text(ours: MeasuredScore) -> str:
    """Return how a score came about: protocol, seeds, the models' fingerprints, and when they were measured.

    A mean over several models names each of them.
    """
    several = len(ours.runs) > 1
    models = [
        f"{name} {fingerprint[:8]}" if several else fingerprint[:8]
        for name, fingerprint in zip(ours.runs, ours.fingerprints, strict=True)
        if fingerprint
    ]
    seeds = f"seeds {', '.join(map(str, ours.seeds))}" if several and None not in ours.seeds else ""
    more = f" and {len(models) - NAMED_MODELS} more" if len(models) > NAMED_MODELS else ""
    named = f"model {', '.join(models[:NAMED_MODELS])}{more}" if models else "model not recorded"
    days = sorted(date[:10] for date in ours.dates)
    parts = [ours.protocol, seeds, named, " to ".join(dict.fromkeys((days[0], days[-1])))]
    return "; ".join(filter(None, parts))


def _by_table(rows: Sequence[Comparison]) -> list[tuple[PublishedTable, list[Comparison]]]:
    grouped = groupby(rows, key=lambda row: row.table.name)
    return [(group[0].table, group) for _, same in grouped if (group := list(same))]


def _left_out(rows: Sequence[Comparison]) -> str:
    """Return the line on intervals of single models; "" without them."""
    return (
        f"Intervals of one seed are {ONE_SEED}.\n" if any(row.ours and row.ours.over == CLASSES for row in rows) else ""
    )


def _heading(table: PublishedTable) -> str:
    return f"{table.name}: {table.title} ({table.place})"


def _source(table: PublishedTable) -> str:
    return f"{table.paper.citation} ({table.paper.source}). Published: {table.protocol}."


def _table(rows: Sequence[Comparison]) -> Table:
    marked = any(row.score.marks for row in rows)
    cells = [[*_table_cells(row), *(["; ".join(row.score.marks)] if marked else [])] for row in rows]
    return Table((*COLUMNS, *([MARKS] if marked else [])), cells, NUMBERS)


def _table_cells(row: Comparison) -> list[str]:
    score, ours = row.score, row.ours
    head = [score.row, score.dataset, score.metric, score.text]
    if ours is None or row.difference is None:
        return [*head, row.status, "", "", "", _command_of(score) if row.status == "not run" else ""]
    value = score_text(ours.value, ours.sd)
    interval = interval_over(ours.interval, ours.over)
    difference = score_text(row.difference, sign="+")
    return [*head, value, interval, str(len(ours.runs)), difference, f"{ours.data}; {origin_text(ours)}"]


def _command_of(score: PublishedScore) -> str:
    """Return the command that measures the score here."""
    if score.recipe is not None:
        return f"zoo train {score.recipe}"
    if score.search is not None:
        return f"zoo benchmark search {score.search.partition('/')[0]} --dataset {score.dataset} --trials 0"
    return f"zoo benchmark run {score.study} --dataset {score.dataset}"


def _comparison_record(row: Comparison) -> dict[str, Any]:
    """Return everything about a comparison for programs, in fractions."""
    score, ours = row.score, row.ours
    return {
        "table": row.table.name,
        "paper": row.table.paper.short,
        "source": row.table.paper.source,
        "place": row.table.place,
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
        "published_interval": score.interval and list(score.interval),
        "best_on_test": score.best_on_test,
        "quoted_from": score.quoted_from,
        "contradicts": score.contradicts,
        "published_runs": row.table.runs,
        "published_protocol": row.table.protocol,
        "status": row.status,
        "ours": ours and ours.value,
        "ours_sd": ours and ours.sd,
        "ours_interval": ours and ours.interval and list(ours.interval),
        "ours_interval_over": ours and ours.over,
        "ours_interval_note": ONE_SEED if ours and ours.over == CLASSES else "",
        "ours_runs": ours and list(ours.runs),
        "ours_seeds": ours and list(ours.seeds),
        "ours_protocol": ours and ours.protocol,
        "ours_data": ours and ours.data,
        "ours_fingerprints": ours and list(ours.fingerprints),
        "ours_dates": ours and list(ours.dates),
        "difference": row.difference,
    }


def _table_section(rows: Sequence[Comparison]) -> Section:
    def dataset_and_metric(row: Comparison) -> tuple[str, str]:
        return row.score.dataset, row.score.metric

    plots = [
        Details(f"{metric} on {dataset}, as a picture", [ForestPlot(_forest_lines(list(group)))])
        for (dataset, metric), group in groupby(sorted(rows, key=dataset_and_metric), key=dataset_and_metric)
    ]
    table = rows[0].table
    return Section(
        _heading(table),
        [Paragraph(_source(table)), _table(rows), *map(Paragraph, _left_out(rows).splitlines()), *plots],
    )


def _forest_lines(rows: Sequence[Comparison]) -> list[ForestLine]:
    """Return of each row the published number with its deviation or interval, then ours with its interval in green."""
    lines = []
    for row in rows:
        score, ours = row.score, row.ours
        mean, sd = score.value, score.sd or 0
        spread = (mean - sd, mean + sd) if score.sd is not None else score.interval
        note = "; ".join((f"published, {row.table.protocol}", *score.marks))
        lines.append(ForestLine(score.row, mean, spread, note, f"{mean:.4g}" + (f" ± {sd:.2g}" if sd else "")))
        if ours is not None:
            note = f"ours, {count(len(ours.runs), 'seed')}, {ours.data}; {origin_text(ours)}"
            lines.append(ForestLine(score.row, ours.value, ours.interval, note, f"{ours.value:.4g}", "good"))
    return lines


def _decay_sections(rows: Sequence[Comparison]) -> list[Section]:
    """Draw R@1 against spectral decay, published and ours (Revisiting, figure 5), for each data set."""
    if find_spec("matplotlib") is None:
        return []
    sections = []
    for dataset in dict.fromkeys(row.score.dataset for row in rows):
        points = {kind: _decay_points(rows, dataset, kind == "ours") for kind in ("published", "ours")}
        if len(points["published"]) >= FEWEST_POINTS:
            sections.append(_decay_section(dataset, points))
    return sections


def _decay_section(dataset: str, points_of: dict[str, dict[str, tuple[float, float]]]) -> Section:
    drawn = {kind: points for kind, points in points_of.items() if points}
    title = "spectral decay, without the largest singular value"
    image = figures.scatter([list(points.values()) for points in drawn.values()], title, "R@1")
    heading = f"R@1 against spectral decay on {dataset}"
    blocks: list[Block] = [Picture(image, SVG, heading), Legend(list(drawn), figures.COLOURS)]
    for kind, points in drawn.items():
        r = pearson([x for x, _ in points.values()], [y for _, y in points.values()])
        blocks += [NumberedList(list(points)), *([] if r is None else [Paragraph(f"{kind}: r = {r:+.2f}")])]
    return Section(heading, blocks, "half")


def _decay_points(rows: Sequence[Comparison], dataset: str, ours: bool) -> dict[str, tuple[float, float]]:
    """Return by row: spectral decay of training data and R@1, where both are known."""
    values_of: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.score.dataset == dataset and row.score.metric in (R1.metric, DRAWN_DECAY.metric):
            score = row.ours if ours else row.score
            if score is not None:
                values_of.setdefault(row.score.row, {})[row.score.metric] = score.value
    pairs = {name: (values.get(DRAWN_DECAY.metric), values.get(R1.metric)) for name, values in values_of.items()}
    return {name: (decay, r1) for name, (decay, r1) in pairs.items() if decay is not None and r1 is not None}


def _correlation_sections(runs: Sequence[TrainedModel]) -> list[Section]:
    """Show how the metrics of our models go together (Revisiting, figure 4), for each data set and split."""
    measured: dict[MeasuredImages, dict[str, dict[str, float]]] = {}
    for run in runs:
        for images, result in run.measurements():
            measured.setdefault(images, {})[run.name] = result["metrics"]
    sections = []
    for images, models in measured.items():
        common = [name for name in next(iter(models.values())) if all(name in metrics for metrics in models.values())]
        if len(models) >= FEWEST_POINTS and len(common) >= FEWEST_POINTS:
            columns = {name: [metrics[name] for metrics in models.values()] for name in common}
            text = f"Pearson's correlation over {count(len(models), 'model')} of this zoo: {', '.join(models)}."
            heat_map = HeatMap(common, correlation_triangle(columns))
            sections.append(
                Section(f"Metrics on {images.title}, {split_title(images.split)}", [heat_map, Paragraph(text)])
            )
    return sections


def _epoch_sections(runs: Sequence[TrainedModel]) -> list[Section]:
    """Draw R@1 by epoch of our models, from their folders, and of studies' runs."""
    logs = {run.name: recall_by_epoch(find_model(run.name)) if run.curves is None else run.curves for run in runs}
    series = {f"{name}, {key}": points for name, log in logs.items() for key, points in log.items()}
    if not series or find_spec("matplotlib") is None:
        return []
    text = "From the models' and runs' logs; validation is on classes held out of the training split."
    return [figure_section("R@1 by epoch", figures.curves(series), series, text)]
