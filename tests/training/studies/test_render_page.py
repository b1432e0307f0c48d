"""A study's page: its numbers, its pictures, and nothing from elsewhere."""

from __future__ import annotations

import base64
import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.training.studies import toys
from tests.training.studies.toys import SCORES, finish
from tests.zoo.report.test_model import Reader
from training.studies.plan import Plan
from training.studies.render import as_html
from training.studies.report import build_report
from training.studies.study import Arm, Claim

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    arms = (*toys.STUDY.arms, Arm(EVIL, "ms-$backbone-$dataset", x=3))
    claims = (*toys.STUDY.claims, Claim(f"{EVIL} beats margin", EVIL))
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=claims)
    plan = dataclasses.replace(toys.plan(folder, seeds=3), study=study)
    for run in plan.runs(folder):
        finish(run, {**SCORES, EVIL: (0.55, 0.7, 0.6)}[run.arm.label][run.seed], [0.7, 0.3])
    return plan


@pytest.fixture(scope="module")
def html(plan: Plan, folder: Path) -> str:
    return as_html(build_report(plan, folder))


@pytest.mark.slow
def test_the_page_holds_claims_scores_and_pictures(html: str) -> None:
    reader = Reader(html)
    for says in (
        "9 of 9 runs are finished, of 3 arms.",
        "contrastive - margin: +0.0467",
        "Of 3 claims 2 hold, 0 do not, 1 are undecided.",
        "0.6567 ± 0.0058",
        "How the measures go together",
        "R@1 on test by place",
        "R@1 on test against spectral decay",
        "R@1 by epoch",
        "Singular values, test features, last",
        "cpu x",
    ):
        assert says in reader.text, says
    pictures = [a["src"] for tag, a in reader.tags if tag == "img"]
    assert len(pictures) == 3 + 3  # sweep, decay, epochs; spectra of test, training, features
    for source in pictures:
        assert source is not None
        drawn = base64.b64decode(source.removeprefix("data:image/svg+xml;base64,"), validate=True)
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        assert b"currentColor" in drawn  # axes in the ink of the theme
        assert b"prefers-color-scheme:dark" in drawn


def test_the_page_is_self_contained_and_escapes_names(html: str) -> None:
    assert EVIL not in html
    assert EVIL in Reader(html).text
    outside = re.sub(r'src="data:[^"]*"', "", html)
    assert not re.search(r"://|url\(|@import|<script|<link", outside)


def test_intervals_share_one_axis(html: str) -> None:
    """Dots left to right as the means are, bars around them, 0 where the baseline is."""
    (section,) = re.findall(r"<h2>Claims</h2>.*?</section>", html, re.S)
    dots = [float(left) for left in re.findall(r'class="dot" style="left:([\d.]+)%', section)]
    zeros = {float(left) for left in re.findall(r'class="at" style="left:([\d.]+)%', section)}
    bars = [(float(a), float(b)) for a, b in re.findall(r'class="bar" style="left:([\d.]+)%;width:([\d.]+)%', section)]
    (zero,) = zeros
    assert zero < dots[2] < dots[0] == dots[1]
    assert all(left + width / 2 == pytest.approx(dot, abs=0.02) for (left, width), dot in zip(bars, dots, strict=True))
    assert all(0 <= left <= left + width <= 100 for left, width in bars)


def test_an_empty_study_has_a_page(plan: Plan, tmp_path: Path) -> None:
    text = Reader(as_html(build_report(plan, tmp_path))).text
    assert "0 of 9 runs are finished, of 0 arms." in text
    assert "Not measured yet: contrastive beats margin" in text
    assert "9 runs are not finished" in text
