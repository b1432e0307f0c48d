"""Unreadable images of a user's own data are left out of a measurement, which counts them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.folder import list_images
from zoo.errors import ImageError
from zoo.evaluation import evaluate
from zoo.evaluation.remeasure import remeasure
from zoo.models.load import Embedder
from zoo.models.results import read_results

WHOLE = len(toys.CLASSES) * toys.PER_CLASS
BROKEN = ("green disc/broken.png", "red stripes/empty.jpg")


@pytest.fixture
def model(own_zoo: Path) -> Embedder:
    return zoo.load(toys.write_model(own_zoo / "models" / "toy-pool"), runtime="onnx")


@pytest.fixture
def damaged(pictures: Path, tmp_path: Path) -> Path:
    """Copy the pictures and add two files with suffixes of images that are not images."""
    root = Path(shutil.copytree(pictures, tmp_path / "damaged"))
    half = (root / "green disc" / "0.png").read_bytes()[:200]
    (root / BROKEN[0]).write_bytes(half)
    (root / BROKEN[1]).write_bytes(b"")
    return root


def evaluate_command(data: Path, *more: str) -> list[str]:
    return ["evaluate", "toy-pool", "--runtime", "onnx", "--dataset", "folder", "--data", str(data), *more]


@pytest.mark.slow
def test_a_folder_is_measured_without_them(model: Embedder, pictures: Path, damaged: Path) -> None:
    unreadable: dict[str, ImageError] = {}
    result = evaluate(model, "folder", data=damaged, batch_size=5, metrics="all", unreadable=unreadable)
    clean = evaluate(model, "folder", data=pictures, batch_size=5, metrics="all")
    assert (result.unreadable, clean.unreadable) == (2, 0)
    assert tuple(unreadable) == BROKEN
    assert "is empty" in str(unreadable[BROKEN[1]])
    assert result.queries == clean.queries == WHOLE
    assert result.metrics == pytest.approx(clean.metrics)
    assert result.intervals == clean.intervals
    with pytest.warns(UserWarning, match="left out: image") as warned:
        assert evaluate(model, "folder", data=damaged).unreadable == 2
    assert len(warned) == 2


def test_a_table_is_measured_without_missing_images(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    """Two classes have two images each. One image cannot be read, so the other one of its class has no relative."""
    (tmp_path / "none.png").write_bytes(b"no image")
    lines = [f"{pictures}/{toys.CLASSES[1]}/{i}.png,a" for i in range(2)] + [f"{pictures}/{toys.CLASSES[2]}/0.png,b"]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,label", "none.png,b", *lines, "missing.png,c"]))
    with pytest.warns(UserWarning, match="left out: image"):
        result = evaluate(model, "folder", data=table, k=(1,))
    assert (result.unreadable, result.queries, result.queries_without_relatives, result.classes) == (2, 3, 1, 1)


def test_nothing_is_measured_if_no_image_can_be_read(model: Embedder, tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(ImageError) as caught:
        evaluate(model, "folder", data=tmp_path)
    assert "a/1.png" in str(caught.value)


def test_an_incomplete_published_data_set_is_not_measured(model: Embedder, damaged: Path) -> None:
    for name in ("cub", "cars", "sop", "inshop", "glyphs"):
        published = dataclasses.replace(load_dataset("folder", "all", damaged), name=name, split="test")
        with raises(ImageError, "unreadable-image", "broken.png"):
            evaluate(model, published)


def test_the_command_lists_them_and_the_measurement_counts_them(
    model: Embedder, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(damaged, "--json")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["unreadable"] == 2
    lines = [line for line in err.splitlines() if line.startswith("zoo: left out: image ")]
    assert [any(name in line for line in lines) for name in BROKEN] == [True, True]
    assert len(lines) == 2
    assert main(evaluate_command(damaged, "--strict", "--json")) == 1
    assert json.loads(capsys.readouterr().out)["unreadable"] == 2
    (damaged / BROKEN[1]).unlink()
    assert main(evaluate_command(damaged, "--save")) == 0
    assert "1 image could not be read; the scores are of the others" in capsys.readouterr().out
    assert main(["info", "toy-pool"]) == 0
    assert ", all of it, 1 unreadable left out, with onnx in fp32" in capsys.readouterr().out
    (damaged / BROKEN[0]).rename(damaged.parent / "aside")
    assert main(evaluate_command(damaged, "--strict")) == 0
    (damaged.parent / "aside").rename(damaged / BROKEN[0])
    for image in list_images(damaged):
        image.write_bytes(b"")
    assert main(evaluate_command(damaged)) == 2
    err = capsys.readouterr().err
    assert err.count("zoo: left out: image ") == WHOLE + 1
    assert "zoo: error: none of the 25 images" in err


def test_scores_are_measured_again_without_them(
    model: Embedder, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(damaged, "--save")) == 0
    (check,) = remeasure(model.folder, damaged)
    assert check.ok is True
    shutil.copy(damaged / "green disc" / "1.png", damaged / BROKEN[0])
    (check,) = remeasure(model.folder, damaged)
    assert check.ok is None


def test_results_without_a_count_still_load(
    model: Embedder, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(pictures, "--save")) == 0
    (result,) = read_results(model.folder)
    assert result.pop("unreadable") == 0
    (model.folder / "results.json").write_text(json.dumps([result]))
    capsys.readouterr()
    assert main(["info", "toy-pool"]) == 0
    assert ", all of it, with onnx in fp32" in capsys.readouterr().out
    (check,) = remeasure(model.folder, pictures)
    assert check.ok is True
    assert main(evaluate_command(pictures, "--save")) == 0
    assert [row["unreadable"] for row in read_results(model.folder)] == [0]
