"""The doctor tells runs apart that were broken on purpose, and is silent about healthy ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.training.health.runs import recipe, train, warned
from tests.training.toys import SMALL
from training.health.diagnosis import diagnose
from training.losses.margin import MarginLoss
from training.losses.triplet import TripletMarginLoss
from training.recipe import Batch, Objective, Optimizer, Recipe
from training.recipes.common import DISTANCE, LATER_LOSSES, TABLE_2, ObjectiveSettings, regularised
from training.recipes.small import SMALL_METHODS

pytestmark = pytest.mark.slow

SEEDS = (11, 12)
OBJECTIVES = {**TABLE_2, **LATER_LOSSES, "rho": regularised("margin", 0.35)}
FROZEN_NORM = dataclasses.replace(SMALL, freeze_norm="all")
"""Batch norm that normalises nothing, since it keeps the statistics of random weights."""
ONE_CLASS = {"batch": Batch(15, "spc", 15)}


def settings(loss: str, miner: str | None = None, **args: Any) -> ObjectiveSettings:
    return ObjectiveSettings(Objective(loss, miner, args))


BROKEN: dict[str, tuple[str, ObjectiveSettings, dict[str, Any]]] = {
    "margin too large, triplet": ("margin-too-large", settings("triplet", DISTANCE, margin=3.0), {}),
    "margin too large, margin": ("margin-too-large", settings("margin", DISTANCE, margin=1.5), {}),
    "margin too large, contrastive": ("margin-too-large", settings("contrastive", DISTANCE, neg_margin=3.0), {}),
    "rate too high, margin": ("rate-too-high", OBJECTIVES["margin"], {"lr": 0.3, "backbone": FROZEN_NORM}),
    "rate too high, softmax": ("rate-too-high", OBJECTIVES["softmax"], {"lr": 3.0}),
    "rate too high, diverges": ("rate-too-high", OBJECTIVES["ms"], {"optimizer": Optimizer("sgd", 1e4)}),
    "rate too low, margin": ("rate-too-low", OBJECTIVES["margin"], {"lr": 1e-6}),
    "hard mining only, triplet": ("hard-mining", settings("triplet", "hard"), {}),
    "hard mining only, contrastive": ("hard-mining", settings("contrastive", "hard"), {}),
    "one class per batch, triplet": ("one-class-batch", settings("triplet"), ONE_CLASS),
    "one class per batch, softmax": ("one-class-batch", OBJECTIVES["softmax"], ONE_CLASS),
    "shuffled labels, margin": ("wrong-labels", OBJECTIVES["margin"], {}),
    "shuffled labels, pa": ("wrong-labels", OBJECTIVES["pa"], {}),
    "shuffled labels, softmax": ("wrong-labels", OBJECTIVES["softmax"], {}),
}
QUICK = (
    *("margin too large, triplet", "rate too high, diverges", "hard mining only, triplet"),
    *("one class per batch, softmax", "shuffled labels, margin"),
)
"""One broken run of each finding; `make slow` has the others."""
HEALTHY = ("margin", "softmax")
OTHERS = ("triplet-s", "triplet-d", "triplet-r", "contrastive", "ms", "pa", "arcface", "proxynca")
OTHERS += ("npair", "rho", "softtriple")


def mostly_slow(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    """Return a parameter of each name, marked `slow` unless it is among the quick ones."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def method(name: str, seed: int) -> Recipe:
    """Return a recipe of a method on patterns."""
    source = SMALL_METHODS[name](name, "glyphs")
    assert isinstance(source, Recipe)
    heads = tuple(dataclasses.replace(head, dim=16) for head in source.heads)
    args = {**source.objective.method_args, **({"pretraining": 2} if name == "group" else {})}
    objective = dataclasses.replace(source.objective, method_args=args)
    optimizer = Optimizer("adamw", 3e-3, 1e-4, source.optimizer.loss_lr)
    return recipe(OBJECTIVES["margin"], seed, objective=objective, heads=heads, optimizer=optimizer)


@pytest.mark.parametrize("name", mostly_slow(BROKEN, QUICK))
def test_a_broken_run_is_told_apart(name: str, tmp_path: Path) -> None:
    code, objective, change = BROKEN[name]
    history = train(recipe(objective, SEEDS[0], **change), tmp_path, shuffled=name.startswith("shuffled"))
    assert [finding.code for finding in diagnose(history)] == [code]
    assert warned(history) == [code]


@pytest.mark.parametrize("loss", [TripletMarginLoss, MarginLoss])
def test_a_margin_on_embeddings_that_are_not_normalised(
    loss: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "normalize_embeddings", False)
    name = "triplet-d" if loss is TripletMarginLoss else "margin"
    history = train(recipe(OBJECTIVES[name], SEEDS[0]), tmp_path)
    assert [finding.code for finding in diagnose(history)] == ["embeddings-not-normalised"]


def test_pixels_that_are_not_normalised(tmp_path: Path) -> None:
    made = recipe(OBJECTIVES["margin"], SEEDS[0])
    raw = dataclasses.replace(made.preprocessing, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))
    history = train(dataclasses.replace(made, preprocessing=raw), tmp_path)
    assert [finding.code for finding in diagnose(history)] == ["input-not-normalised"]


@pytest.mark.parametrize("name", mostly_slow(HEALTHY + OTHERS, HEALTHY))
def test_a_healthy_run_has_no_finding_in_any_epoch(name: str, tmp_path: Path) -> None:
    history = train(recipe(OBJECTIVES[name], SEEDS[1]), tmp_path)
    assert diagnose(history) == []
    assert warned(history) == []


def test_a_healthy_run_without_batch_norm_has_no_finding(tmp_path: Path) -> None:
    history = train(recipe(OBJECTIVES["margin"], SEEDS[1], backbone=FROZEN_NORM), tmp_path)
    assert diagnose(history) == []
    assert warned(history) == []


@pytest.mark.parametrize("name", mostly_slow(("diva", "group", "shared"), ["group"]))
def test_a_healthy_run_of_a_method_has_no_finding_in_any_epoch(name: str, tmp_path: Path) -> None:
    history = train(method(name, SEEDS[1]), tmp_path)
    assert diagnose(history) == []
    assert warned(history) == []
