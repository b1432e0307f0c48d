"""Classes that a file from elsewhere names are imported only if the user says so."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.raising import raises
from zoo import paths
from zoo.cli.main import main
from zoo.cli.studies import app
from zoo.errors import ModelFolderError, RecipeError, ZooError

STRANGER = """
from pathlib import Path
from torch import nn
from training.losses.margin import MarginLoss as Loss
from training.miners.random import RandomMiner as Miner
from training.samplers.spc import SPC as Sampler
from torch.optim import AdamW as Optimizer

Path("imported").touch()

class Net(nn.Module):
    def __init__(self, in_chans=3):
        super().__init__()
        self.in_chans = in_chans
        self.body = nn.Sequential(nn.Conv2d(in_chans, 8, 3, 4), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def forward(self, x):
        return self.body(x)
"""
SHORT = ("schedule.epochs=1", "schedule.steps=1", "precision=fp32")
STILL = {"schedule.epochs": 0, "precision": "fp32"}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """A stranger's module in the current folder; the value tells whether it was imported since it was last asked."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text(STRANGER)

    def was_imported() -> bool:
        sys.modules.pop("stranger", None)
        mark = tmp_path / "imported"
        return mark.exists() and mark.unlink() is None

    yield was_imported
    was_imported()


def set_value(record: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        record = record[group]
    record[last] = value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("objective.loss", "stranger:Loss"),
        ("objective.miner", "stranger:Miner"),
        ("objective.miner_args", {"miner": "stranger:Miner"}),
        ("objective.method", "stranger:Method"),
        ("objective.method_args", {"auxiliary_loss": "stranger:Loss"}),
        ("batch.sampler", "stranger:Sampler"),
        ("optimizer.name", "stranger:Optimizer"),
        ("backbone.architecture", "stranger:Net"),
        ("backbone.args", {"trunk": "conv4", "head": "stranger:Net"}),
    ],
)
def test_reproduce_imports_no_class_that_a_foreign_recipe_names(
    imported: Callable[[], bool], tmp_path: Path, key: str, value: Any
) -> None:
    folder = shutil.copytree(paths.SHIPPED / "margin-conv4-glyphs", tmp_path / "foreign")
    record = json.loads((folder / "recipe.json").read_text())
    set_value(record["recipe"], key, value)
    (folder / "recipe.json").write_text(json.dumps(record))
    assert main(["reproduce", str(folder)]) == 2
    assert not imported()


@pytest.mark.slow
def test_reproduce_imports_them_with_trust_and_in_the_local_zoo(imported: Callable[[], bool], tmp_path: Path) -> None:
    folder = shutil.copytree(paths.SHIPPED / "margin-conv4-glyphs", tmp_path / "foreign")
    record = json.loads((folder / "recipe.json").read_text())
    record["recipe"]["objective"]["loss"] = "stranger:Loss"
    record["recipe"]["definitions"]["loss stranger:Loss"] = 1
    (folder / "recipe.json").write_text(json.dumps(record))
    short = [word for setting in SHORT for word in ("--set", setting)]
    assert main(["reproduce", str(folder), "--trust-code", "--as", "first", "--quiet", *short]) == 1  # too short a run
    assert imported()
    shutil.copytree(folder, paths.local_models() / "copied")
    assert main(["reproduce", "copied", "--as", "second", "--quiet", *short]) == 1
    assert imported()


@pytest.mark.slow
def test_a_study_from_elsewhere_imports_no_class_that_its_plan_names(
    imported: Callable[[], bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "--arm", "margin-conv4-glyphs", "--seeds", "1", "--quiet", "--out", "study"]
    run += [word for setting in SHORT for word in ("--set", setting)]
    foreign = ["--arm", "foreign=margin-conv4-glyphs,objective.loss=stranger:Loss"]
    assert main(["benchmark", *run, *foreign]) == 0  # typed by the user
    assert imported()
    for words in (["resume", "study"], ["resume", "study", "--report"], [*run, "--arm", "ms-conv4-glyphs"]):
        with raises(RecipeError, "unsafe-file", "stranger:Loss"):
            app(words, standalone_mode=False)
        assert not imported()
    shutil.copytree("study", paths.home() / "studies/mine")
    own = str(paths.home() / "studies/mine")
    for words in ([*run, *foreign], ["resume", "study", "--report", "--trust-code"], ["resume", own, "--report"]):
        assert main(["benchmark", *words]) == 0


def test_settings_of_a_foreign_study_and_of_a_foreign_search_are_refused(
    imported: Callable[[], bool], tmp_path: Path
) -> None:
    settings = ["objective.loss=stranger:Loss"]
    plan = {"study": "claims/rho", "dataset": "glyphs", "seeds": 1, "selections": ["last"], "data": None}
    search = {"losses": ["contrastive"], "dataset": "glyphs", "trials": 1}
    for name, record in (
        ("plan", {**plan, "settings": settings}),
        ("search", {"search": {**search, "settings": settings}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps(record))
        with raises(RecipeError, "unsafe-file", "stranger:Loss"):
            app(["resume", name], standalone_mode=False)
    with pytest.raises(ZooError):
        app(["search", "contrastive", "--dataset", "glyphs", "--trials", "1", "--out", "search"], standalone_mode=False)
    assert not imported()


@pytest.mark.slow
def test_nothing_is_made_from_a_foreign_network_that_would_be_trusted(
    imported: Callable[[], bool], tmp_path: Path
) -> None:
    zoo.train("margin-conv4-glyphs", backbone="stranger:Net", settings=STILL, name="mine", evaluate=False)
    zoo.export("mine")
    foreign = shutil.move(paths.local_models() / "mine", tmp_path / "foreign")
    random = np.random.default_rng(0)
    for number in range(12):
        (tmp_path / f"pictures/{number % 6}").mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"pictures/{number % 6}/{number}.png")
    assert imported()
    for tune in ("head", "all"):
        with raises(ModelFolderError, "unsafe-file"):
            zoo.finetune(foreign, tmp_path / "pictures", tune=tune, name="tuned")
    with raises(ModelFolderError, "unsafe-file"):
        zoo.baseline(foreign, "based")
    with raises(ModelFolderError, "unsafe-file"):
        zoo.train("margin-conv4-glyphs", settings={**STILL, "backbone.pretrained": str(foreign)}, name="started")
    assert main(["ensemble", str(foreign), str(foreign), "--as", "both"]) != 0
    with raises(ModelFolderError, "unsafe-file"):
        zoo.distill(str(foreign), tmp_path / "pictures", backbone="conv4", name="student")
    assert not imported()
    assert not any((paths.local_models() / name).exists() for name in ("tuned", "based", "started", "both", "student"))
