"""Networks that half precision does not suit: verify reports it, and the folder passes verify and push."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zoo
from zoo.cli.main import main
from zoo.errors import ModelFolderError
from zoo.files import sha256_of
from zoo.models.card import Card, Head, read_card
from zoo.models.verify import verify
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"
LARGE = 1e6
"""More than the largest number of fp16, 65504."""


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """The shipped model, without graphs, with a layer scaled by a million, which the following norm undoes."""
    folder = Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("onnx")))
    weights = load_file(folder / "model.safetensors")
    for name, factor in (("0.weight", LARGE), ("1.running_mean", LARGE), ("1.running_var", LARGE**2)):
        weights[f"blocks.1.{name}"] *= np.float32(factor)
    save_file(weights, folder / "model.safetensors")
    vouch(folder)
    return folder


def vouch(folder: Path) -> None:
    card = read_card(folder)
    files = {name: sha256_of(folder / name) for name in card.files if not name.startswith("onnx/")}
    dataclasses.replace(card, files=files).write(folder)


def test_unsuited_half_precision_is_reported_but_does_not_fail(
    overflowing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(overflowing), "--quick"]) == 0
    marks = {" ".join(line.split()[1:4]): line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert marks["golden torch fp32"] == "ok"
    assert marks["golden torch fp16"] == "unsuited"
    assert main(["verify", str(overflowing), "--quick", "--json"]) == 0
    (row,) = (check for check in json.loads(capsys.readouterr().out) if check["name"] == "golden torch fp16")
    assert (row["ok"], row["fails"]) == (False, False)
    assert zoo.push(overflowing, "org/toy", dry_run=True).commit is None


def test_a_failure_in_fp32_fails_verify_and_push(overflowing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(overflowing / "heads.safetensors")
    save_file({name: tensor[::-1].copy() for name, tensor in weights.items()}, overflowing / "heads.safetensors")
    vouch(overflowing)
    assert main(["verify", str(overflowing), "--quick", "--json"]) == 1
    failed = {check["name"] for check in json.loads(capsys.readouterr().out) if check["fails"]}
    assert failed == {f"golden torch {precision}" for precision in ("fp32", "fp16", "bf16")}
    with pytest.raises(ModelFolderError) as caught:
        zoo.push(overflowing, "org/toy", dry_run=True)
    assert "golden torch fp32" in str(caught.value)


DAMAGE: dict[str, Callable[[Card], Card]] = {
    "a config.json that contradicts the card": lambda card: dataclasses.replace(card, architecture="resnet18"),
    "preprocessing of another model": lambda card: dataclasses.replace(
        card, preprocessing=dataclasses.replace(card.preprocessing, mean=(0.1, 0.5, 0.5))
    ),
    "a card that says other heads": lambda card: dataclasses.replace(card, heads=(Head("other", card.dim),)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("config", [True, False])
def test_damage_is_not_reported_as_unsuited(overflowing: Path, damage: str, config: bool) -> None:
    """With a config.json that contradicts the card, or by golden images and weights only."""
    DAMAGE[damage](read_card(overflowing)).write(overflowing)
    if not config:
        (overflowing / "config.json").unlink()
    checks = {check.name: check for check in verify(overflowing)}
    assert checks["golden torch fp32"].fails
    assert checks["golden torch fp16"].fails
    assert not any(check.unsuited for check in checks.values())
