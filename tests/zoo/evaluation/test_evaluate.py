from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.data.dataset import DataIdentity, Dataset
from zoo.errors import DatasetError, EvaluationError, ModelFolderError, ModelNotFoundError, UsageError
from zoo.evaluation import Evaluation, evaluate, intervals_over_classes, per_query, retrieval_metrics
from zoo.models.load import Embedder
from zoo.models.results import add_result, origin_text, read_results


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")


@pytest.fixture(scope="module")
def model(toy_folder: Path) -> Embedder:
    return zoo.load(toy_folder, runtime="onnx")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 3])
    images = [toys.picture(kind, rng) for kind in labels]
    return Dataset("toys", "test", images, labels, toys.CLASSES, [str(i) for i in range(len(labels))])


def test_a_model_on_a_data_set(model, dataset):
    result = evaluate(model, dataset, k=(1, 2), batch_size=3)
    rows = model.embed(dataset.images)
    assert result.metrics == pytest.approx(retrieval_metrics(rows, dataset.labels, (1, 2)))
    assert result.metrics["recall_at_1"] > 0.5  # the pictures of a class do look alike to it
    measured = per_query(rows, dataset.labels, (1, 2))
    assert result.intervals == intervals_over_classes(measured.values, measured.classes)
    assert (result.model, result.dataset, result.split) == ("toy-pool", "toys", "test")
    assert (result.runtime, result.precision, result.dim) == ("onnx", "fp32", toys.DIM)
    assert (result.queries, result.queries_without_relatives, result.classes) == (10, 1, 3)
    assert result.protocol == "leave-one-out, cosine, exact"
    assert result.versions["numpy"] == np.__version__
    assert "onnxruntime" in result.versions
    assert abs((datetime.now(UTC) - datetime.fromisoformat(result.date)).total_seconds()) < 600


def test_the_measurement_is_plain_json(model, dataset):
    result = evaluate(model, dataset, k=(1,))
    again = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert again == result.to_json()
    assert again["metrics"]["map_at_r"] == result.metrics["map_at_r"]
    assert again["intervals"]["map_at_r"] == list(result.intervals["map_at_r"])


def test_plain_embeddings_with_labels_or_with_a_data_set(model, dataset):
    rows = model.embed(dataset.images)
    by_labels, by_dataset = evaluate(rows, labels=dataset.labels, k=(1,)), evaluate(rows, dataset, k=(1,))
    assert by_labels.metrics == by_dataset.metrics == evaluate(model, dataset, k=(1,)).metrics
    assert (by_labels.model, by_labels.dataset, by_labels.split, by_labels.runtime) == (None,) * 4
    assert (by_dataset.dataset, by_dataset.split, by_dataset.dim) == ("toys", "test", toys.DIM)


def test_one_class_is_measured_without_an_interval():
    result = evaluate(np.eye(3), labels=["only"] * 3, k=(1,))
    assert result.metrics["map_at_r"] == 1
    assert result.intervals == {}


@pytest.mark.parametrize(
    ("arguments", "error", "code", "value"),
    [
        ({}, UsageError, "conflicting-options", ""),
        ({"labels": [0, 0], "dataset": "glyphs"}, UsageError, "conflicting-options", ""),
        ({"labels": [0]}, EvaluationError, "invalid-labels", "2"),
        ({"dataset": np.zeros(2, int)}, DatasetError, "invalid-value", "labels="),
    ],
)
def test_contradictory_arguments_are_refused(arguments, error, code, value):
    with raises(error, code) as caught:
        evaluate(np.eye(2), **arguments)
    assert value in str(caught.value)


def test_a_model_takes_no_labels_and_its_own_data_set_must_be_known(model):
    with raises(UsageError, "conflicting-options"):
        evaluate(model, labels=[0, 1])
    with pytest.raises(DatasetError) as caught:
        evaluate(model)
    assert "'toys'" in str(caught.value)
    with pytest.raises(DatasetError) as caught:
        evaluate(np.eye(2), dataset="glyfs")
    assert "glyphs" in str(caught.value), "the nearest name"
    with pytest.raises(ModelNotFoundError):
        evaluate("./nowhere")


def result(**changes: object) -> Evaluation:
    return replace(evaluate(np.eye(2), labels=[0, 0], k=(1,)), **changes)


def test_results_are_kept_and_those_of_the_same_kind_replaced(tmp_path):
    assert read_results(tmp_path) == []
    first, other = result(dataset="a", split="test"), result(dataset="a", split="train")
    add_result(tmp_path, first)
    add_result(tmp_path, other)
    newer = replace(first, metrics={"recall_at_1": 0.5})
    add_result(tmp_path, newer)
    assert read_results(tmp_path) == [other.to_json(), newer.to_json()]
    for key in ("dataset", "split", "protocol", "runtime", "precision"):
        add_result(tmp_path, replace(first, **{key: "another"}))
    assert len(read_results(tmp_path)) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_score_replaces_only_one_of_the_same_images_and_model(tmp_path):
    birds, cars = (DataIdentity(name, letter * 64, 9, 3) for name, letter in (("birds", "a"), ("cars", "b")))
    first = result(dataset="folder", split="all", data=birds, fingerprint="1")
    for other in (first, replace(first, data=cars), replace(first, fingerprint="2"), replace(first, data=None)):
        add_result(tmp_path, other)
    renamed = replace(first, data=replace(birds, name="vogels"), metrics={"recall_at_1": 0.5})
    add_result(tmp_path, renamed)
    kept = [(row["data"] and row["data"]["name"], row["fingerprint"]) for row in read_results(tmp_path)]
    assert kept == [("cars", "1"), ("birds", "2"), (None, "1"), ("vogels", "1")]


def test_few_classes_are_named_beside_a_score():
    facts = {**result().to_json(), "queries": 30, "queries_without_relatives": 2, "fingerprint": "0123456789"}
    assert origin_text({**facts, "classes": 10}) == (
        f"28 queries of 10 classes; leave-one-out, cosine, exact; model 01234567; {facts['date']}"
    )
    assert "; only 3 classes, so" in origin_text({**facts, "classes": 3})


@pytest.mark.parametrize(
    "data", [1, {}, {"name": "a", "sha256": "b", "images": 1, "classes": 1}, {"name": "a", "sha256": "b" * 64}]
)
def test_a_damaged_identity_is_refused(tmp_path, data):
    (tmp_path / "results.json").write_text(json.dumps([{**result().to_json(), "data": data}]))
    with raises(ModelFolderError, "damaged-file"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[1]", '[{"dataset": "a"}]', "[{}]", "\xff", "null", '[{"metrics": {"a": "b"}}]']
)
def test_a_damaged_results_file_is_named_and_not_overwritten(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content.encode("latin-1"))
    for attempt in (lambda: read_results(tmp_path), lambda: add_result(tmp_path, result())):
        with pytest.raises(ModelFolderError) as caught:
            attempt()
        assert "results.json" in str(caught.value)
    assert path.read_bytes() == content.encode("latin-1")


def test_results_saved_at_once_are_all_kept(tmp_path):
    several = [result(dataset=str(number)) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda evaluation: add_result(tmp_path, evaluation), several))
    assert {row["dataset"] for row in read_results(tmp_path)} == {str(number) for number in range(12)}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("intervals", [[], {"a": 1}, {"a": [1]}, {"a": [1, "b"]}])
def test_damaged_intervals_are_refused(tmp_path, intervals):
    row = {**result().to_json(), "intervals": intervals}
    (tmp_path / "results.json").write_text(json.dumps([row]))
    with pytest.raises(ModelFolderError) as caught:
        read_results(tmp_path)
    assert "entry 0" in str(caught.value)
