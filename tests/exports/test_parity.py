"""The cost of a precision in retrieval and the images for it, compared with loops and hand calculations."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from exports.parity import ReferenceRetrieval, draw_calibration_images, measure_parity, reference_retrieval
from tests.exports.toys import write_pictures
from tests.models import CARD
from tests.raising import raises
from zoo.cli.export import parity_lines, preference_lines
from zoo.data.dataset import Dataset
from zoo.data.preprocessing import to_pixels
from zoo.errors import ExportError, UsageError
from zoo.evaluation import per_query
from zoo.hub.model_page import OnnxGraph, PrecisionChange

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
    reference = ReferenceRetrieval(dataset, per_query(fp32, LABELS, k=(1,)))
    cost = reference.cost(Path(), CARD, run_of(variant), "int8")
    expected = naive_recall(variant) - naive_recall(fp32)
    row = cost["recall_at_1"]
    assert row["fp32"] == pytest.approx(naive_recall(fp32).mean())
    assert row["int8"] == pytest.approx(naive_recall(variant).mean())
    assert row["difference"] == pytest.approx(expected.mean())
    assert row["difference"] < 0
    low, high = row["interval"]
    interval = stats.ttest_1samp(expected.reshape(CLASSES, EACH).mean(1), 0).confidence_interval()
    assert (low, high) == pytest.approx(tuple(interval))
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


def test_costs_need_test_classes(tmp_path: Path) -> None:
    for name in "ab":
        write_pictures(tmp_path / "all" / name, 3, first=ord(name) * 100)
    run = run_of(table(0.0))
    with raises(ExportError, "too-few-samples") as caught:
        reference_retrieval(Path(), CARD, run)
    assert "--data DIR" in str(caught.value)
    folder = dataclasses.replace(CARD, dataset="folder")
    with raises(ExportError, "too-few-samples") as caught:
        reference_retrieval(Path(), folder, run)
    assert "--data DIR" in str(caught.value)
    with raises(ExportError, "too-few-samples"):
        reference_retrieval(Path(), folder, run, tmp_path / "all")


def test_a_model_of_no_data_set_is_measured_on_the_folder_that_is_given(tmp_path: Path) -> None:
    for part, name in itertools.product(("train", "test"), "ab"):
        write_pictures(tmp_path / part / name, 2, first=ord(name) * 100)
    card = dataclasses.replace(CARD, dataset="unknown")
    rows = np.eye(4, 12, dtype=np.float32)
    reference = reference_retrieval(tmp_path, card, lambda pixels: rows[: len(pixels)], tmp_path)
    assert (reference.dataset.name, reference.dataset.split, reference.dataset.classes) == (
        "folder",
        "test",
        ("a", "b"),
    )


def test_costs_are_measured_on_held_out_classes_and_readable_images(tmp_path: Path) -> None:
    """By hand: fp32 finds the other picture of each class. The variant has the rows b c c d for the pictures c c d d.

    The two c find one another; b and d are equally far from all others and find the first of them: one is right.
    """
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
    reference = reference_retrieval(tmp_path, card, run_of(rows), tmp_path / "all")
    assert (reference.dataset.split, reference.dataset.classes, reference.unreadable) == ("test", ("c", "d"), 1)
    assert "measured on the 2 classes that were held out" in reference.notes[0]
    assert reference.notes[-1].startswith("left out: image ")
    assert "broken.png" in reference.notes[-1]
    cost = reference.cost(tmp_path, card, run_of(crossed), "int8")
    assert (cost["split"], cost["queries"], cost["classes"], cost["unreadable"]) == ("test", 4, 2, 1)
    assert cost["recall_at_1"]["fp32"] == 1
    assert cost["recall_at_1"]["int8"] == 1 / 4
    for source, data in ((None, tmp_path / "all"), (str(tmp_path / "all"), None)):
        drawn = draw_calibration_images(card, source, data, folder=tmp_path)
        greys = {int(pixels.mean()) for pixels in (*drawn.calibration, *drawn.held_out)}
        assert greys == {0, 10, 20, 30}, "of the classes that it learnt from"
    (tmp_path / "all" / "d").rename(tmp_path / "all" / "e")
    with raises(ExportError, "too-few-samples") as caught:
        reference_retrieval(tmp_path, card, run_of(rows), tmp_path / "all")
    assert "1 of the 2 classes" in str(caught.value)


def test_classes_of_a_plain_folder_are_drawn_to_measure_on_and_the_others_calibrate(tmp_path: Path) -> None:
    """Of ten classes .3 are drawn. All pictures of a class have one grey, so calibration shows its classes."""
    for i in range(10):
        (tmp_path / f"class {i}").mkdir()
        for j in range(2):
            Image.new("RGB", (30, 30), (20 * i,) * 3).save(tmp_path / f"class {i}" / f"{j}.png")
    card = dataclasses.replace(CARD, dataset="unknown")
    rows = np.repeat(np.eye(10, 12, dtype=np.float32), 2, axis=0)
    reference = reference_retrieval(tmp_path, card, run_of(rows), tmp_path)
    assert (reference.dataset.split, len(reference.dataset.classes)) == ("test", 3)
    assert "3 of the 10 classes" in reference.notes[-1]
    measured = {20 * int(name[-1]) for name in reference.dataset.classes}
    drawn = draw_calibration_images(card, str(tmp_path), folder=tmp_path)
    greys = {int(pixels.mean()) for pixels in (*drawn.calibration, *drawn.held_out)}
    assert greys == set(range(0, 200, 20)) - measured
    cost = reference.cost(tmp_path, card, run_of(rows), "int8")
    assert (cost["split"], cost["classes"], cost["recall_at_1"]["difference"]) == ("test", 3, 0)


def test_a_table_calibrates_with_its_training_images(tmp_path: Path) -> None:
    """Labels do not matter, and unreadable images are replaced by others."""
    names = [path.name for path in sorted(write_pictures(tmp_path / "flat", 9).iterdir())]
    rows = [f"flat/{name},{'test' if i < 3 else 'train'}" for i, name in enumerate(names)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,split", *rows, "missing.png,train", ""]))
    drawn = draw_calibration_images(CARD, str(table))
    assert (drawn.source, len(drawn.calibration) + len(drawn.held_out)) == ("table t.csv", 6)
    known = {to_pixels(tmp_path / "flat" / name, CARD.preprocessing).tobytes() for name in names[3:]}
    assert {pixels.tobytes() for pixels in (*drawn.calibration, *drawn.held_out)} == known
    table.write_text("image\nmissing.png\nnowhere.png\nnor here.png\n")
    with raises(ExportError, "no-images") as caught:
        draw_calibration_images(CARD, str(table))
    assert "none of the 2 images" in str(caught.value)
    assert ".png'" in str(caught.value)


def test_a_folder_with_splits_calibrates_without_unreadable_images(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            write_pictures(tmp_path / split / name, 3, first=ord(name) * 100)
            (tmp_path / split / name / "broken.png").write_bytes(b"no image")
    drawn = draw_calibration_images(dataclasses.replace(CARD, dataset="folder"), data=tmp_path)
    assert (len(drawn.calibration), len(drawn.held_out)) == (6, 6)


def test_a_model_of_a_folder_names_the_options(tmp_path: Path) -> None:
    student = dataclasses.replace(CARD, dataset="folder")
    with raises(ExportError, "too-few-samples") as caught:
        draw_calibration_images(student)
    assert f"zoo export {CARD.name} --precision int8 --calibration DIR" in str(caught.value)
    with raises(UsageError, "unknown-name"):
        draw_calibration_images(student, "folder")
    # Labels, of which a student needs none, are not needed here either.
    assert len(draw_calibration_images(student, data=write_pictures(tmp_path / "flat", 9)).calibration) == 6


def test_the_command_prints_both_intervals_with_their_verdicts() -> None:
    over_queries = {"interval": [-0.0019, -0.0001], "within_target": True}
    row = {"difference": -0.001, "interval": [-0.0032, 0.0012], "within_target": False, "over_queries": over_queries}
    known = measure_parity(np.ones((1, 1)), lambda _: np.ones((1, 1)), np.zeros((1, 2, 2, 3), np.uint8), "int8")
    cost = {"dataset": "cifar100", "queries": 2000, "classes": 50, "target": 0.002, "recall_at_1": row}
    told = "\n".join(parity_lines(Path("model_int8.onnx"), dataclasses.replace(known, cost=cost), "0123456789"))
    assert told.splitlines()[1:] == [
        "  recall_at_1: -0.0010 against fp32; target undecided over classes (95 % -0.0032 to +0.0012), met over "
        "queries (95 % -0.0019 to -0.0001)",
        f"  on cifar100 (images not recorded), 2,000 queries of 50 classes; model 01234567; {known.date}; the target "
        "is a loss of at most 0.002",
    ]
    cost |= {"unreadable": 2, "protocol": "leave-one-out"}
    some = "\n".join(parity_lines(Path("model_int8.onnx"), dataclasses.replace(known, cost=cost), "0123456789"))
    assert "of 50 classes, 2 unreadable left out; leave-one-out; model 01234567; " in some


def graph(name: str, size: int, within: bool | None = None) -> OnnxGraph:
    changes = {} if within is None else {"R@1": PrecisionChange(-0.001, -0.002, 0.001, within)}
    return OnnxGraph(f"onnx/{name}.onnx", size, 0.999, changes=changes)


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        (
            [graph("model", 400), graph("model_fp16", 210, True), graph("model_int8", 230, True)],
            ["int8 is not", "fp16"],
        ),
        ([graph("model", 400), graph("model_fp16", 210, True), graph("model_int8", 120, True)], ["prefer int8"]),
        ([graph("model", 400), graph("model_fp16", 210, True), graph("model_int8", 120, False)], ["prefer fp16"]),
        ([graph("model", 400), graph("model_int8", 120, False)], ["prefer fp32"]),
        ([graph("model", 400), graph("model_int8", 400)], ["int8 is not smaller than fp32"]),  # no cost was measured
        ([graph("model", 400), graph("model_int8", 120)], []),
    ],
)
def test_a_precision_without_gain_is_remarked_and_the_smallest_safe_one_preferred(
    graphs: list[OnnxGraph], said: list[str]
) -> None:
    lines = list(preference_lines([*graphs, dataclasses.replace(graph("model_resize", 1), resizes=True)]))
    assert [line for line in lines if any(part in line for part in said)] == lines
    assert len(lines) >= (1 if said else 0)
    if len(said) == 2:
        assert lines[-1].startswith("prefer fp16: ")
