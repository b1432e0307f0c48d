"""The classes that were held out when a model was made are found again in the folder that it was made of."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests.serving import toys
from zoo.cli.main import main
from zoo.errors import DatasetError
from zoo.evaluation.remeasure import remeasure
from zoo.evaluation.split import EvaluationSplit, find_split, read_split_record
from zoo.models.results import Check, read_results

STRIPES, CHECKS, DISC, HTML = toys.CLASSES
TRAIN, TEST = (CHECKS, DISC), (HTML, STRIPES)
FILES = ("0.png", "1.png", "2.png", "3.png", "4.png", "large.jpg")
EACH = toys.PER_CLASS


def record(folder: Path, train: Sequence[str] = TRAIN, test: Sequence[str] = TEST, **facts: Any) -> None:
    """recipe.json as finetune writes it; the classes' names are sorted already."""
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
    """A model that says it was made of the pictures."""
    folder = toys.write_model(own_zoo / "models" / "mine", name="mine")
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "dataset": "folder"}))
    record(folder)
    return folder


@pytest.fixture
def root(pictures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pictures, tmp_path / "products"))


def asked(folder: Path, split: str = "test", data: Path | None = None, name: str = "folder") -> EvaluationSplit:
    return find_split(folder, zoo.load(folder, "onnx").card, name, split, data)


def run(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["evaluate", "mine", "--runtime", "onnx", "--data", str(root), "--json", *more]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def verified(folder: Path, root: Path) -> Check:
    (check,) = remeasure(folder, root)
    return check


def test_each_split_is_the_classes_of_the_record(folder: Path, root: Path) -> None:
    for split, names in (("test", TEST), ("train", TRAIN)):
        found = asked(folder, split, root)
        assert (found.same, found.dataset.name, found.dataset.split) == (True, "folder", split)
        assert found.dataset.classes == names
        assert list(found.dataset.sources) == [f"{name}/{file}" for name in names for file in FILES]
        assert found.dataset.labels.tolist() == [0] * EACH + [1] * EACH
    whole = asked(folder, "all", root)
    assert (whole.same, whole.dataset.split, len(whole.dataset), whole.notes) == (None, "all", 4 * EACH, ())


def test_a_table_is_looked_up_likewise(folder: Path, root: Path) -> None:
    table = root / "products.csv"
    with table.open("w", newline="") as file:
        rows = [(f"{name}/{image}", name) for name in sorted(toys.CLASSES) for image in FILES]
        csv.writer(file).writerows([("image", "label"), *rows])
    found = asked(folder, "test", table)
    assert (found.same, found.dataset.classes, len(found.dataset)) == (True, TEST, 2 * EACH)


def test_images_that_could_not_be_read_were_never_counted(folder: Path, root: Path) -> None:
    for name in (CHECKS, HTML):
        (root / name / "9.png").write_bytes(b"no image")
    assert asked(folder, "test", root).same is True
    result = zoo.evaluate(zoo.load(folder, "onnx"), data=root, unreadable={})
    assert (result.split, result.queries, result.classes, result.unreadable) == ("test", 2 * EACH, 2, 1)


def test_names_of_files_may_be_any_bytes(folder: Path, root: Path) -> None:
    (root / HTML / "0.png").rename(os.fsdecode(os.fsencode(root / HTML) + b"/\xff.png"))
    assert asked(folder, "test", root).same is False


def test_other_images_are_measured_and_said_to_be_others(folder: Path, root: Path) -> None:
    shutil.copy(root / HTML / "0.png", root / HTML / "new.png")
    more = asked(folder, "test", root)
    (root / HTML / "new.png").unlink()
    (root / CHECKS / "0.png").rename(root / CHECKS / "renamed.png")
    renamed = asked(folder, "test", root)
    assert (more.same, renamed.same) == (False, False)
    assert (len(more.dataset), len(renamed.dataset)) == (2 * EACH + 1, 2 * EACH)
    assert all("the images are not all those of then" in found.notes[1] for found in (more, renamed))


def test_another_folder_is_measured_whole_and_it_is_said_why(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / STRIPES).rename(root / "red lines")
    result, err = run(root, capsys)
    assert (result["split"], result["queries"], result["classes"]) == ("all", 4 * EACH, 4)
    assert f"the folder lacks 1 of the 2 classes that were held out when mine was made ({STRIPES})" in err
    assert f"mine learnt from classes of the same name as 2 of these ({CHECKS}, {DISC})" in err
    assert "If it was this one, it has seen these classes" in err
    assert run(root, capsys, "--split", "train")[0]["queries"] == 2 * EACH  # whose classes are all there


def test_folders_train_and_test_are_taken_as_they_are(folder: Path, root: Path) -> None:
    for split, names in (("train", (STRIPES, CHECKS)), ("test", (DISC, HTML))):
        for name in names:
            shutil.move(root / name, root / split / name)
    found = asked(folder, "test", root)
    assert (found.same, found.dataset.split, found.dataset.classes) == (None, "test", (HTML, DISC))
    assert found.notes == (f"mine learnt from classes of the same name as 1 of these ({DISC})",)
    assert asked(folder, "train", root).notes == ()


def test_without_a_folder_it_is_said_what_it_would_be_asked_for(folder: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"mine was made of a folder .* --data DIR.* The 2 classes that were held out"
    ):
        zoo.evaluate(zoo.load(folder, "onnx"))
    with pytest.raises(DatasetError, match="The 2 classes that mine learnt from"):
        asked(folder, "train")
    with pytest.raises(DatasetError, match="needs to know which one"):
        asked(folder, "all")


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
def test_a_record_that_parts_no_classes_is_none(folder: Path, root: Path, split: dict[str, Any]) -> None:
    record(folder, split=split)
    assert read_split_record(folder) is None
    assert asked(folder, "test", root).dataset.split == "all"


def test_no_record_and_one_of_another_data_set(folder: Path, root: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "dataset": "glyphs"}))
    assert asked(folder, "test", root).dataset.split == "all"
    (folder / "card.json").write_text(json.dumps(card))
    for text in ("[]", "{", '{"split": 1}', "{}"):
        (folder / "recipe.json").write_text(text)
        assert asked(folder, "test", root).dataset.split == "all"
    (folder / "recipe.json").unlink()
    assert read_split_record(folder) is None
    notes = [asked(folder, split, root).notes for split in ("test", "train", "all")]
    assert notes == [(), ("the folder is not parted into train and test, so it is taken whole",), ()]


def test_the_command_says_what_is_measured_and_splits_differ(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(folder, seen_by_base=[HTML])
    test, err = run(root, capsys)
    assert (
        "zoo: measured on the 2 classes that were held out when mine was made, as its recipe.json says, of the 4 in"
        in err
    )
    assert f"1 of these classes the model that mine was made from had learnt ({HTML}): the scores flatter it" in err
    assert "has seen these classes" not in err
    train, err = run(root, capsys, "--split", "train")
    assert "measured on the 2 classes that mine learnt from" in err
    whole, err = run(root, capsys, "--split", "all")
    assert "has seen these classes" in err
    assert [part["split"] for part in (test, train, whole)] == ["test", "train", "all"]
    assert [part["queries"] for part in (test, train, whole)] == [2 * EACH, 2 * EACH, 4 * EACH]
    assert run(root, capsys, "--dataset", "folder")[0]["metrics"] == test["metrics"]


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
    check = verified(folder, root)
    assert (check.name, check.ok) == ("scores folder test onnx fp32", True)
    (result,) = read_results(folder)
    false = {**result, "metrics": {**result["metrics"], "map_at_r": 0.0}}
    (folder / "results.json").write_text(json.dumps([false]))
    assert verified(folder, root).ok is False
    (root / CHECKS / "0.png").rename(root / CHECKS / "renamed.png")
    check = verified(folder, root)  # it cannot be told whether the score or the folder is another
    assert check.ok is None
    assert check.detail.endswith("other images than those that were held out")
    (folder / "results.json").write_text(json.dumps([result]))
    assert verified(folder, root).ok is True  # of other training images, which are not measured
    (root / STRIPES).rename(root / "red lines")
    check = verified(folder, root)
    assert check.ok is None
    assert "the folder lacks 1 of the 2 classes" in check.detail
    assert "the card's scores are of its test split" in check.detail
    (folder / "recipe.json").unlink()
    assert verified(folder, root).detail.startswith("the folder is not parted into train and test; ")


def test_all_and_each_split_are_verified_side_by_side(
    folder: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("test", "train", "all"):
        run(root, capsys, "--save", "--split", split)
    assert [result["split"] for result in read_results(folder)] == ["test", "train", "all"]
    assert [check.ok for check in remeasure(folder, root)] == [True, True, True]
