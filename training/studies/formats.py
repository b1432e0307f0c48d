"""A study's report as Markdown, as CSV and as JSON, and the files in its folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from training.studies.command_line import command_of
from training.studies.page import as_html
from training.studies.report import Report, Row
from training.studies.statistics import Summary
from training.studies.words import (
    SELECTED,
    VERDICTS,
    chance_of,
    counted,
    ended,
    how,
    notes,
    printed_of,
    rule_of_selections,
    rule_of_trends,
    told,
)
from zoo.files import write_bytes, write_json
from zoo.markdown import table

NAMED = 5
"""At most so many unfinished runs by their names."""


def write_report(report: Report, folder: Path) -> None:
    """Write report.md, report.csv, report.json and report.html."""
    write_bytes(folder / "report.md", as_markdown(report).encode())
    write_bytes(folder / "report.csv", as_csv(report).encode())
    write_json(folder / "report.json", to_json(report))
    write_bytes(folder / "report.html", as_html(report).encode())


def as_markdown(report: Report) -> str:
    study, plan = report.plan.study, report.plan
    lines = [f"# {study.name} on {plan.dataset}", "", f"{study.title} ({study.source}).", ""]
    for note in notes(report):
        lines += [note, ""]
    if plan.settings:
        lines += [f"All arms with {', '.join(plan.settings)}.", ""]
    lines += [how(report), "", *[f"Published numbers, {text}.\n" for text in report.protocols]]
    lines += [*_trends(report), *_claims(report)]
    for selection in plan.selections:
        rows = [row for row in report.rows if row.selection == selection]
        lines += [f"## Scores: {SELECTED[selection]}", "", *_values(rows, study.x)] if rows else []
    lines += [*_moved(report), *_correlations(report), *_state(report)]
    return "\n".join(lines)


def as_csv(report: Report) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = ("n", "mean", "sd", "low", "high")
    writer.writerow(["study", "dataset", "arm", "x", "selection", "split", "view", "metric", *kinds])
    writer.writerows(_csv_row(report, row, row.value) for row in report.rows)
    for row in report.rows:
        if row.difference is not None:
            line = _csv_row(report, row, row.difference)
            writer.writerow([*line[:2], f"{row.arm} - {report.plan.study.reference}", *line[3:]])
    return text.getvalue()


def _csv_row(report: Report, row: Row, values: Summary) -> list[object]:
    measure, plan = row.measure, report.plan
    head = [plan.study.name, plan.dataset, row.arm, row.x, row.selection, measure.split, measure.view, measure.metric]
    return [*head, values.n, values.mean, values.sd, *(values.interval or (None, None))]


def _values(rows: Sequence[Row], axis: str) -> list[str]:
    """A table for each measure."""
    lines = []
    for measure in dict.fromkeys(row.measure for row in rows):
        chosen = [row for row in rows if row.measure == measure]
        printed = ["published"] if any(row.published is not None for row in chosen) else []
        head = ["arm", *([axis] if axis else []), "seeds", str(measure), "95 %", "difference", "95 %", *printed]
        cells = [[*_cells(row, axis), *([printed_of(row)] if printed else [])] for row in chosen]
        lines += [*table(head, cells), ""]
    return lines


def _cells(row: Row, axis: str) -> list[str]:
    place = [] if not axis else ["" if row.x is None else f"{row.x:g}"]
    value, difference = row.value, row.difference
    mark = "" if row.rank is None else f" (rank {row.rank[0]} of {row.rank[1]})"
    head = [row.arm, *place, str(value.n), _mean(value) + mark, _interval(value)]
    return [*head, f"{difference.mean:+.4f}" if difference else "", _interval(difference, "+")]


def _claims(report: Report) -> list[str]:
    if not report.claims:
        return []
    several = len(report.plan.selections) > 1
    cells = []
    for judged in report.claims:
        found = judged.difference
        compared = f"{judged.claim.better} - {judged.than}" + (f" ({judged.selection})" if several else "")
        measured = [f"{found.mean:+.4f}" if found else "", _interval(found, "+"), str(found.n) if found else "0"]
        chance = "" if judged.holm is None else chance_of(judged.holm)
        cells.append([judged.claim.text, compared, str(judged.claim.measure), *measured, chance, judged.verdict])
    head = ["claim", "compared", "measure", "difference", "95 %", "seeds", "p (Holm)", "verdict"]
    return ["## Claims", "", counted(report.claims), "", *table(head, cells), "", VERDICTS, ""]


def _trends(report: Report) -> list[str]:
    if not report.trends:
        return []
    several = len(report.plan.selections) > 1
    cells = []
    for each in report.trends:
        text = each.trend.text + (f" ({each.selection})" if several else "")
        slope = [f"{each.slope.mean:+.4f}" if each.slope else "", _interval(each.slope, "+")]
        ranks = [f"{each.spearman.mean:+.2f}" if each.spearman else "", _interval(each.spearman, "+", 2)]
        least = f"{each.left_out[0]:+.4f} to {each.left_out[1]:+.4f}" if each.left_out else ""
        cells.append([text, str(each.trend.measure), str(each.arms), *slope, *ranks, each.verdict, least])
    x = report.plan.study.x
    head = ["claim", "measure", "arms", f"slope a {x}", "95 %", "Spearman", "95 %", "verdict", "slope without any one"]
    return [f"## By {x}", "", rule_of_trends(report), "", *table(head, cells), ""]


def _moved(report: Report) -> list[str]:
    if not report.moved:
        return []
    cells = [
        [each.arm, str(each.measure), f"{each.difference.mean:+.4f}", _interval(each.difference, "+"), each.verdict]
        for each in report.moved
    ]
    head = ["arm", "measure", "difference", "95 %", "validation-selected is"]
    said = rule_of_selections(report)
    return ["## Validation-selected beside the last epoch", "", said, "", *table(head, cells), ""]


def _correlations(report: Report) -> list[str]:
    if not report.correlations:
        return []
    cells = [[*names, "" if found is None else f"{found:+.3f}"] for *names, found in report.correlations]
    return ["## Correlations over runs (Pearson)", "", *table(["epoch", "of", "with", "r"], cells), ""]


def _state(report: Report) -> list[str]:
    lines = ["## Runs", ""]
    if report.missing:
        more = ", ..." if len(report.missing) > NAMED else ""
        lines.append(f"Not finished: {len(report.missing)} runs ({'; '.join(report.missing[:NAMED])}{more}).")
    lines += [f"Failed: {title}: {message}" for title, message in report.failures.items()]
    made = "; ".join(told(value) for values in report.made_with.values() for value in values)
    begun = [*([""] if lines[-1] else []), "```sh", command_of(report.plan), "```", ""]
    return [*lines, *begun, f"{ended(report)} Made with: {made}." if made else ended(report), ""]


def _mean(value: Summary) -> str:
    return f"{value.mean:.4f}" + ("" if value.sd is None else f" ± {value.sd:.4f}")


def _interval(value: Summary | None, sign: str = "", digits: int = 4) -> str:
    if value is None or value.interval is None:
        return ""
    low, high = value.interval
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def to_json(report: Report) -> dict[str, Any]:
    """The report for programs."""
    study = report.plan.study
    return {
        **report.plan.to_json(),
        "command": command_of(report.plan),
        "dates": report.dates,
        "title": study.title,
        "source": study.source,
        "note": " ".join(notes(report)),
        "rank_below_dimension": {str(measure): ranks for measure, ranks in report.ranks.items()},
        "one_model": report.twins,
        "moved": [{**asdict(each), "measure": str(each.measure)} for each in report.moved],
        "selections_made_unlike": report.unlike,
        "baseline": study.reference,
        "published_protocols": report.protocols,
        "values": {
            selection: {str(measure): values for measure, values in tables.items()}
            for selection, tables in report.values.items()
        },
        "rows": [{**asdict(row), "measure": str(row.measure)} for row in report.rows],
        "claims": [
            {
                "text": judged.claim.text,
                "better": judged.claim.better,
                "than": judged.than,
                "measure": str(judged.claim.measure),
                "within": judged.claim.within,
                "lower": judged.claim.lower,
                "selection": judged.selection,
                "difference": judged.difference and asdict(judged.difference),
                "verdict": judged.verdict,
                "p_holm": judged.holm,
            }
            for judged in report.claims
        ],
        "trends": [
            {**asdict(each), "trend": each.trend.text, "measure": str(each.trend.measure), "lower": each.trend.lower}
            for each in report.trends
        ],
        "correlations": [
            dict(zip(("selection", "of", "with", "pearson"), each, strict=True)) for each in report.correlations
        ],
        "curves": report.curves,
        "spectra": report.spectra,
        "missing": report.missing,
        "failures": report.failures,
        "training_seconds": report.seconds,
        **report.made_with,
    }
