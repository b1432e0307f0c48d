"""Means and their intervals on one axis, row by row, drawn by the page itself: a forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Line:
    """A mean and its interval, None where there is none. what, note, mark: shown before and after it.

    tone: "good" or "bad" for green or red, else neither. band: a range that is marked in grey.
    """

    what: str
    mean: float
    interval: tuple[float, float] | None
    note: str = ""
    mark: str = ""
    tone: str = ""
    band: tuple[float, float] | None = None


def forest(lines: Sequence[Line], at: float | None = None) -> str:
    """The lines, one or more, above one another on an axis that holds them all. at: a place that is marked, as 0."""
    low, high = axis(lines, at)
    rows = "".join(_row(line, at, low, high) for line in lines)
    ends = f'<div class="ends"><span>{low:.4g}</span><span>{high:.4g}</span></div>'
    return f'<div class="forest">{rows}</div>{ends}'


def axis(lines: Sequence[Line], at: float | None) -> tuple[float, float]:
    """The ends of the axis: all that is drawn, and a twentieth more on each side."""
    values = [value for line in lines for value in (line.mean, *(line.interval or ()), *(line.band or ()))]
    values += [] if at is None else [at]
    low, high = min(values), max(values)
    margin = (high - low) / 20 or 0.01
    return low - margin, high + margin


def _row(line: Line, at: float | None, low: float, high: float) -> str:
    start, end = line.interval or (line.mean, line.mean)
    width = _share(end, low, high) - _share(start, low, high)
    marks = _band(line.band, low, high) + _at(at, low, high)
    bar = f'<i class="bar" style="left:{_share(start, low, high):.2f}%;width:{width:.2f}%"></i>'
    dot = f'<i class="dot" style="left:{_share(line.mean, low, high):.2f}%"></i>'
    says = f"{line.mean:.4f}" + (f", {start:.4f} to {end:.4f}" if line.interval else "")
    note = f"<small>{escape(line.note)}</small>" if line.note else ""
    return (
        f'<div class="{escape(line.tone)}"><span class="what">{escape(line.what)}{note}</span>'
        f'<span class="mark">{escape(line.mark)}</span>'
        f'<div class="strip" role="img" aria-label="{escape(says)}" title="{escape(says)}">{marks}{bar}{dot}</div>'
        "</div>"
    )


def _at(at: float | None, low: float, high: float) -> str:
    return "" if at is None else f'<i class="at" style="left:{_share(at, low, high):.2f}%"></i>'


def _band(band: tuple[float, float] | None, low: float, high: float) -> str:
    if band is None:
        return ""
    start, end = (_share(bound, low, high) for bound in band)
    return f'<i class="band" style="left:{start:.2f}%;width:{end - start:.2f}%"></i>'


def _share(value: float, low: float, high: float) -> float:
    return 100 * (value - low) / (high - low)
