"""The held-out classes of a model are selected again in the folder of its images."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.cli.main import main
from zoo.errors import DatasetError
from zoo.evaluation.remeasure import remeasure
from zoo.evaluation.split import EvaluationSplit, dataset_to_measure, default_dataset, find_split, read_split_record
from zoo.models.card import read_card
from zoo.models.results import Check, read_results

STRIPES, CHECKS, DISC, HTML = toys.CLASSES
TRAIN, TEST = (CHECKS, DISC), (HTML, STRIPES)
FILES = ("0.png", "1.png", "2.png", "3.png", "4.png", "large.jpg")
CHANGED = "the images have changed since"
EACH = toys.PER_CLASS


def record(folder: Path, train: Sequence[str] = TRAIN, test: Sequence[str] = TEST, **facts: Any) -> None:
    """Write recipe.json as `zoo finetune` does; the names of the classes are sorted."""
    sources = [f"{name}/{file}" for part in (train, test) for name in part for file in FILES]
    split = {
        "train_classes": list(train),
        "test_classes": list(test),
        "train_images": EACH * len(train),
        "test_images": EACH * len(test),
        "images_sha256": hashlib.sha256("".join(f"{source}\n" for source in sources).encode()).hexdigest(),
    }
    (folder / "recipe.json").write_text(json.dumps({"split": {**split, **facts.pop("split", {})}, **facts}))


@pytest.fixture
def folder(own_zoo: Path) -> Path:
    """A model whose recipe.json records a split of the pictures."""
    folder = toys.write_model(own_zoo / "models" / "mine", name="mine")
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "dataset": "folder"}))
    record(folder)
    return folder


@pytest.fixture
def root(pictures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pictures, tmp_path / "products"))


def select(folder: Path, split: str = "test", data: Path | None = None, name: str = "folder") -> EvaluationSplit:
    return find_split(folder, zoo.load(folder, "onnx").card, name, split, data)


def run(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["evaluate", "mine", "--runtime", "onnx", "--data", str(root), "--json", *more]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def verify(folder: Path, root: Path) -> Check:
    (check,) = remeasure(folder, root)
    return check


def test_each_split_is_the_classes_of_the_record(folder: Path, root: Path) -> None:
    for split, names in (("test", TEST), ("train", TRAIN)):
        selected = select(folder, split, root)
        assert (selected.dataset.name, selected.dataset.split, len(selected.notes)) == ("folder", split, 1)
        assert selected.dataset.classes == names
        assert list(selected.dataset.sources) == [f"{name}/{file}" for name in names for file in FILES]
        assert selected.dataset.labels.tolist() == [0] * EACH + [1] * EACH
    whole = select(folder, "all", root)
    assert (whole.dataset.split, len(whole.dataset)) == ("all", 4 * EACH)
    (note,) = whole.notes
    assert f"as 2 of these ({CHECKS}, {DISC}), by name" in note


def test_a_table_is_split_too(folder: Path, root: Path) -> None:
    table = root / "products.csv"
    with table.open("w", newline="") as file:
        rows = [(f"{name}/{image}", name) for name in sorted(toys.CLASSES) for image in FILES]
        csv.writer(file).writerows([("image", "label"), *rows])
    selected = select(folder, "test", table)
    assert (selected.dataset.classes, len(selected.dataset), len(selected.notes)) == (TEST, 2 * EACH, 1)
    assert selected.dataset.identity.sha256 == select(folder, "test", root).dataset.identity.sha256


def test_unreadable_images_do_not_count(folder: Path, root: Path) -> None:
    for name in (CHECKS, HTML):
        (root / name / "9.png").write_bytes(b"no image")
    assert CHANGED not in " ".join(select(folder, "test", root).notes)
    result = zoo.evaluate(zoo.load(folder, "onnx"), data=root, unreadable={})
    assert (result.split, result.queries, result.classes, result.unreadable) == ("test", 2 * EACH, 2, 1)


def test_names_of_files_may_be_any_bytes(folder: Path, root: Path) -> None:
    (root / HTML / "0.png").rename(os.fsdecode(os.fsencode(root / HTML) + b"/\xff.png"))
    selected = select(folder, "test", root)
    assert CHANGED in selected.notes[1]
    assert len(selected.dataset.identity.sha256) == 64


def test_changed_images_are_measured_with_a_note(folder: Path, root: Path) -> None:
    shutil.copy(root / HTML / "0.png", root / HTML / "new.png")
    more = select(folder, "test", root)
    (root / HTML / "new.png").unlink()
    (root / CHECKS / "0.png").rename(root / CHECKS / "renamed.png")
    renamed = select(folder, "test", root)
    assert (len(more.dataset), len(renamed.dataset)) == (2 * EACH + 1, 2 * EACH)
    assert all(CHANGED in selected.notes[1] for selected in (more, renamed))


def test_a_folder_without_the_classes_is_used_whole_with_a_note(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / STRIPES).rename(root / "red lines")
    result, err = run(root, capsys)
    assert (result["split"], result["queries"], result["classes"]) == ("all", 4 * EACH, 4)
    assert f"the folder lacks 1 of the 2 classes that were held out when mine was made ({STRIPES})" in err
    assert f"mine learnt from classes of the same name as 2 of these ({CHECKS}, {DISC})" in err
    assert "If it was this one, it has seen these classes" in err
    assert run(root, capsys, "--split", "train")[0]["queries"] == 2 * EACH


def test_folders_train_and_test_are_used(folder: Path, root: Path) -> None:
    for split, names in (("train", (STRIPES, CHECKS)), ("test", (DISC, HTML))):
        for name in names:
            shutil.move(root / name, root / split / name)
    selected = select(folder, "test", root)
    assert (selected.dataset.split, selected.dataset.classes) == ("test", (HTML, DISC))
    (note,) = selected.notes
    assert f"mine learnt from classes of the same name as 1 of these ({DISC})" in note
    assert select(folder, "train", root).notes == ()


def test_the_folder_of_the_images_is_required(folder: Path) -> None:
    with raises(DatasetError, "missing-value") as caught:
        zoo.evaluate(zoo.load(folder, "onnx"))
    assert all(name in str(caught.value) for name in ("mine", "--data", *TEST))
    with raises(DatasetError, "missing-value") as caught:
        select(folder, "train")
    assert all(name in str(caught.value) for name in TRAIN)
    with pytest.raises(DatasetError):
        select(folder, "all")


@pytest.mark.slow
@pytest.mark.parametrize(
    "split",
    [
        {"by": "image"},
        {"by": "given"},
        {"train_classes": [], "test_classes": []},
        {"test_classes": None},
        {"test_classes": [1, 2]},
        {"test_classes": [CHECKS, HTML]},
        {"images_sha256": None},
    ],
)
def test_a_record_that_does_not_split_by_class_is_ignored(folder: Path, root: Path, split: dict[str, Any]) -> None:
    record(folder, split=split)
    assert read_split_record(folder) is None
    assert select(folder, "test", root).dataset.split == "all"


def test_a_finetune_that_kept_the_network_of_another_data_set_is_measured_on_its_folder(
    folder: Path, root: Path
) -> None:
    card = read_card(folder)
    assert default_dataset(folder, card) == "folder"
    replace(card, dataset="glyphs").write(folder)
    assert default_dataset(folder, read_card(folder)) == "folder"
    assert select(folder, "test", root).dataset.split == "test"
    (folder / "recipe.json").unlink()
    assert default_dataset(folder, read_card(folder)) == "glyphs"


def test_weights_of_a_foreign_data_set_are_measured_on_the_folder_that_is_named(folder: Path, root: Path) -> None:
    (folder / "recipe.json").unlink()
    replace(read_card(folder), dataset="in1k").write(folder)
    card = read_card(folder)
    assert dataset_to_measure(folder, card, root) == "folder"
    with raises(DatasetError, "not-available", "--data DIR"):
        dataset_to_measure(folder, card)


def test_without_a_record_the_whole_folder_is_used(folder: Path, root: Path) -> None:
    for text in ("[]", "{", '{"split": 1}', "{}"):
        (folder / "recipe.json").write_text(text)
        assert select(folder, "test", root).dataset.split == "all"
    (folder / "recipe.json").unlink()
    assert read_split_record(folder) is None
    notes = [select(folder, split, root).notes for split in ("test", "train", "all")]
    assert notes == [(), ("the folder is not split into train and test, so all of it is used",), ()]


@pytest.mark.slow
def test_the_command_names_the_measured_classes(folder: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(folder, seen_by_base=[HTML])
    test, err = run(root, capsys)
    assert (
        "zoo: measured on the 2 classes that were held out when mine was made, as its recipe.json says, of the 4 in"
        in err
    )
    assert f"the model that mine was made from had seen 1 of these classes ({HTML}): the scores flatter mine" in err
    assert "has seen these classes" not in err
    train, err = run(root, capsys, "--split", "train")
    assert "measured on the 2 classes that mine learnt from" in err
    whole, err = run(root, capsys, "--split", "all")
    assert "has seen these classes" in err
    assert [part["split"] for part in (test, train, whole)] == ["test", "train", "all"]
    assert [part["queries"] for part in (test, train, whole)] == [2 * EACH, 2 * EACH, 4 * EACH]
    assert run(root, capsys, "--dataset", "folder")[0]["metrics"] == test["metrics"]


@pytest.mark.slow
def test_reports_show_the_same_classes_without_what_cannot_be_read(
    folder: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / HTML / "broken.png").write_bytes(b"no image")
    expected = run(root, capsys)[0]["metrics"]
    page = tmp_path / "page.html"
    words = ["--data", str(root), "--runtime", "onnx", "--out", str(page)]
    for command in (
        ["benchmark", "report", "mine"],
        ["benchmark", "compare", "mic-main", "--format", "html", "--show", "mine"],
    ):
        capsys.readouterr()
        assert main([*command, *words]) == 0
        err = capsys.readouterr().err
        assert "zoo: measured on the 2 classes that were held out when mine was made" in err
        assert err.count("zoo: left out: image ") == err.count("broken.png") == 1
        text = page.read_text()
        assert "12 queries of 2 classes" in text
        assert "1 image could not be read; the scores are of the others" in text
        assert f"{expected['map_at_r']:.4f}" in text
    assert main(["benchmark", "report", "mine", "--split", "all", "--strict", *words]) == 1
    assert "24 queries of 4 classes" in page.read_text()
    assert "has seen these classes" in capsys.readouterr().err


def test_saved_scores_are_verified_by_the_same_classes(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(root, capsys, "--save")
    check = verify(folder, root)
    assert (check.name, check.ok) == ("scores folder test onnx fp32", True)
    (result,) = read_results(folder)
    false = {**result, "metrics": {**result["metrics"], "map_at_r": 0.0}}
    (folder / "results.json").write_text(json.dumps([false]))
    assert verify(folder, root).ok is False
    (root / CHECKS / "0.png").rename(root / CHECKS / "renamed.png")
    assert verify(folder, root).ok is False  # other training images do not excuse a false score
    (folder / "results.json").write_text(json.dumps([result]))
    assert verify(folder, root).ok is True
    (root / STRIPES).rename(root / "red lines")
    check = verify(folder, root)
    assert check.ok is None
    assert "the folder lacks 1 of the 2 classes" in check.detail
    assert "the card's scores are of its test split" in check.detail
    (folder / "recipe.json").unlink()
    assert verify(folder, root).detail.startswith("the folder is not split into train and test; ")


def test_all_and_each_split_are_verified_side_by_side(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("test", "train", "all"):
        run(root, capsys, "--save", "--split", split)
    assert [result["split"] for result in read_results(folder)] == ["test", "train", "all"]
    assert [check.ok for check in remeasure(folder, root)] == [True, True, True]
