"""Evaluation of a gallery in blocks, and of the model that serves it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import VectorGallery, evaluate
from serving.gallery.evaluate import gallery_steps, served_model_report
from serving.gallery.indexing import index_folder
from serving.gallery.search import Searcher
from tests.serving import toys
from tests.serving.gallery.test_evaluate import write_int8
from tests.serving.gallery.test_gallery import CARD, new_items
from tests.serving.gallery.test_index import clustered
from zoo.models.load import load


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_in_pieces_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        items = new_items(clustered(1000))
        gallery.add([replace(item, label="ab"[n % 2]) for n, item in enumerate(items)])
        gallery.index.tune(0.5, kinds=[kind])
        whole = gallery_steps(gallery, 300)
        asked: list[int] = []
        neighbours = gallery.neighbours

        def counted(vectors: np.ndarray, k: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
            asked.append(len(vectors) * k)
            return neighbours(vectors, k, exact)

        monkeypatch.setattr(gallery, "neighbours", counted)
        monkeypatch.setattr(evaluate, "NEIGHBOURS_AT_ONCE", 7000)
        pieces = gallery_steps(gallery, 300)
    assert 3500 < max(asked) <= 7000
    assert len(asked) > 40
    for one, other in zip(whole, pieces, strict=True):
        assert one.measured.values.keys() == other.measured.values.keys()
        for name, values in one.measured.values.items():
            np.testing.assert_array_equal(values, other.measured.values[name])


def test_the_model_that_is_served_is_measured_on_the_images_that_are_still_there(
    pictures: Path, model_folder: Path, tmp_path: Path
) -> None:
    folder, own = Path(shutil.copytree(model_folder, tmp_path / "m")), Path(shutil.copytree(pictures, tmp_path / "p"))
    write_int8(folder)
    index_folder(load(folder, runtime="onnx"), str(folder), own, tmp_path / "g")
    coarse = load(folder, runtime="onnx", precision="int8")
    with VectorGallery.open(tmp_path / "g") as gallery:
        searcher = Searcher(gallery, coarse)
        files = [own / item.source for item in gallery.store.items(limit=100)]
        ids, stored = gallery.store.embeddings([item.id for item in gallery.store.items(limit=100)])
        now, labels = coarse.embed(files).astype(np.float64), [gallery.store.item(one).label for one in ids]
        cosines = (now * stored).sum(axis=1)
        told = served_model_report(searcher)
        for name, queries in (("stored", stored.astype(np.float64)), ("served", now)):
            nearest = (queries @ stored.T - 2 * np.eye(24)).argmax(axis=1)
            right = [labels[one] == label for one, label in zip(nearest, labels, strict=True)]
            assert told["recall_at_1"][name] == np.mean(right), name
        assert (told["precision"], told["images"]) == ("int8", 24)
        assert told["least_cosine"] == pytest.approx(cosines.min(), abs=1e-6)
        assert cosines.min() < 0.99
        worst = int(cosines.argmin())
        files[worst].write_bytes(toys.query(0))
        assert served_model_report(searcher)["images"] == 23, "another file lies there now"
        assert served_model_report(searcher)["least_cosine"] == pytest.approx(np.delete(cosines, worst).min(), abs=1e-6)
        shutil.rmtree(own)
        told = served_model_report(searcher)
    assert (told["images"], told["least_cosine"], told["recall_at_1"]) == (0, None, None)
    assert "no image file" in told["not_measured"]
