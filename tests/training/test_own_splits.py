"""Own images whose test split is missing or shares classes with train: said before training, with advice that works."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

import zoo
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.dataset import export_folder, subset

RECIPE = "margin-conv4-glyphs"

pytestmark = pytest.mark.slow


def table_of(tmp_path: Path, split_of: Mapping[int, tuple[str, ...]]) -> Path:
    """Write a table of eight images of each class; the splits of a class take turns."""
    glyphs = load_dataset("glyphs", "train")
    export_folder(subset(glyphs, glyphs.labels < len(split_of), "train"), tmp_path / "all")
    lines = ["image,label,split"]
    for number, folder in enumerate(sorted({path.parent for path in (tmp_path / "all").rglob("*.png")})):
        for turn, image in enumerate(sorted(folder.glob("*.png"))[:8]):
            lines.append(f"{image},class{number},{split_of[number][turn % len(split_of[number])]}")
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "own.csv"


def test_a_missing_test_split_is_said_before_training(
    tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path, dict.fromkeys(range(4), ("train",)))
    words = ["train", RECIPE, "--data", str(table), "--set", "schedule.epochs=1", "--as", "own"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "test" in printed.err
    advice = shlex.split(printed.out.rpartition("with: ")[2])
    assert str(table) not in advice
    other = tmp_path / "other"
    export_folder(subset(load_dataset("glyphs", "test"), load_dataset("glyphs", "test").labels < 3, "test"), other)
    assert main([str(other) if word == "DIR" else word for word in advice[1:]]) == 0


def test_classes_of_both_splits_are_named_before_training(
    tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path, {**dict.fromkeys(range(4), ("train",)), 4: ("train", "test"), 5: ("test",)})
    zoo.train(RECIPE, table, settings={"schedule.epochs": 1}, name="own", evaluate=False)
    assert "(class4)" in capsys.readouterr().err


def test_no_epochs_are_said(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo.train(RECIPE, settings={"schedule.epochs": 0}, name="own", evaluate=False)
    assert "schedule.epochs" in capsys.readouterr().err
