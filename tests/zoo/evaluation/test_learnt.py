"""Learnt classes are recognised by their images, under any name, and by name where no images are recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commandline import run_here
from tests.serving import toys
from zoo.data.content import digests_of_classes, telling_digests
from zoo.data.folder import load
from zoo.evaluation.split import LearntClasses, LearntOverlap, read_learnt_classes, read_whitened_classes

A, B = "a" * 16, "b" * 16


def learnt(**classes: str) -> LearntClasses:
    return LearntClasses(frozenset(classes), {name: frozenset([value]) for name, value in classes.items() if value})


def test_images_decide_and_names_only_without_images() -> None:
    classes = {"cat": [A + "0" * 48], "1": [B], "dog": ["c" * 16], "owl": []}
    found = learnt(tiger=A, dog="d" * 16, owl="", elsewhere="").among(classes)
    assert found == LearntOverlap(by_images=("cat",), by_name=("owl",), namesakes=("dog",))
    assert found.learnt == ("cat", "owl")
    assert len(list(found.notes("mine"))) == 3
    assert learnt().among(classes) == LearntOverlap()


def test_a_whitening_is_known_by_its_images_alone(tmp_path: Path) -> None:
    many = " ".join(f"{number:016x}" for number in range(20))
    (tmp_path / "recipe.json").write_text(json.dumps({"whitening": {"class_images": {"": many, "dog": B}}}))
    found = read_whitened_classes(tmp_path).among({"cat": [f"{7:064x}"], "dog": [A], "owl": [B]})
    assert found == LearntOverlap(by_images=("cat", "owl"))
    for whitening in (None, 3, {}, {"class_images": 3}, {"class_images": {"dog": 3, "cat": ""}}):
        (tmp_path / "recipe.json").write_text(json.dumps({"whitening": whitening}))
        assert read_whitened_classes(tmp_path) == LearntClasses()


def test_images_without_a_class_are_all_kept() -> None:
    digests = frozenset(f"{number:016x}" for number in range(20))
    told = telling_digests({"": digests, "cat": digests})
    assert {name: len(text.split()) for name, text in told.items()} == {"": 20, "cat": 8}


def test_images_of_one_model_decide_before_the_names_of_another() -> None:
    first, second = LearntOverlap(("cat",), ("owl",), ("dog",)), LearntOverlap((), ("cat",), ("owl", "fox"))
    assert first.joined(second) == second.joined(first) == LearntOverlap(("cat",), ("owl",), ("dog", "fox"))


def test_a_name_that_one_of_two_models_has_no_images_of_is_known_by_name() -> None:
    both = LearntClasses.joined([learnt(cat=A), learnt(cat="", owl=B)])
    assert both == LearntClasses(frozenset({"cat", "owl"}), {"owl": frozenset([B])})
    assert LearntClasses.joined([learnt(cat=A), learnt(cat=B)]).digests == {"cat": frozenset([A, B])}


@pytest.mark.parametrize(
    "recipe",
    [
        {"training_data": {"class_names": ["cat"]}, "kept": "base"},
        {"training_data": {"class_names": [1]}, "class_images": 3},
        {"training_data": None, "split": "none", "class_images": {"cat": A}},
    ],
)
def test_a_kept_base_and_damaged_records_have_learnt_nothing(tmp_path: Path, recipe: dict[str, object]) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert read_learnt_classes(tmp_path) == LearntClasses()


def test_evaluate_notes_images_under_other_names_and_names_of_other_images(
    pictures: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding: only names counted, so a renamed folder passed unnoted, and another "1" was noted."""
    model = Path(shutil.copytree(toy, tmp_path / "model"))
    train = load("all", pictures)
    names = {"training_data": {"class_names": list(train.classes)}}
    facts = {**names, "class_images": telling_digests(digests_of_classes(train))}
    renamed = tmp_path / "renamed"
    for number, name in enumerate(train.classes):
        shutil.copytree(pictures / name, renamed / f"other {number}")
    swapped = tmp_path / "swapped"
    draw = np.random.default_rng(7)
    for kind, name in enumerate(train.classes):
        (swapped / name).mkdir(parents=True)
        for number in range(3):
            toys.picture(kind, draw).save(swapped / name / f"{number}.png")

    def notes(data: Path, recipe: dict[str, object]) -> str:
        (model / "recipe.json").write_text(json.dumps(recipe))
        run_here("evaluate", model, "--runtime", "onnx", "--dataset", "folder", "--data", data, "--json")
        return capsys.readouterr().err

    count = len(train.classes)
    assert f"learnt from images of {count} of these classes (other 0" in notes(renamed, facts)
    assert "learnt from" not in notes(renamed, names), "names alone do not tell"
    other = notes(swapped, facts)
    assert f"classes of the same name as {count} of these" in other
    assert "from other images" in other
    assert "by name, as it does not record" in notes(swapped, names)
