"""`zoo doctor` after short runs: it raises no false alarm about healthy ones, and names the cause of a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.training.health.runs import CLASSES, HELD_OUT, patterns
from training.recipe import Recipe
from training.recipes import RECIPES
from zoo.cli.main import main

SUFFIX = "-conv4-glyphs"
FAMILIES = [name for name, make in RECIPES.items() if name.endswith(SUFFIX) and isinstance(make(), Recipe)]
METHODS = [
    name + SUFFIX
    for name in ("margin", "softmax", "r-margin", "diva", "mic", "shared", "group", "xbm", "s2sd", "mixup", "simix")
]
QUICK = (("mic", 60), ("group", 40), ("softmax", 20), ("diva-deepcluster", 40))
"""Runs of the ordinary tests; `make slow` has the others."""
SMALL = {
    "backbone.args.widths": "[8,8,12,16]",
    "data.side": 16,
    "data.validation": HELD_OUT / CLASSES,
    "preprocessing.resize": 16,
    "preprocessing.crop": 16,
    "batch.size": 32,
    "batch.per_class": 4,
    "precision": "fp32",
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the patterns as images: a folder per class, in `train`; two of the classes in `test`, too."""
    root, data = tmp_path_factory.mktemp("patterns"), patterns(1)
    assert data.validation is not None
    held_out, labels = data.validation
    images = np.concatenate([data.squares.numpy(), held_out])
    for number, (image, label) in enumerate(zip(images, [*data.labels, *labels], strict=True)):
        for split in ("train", "test") if label < 2 else ("train",):
            folder = root / split / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
    return root


def options(**settings: Any) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def train(name: str, data: Path, steps: int, epochs: int = 4, **settings: Any) -> None:
    schedule = {"schedule.epochs": epochs, "schedule.steps": steps // epochs}
    words = ["train", name, "--dataset", "folder", "--data", str(data), "--no-eval", "--quiet", "--as", "run"]
    assert main([*words, *options(**SMALL, **schedule, **settings)]) == 0


def doctor(capsys: pytest.CaptureFixture[str], name: str = "run") -> tuple[int, dict[str, Any]]:
    """Return the exit status of `zoo doctor` and what it prints as JSON."""
    capsys.readouterr()
    status = main(["doctor", name, "--json"])
    return status, json.loads(capsys.readouterr().out)


def assert_no_alarm(capsys: pytest.CaptureFixture[str], name: str = "run") -> None:
    status, diagnosis = doctor(capsys, name)
    assert (status, diagnosis["findings"]) == (0, [])


@pytest.mark.parametrize(("name", "steps"), QUICK)
def test_a_short_healthy_run_is_no_alarm(
    name: str, steps: int, pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(name + SUFFIX, pictures, steps)
    assert_no_alarm(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 50])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_healthy_family_is_an_alarm(
    name: str, steps: int, pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(name, pictures, steps, epochs=5)
    assert_no_alarm(capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "epochs"), [(20, 1), (100, 5), (300, 10)])
@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_an_alarm_in_any_length(
    name: str, steps: int, epochs: int, pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(name, pictures, steps, epochs)
    assert_no_alarm(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_an_alarm_on_images_that_it_has_hardly_begun_to_learn(
    name: str, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", name, "--no-eval", "--quiet", "--as", "run"]
    schedule = {"schedule.epochs": 5, "schedule.steps": 20, "data.side": 20, "data.validation": 0.1}
    assert main([*words, *options(**{**SMALL, **schedule})]) == 0
    assert_no_alarm(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 100])
@pytest.mark.parametrize("tune", ["head", "all"])
def test_finetuning_is_no_alarm(
    tune: str, steps: int, pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", str(pictures / "train"), "--from", "margin-conv4-glyphs", "--tune", tune, "--as", "run"]
    settings = {"schedule.epochs": 4, "schedule.steps": steps // 4, "batch.size": 32}
    assert main([*words, "--quiet", *options(**settings)]) == 0
    assert_no_alarm(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 100])
def test_distillation_is_no_alarm(
    steps: int, pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["distill", "margin-conv4-glyphs", str(pictures / "train"), "--backbone", "conv4", "--as", "run"]
    settings = {"schedule.epochs": 4, "schedule.steps": steps // 4, "batch.size": 32}
    assert main([*words, "--quiet", *options(**settings)]) == 0
    assert_no_alarm(capsys)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "margin")) for n in ("margin", "diva")]
)
def test_heads_on_cached_features_are_no_alarm(
    name: str, pictures: Path, own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = ["features", "margin-conv4-glyphs", str(pictures / "train"), "-o", str(tmp_path / "kept"), "--quiet"]
    assert main([*features, "--views", "2"]) == 0
    words = ["train", name + SUFFIX, "--features", str(tmp_path / "kept"), "--no-eval", "--quiet", "--as", "run"]
    settings = {"schedule.epochs": 4, "schedule.steps": 15, "batch.size": 32, "data.validation": 0.25}
    assert main([*words, *options(**settings)]) == 0
    assert_no_alarm(capsys)


def test_a_margin_of_19_is_the_margin_and_not_the_labels(
    pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    margin: dict[str, Any] = {"objective.loss_args.margin": 1.9}
    train("triplet-d" + SUFFIX, pictures, 60, **margin)
    status, diagnosis = doctor(capsys)
    assert (status, [finding["code"] for finding in diagnosis["findings"]]) == (1, ["margin-too-large"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "margin")) for n in ("margin", "mic")]
)
def test_labels_of_other_images_are_found_in_a_short_run(
    name: str, pictures: Path, own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted(pictures.glob("train/*/*.png"))
    labels = np.random.default_rng(1).permutation([path.parent.name for path in paths])
    rows = [f"{path},{label},train" for path, label in zip(paths, labels, strict=True)]
    rows += [f"{path},other {path.parent.name},test" for path in sorted(pictures.glob("test/*/*.png"))]
    (tmp_path / "table.csv").write_text("\n".join(["image,label,split", *rows]))
    train(name + SUFFIX, tmp_path / "table.csv", 100)
    status, diagnosis = doctor(capsys)
    assert (status, [finding["code"] for finding in diagnosis["findings"]]) == (1, ["wrong-labels"])
