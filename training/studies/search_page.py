"""A search's outcome as one HTML page that asks for nothing: test scores on one axis, and how the trials went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.studies.claims import CLOSE
from training.studies.closeness import Difference, by_kind, closeness, compared
from training.studies.command_line import command_of_search
from training.studies.crossval import METRICS
from training.studies.search import Search
from training.studies.search_words import CLOSENESS, SHORT, how, made_with, tested_by, values_of
from training.studies.statistics import FAILS, HOLDS, Summary
from zoo.report import pictures
from zoo.report.forest import Line, forest
from zoo.report.page import Section, folded, legend, page, paragraph, picture, table


def as_html(search: Search, report: list[dict[str, Any]], folder: Path) -> str:
    """The whole page; what comes from files is escaped."""
    about = (how(search), *tested_by(report), command_of_search(search), made_with(folder, report))
    sections = [
        Section("How it was searched", "".join(map(paragraph, about))),
        *_scores(report),
        *_closeness(report),
        *_trials(report),
    ]
    return page(f"Search on {search.dataset}", [*sections, _values(report)])


def _scores(report: list[dict[str, Any]]) -> list[Section]:
    """Every loss, separated and concatenated, by each metric."""
    tested = [row for row in report if row["scores"]]
    if not tested:
        return []
    parts = []
    for number, metric in enumerate(reversed(METRICS)):
        lines = [
            _line(f"{row['loss']}, {kind}", Summary(**row["scores"][kind][metric]))
            for row in tested
            for kind in row["scores"]
        ]
        parts.append(folded(SHORT[metric], forest(lines)) if number else paragraph(SHORT[metric]) + forest(lines))
    return [Section("Test scores, %", "".join(parts))]


def _line(name: str, value: Summary) -> Line:
    bounds = value.interval and (100 * value.interval[0], 100 * value.interval[1])
    half = f" ± {(bounds[1] - bounds[0]) / 2:.2f}" if bounds else ""
    return Line(name, 100 * value.mean, bounds, f"{value.n} reruns", f"{100 * value.mean:.2f}{half}")


def _closeness(report: list[dict[str, Any]]) -> list[Section]:
    """Differences between every two losses, by each score; the first open."""
    found = by_kind(compared(report))
    parts = []
    for number, ((metric, kind), each) in enumerate(found.items()):
        lines = [_difference(one) for one in each if one.difference]
        name = f"{SHORT[metric]} {kind}: {closeness(each)}"
        body = forest(lines, at=0.0) if lines else ""
        parts.append(folded(name, body) if number > 1 else paragraph(name) + body)
    return [Section("Are the tuned losses close?", paragraph(CLOSENESS) + "".join(parts))] if parts else []


def _difference(each: Difference) -> Line:
    found = each.difference
    assert found is not None
    bounds = found.interval and (100 * found.interval[0], 100 * found.interval[1])
    note = f"{100 * found.mean:+.2f} points" + (f" ({bounds[0]:+.2f} to {bounds[1]:+.2f})" if bounds else "")
    tone = {HOLDS: "good", FAILS: "bad"}.get(each.verdict, "")
    band = (-100 * CLOSE, 100 * CLOSE)
    name = f"{each.loss} - {each.other}"
    return Line(name, 100 * found.mean, bounds, f"{note}, {found.n} reruns", each.verdict, tone, band)


def _trials(report: list[dict[str, Any]]) -> list[Section]:
    """The best validation so far, trial by trial."""
    series = {row["loss"]: best for row in report if (best := _best_so_far(row["validations"]))}
    if not series:
        return []
    image = picture(pictures.curves(series, "trial", "MAP@R"), "image/svg+xml", "Best validation by trial")
    left = f" The first {len(pictures.COLOURS)} of {len(series)}." if len(series) > len(pictures.COLOURS) else ""
    text = f"Mean MAP@R over the folds' held-out classes; test classes take no part.{left}"
    return [Section("Best validation so far", image + legend(series, pictures.COLOURS) + paragraph(text), "half")]


def _best_so_far(validations: list[float | None]) -> list[tuple[float, float]]:
    best, found = 0.0, []
    for number, value in enumerate(validations, start=1):
        if value is not None:
            best = max(best, value)
            found.append((float(number), best))
    return found


def _values(report: list[dict[str, Any]]) -> Section:
    rows = [[row["loss"], values_of(row), ", ".join(f"{n} {s}" for s, n in row["trials"].items())] for row in report]
    return Section("Best values, in Reality's conventions", table(("loss", "values", "trials"), rows), "half")
