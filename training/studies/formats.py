"""A study's report as Markdown, as CSV and as JSON, and the three files in its folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from training.studies.report import Judged, Report, Row, to_json
from training.studies.statistics import Summary
from zoo.files import write_bytes, write_json

SELECTED = {"last": "last epoch, trained on all training classes", "validation": "epoch selected on held-out classes"}


def write_report(report: Report, folder: Path) -> None:
    """Write report.md, report.csv and report.json."""
    write_bytes(folder / "report.md", as_markdown(report).encode())
    write_bytes(folder / "report.csv", as_csv(report).encode())
    write_json(folder / "report.json", to_json(report))


def as_markdown(report: Report) -> str:
    study, plan = report.plan.study, report.plan
    lines = [f"# {study.name} on {plan.dataset}", "", f"{study.title} ({study.source}).", ""]
    if study.note:
        lines += [study.note, ""]
    if plan.settings:
        lines += [f"All arms with {', '.join(plan.settings)}.", ""]
    lines += [
        f"Seeds 0 to {plan.seeds - 1}. Mean ± standard deviation over seeds, then the 95 % Student-t interval of the "
        f"mean; differences to {study.reference} are paired by seed.",
        "",
    ]
    for selection in plan.selections:
        lines += [f"## Test scores: {SELECTED[selection]}", ""]
        lines += _values([row for row in report.rows if row.selection == selection], study.x)
    lines += [*_claims(report.claims), *_correlations(report), *_state(report)]
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
        head = ["arm", *([axis] if axis else []), "seeds", str(measure), "95 %", "difference", "95 %"]
        cells = [_cells(row, axis) for row in rows if row.measure == measure]
        lines += [*table(head, cells), ""]
    return lines


def _cells(row: Row, axis: str) -> list[str]:
    place = [] if not axis else ["" if row.x is None else f"{row.x:g}"]
    value, difference = row.value, row.difference
    head = [row.arm, *place, str(value.n), _mean(value), _interval(value)]
    return [*head, f"{difference.mean:+.4f}" if difference else "", _interval(difference, "+")]


def _claims(claims: Sequence[Judged]) -> list[str]:
    if not claims:
        return []
    several = len({judged.selection for judged in claims}) > 1
    cells = []
    for judged in claims:
        found = judged.difference
        compared = f"{judged.claim.better} - {judged.than}" + (f" ({judged.selection})" if several else "")
        measured = [f"{found.mean:+.4f}" if found else "", _interval(found, "+"), str(found.n) if found else "0"]
        cells.append([judged.claim.text, compared, str(judged.claim.measure), *measured, judged.verdict])
    head = ["claim", "compared", "measure", "difference", "95 %", "seeds", "verdict"]
    note = (
        '"Holds" where the whole interval lies on the claimed side of 0 (or within the margin named), "does not" where '
        "it lies on the other; each interval is for its claim alone."
    )
    return ["## Claims", "", *table(head, cells), "", note, ""]


def _correlations(report: Report) -> list[str]:
    if not report.correlations:
        return []
    cells = [[*names, "" if found is None else f"{found:+.3f}"] for *names, found in report.correlations]
    return ["## Correlations over runs (Pearson)", "", *table(["epoch", "of", "with", "r"], cells), ""]


def _state(report: Report) -> list[str]:
    lines = ["## Runs", ""]
    if report.missing:
        lines.append(f"Not finished: {len(report.missing)} runs ({'; '.join(report.missing[:5])}, ...).")
    lines += [f"Failed: {title}: {message}" for title, message in report.failures.items()]
    made = "; ".join(str(value) for values in report.made_with.values() for value in values)
    return [*lines, f"Training took {report.seconds:.0f} s in all. Made with: {made}.", ""]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _mean(value: Summary) -> str:
    return f"{value.mean:.4f}" + ("" if value.sd is None else f" ± {value.sd:.4f}")


def _interval(value: Summary | None, sign: str = "") -> str:
    if value is None or value.interval is None:
        return ""
    low, high = value.interval
    return f"{low:{sign}.4f} to {high:{sign}.4f}"
