"""/evaluate and /map: measured scores, calibration, and one evaluation at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from serving.gallery import VectorGallery
from serving.gallery.store import MODEL
from serving.gallery.types import ItemUpdate
from tests.serving import toys
from tests.serving.running import local_client
from zoo.evaluation import retrieval_metrics

KEY = "write-key-of-the-tests"
METRICS = ("recall_at_1", "recall_at_5", "recall_at_10", "map_at_r")


@pytest.fixture
def folder(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "g"))


@pytest.fixture
def service(folder: Path) -> Iterator[TestClient]:
    with local_client(folder, KEY) as client:
        yield client


def test_scores_are_those_of_the_evaluation(service: TestClient, folder: Path) -> None:
    answer = service.post("/evaluate").json()
    with VectorGallery.open(folder) as gallery:
        ids, rows = toys.content(gallery)
        expected = retrieval_metrics(rows, [gallery.store.labels()[item] for item in ids.tolist()], (1, 5, 10))
    assert [step["step"] for step in answer["steps"]] == ["gallery, exact", "gallery, flat index"]
    for step in answer["steps"]:
        assert step["metrics"] == pytest.approx({name: expected[name] for name in METRICS})
    assert answer["index_recall_at_10"] == 1
    recall = expected["recall_at_1"]
    assert answer["served_model"] == {
        "runtime": "onnx",
        "precision": "fp32",
        "device": "cpu",
        "images": 24,
        "least_cosine": pytest.approx(1, abs=1e-6),
        "recall_at_1": {"images": 24, "stored": recall, "served": recall},
        "not_measured": None,
    }


def test_the_last_evaluation_is_kept(service: TestClient, folder: Path) -> None:
    assert service.get("/evaluate").status_code == 404
    answer = service.post("/evaluate").json()
    kept = service.get("/evaluate").json()
    assert kept == {**answer, "changed_since": False}
    service.delete("/items/1")
    assert service.get("/evaluate").json()["changed_since"]


def test_calibrated_probabilities(service: TestClient) -> None:
    assert service.post("/search?id=1&min_p=0.5").json()["error"]["code"] == "invalid_value"
    calibration = service.post("/evaluate").json()["calibration"]
    hits = service.post("/search?id=1&k=23").json()["results"]
    similarities = np.array([hit["similarity"] for hit in hits])
    contrasts = similarities - similarities[9:].mean()  # of 23 results, the last three fifths
    expected = np.interp(contrasts, calibration["contrasts"], calibration["probabilities"])
    np.testing.assert_allclose([hit["p_same"] for hit in hits], expected, atol=1e-4)
    assert service.post("/search?id=1&k=20").json()["results"] == hits[:20]
    cut = service.post("/search?id=1&k=20&min_p=0.5").json()["results"]
    assert cut == [hit for hit in hits if hit["p_same"] >= 0.5]
    reranked = {
        hit["id"]: hit["p_same"] for hit in service.post("/search?id=1&k=20&rerank=expansion").json()["results"]
    }
    for hit in hits:  # the curve is fitted to similarities of two images
        assert reranked.get(hit["id"], hit["p_same"]) == hit["p_same"]


def test_the_identical_image_has_p_same_1(service: TestClient, pictures: Path) -> None:
    service.post("/evaluate")
    for name in sorted(pictures.rglob("*.png"))[:4]:
        for least in ("0.5", "1"):
            found = service.post(f"/search?k=3&min_p={least}", content=name.read_bytes()).json()["results"]
            assert (found[0]["source"], found[0]["p_same"]) == (name.relative_to(pictures).as_posix(), 1)
        assert found[1:] == []


def test_one_evaluation_at_a_time(service: TestClient, folder: Path) -> None:
    with (folder / MODEL).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = service.post("/evaluate")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "being_evaluated")
    assert service.post("/evaluate").status_code == 200


def test_a_gallery_without_relatives_cannot_be_measured(folder: Path) -> None:
    with VectorGallery.open(folder) as gallery:
        gallery.store.update([ItemUpdate(item.id, item.source, None) for item in gallery.store.items()])
    with local_client(folder, KEY) as service:
        answer = service.post("/evaluate")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "cannot_measure")


def test_the_map_has_a_point_for_each_item(http: TestClient) -> None:
    answer = http.get("/map").json()
    assert (answer["total"], len(answer["explained"])) == (24, 2)
    assert [point["id"] for point in answer["points"]] == list(range(1, 25))
    assert max(abs(point[axis]) for point in answer["points"] for axis in "xy") == 1
    assert {point["label"] for point in answer["points"]} == set(toys.CLASSES)
