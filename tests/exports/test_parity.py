"""What a precision costs, by a loop over queries and by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from exports.parity import ReferenceRetrieval, draw_calibration_images, measure_parity, reference_retrieval
from tests.exports.toys import write_pictures
from tests.models import CARD
from zoo.cli.export import parity_lines
from zoo.data.dataset import Dataset
from zoo.data.preprocessing import to_pixels
from zoo.errors import ExportError, UsageError
from zoo.evaluation import per_query

CLASSES, EACH = 6, 4
LABELS = np.repeat(np.arange(CLASSES), EACH)


def table(noise: float) -> np.ndarray:
    draw = np.random.default_rng(0)
    rows = np.eye(CLASSES, 12)[LABELS] + 0.3 * draw.normal(size=(len(LABELS), 12))
    rows += noise * np.random.default_rng(1).normal(size=rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def run_of(rows: np.ndarray):
    """A network that knows image i by its grey, 10 i."""
    return lambda pixels: rows[np.rint(pixels.reshape(len(pixels), -1).mean(1) / 10).astype(int)]


def images() -> list[Image.Image]:
    return [Image.new("RGB", (30, 30), (10 * i,) * 3) for i in range(len(LABELS))]


def naive_recall(rows: np.ndarray) -> np.ndarray:
    hits = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        nearest = max(others, key=lambda j: float(np.float64(rows[i]) @ np.float64(rows[j])))
        hits.append(float(LABELS[nearest] == LABELS[i]))
    return np.array(hits)


def test_differences_and_their_paired_interval() -> None:
    fp32, variant = table(0.0), table(0.35)
    dataset = Dataset("noise", "test", images(), LABELS, tuple("abcdef"), [str(i) for i in range(len(LABELS))])
    known = ReferenceRetrieval(dataset, per_query(fp32, LABELS, k=(1,)))
    cost = known.cost(Path(), CARD, run_of(variant), "int8")
    expected = naive_recall(variant) - naive_recall(fp32)
    row = cost["recall_at_1"]
    assert row["fp32"] == pytest.approx(naive_recall(fp32).mean())
    assert row["int8"] == pytest.approx(naive_recall(variant).mean())
    assert row["difference"] == pytest.approx(expected.mean())
    assert row["difference"] < 0
    # Classes are drawn whole: no interval reaches beyond the best and the worst class.
    by_class = expected.reshape(CLASSES, EACH).mean(1)
    low, high = row["interval"]
    assert by_class.min() <= low <= expected.mean() <= high <= by_class.max()
    assert row["within_target"] == (low >= -0.002)
    assert (cost["queries"], cost["classes"]) == (len(LABELS), CLASSES)


def test_the_same_embeddings_cost_nothing() -> None:
    rows = table(0.0)
    dataset = Dataset("noise", "test", images(), LABELS, tuple("abcdef"), [str(i) for i in range(len(LABELS))])
    cost = ReferenceRetrieval(dataset, per_query(rows, LABELS, k=(1,))).cost(Path(), CARD, run_of(rows), "fp16")
    for name in ("recall_at_1", "map_at_r"):
        assert cost[name]["difference"] == 0
        assert cost[name]["interval"] == [0, 0]
        assert cost[name]["within_target"]


def test_why_it_cannot_be_measured(tmp_path: Path) -> None:
    for name in "ab":
        write_pictures(tmp_path / "all" / name, 3, first=ord(name) * 100)
    run = run_of(table(0.0))
    assert "no data set" in str(reference_retrieval(Path(), CARD, run))
    folder = dataclasses.replace(CARD, dataset="folder")
    assert str(reference_retrieval(Path(), folder, run)).endswith("name one with a subfolder a class: --data DIR")
    assert "which classes" in str(reference_retrieval(Path(), folder, run, tmp_path / "all"))


def test_costs_are_of_the_classes_that_were_held_out_and_of_images_that_can_be_read(tmp_path: Path) -> None:
    """By hand: fp32 finds each picture's fellow. The variant has c c d d at the places b c c d: two of them find one
    another, the outer ones are as far from all, and find the first of these, which is the fellow of one."""
    for i, name in enumerate(("a", "b", "c", "d")):
        (tmp_path / "all" / name).mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (30, 30), (20 * i + 10 * j,) * 3).save(tmp_path / "all" / name / f"{j}.png")
    (tmp_path / "all" / "c" / "broken.png").write_bytes(b"no image")
    split = {"train_classes": ["a", "b"], "test_classes": ["c", "d"], "images_sha256": "unknown"}
    (tmp_path / "recipe.json").write_text(json.dumps({"split": split}))
    card = dataclasses.replace(CARD, dataset="folder")
    rows = np.repeat(np.eye(4, 12, dtype=np.float32), 2, axis=0)
    crossed = np.roll(rows, 1, axis=0)
    known = reference_retrieval(tmp_path, card, run_of(rows), tmp_path / "all")
    assert isinstance(known, ReferenceRetrieval)
    assert (known.dataset.split, known.dataset.classes, known.unreadable) == ("test", ("c", "d"), 1)
    assert "measured on the 2 classes that were held out" in known.notes[0]
    assert known.notes[-1].startswith("left out: image ")
    assert "broken.png" in known.notes[-1]
    cost = known.cost(tmp_path, card, run_of(crossed), "int8")
    assert (cost["split"], cost["queries"], cost["classes"], cost["unreadable"]) == ("test", 4, 2, 1)
    assert cost["recall_at_1"]["fp32"] == 1
    assert cost["recall_at_1"]["int8"] == 1 / 4
    drawn = draw_calibration_images(card, data=tmp_path / "all", folder=tmp_path)
    greys = {int(pixels.mean()) for pixels in (*drawn.calibration, *drawn.held_out)}
    assert greys == {0, 10, 20, 30}, "of the classes that it learnt from"
    (tmp_path / "all" / "d").rename(tmp_path / "all" / "e")
    said = str(reference_retrieval(tmp_path, card, run_of(rows), tmp_path / "all"))
    assert "the folder lacks 1 of the 2 classes" in said
    assert "does not say which classes are for testing" in said


def test_pictures_of_a_folder_calibrate_or_are_held_out_never_both(tmp_path: Path) -> None:
    for name in "ab":
        write_pictures(tmp_path / name, 9, first=ord(name) * 100)
    found = draw_calibration_images(dataclasses.replace(CARD, dataset="folder"), data=tmp_path)
    one = {pixels.tobytes() for pixels in found.calibration}
    other = {pixels.tobytes() for pixels in found.held_out}
    assert len(one) == 12
    assert len(other) == 6
    assert not one & other


def test_a_table_calibrates_by_its_training_images(tmp_path: Path) -> None:
    """Labels play no part, and of images that cannot be read others take the place."""
    names = [path.name for path in sorted(write_pictures(tmp_path / "flat", 9).iterdir())]
    rows = [f"flat/{name},{'test' if i < 3 else 'train'}" for i, name in enumerate(names)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,split", *rows, "missing.png,train", ""]))
    found = draw_calibration_images(CARD, str(table))
    assert (found.source, len(found.calibration) + len(found.held_out)) == ("table t.csv", 6)
    known = {to_pixels(tmp_path / "flat" / name, CARD.preprocessing).tobytes() for name in names[3:]}
    assert {pixels.tobytes() for pixels in (*found.calibration, *found.held_out)} == known
    table.write_text("image\nmissing.png\nnowhere.png\nnor here.png\n")
    with pytest.raises(ExportError, match=r"none of the 2 images can be read; the first: image '.*\.png' does not"):
        draw_calibration_images(CARD, str(table))


def test_a_parted_folder_calibrates_past_what_cannot_be_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            write_pictures(tmp_path / split / name, 3, first=ord(name) * 100)
            (tmp_path / split / name / "broken.png").write_bytes(b"no image")
    found = draw_calibration_images(dataclasses.replace(CARD, dataset="folder"), data=tmp_path)
    assert (len(found.calibration), len(found.held_out)) == (6, 6)


def test_a_model_of_a_folder_says_what_to_type(tmp_path: Path) -> None:
    student = dataclasses.replace(CARD, dataset="folder")
    with pytest.raises(ExportError) as caught:
        draw_calibration_images(student)
    assert f"zoo export {CARD.name} --precision int8 --calibration DIR" in str(caught.value)
    assert "--data DIR" in str(caught.value)
    assert "data=" not in str(caught.value)
    with pytest.raises(UsageError, match=r"or a folder or table of images, not 'folder'\.$"):
        draw_calibration_images(student, "folder")
    # Labels, of which a student needs none, are not needed here either.
    assert len(draw_calibration_images(student, data=write_pictures(tmp_path / "flat", 9)).calibration) == 6


def test_the_command_says_both_intervals_with_their_verdicts() -> None:
    over_queries = {"interval": [-0.0019, -0.0001], "within_target": True}
    row = {"difference": -0.001, "interval": [-0.0032, 0.0012], "within_target": False, "over_queries": over_queries}
    known = measure_parity(np.ones((1, 1)), lambda _: np.ones((1, 1)), np.zeros((1, 2, 2, 3), np.uint8), "int8")
    cost = {"dataset": "cifar100", "target": 0.002, "recall_at_1": row}
    told = "\n".join(parity_lines(Path("model_int8.onnx"), dataclasses.replace(known, cost=cost)))
    assert told.splitlines()[1:] == [
        "  recall_at_1: -0.10 points against fp32; target undecided over classes (95 % -0.32 to +0.12), met over "
        "queries (95 % -0.19 to -0.01)",
        "  on cifar100; the target is a loss of at most 0.2 points",
    ]
    some = "\n".join(parity_lines(Path("model_int8.onnx"), dataclasses.replace(known, cost={**cost, "unreadable": 2})))
    assert some.endswith("  on cifar100, 2 unreadable left out; the target is a loss of at most 0.2 points")
