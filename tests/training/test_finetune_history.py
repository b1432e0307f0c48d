"""Names and records of finetunes: taken names, resuming, and the classes that the base has seen."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tests.training.cached.pictures import make_model, write_pictures
from training import checkpoint
from training import finetune as finetuning
from training.finetune import FinetuneRequest, check_name, classes_seen, finetune, unreadable_record
from zoo.cli.finetune import novelty
from zoo.cli.main import main
from zoo.data.content import CLASS_IMAGES, digests_of_classes, telling_digests
from zoo.data.dataset import Dataset
from zoo.data.folder import load
from zoo.errors import UsageError
from zoo.paths import SHIPPED

QUICK = ["schedule.epochs=1", "schedule.steps=2", "data.validation=0"]
REQUEST = FinetuneRequest("toy", "mine", settings=QUICK, views=1, device="cpu")


@pytest.fixture
def base(own_zoo: Path) -> Path:
    make_model(own_zoo / "models" / "toy")
    return own_zoo / "models" / "toy"


def record(folder: Path, **facts: object) -> None:
    (folder / "recipe.json").write_text(json.dumps(facts))


def test_names_that_are_taken(base: Path, own_zoo: Path) -> None:
    make_model(own_zoo / "models" / "other")
    shipped = next(SHIPPED.iterdir()).name
    for name in ("other", shipped, "diva-r50-cub"):
        with raises(UsageError, "already-exists") as caught:
            check_name(name, base)
        assert name in str(caught.value)
        check_name(name, base, replace=True)
    with raises(UsageError, "overwrites-input"):
        check_name("toy", base, replace=True)
    check_name("free", base)


@pytest.mark.usefixtures("base")
def test_a_list_shows_the_score_of_new_heads_on_the_classes_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_pictures(tmp_path)
    outcome = finetune(root, REQUEST)
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == "mine")
    assert row["measured_on"]["name"] == root.name
    assert row["classes"] == len(outcome.split.test.classes)
    assert row["recall_at_1"] is not None


@pytest.mark.slow
def test_a_second_finetune_does_not_change_the_first(
    base: Path, own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = write_pictures(tmp_path), own_zoo / "models" / "mine"

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(finetuning, "add_result", stopped)  # the model is written, its scores are not
        finetune(root, REQUEST)
    with raises(UsageError, "already-exists"):
        finetune(root, dataclasses.replace(REQUEST, seed=1))
    finetune(root, REQUEST)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "results.json" in before
    for request in (REQUEST, dataclasses.replace(REQUEST, method="ms")):
        with raises(UsageError, "already-exists"):
            finetune(root, request)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    finetune(root, dataclasses.replace(REQUEST, method="ms", replace=True))
    assert json.loads((folder / "recipe.json").read_text())["recipe"]["objective"]["loss"] != "margin"

    # Another seed measures on classes that `mine` has learnt; they are recorded.
    again = finetune(root, dataclasses.replace(REQUEST, base="mine", name="more", seed=1))
    learnt = json.loads((folder / "recipe.json").read_text())["split"]["train_classes"]
    expected = [name for name in again.split.test.classes if name in learnt]
    assert expected
    assert list(again.seen_classes) == again.to_json()["seen_by_base"] == expected
    assert json.loads((own_zoo / "models" / "more" / "recipe.json").read_text())["seen_by_base"] == expected
    assert expected[0] in novelty(again.seen_classes)
    assert novelty(()) == "that it never saw"


@pytest.mark.slow
def test_a_model_that_has_a_name_is_recorded_by_it_and_no_path_is_published(
    base: Path, own_zoo: Path, tmp_path: Path
) -> None:
    root = write_pictures(tmp_path / "ann" / "pictures")
    finetune(root, REQUEST)
    finetune(root, dataclasses.replace(REQUEST, base=str(own_zoo / "models" / "mine"), name="whole", tune="all"))
    elsewhere = Path(shutil.copytree(base, tmp_path / "ann" / "own"))
    finetune(root, dataclasses.replace(REQUEST, base=str(elsewhere), name="more"))
    starts = {}
    for name in ("mine", "whole", "more"):
        record = json.loads((own_zoo / "models" / name / "recipe.json").read_text())
        starts[name] = record["recipe"]["backbone"]["pretrained"]
        sent = zoo.push(name, "org/toy", dry_run=True)
        for file, data in sent.contents.items():
            content = data if isinstance(data, bytes) else data.read_bytes()
            assert not [path for path in (own_zoo, tmp_path) if str(path).encode() in content], file
    assert starts == {"mine": "toy", "whole": "mine", "more": str(elsewhere)}


@pytest.mark.slow
def test_stopped_training_continues_from_a_model_by_its_name(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, save = write_pictures(tmp_path), checkpoint.save
    request = dataclasses.replace(REQUEST, tune="all", settings=["schedule.epochs=3", "schedule.steps=2"])

    def stop_at_two(value: dict[str, Any], path: Path) -> None:
        if value["epoch"] == 2:
            raise KeyboardInterrupt
        save(value, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save", stop_at_two)
        finetune(root, request)
    epochs = []

    def save_and_record(value: dict[str, Any], path: Path) -> None:
        epochs.append(value["epoch"])
        save(value, path)

    monkeypatch.setattr(checkpoint, "save", save_and_record)
    monkeypatch.chdir(base.parents[1])  # from another folder
    finetune(root, dataclasses.replace(request, base=str(base)))  # and with the path instead of the name
    assert epochs == [2, 3]


def of_classes(*names: str) -> Dataset:
    """Images that are known by their class alone, as their files are missing."""
    files = [f"missing/{name}.png" for name in names]
    return Dataset("folder", "test", files, np.arange(len(names)), names, files)


def test_classes_of_all_ancestors_count_while_they_are_the_same_models(base: Path, own_zoo: Path) -> None:
    toy, second = make_model(base), own_zoo / "models" / "second"
    make_model(second, seed=1)
    record(base, split={"train_classes": ["a", "b"]})
    for name in ("toy", str(base)):  # by which older versions recorded it
        start = {"recipe": {"backbone": {"pretrained": name}}, "split": {"train_classes": ["c"]}}
        record(second, base={"fingerprint": toy.fingerprint}, **start)
        assert classes_seen(second, of_classes("d", "c", "a")) == ("a", "c")
    record(second, base={"fingerprint": "another"}, **start)
    assert classes_seen(second, of_classes("d", "c", "a")) == ("c",)
    record(second, base=1, recipe=[], split=None)
    assert classes_seen(second, of_classes("c")) == ()
    (second / "recipe.json").write_text("{")
    assert classes_seen(second, of_classes("c")) == ()


def test_classes_of_which_an_ancestor_was_whitened_on_images_count_by_their_images(
    base: Path, own_zoo: Path, tmp_path: Path
) -> None:
    root, toy, second = write_pictures(tmp_path), make_model(base), own_zoo / "models" / "second"
    make_model(second, seed=1)
    images = load("all", root)
    by_class = digests_of_classes(images)
    first, *others = images.classes
    record(base, whitening={CLASS_IMAGES: {"of any name": telling_digests(by_class)[first]}})
    start = {"recipe": {"backbone": {"pretrained": str(base)}}, "base": {"fingerprint": toy.fingerprint}}
    record(second, split={"train_classes": others[:1]}, **start)
    assert classes_seen(base, images) == (first,)
    assert classes_seen(second, images) == tuple(sorted((first, others[0])))


def test_a_truncated_record_is_reported(base: Path, own_zoo: Path) -> None:
    toy, second = make_model(base), own_zoo / "models" / "second"
    make_model(second, seed=1)
    start = {"recipe": {"backbone": {"pretrained": str(base)}}, "base": {"fingerprint": toy.fingerprint}}
    record(second, **start)
    assert unreadable_record(second) is None  # a base without a recipe.json was trained elsewhere
    record(base, split={"train_classes": ["a", "b"]})
    assert unreadable_record(second) is None
    for folder in (second, base):
        data = (folder / "recipe.json").read_bytes()
        for end in range(len(data)):
            (folder / "recipe.json").write_bytes(data[:end])
            assert unreadable_record(second) == folder / "recipe.json"
        (folder / "recipe.json").write_bytes(data)
    text = novelty((), base / "recipe.json")
    assert text != novelty(())
    assert str(base / "recipe.json") in text
    both = novelty(("a",), base / "recipe.json")
    assert "(a)" in both
    assert str(base / "recipe.json") in both
