"""A study's trends on its page: every arm at its place on the axis, with its interval, and the line through them."""

from __future__ import annotations

from training.studies.report import Report
from training.studies.statistics import Summary
from training.studies.trends import Found
from training.studies.words import SELECTED, name_of, rule_of_trends
from zoo.report import pictures
from zoo.report.page import Section, numbered, paragraph, picture


def trend_sections(report: Report) -> list[Section]:
    """A picture for each trend, and before them what its numbers are."""
    sections = [_section(report, each) for each in report.trends if each.slope]
    about = Section(f"By {report.plan.study.x}", paragraph(rule_of_trends(report)))
    return [about, *sections] if sections else []


def _section(report: Report, found: Found) -> Section:
    study, measure = report.plan.study, found.trend.measure
    rows = [row for row in report.rows if (row.selection, row.measure) == (found.selection, measure)]
    placed = [(row, row.x) for row in rows if row.x is not None]
    points = [(x, row.value.mean, row.value.interval) for row, x in placed]
    image = pictures.along(points, _line(found, points), study.x, name_of(measure))
    names = numbered(f"{row.arm}, {x:g}" for row, x in placed)
    body = picture(image, "image/svg+xml", f"{name_of(measure)} of every arm by {study.x}") + names
    return Section(f"{found.trend.text}: {found.verdict}", body + paragraph(_said(report, found)), "half")


def _line(found: Found, points: list[pictures.Point]) -> tuple[float, float]:
    """The mean line: slope, and where it meets 0; as all lines by least squares it goes through the means."""
    assert found.slope is not None
    middle, mean = (sum(each) / len(points) for each in zip(*((x, y) for x, y, _ in points), strict=True))
    return found.slope.mean, mean - found.slope.mean * middle


def _said(report: Report, found: Found) -> str:
    assert found.slope is not None
    x, slope = report.plan.study.x, found.slope
    ranks = f" Spearman {_with_interval(found.spearman, 2)}." if found.spearman else ""
    least = f" Without any one arm {found.left_out[0]:+.4f} to {found.left_out[1]:+.4f}." if found.left_out else ""
    text = (
        f"{name_of(found.trend.measure)}: slope {_with_interval(slope, 4)} a {x}, {slope.n} seed{'s' * (slope.n > 1)}."
    )
    return f"{text}{ranks}{least} {SELECTED[found.selection].capitalize()}."


def _with_interval(value: Summary, digits: int) -> str:
    bounds = f" ({value.interval[0]:+.{digits}f} to {value.interval[1]:+.{digits}f})" if value.interval else ""
    return f"{value.mean:+.{digits}f}{bounds}"
