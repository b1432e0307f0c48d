"""Retrieval scores of each serving step."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from serving.gallery import VectorGallery
from serving.gallery.evaluate import LabelledItems, gallery_steps, measure, model_change_steps, report
from serving.gallery.gallery import STORE
from serving.gallery.index import Neighbours
from serving.gallery.indexing import index_folder
from serving.gallery.store import Store
from serving.gallery.tune import sample_index
from serving.gallery.types import Block
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.test_gallery import CARD, new_items
from tests.serving.gallery.test_index import clustered
from tests.serving.toys import content
from zoo.data import load_dataset
from zoo.errors import EvaluationError, ImageError
from zoo.evaluation import retrieval_metrics
from zoo.files import sha256_of
from zoo.models.card import read_card
from zoo.models.load import load


def write_int8(folder: Path) -> None:
    """A variant whose weights are so coarse that it loses."""
    model = onnx.load(folder / "onnx" / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "projection":
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.sign(values).astype(np.float32), "projection"))
    path = folder / "onnx" / "model_int8.onnx"
    onnx.save(model, path)
    card = read_card(folder)
    replace(card, files={**card.files, "onnx/model_int8.onnx": sha256_of(path)}).write(folder)


@pytest.fixture
def served(tmp_path: Path, pictures: Path) -> tuple[Path, Path]:
    """A gallery and its model's folder, which has an int8 variant."""
    folder = toys.write_model(tmp_path / "m")
    write_int8(folder)
    index_folder(load(folder, runtime="onnx"), str(folder), pictures, tmp_path / "g")
    return tmp_path / "g", folder


def test_each_step_is_what_the_evaluation_says(served: tuple[Path, Path], pictures: Path) -> None:
    path, folder = served
    dataset = load_dataset("folder", "test", pictures)
    with VectorGallery.open(path) as gallery:
        outcome = measure(gallery, str(folder), dataset, with_torch=False)
    assert outcome["same_images"] is True
    steps = {step["step"]: step for step in outcome["steps"]}
    assert list(steps) == ["onnx fp32", "onnx int8", "gallery, exact", "gallery, flat index"]
    for precision in ("fp32", "int8"):
        rows = load(folder, runtime="onnx", precision=precision).embed(dataset.images)
        expected = retrieval_metrics(rows, dataset.labels, (1, 5, 10))
        for name, value in steps[f"onnx {precision}"]["metrics"].items():
            assert value == pytest.approx(expected[name], abs=1e-12)
    for step in ("gallery, exact", "gallery, flat index"):
        assert steps[step]["metrics"] == pytest.approx(steps["onnx fp32"]["metrics"])
    first, int8, exact = steps["onnx fp32"], steps["onnx int8"], steps["gallery, exact"]
    assert first["loss"] is None
    assert int8["loss"]["since"] == "onnx fp32"
    assert int8["loss"]["map_at_r"] == pytest.approx(first["metrics"]["map_at_r"] - int8["metrics"]["map_at_r"])
    low, high = int8["loss"]["intervals"]["map_at_r"]
    assert low <= int8["loss"]["map_at_r"] <= high
    assert exact["loss_in_all"]["since"] == "onnx fp32"
    assert exact["loss_in_all"]["map_at_r"] == pytest.approx(0, abs=1e-12)
    assert outcome["index_recall_at_10"] == 1
    json.dumps(outcome, allow_nan=False)


@pytest.mark.slow
def test_other_images_are_measured_apart(served: tuple[Path, Path], pictures: Path, tmp_path: Path) -> None:
    path, folder = served
    other = Path(shutil.copytree(pictures, tmp_path / "other"))
    (other / "red stripes" / "0.png").unlink()
    with VectorGallery.open(path) as gallery:
        outcome = measure(gallery, str(folder), load_dataset("folder", "test", other), with_torch=False)
        none = measure(gallery, str(folder), None)
    assert outcome["same_images"] is False
    assert [step["loss"] is None for step in outcome["steps"]] == [True, False, True, False]
    assert [step["queries"] for step in outcome["steps"]] == [23, 23, 24, 24]
    assert [step["step"] for step in none["steps"]] == ["gallery, exact", "gallery, flat index"]


def test_a_table_of_the_gallerys_images_and_of_some_that_cannot_be_read(
    served: tuple[Path, Path], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = served
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = sorted(one for one in pictures.rglob("*") if one.is_file())
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [(one, one.parent.name) for one in paths]
        csv.writer(file).writerows([("image", "label"), ("broken.png", "x"), *rows, ("missing.png", "y")])
    words = [path, "--model", folder, "--dataset", "folder", "--data", tmp_path / "t.csv", "--torch", "no", "--json"]
    run_here("benchmark served", *words)
    told = capsys.readouterr()
    outcome = json.loads(told.out)
    assert outcome["same_images"] is True
    assert [step["queries"] for step in outcome["steps"]] == [24, 24, 24, 24]
    assert [line.partition(": image ")[0] for line in told.err.splitlines()] == ["zoo: left out"] * 2
    with (tmp_path / "t.csv").open("w") as file:
        file.write("image,label\nbroken.png,x\nmissing.png,y\n")
    with raises(ImageError, "no-images", "broken.png"):
        run_here("benchmark served", *words)


def labelled(tmp_path: Path, n: int = 1000) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(clustered(n)))
    return tmp_path / "g"


@pytest.mark.slow
def test_an_approximate_index_loses_what_it_does_not_find(tmp_path: Path) -> None:
    path = labelled(tmp_path)
    with VectorGallery.open(path) as gallery, closing(Store(path / STORE)) as store:
        store.set_state("plan", json.dumps({"kind": "ivf-rabitq", "recall": 0.2, "k": 10}))
        gallery.index.compact()
        exact, index = report(gallery_steps(gallery, queries=200), joined=False)
        assert (exact["queries"], index["queries"]) == (200, 200)
        recall, stated = gallery.recall(), gallery.index.stats().recall
        assert stated is not None
        assert recall == pytest.approx(stated, abs=1e-9)
        assert 0.2 <= stated < 1
        every = gallery_steps(gallery, queries=10**6)[0].measured
        ids, rows = content(gallery)
        labels = [gallery.store.labels()[item] or "" for item in ids.tolist()]
        expected = retrieval_metrics(rows, labels, (1,))
        for name in ("recall_at_1", "map_at_r"):
            assert every.means()[name] == pytest.approx(expected[name], abs=1e-6)


def test_unlabelled_items_are_found_but_do_not_search(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        with raises(EvaluationError, "no-labels"):
            gallery_steps(gallery)
        items = new_items(clustered(60))
        gallery.add([replace(item, label=None if i % 2 else item.label) for i, item in enumerate(items)])
        exact, index = gallery_steps(gallery)
        assert len(exact.measured.rows) == 30
        np.testing.assert_array_equal(exact.measured.values["map_at_r"], index.measured.values["map_at_r"])
        gallery.remove([item.id for item in gallery.store.items(limit=100) if item.id not in (1, 2, 3)])
        with raises(EvaluationError, "too-few-samples"):
            gallery_steps(gallery)


def test_items_that_go_while_the_gallery_is_measured_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VectorGallery.open(labelled(tmp_path, 60)) as gallery:
        ids = [item.id for item in gallery.store.items(limit=100)]
        labels, vectors = gallery.store.labels(), gallery.index.current().vectors_of(np.array(ids))
        shared = [one for one in ids if list(labels.values()).count(labels[one]) > 1]
        known = LabelledItems.of(gallery)
        assert len(shared) > 1
        gallery.remove([one for one in ids if one != shared[0]])
        alone = known.measure(known.vectors(known.ids), exact=True)
        assert alone.means()["recall_at_1"] == 0, "no relative is left"
        gallery.remove([shared[0]])
        asked = shared.index(shared[0]), vectors[1][ids.index(shared[0])][None]
        late = known.measure((np.array([shared[0]]), asked[1]), exact=True)
        assert late.means()["map_at_r"] == 0
        with raises(EvaluationError, "evaluation"):
            known.measure(known.vectors(known.ids), exact=True)
        with monkeypatch.context() as patch:
            patch.setattr(LabelledItems, "of", lambda gallery: known)
            with raises(EvaluationError, "evaluation"):
                gallery_steps(gallery)
    assert gallery_is_sampled(np.array(ids), vectors) is None


def gallery_is_sampled(ids: np.ndarray, vectors: Block) -> object:
    """Of an index all of whose items go between two questions."""

    class Emptied:
        def ids(self) -> np.ndarray:
            return ids

        def vectors_of(self, wanted: np.ndarray) -> Block:
            return wanted[:0], vectors[1][:0]

        def search(self, vectors: np.ndarray, k: int) -> Neighbours:
            raise AssertionError

    return sample_index(Emptied(), 10)


def test_two_models_are_compared_by_the_items_that_both_still_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked once for vectors, and what only one of them has is left out."""
    for name in "ab":
        with VectorGallery.create(tmp_path / name, CARD, "toy") as made:
            made.add(new_items(clustered(60)))
    asked: list[Path] = []
    vectors = LabelledItems.vectors

    def removing(self: LabelledItems, ids: np.ndarray) -> Block:
        asked.append(self.gallery.address)
        self.gallery.remove([len(asked)])  # 1 from the first, 2 from the second
        return vectors(self, ids)

    with VectorGallery.open(tmp_path / "a") as before, VectorGallery.open(tmp_path / "b") as after:
        monkeypatch.setattr(LabelledItems, "vectors", removing)
        old, new = model_change_steps(before, after)
        assert asked == [before.address, after.address]
        labels = before.store.labels()
    can_ask = {one for one in labels if list(labels.values()).count(labels[one]) > 1} - {1, 2}
    assert len(old.measured.rows) == len(new.measured.rows) == len(can_ask)
    np.testing.assert_array_equal(old.measured.rows, new.measured.rows)


def test_the_command(
    served: tuple[Path, Path], pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(served[0])
    run_here("benchmark served", path, "--dataset", "folder", "--data", str(pictures), "--torch", "no")
    text = capsys.readouterr().out
    assert "the gallery's own images" in text
    assert "onnx int8" in text
    run_here("benchmark served", path, "--torch", "no", "--json")
    outcome = capsys.readouterr()
    assert json.loads(outcome.out)["dataset"] is None
    assert "only the gallery is measured" in outcome.err
