"""Means on one axis, and correlations as a coloured table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from tests.zoo.test_report import EVIL, Reader
from zoo.report.forest import Line, axis, forest
from zoo.report.matrix import correlations, pearson


def test_places_by_hand():
    """From -1 to 3 and a twentieth of 4 on each side: the axis is 4.4 long."""
    lines = [Line("a", 1.0, (-1.0, 3.0), band=(0.0, 0.5)), Line("b", 2.0, None, tone="good")]
    assert axis(lines, 0.0) == pytest.approx((-1.2, 3.2))
    html = forest(lines, at=0.0)
    assert re.findall(r'class="dot" style="left:([\d.]+)%', html) == ["50.00", "72.73"]
    assert re.findall(r'class="bar" style="left:([\d.]+)%;width:([\d.]+)%', html) == [
        ("4.55", "90.91"),
        ("72.73", "0.00"),
    ]
    assert re.findall(r'class="at" style="left:([\d.]+)%', html) == ["27.27"] * 2
    assert re.findall(r'class="band" style="left:([\d.]+)%;width:([\d.]+)%', html) == [("27.27", "11.36")]
    assert 'aria-label="1.0000, -1.0000 to 3.0000"' in html


def test_a_single_value_has_an_axis_too():
    low, high = axis([Line("a", 0.5, None)], None)
    assert low < 0.5 < high
    assert 'left:50.00%"' in forest([Line("a", 0.5, None)])


def test_what_is_written_is_escaped():
    html = forest([Line(EVIL, 1.0, None, EVIL, EVIL, EVIL)]) + correlations({EVIL: [1, 2, 3], "b": [1, 2, 4]})
    assert "<script" not in html
    assert Reader(html).text.count(EVIL) == 4


def test_correlations_are_pearsons():
    a, b, c = np.random.default_rng(0).normal(size=(3, 9))
    html = correlations({"a": a, "b": b, "c": c})
    expected = [f"{stats.pearsonr(x, y).statistic:+.2f}" for x, y in ((a, b), (a, c), (b, c))]
    assert re.findall(r'">([+-][\d.]+)<', html) == expected
    assert pearson(a, np.ones(9)) is None
    assert "<td>-</td>" in correlations({"a": a, "flat": np.ones(9)})
