"""The reality check of 2026: its arms share images and steps, have constants to try, and are those of the protocol."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from training.losses import LOSSES
from training.methods import METHODS
from training.studies.named import plan_from_options
from training.studies.papers import find_study
from training.studies.papers.reality_2026 import BASELINES, OBJECTIVES
from training.studies.plan import Plan
from training.studies.study import MAP_AT_R
from training.studies.trials import METHOD_CONSTANTS, TrialValues, main_constant

PROTOCOL = (Path(__file__).parents[4] / "docs" / "lab" / "protocol-2026.md").read_text(encoding="utf-8")
STUDY = find_study("claims/reality-2026")


def plan(dataset: str) -> Plan:
    """Return the plan of the protocol's command."""
    command = re.search(r"zoo benchmark run (.*?)\nzoo", PROTOCOL, re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", ""))
    given: dict[str, list[str]] = {}
    for key, value in zip(words[1::2], words[2::2], strict=True):
        given.setdefault(key, []).append(value)
    rates, (budget,) = [float(rate) for rate in given["--trial-rates"]], map(int, given["--trials"])
    return plan_from_options(
        STUDY, dataset, settings=given["--set"], rates=rates, margins=given["--margin"], budget=budget
    )


@pytest.mark.parametrize("dataset", STUDY.datasets)
def test_arms_share_images_and_steps_and_have_a_constant_to_try(dataset: str) -> None:
    of = plan(dataset)
    recipes = {arm.label: of.recipes(arm)[0] for arm in STUDY.arms}
    shared = {str((r.data, r.preprocessing, r.augmentation, r.backbone, r.batch.size)) for r in recipes.values()}
    assert len(shared) == 1
    for arm in STUDY.arms:
        recipe, search = recipes[arm.label], of.search_of(arm)
        if arm in BASELINES:
            assert not recipe.learns
            assert search is None
            continue
        assert (recipe.schedule.epochs * recipe.schedule.steps, recipe.dim, recipe.head_end) == (100, 512, "trained")
        assert search is not None
        assert search.constant
        key, value = main_constant(recipe) or ("", 0)
        (tried,) = of.trial_recipes(arm, TrialValues(1e-3, 2.0))
        assert main_constant(tried) == (key, 2 * value)
        assert (tried.optimizer.lr, tried.data.validation, recipe.data.validation) == (1e-3, 0.25, 0)


def test_the_protocol_names_every_arm_and_years_are_those_of_objectives() -> None:
    assert all(label in PROTOCOL for label in (*OBJECTIVES, *(arm.label for arm in BASELINES)))
    assert {arm.label for arm in STUDY.arms if arm.x is not None} == set(OBJECTIVES)
    assert STUDY.seeds == 8
    assert sum(claim.measure == MAP_AT_R for claim in STUDY.claims) == 16


def test_main_constants_are_numbers_of_their_definitions() -> None:
    of_losses = {name: argument for name in LOSSES if (argument := LOSSES[name].main_constant)}
    assert of_losses.keys() == set(LOSSES) - {"dance"}
    for table, constants in ((LOSSES, of_losses), (METHODS, METHOD_CONSTANTS)):
        for name, argument in constants.items():
            assert isinstance(inspect.signature(table[name]).parameters[argument].default, (int, float)), name
