"""The study of other recipes: its arms share images and steps, and peers train trunk and head at their own rates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.quality.__main__ import main
from tests.benchmarks.quality.peers import METHOD, PEERS, PeerMethod
from tests.benchmarks.quality.study import STUDY, WITH_HEAD
from tests.raising import raises
from tests.training import toys
from tests.training.studies.toys import HEAD, images
from training.construction import construct
from training.methods import METHODS
from training.overrides import override
from training.recipe import Recipe
from training.studies.papers import STUDIES
from training.studies.plan import Plan
from training.studies.study import resolve_recipes
from training.studies.trials import METHOD_CONSTANTS, TrialValues, main_constant
from training.trainer import Trainer, fit
from zoo.errors import UsageError


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, METHOD, PeerMethod)
    monkeypatch.setitem(METHOD_CONSTANTS, METHOD, "constant")
    monkeypatch.setitem(STUDIES, STUDY.name, STUDY)


def recipes(dataset: str = "cub2010") -> dict[str, Recipe]:
    return {arm.label: resolve_recipes(STUDY, arm, dataset, 1)[0] for arm in STUDY.arms}


@pytest.mark.parametrize("dataset", STUDY.datasets)
def test_arms_differ_neither_in_images_nor_in_their_number(dataset: str) -> None:
    found = recipes(dataset)
    assert len({(r.data, r.preprocessing, r.augmentation, r.backbone.architecture) for r in found.values()}) == 1
    trained = [recipe for recipe in found.values() if recipe.learns]
    assert len({(r.schedule.epochs, r.schedule.steps, r.batch.size) for r in trained}) == 1
    assert len({recipe.digest for recipe in found.values()}) == len(found)
    assert sorted({recipe.backbone.freeze_norm for recipe in found.values()}) == ["all", "none"]


def test_a_control_has_everything_of_ours_but_loss_and_miner() -> None:
    found = recipes()
    for method, peer in WITH_HEAD.items():
        control, ours = (found[label].to_json() for label in (f"{peer} in our trainer", method))
        assert {key for key in ours if control[key] != ours[key]} == {"objective"}


def test_a_trial_of_every_arm_has_its_rate_and_its_constant() -> None:
    """The fault: an arm sets the arguments of its method as a whole, and trials could not change one of them."""
    plan = Plan(STUDY, "cub2010", 1, rates=(1e-4, 1e-3), budget=5)
    for arm in STUDY.arms:
        untried, trial = plan.recipes(arm)[0], plan.trial_recipes(arm, TrialValues(3e-5, 2.0))[0]
        assert trial.optimizer.lr == 3e-5
        before, after = main_constant(untried), main_constant(trial)
        assert after == (before and (before[0], 2 * before[1]))


def test_trials_vary_the_main_constant_of_a_loop_as_well() -> None:
    found = recipes()
    assert {peer: main_constant(found[peer]) for peer in PEERS} == {
        "pml-margin": ("objective.method_args.constant", 0.2),
        "pml-ms": ("objective.method_args.constant", 50),
        "pml-pa": ("objective.method_args.constant", 32),
        "oml-triplet": None,
        "timm-softmax": None,
    }


def toy_loop(name: str) -> Recipe:
    """Return a toy recipe with the settings of a peer's arm; no extra has the one that excludes NumPy 2."""
    if name == "oml-triplet":
        pytest.importorskip("oml")
    arm = next(arm for arm in STUDY.arms if arm.label == name)
    toy = toys.recipe(name="margin-toy")
    return override(toy, [*arm.settings, "optimizer.lr=1e-3"])


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_trains_trunk_and_head_at_its_own_rates(name: str, tmp_path: Path) -> None:
    recipe, peer = toy_loop(name), PEERS[name]
    run = Trainer(recipe, toys.noise(), toys.CPU)
    rates = {id(p): group["initial_lr"] for group in run.optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in run.network.trunk.parameters()} == {1e-3}
    assert {rates[id(p)] for p in run.network.heads.parameters()} == ({1e-3 * peer.head_rate} if peer.head else set())
    assert {rates[id(p)] for p in run.method.criterion.parameters()} <= {1e-3 * peer.own_rate}
    before = {key: value.clone() for key, value in run.network.state_dict().items()}
    after = fit(recipe, toys.noise(), tmp_path, toys.CPU, progress=False).network.state_dict()
    changed = {key.partition(".")[0] for key in after if not after[key].equal(before[key])}
    assert changed == ({"trunk", "heads"} if peer.head else {"trunk"})
    assert all(tensor.isfinite().all() for tensor in after.values())


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oml.losses.triplet", None)
    offered = {"heads": torch.nn.ModuleDict(), "classes": 3, "dim": 4}
    with raises(UsageError, "missing-dependency"):
        construct(METHODS, "method", METHOD, {"criterion": "oml-triplet"}, offered)


@pytest.mark.slow
def test_the_command_runs_ours_and_a_control(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (
        "data.dataset=folder",
        "data.side=32",
        "preprocessing.resize=32",
        "preprocessing.crop=32",
        "batch.size=8",
    )
    settings += ("backbone.frozen_stages=7", "data.views=1", "schedule.epochs=1", "schedule.steps=1", HEAD)
    arms = ("margin", "pml-margin in our trainer")
    words = [word for setting in settings for word in ("--set", setting)]
    words += [word for arm in arms for word in ("--only", arm)]
    folder = ("--data", str(images(tmp_path / "data")), "--out", str(tmp_path / "study"))
    assert main(["run", "peers/recipes", "--dataset", "cub2010", "--seeds", "2", *folder, *words]) == 0
    page = (tmp_path / "study" / "report.md").read_text()
    assert all(f"| {arm} | LDA | 2 |" in page for arm in arms)
    assert "pml-margin in our trainer is level with margin" in page
    assert "\npython -m tests.benchmarks.quality run peers/recipes --dataset cub2010" in page
