"""Unreadable images of a user's own data are left out of a measurement, which counts them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import list_images
from zoo.errors import DatasetError, ImageError
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
def spoilt(pictures: Path, tmp_path: Path) -> Path:
    """The pictures and two files that are called images and are none."""
    root = Path(shutil.copytree(pictures, tmp_path / "spoilt"))
    half = (root / "green disc" / "0.png").read_bytes()[:200]
    (root / BROKEN[0]).write_bytes(half)
    (root / BROKEN[1]).write_bytes(b"")
    return root


def evaluate_command(data: Path, *more: str) -> list[str]:
    return ["evaluate", "toy-pool", "--runtime", "onnx", "--dataset", "folder", "--data", str(data), *more]


def test_a_folder_is_measured_without_them(model: Embedder, pictures: Path, spoilt: Path) -> None:
    unreadable: dict[str, ImageError] = {}
    found = evaluate(model, "folder", data=spoilt, batch_size=5, metrics="all", unreadable=unreadable)
    clean = evaluate(model, "folder", data=pictures, batch_size=5, metrics="all")
    assert (found.unreadable, clean.unreadable) == (2, 0)
    assert tuple(unreadable) == BROKEN
    assert "is empty" in str(unreadable[BROKEN[1]])
    assert found.queries == clean.queries == WHOLE
    assert found.metrics == pytest.approx(clean.metrics)
    assert found.intervals == clean.intervals
    with pytest.warns(UserWarning, match="left out: image") as warned:  # where nobody asks which they are
        assert evaluate(model, "folder", data=spoilt).unreadable == 2
    assert len(warned) == 2


def test_a_table_is_measured_without_missing_images(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    """Two of one class, two of another of which one cannot be read: its fellow has no relative any more."""
    (tmp_path / "none.png").write_bytes(b"no image")
    lines = [f"{pictures}/{toys.CLASSES[1]}/{i}.png,a" for i in range(2)] + [f"{pictures}/{toys.CLASSES[2]}/0.png,b"]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,label", "none.png,b", *lines, "missing.png,c"]))
    with pytest.warns(UserWarning, match="left out: image"):
        found = evaluate(model, "folder", data=table, k=(1,))
    assert (found.unreadable, found.queries, found.queries_without_relatives, found.classes) == (2, 3, 1, 1)


def test_nothing_is_measured_if_no_image_can_be_read(model: Embedder, tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(ImageError) as caught:
        evaluate(model, "folder", data=tmp_path)
    assert "a/1.png" in str(caught.value)


def test_an_incomplete_published_data_set_is_not_measured(model: Embedder, spoilt: Path) -> None:
    for name in ("cub", "cars", "sop", "inshop", "glyphs"):
        published = dataclasses.replace(load_dataset("folder", "all", spoilt), name=name, split="test")
        with raises(ImageError, "undecodable", "broken.png"):
            evaluate(model, published)


def test_the_command_lists_them_and_the_measurement_counts_them(
    model: Embedder, spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(spoilt, "--json")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["unreadable"] == 2
    lines = [line for line in err.splitlines() if line.startswith("zoo: left out: image ")]
    assert [any(name in line for line in lines) for name in BROKEN] == [True, True]
    assert len(lines) == 2
    assert main(evaluate_command(spoilt, "--strict", "--json")) == 1
    assert json.loads(capsys.readouterr().out)["unreadable"] == 2
    (spoilt / BROKEN[1]).unlink()
    assert main(evaluate_command(spoilt, "--save")) == 0
    assert "1 image could not be read; the scores are of the others" in capsys.readouterr().out
    assert main(["info", "toy-pool"]) == 0
    assert "measured on folder, all of it, 1 unreadable left out, with onnx in fp32" in capsys.readouterr().out
    (spoilt / BROKEN[0]).rename(spoilt / "aside")
    assert main(evaluate_command(spoilt, "--strict")) == 0
    (spoilt / "aside").rename(spoilt / BROKEN[0])
    for image in list_images(spoilt):
        image.write_bytes(b"")
    assert main(evaluate_command(spoilt)) == 2
    err = capsys.readouterr().err
    assert err.count("zoo: left out: image ") == WHOLE + 1
    assert "zoo: error: none of the 25 images" in err


def test_scores_are_measured_again_without_them(
    model: Embedder, spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(spoilt, "--save")) == 0
    (check,) = remeasure(model.folder, spoilt)
    assert check.ok is True
    shutil.copy(spoilt / "green disc" / "1.png", spoilt / BROKEN[0])
    (check,) = remeasure(model.folder, spoilt)
    assert (check.ok, check.detail) == (
        None,
        "25 queries (1 unreadable left out), the card's scores are of 24: other images",
    )


def test_results_without_a_count_still_load(
    model: Embedder, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluate_command(pictures, "--save")) == 0
    (result,) = read_results(model.folder)
    assert result.pop("unreadable") == 0
    (model.folder / "results.json").write_text(json.dumps([result]))
    capsys.readouterr()
    assert main(["info", "toy-pool"]) == 0
    assert "measured on folder, all of it, with onnx in fp32" in capsys.readouterr().out
    (check,) = remeasure(model.folder, pictures)
    assert check.ok is True
    assert main(evaluate_command(pictures, "--save")) == 0
    assert [row["unreadable"] for row in read_results(model.folder)] == [0]


def test_a_part_of_a_data_set_keeps_order_names_and_factors() -> None:
    whole = Dataset(
        "x", "all", list("abcd"), np.array([2, 0, 2, 1]), ("p", "q", "r"), list("wxyz"), {"f": np.arange(4)}
    )
    part = subset(whole, np.array([True, False, True, True]), "test")
    assert (part.split, part.classes, part.labels.tolist()) == ("test", ("q", "r"), [1, 1, 0])
    assert (part.images, part.sources, part.factors["f"].tolist()) == (["a", "c", "d"], ["w", "y", "z"], [0, 2, 3])
    with raises(DatasetError, "no-images"):
        subset(whole, np.zeros(4, bool))
