"""Forest plots and correlation tables in HTML."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from zoo.evaluation.statistics import correlation_triangle, pearson
from zoo.report.html import Block, ForestLine, ForestPlot, HeatMap, Section, page


def render(block: Block) -> str:
    return page("", [Section("", [block])])


def test_places_by_hand():
    """From -1 to 3 and a twentieth of 4 on each side: the axis is 4.4 long."""
    lines = [ForestLine("a", 1.0, (-1.0, 3.0), band=(0.0, 0.5)), ForestLine("b", 2.0, None, tone="good")]
    plot = ForestPlot(lines, 0.0)
    assert plot.axis() == pytest.approx((-1.2, 3.2))
    html = render(plot)
    assert re.findall(r'class="dot" style="left:([\d.]+)%', html) == ["50.00", "72.73"]
    assert re.findall(r'class="bar" style="left:([\d.]+)%;width:([\d.]+)%', html) == [
        ("4.55", "90.91"),
        ("72.73", "0.00"),
    ]
    assert re.findall(r'class="at" style="left:([\d.]+)%', html) == ["27.27"] * 2
    assert re.findall(r'class="band" style="left:([\d.]+)%;width:([\d.]+)%', html) == [("27.27", "11.36")]
    assert 'aria-label="1.0000, -1.0000 to 3.0000"' in html


def test_a_single_value_has_an_axis_too():
    plot = ForestPlot([ForestLine("a", 0.5, None)])
    low, high = plot.axis()
    assert low < 0.5 < high
    assert 'left:50.00%"' in render(plot)


def test_correlations_are_those_of_scipy():
    a, b, c = np.random.default_rng(0).normal(size=(3, 9))
    columns = {"a": a, "b": b, "c": c}
    html = render(HeatMap(list(columns), correlation_triangle(columns)))
    expected = [f"{stats.pearsonr(x, y).statistic:+.2f}" for x, y in ((a, b), (a, c), (b, c))]
    assert re.findall(r'">([+-][\d.]+)<', html) == expected
    assert pearson(a, np.ones(9)) is None
    assert "<td>-</td>" in render(HeatMap(["a", "flat"], correlation_triangle({"a": a, "flat": np.ones(9)})))
