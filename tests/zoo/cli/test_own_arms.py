"""Studies of arms of the user: `zoo benchmark run --arm`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests.raising import raises
from training.studies.own import own_study
from training.studies.study import resolve_recipes
from zoo.cli.main import main
from zoo.errors import RecipeError, UsageError, ZooError

LOSS = """
from torch import nn

class MyLoss(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, embeddings, labels, indices_tuple=None):
        similar = embeddings @ embeddings.T
        same = labels[:, None] == labels
        return self.weight * (similar[~same].mean() - similar[same].mean())
"""
SHORT = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2"]
MINE = "mine=margin-conv4-glyphs,objective.loss=armloss:MyLoss,objective.miner=none,objective.loss_args.weight=2"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "armloss.py").write_text(LOSS)
    return tmp_path


def test_an_arm_is_a_recipe_with_settings_whose_values_may_hold_commas() -> None:
    study = own_study(
        ["margin-conv4-glyphs", 'wide=margin-conv4-glyphs,heads=[{"name":"embedding","dim":9}],optimizer.lr=0.02']
    )
    assert study.labels == ["margin-conv4-glyphs", "wide"]
    (first,), (second,) = (resolve_recipes(study, arm, "omniglot", seed=4) for arm in study.arms)
    assert (second.dim, second.optimizer.lr, second.seed) == (9, 0.02, 4)
    assert first.data.dataset == second.data.dataset == "omniglot"


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (UsageError, "missing-value", ["--arm", "margin-conv4-glyphs"]),
        (UsageError, "invalid-value", ["--arm", "mine=", "--arm", "margin-conv4-glyphs"]),
        (UsageError, "conflicting-options", ["claims/rho", "--arm", "margin-conv4-glyphs"]),
        (UsageError, "conflicting-options", []),
        (UsageError, "conflicting-settings", ["--arm", "margin-conv4-glyphs", "--arm", "margin-conv4-omniglot"]),
        (RecipeError, "unknown-name", ["--arm", "margin-conv4-glyphs", "--arm", "margin-conv4-gliphs"]),
        (
            RecipeError,
            "unknown-name",
            ["--arm", "margin-conv4-glyphs", "--arm", "a=margin-conv4-glyphs,objective.loss=x:Y"],
        ),
        (RecipeError, "invalid-value", ["--arm", "a=margin-conv4-glyphs", "--arm", "a=ms-conv4-glyphs"]),
    ],
)
def test_other_arms_are_refused(folder: Path, kind: type[ZooError], code: str, words: list[str]) -> None:
    from zoo.cli.studies import app

    with raises(kind, code):
        app(["run", *words], standalone_mode=False)


@pytest.mark.slow
def test_own_arms_are_trained_tried_compared_and_continued(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["benchmark", "run", "--arm", "margin-conv4-glyphs", "--out", "study", *SHORT, "--json", "--quiet"]
    run += ["--trial-rates", "1e-3", "--trial-rates", "3e-3"]
    try:
        assert main([*run, "--arm", MINE, "--seeds", "2"]) == 0
        outcome = json.loads(capsys.readouterr().out)
        report = outcome["report"]
        assert {row["arm"] for row in report["rows"]} == {"margin-conv4-glyphs", "mine"}
        assert (report["seeds"], report["baseline"]) == (2, "margin-conv4-glyphs")
        assert outcome["done"] == 4
        assert {trial["arm"] for trial in json.loads((folder / "study/plan.json").read_text())["trials"]} == {
            "margin-conv4-glyphs",
            "mine",
        }
        assert main([*run, "--arm", "softmax-conv4-glyphs", "--arm", MINE, "--seeds", "2"]) == 0  # a third arm joins
        joined = json.loads(capsys.readouterr().out)
        assert {row["arm"] for row in joined["report"]["rows"]} == {
            "margin-conv4-glyphs",
            "mine",
            "softmax-conv4-glyphs",
        }
        assert joined["done"] == 2
        assert main(["benchmark", "resume", "study", "--report", "--latex", "--trust-code"]) == 0
        assert "\\toprule" in capsys.readouterr().out
    finally:
        sys.modules.pop("armloss", None)


@pytest.mark.slow
def test_objects_are_arms_of_a_study_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import armloss  # type: ignore[import-not-found]

    own = {"recipe": "margin-conv4-glyphs", "miner": "none"}
    arms = {
        "margin": "margin-conv4-glyphs",
        "one": {**own, "loss": armloss.MyLoss()},
        "two": {**own, "loss": armloss.MyLoss(2.5), "settings": {"optimizer.lr": 0.002}},
    }
    short = {"schedule.epochs": 1, "schedule.steps": 2}
    try:
        compared = zoo.study(arms, seeds=1, settings=short, margins={"map_at_r": 0.005}, out="study")
        plan = json.loads((folder / "study/plan.json").read_text())
        assert plan["margins"] == ["map_at_r=0.005"]
        recipes = plan["recipes"]
        weights = {label: recipes[label]["0"]["objective"]["loss_args"].get("weight") for label in arms}
        assert weights == {"margin": None, "one": 1.0, "two": 2.5}
        assert {row["arm"] for row in compared.report["rows"]} == set(arms)
        assert "\\toprule" in compared.latex()
        assert "<table" in compared._repr_html_()
        before = (folder / "study/results.jsonl").read_bytes()
        zoo.study(arms, seeds=1, settings=short, margins={"map_at_r": 0.005}, out="study")
        assert (folder / "study/results.jsonl").read_bytes() == before
    finally:
        sys.modules.pop("armloss", None)


@pytest.mark.parametrize(
    ("kind", "code", "arms"),
    [
        (UsageError, "missing-value", {"a": "margin-conv4-glyphs"}),
        (UsageError, "invalid-value", {"a": "margin-conv4-glyphs", "b": {"loss": "ms"}}),
        (UsageError, "invalid-value", {"a": "margin-conv4-glyphs", "b=c": "ms-conv4-glyphs"}),
        (UsageError, "unknown-name", {"a": "margin-conv4-glyphs", "b": {"recipe": "ms-conv4-glyphs", "lss": "ms"}}),
        (RecipeError, "unknown-name", {"a": "margin-conv4-glyphs", "b": "ms-conv4-gliphs"}),
    ],
)
def test_other_arms_of_python_are_refused(kind: type[ZooError], code: str, arms: dict[str, Any]) -> None:
    with raises(kind, code):
        zoo.study(arms)
