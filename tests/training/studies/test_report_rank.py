"""Arms whose embeddings have a lower rank than their dimension: they are marked, and left out of correlations."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from tests.training.studies import toys
from tests.training.studies.toys import finish
from tests.zoo.report.test_model import Reader
from training.recipe import Recipe
from training.studies.measure import _view_function
from training.studies.papers import find_study
from training.studies.plan import Plan
from training.studies.render import as_html, as_markdown, to_json
from training.studies.report import Report, build_report, low_ranks, rank_and_dim
from training.studies.statistics import HOLDS
from training.studies.study import DECAY, EMBEDDING, FEATURES, R1, RANDOM_HEAD, Arm, Claim, Study, resolve_recipes
from zoo.evaluation.statistics import UNDECIDED
from zoo.evaluation.structure import spectral_decay
from zoo.models.network import Network, create_heads, create_trunk, feature_count


def wide(dim: int, label: str = "") -> Arm:
    return Arm(label or f"wide {dim}", "margin-$backbone-$dataset", (f'heads=[{{"name": "embedding", "dim": {dim}}}]',))


def measured_rank(recipes: Sequence[Recipe], view: str) -> tuple[int, int]:
    """Of 200 rows under random weights, their features as random as can be; in double precision."""
    parts = []
    for number, recipe in enumerate(recipes):
        torch.manual_seed(number)
        backbone = recipe.backbone
        trunk = create_trunk(backbone.architecture, recipe.preprocessing.channels, backbone.args)
        features = feature_count(trunk)
        network = Network(trunk, create_heads(recipe.heads, features)).double()
        with torch.no_grad():
            parts.append(_view_function(network, view, 0)(torch.randn(200, features, dtype=torch.float64)).numpy())
    rows = np.concatenate(parts, axis=1)
    return int(np.linalg.matrix_rank(rows)), rows.shape[1]


WIDTHS = ("backbone.args.widths=[8, 8, 12, 16]",)


@pytest.mark.parametrize(
    ("arm", "view"),
    [
        (wide(64), EMBEDDING),
        (wide(16), EMBEDDING),
        (wide(17), EMBEDDING),
        (wide(64), RANDOM_HEAD),
        (wide(64), FEATURES),
        (wide(64), "embedding"),
        (Arm("diva", "diva-$backbone-$dataset"), EMBEDDING),
        (Arm("diva", "diva-$backbone-$dataset"), "dance"),
        (Arm("group", "group-$backbone-$dataset"), EMBEDDING),
        (dataclasses.replace(wide(64), copies=2), EMBEDDING),
    ],
)
def test_the_rank_is_that_of_rows_under_random_weights(arm: Arm, view: str) -> None:
    recipes = resolve_recipes(Study("toys/rank", "", "", (arm,)), arm, "glyphs", 0, "last", WIDTHS)
    assert rank_and_dim(recipes, view) == measured_rank(recipes, view)


def test_rounding_determines_the_decay_of_a_wide_head() -> None:
    """Rows that use all their 17 directions alike: no decay on 17 numbers, one of several nats on 34."""
    rng = np.random.default_rng(0)
    directions, _ = np.linalg.qr(rng.normal(size=(500, 17)))
    wider = directions @ np.linalg.qr(rng.normal(size=(34, 17)))[0].T
    assert spectral_decay(directions) == pytest.approx(0, abs=1e-9)
    assert spectral_decay(wider.astype(np.float32)) > 5


SCORES = {"a": 0.60, "b": 0.62, "c": 0.65, "low": 0.90}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    arms = (*(dataclasses.replace(wide(16), label=label) for label in "abc"), wide(64, "low"), wide(64, "again"))
    claims = (Claim("low decays less", "low", "a", DECAY, lower=True), Claim("low beats a", "low", "a"))
    study = Study("toys/rank", "", "", arms, (R1, DECAY), claims, seeds=2, correlate=True)
    settings = tuple(setting for setting in toys.SETTINGS if setting != toys.HEAD)
    plan = Plan(study, "glyphs", 2, settings=settings, data=str(tmp_path))
    for run in plan.runs(tmp_path):
        finish(run, SCORES[run.arm.label.replace("again", "low")] * (1 + 0.01 * run.seed), [1.0])
    return build_report(plan, tmp_path)


def test_arms_of_low_rank_are_marked_and_their_decay_is_not_judged(report: Report) -> None:
    assert report.ranks == {DECAY: {"low": (17, 64), "again": (17, 64)}}
    assert {(row.arm, row.measure): row.rank for row in report.rows if row.rank} == {
        (label, DECAY): (17, 64) for label in ("low", "again")
    }
    assert [judged.verdict for judged in report.claims] == [UNDECIDED, HOLDS]
    markdown = as_markdown(report)
    assert "Rank below dimension: low (17 of 64), again (17 of 64)." in markdown
    assert markdown.count("(rank 17 of 64)") == 2
    assert to_json(report)["rank_below_dimension"] == {"train spectral_decay": {"low": (17, 64), "again": (17, 64)}}


@pytest.mark.slow
def test_correlations_with_decay_leave_out_arms_of_low_rank(report: Report) -> None:
    kept = [SCORES[label] + 0.01 * seed for label in "abc" for seed in range(2)]
    (correlation,) = report.correlations
    assert correlation[1:3] == ("test recall_at_1", "train spectral_decay")
    assert correlation[3] == pytest.approx(stats.pearsonr(kept, [1 - value for value in kept]).statistic)
    page = as_html(report)
    text = Reader(page).text
    assert "Without low, again: rank below dimension." in text
    assert "rank 17 of 64" in text
    (section,) = re.findall(r"<h2>R@1 on test against spectral decay</h2>.*?</section>", page, re.S)
    listed = Reader(f"<section>{section}").text
    assert not re.search(r"\b(low|again)\b", listed.partition("Means over seeds")[0])
    (drawn,) = re.findall(r"base64,([^\"]+)", section)
    assert b"svg" in base64.b64decode(drawn)


def test_one_model_under_two_names_is_named(report: Report) -> None:
    assert report.duplicates == [["low", "again"]]
    assert "low, again: one model under 2 names." in as_markdown(report)


def test_the_arms_of_the_claims_that_have_wide_heads() -> None:
    plan = Plan(find_study("claims/all"), "omniglot", 1, settings=("backbone.args.widths=[16,32,64,128]",))
    assert low_ranks(plan)[DECAY] == dict.fromkeys(("diva-d", "shared-disc", "shared-joint"), (129, 256))
