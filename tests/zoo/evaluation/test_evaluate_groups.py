"""Groups of metrics: their names and keys, invalid input, and memory-mapped embeddings."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import zoo.evaluation
from tests.raising import raises
from zoo.data.dataset import Dataset
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation import (
    clustering_metrics,
    evaluate,
    inputs,
    ranking_metrics,
    retrieval_metrics,
    structure_metrics,
    verification_metrics,
)
from zoo.evaluation.evaluate import GROUPS, parse_groups
from zoo.evaluation.inputs import unit_rows
from zoo.evaluation.knn import is_memory_mapped

MEASURES = {
    "retrieval": lambda rows, labels: retrieval_metrics(rows, labels, (1, 2)),
    "ranking": ranking_metrics,
    "clustering": clustering_metrics,
    "structure": structure_metrics,
    "verification": verification_metrics,
}
LABELS = np.repeat(np.arange(6), 4)
ROWS = np.random.default_rng(0).normal(size=(24, 8)) + 2 * np.eye(8)[LABELS]


def test_groups_by_name():
    assert parse_groups("all") == parse_groups(["all"]) == parse_groups(GROUPS[::-1]) == GROUPS == tuple(MEASURES)
    assert parse_groups("structure") == parse_groups(["structure", "structure"]) == ("structure",)
    with raises(UsageError, "unknown-name") as caught:
        parse_groups(["retrieval", "clusterin"])
    assert "Did you mean 'clustering'" in str(caught.value)


@pytest.mark.parametrize("group", GROUPS[1:])
def test_a_group_adds_its_keys_and_leaves_the_rest(group):
    plain, more = evaluate(ROWS, labels=LABELS, k=(1, 2)), evaluate(ROWS, labels=LABELS, k=(1, 2), metrics=[group])
    own = MEASURES[group](ROWS, LABELS)
    assert not own.keys() & plain.metrics.keys()
    assert more.metrics == pytest.approx({**plain.metrics, **own})
    assert plain.intervals.items() <= more.intervals.items()
    # A mean over classes has no interval.
    added = own.keys() - {"map_by_class"} if group == "ranking" else set()
    assert more.intervals.keys() == plain.intervals.keys() | added
    assert plain.metrics == MEASURES["retrieval"](ROWS, LABELS)


def test_every_key_is_plain_json_and_explained_in_one_place():
    result = json.loads(json.dumps(evaluate(ROWS, labels=LABELS, k=(1, 2), metrics="all").to_json(), allow_nan=False))
    explained = set(re.findall(r"\w+(?:\.\d+)?", zoo.evaluation.__doc__))
    for key in result["metrics"]:
        short = key.removeprefix("tar_at_far") if key not in explained else key
        assert re.sub(r"^recall_at_\d$", "recall_at_K", short) in explained, key


def test_queries_search_the_gallery_and_all_are_clustered():
    asks = np.arange(24) % 4 == 0
    images = [np.zeros((2, 2, 3), np.uint8)] * 24
    known = Dataset("parted", "test", images, LABELS, list("abcdef"), list(map(str, range(24))), {"query": asks})
    values = evaluate(ROWS, known, k=(1,), metrics="all").metrics
    expected = ranking_metrics(ROWS[~asks], LABELS[~asks], ROWS[asks], LABELS[asks])
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert "map_at_r_query_counted" not in values
    assert values["nmi"] == clustering_metrics(ROWS, LABELS)["nmi"]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(
    ("change", "labels", "codes", "value"),
    [
        (
            lambda rows: rows * np.where(np.arange(24) == 5, np.nan, 1)[:, None],
            LABELS,
            "not-finite",
            "row 5 of embeddings",
        ),
        (
            lambda rows: rows * np.where(np.arange(24) == 5, np.inf, 1)[:, None],
            LABELS,
            "not-finite",
            "row 5 of embeddings",
        ),
        (lambda rows: rows * (np.arange(24) != 5)[:, None], LABELS, "invalid-embedding", "row 5 of embeddings"),
        (lambda rows: rows, LABELS[:-1], "invalid-labels", "24"),
        (lambda rows: rows, LABELS / 2, "invalid-labels", "float64"),
        (lambda rows: rows[0], LABELS, "invalid-embedding", "[8]"),
        (lambda rows: rows, np.arange(24), "too-few-samples", ""),
        (lambda rows: rows[:0], LABELS[:0], "too-few-samples too-few-classes", ""),
    ],
)
def test_trap_nan_and_other_invalid_input_is_refused_by_every_group(measure, change, labels, codes, value):
    with pytest.raises(EvaluationError) as caught:
        measure(change(ROWS), labels)
    assert caught.value.code in codes.split()
    assert value in str(caught.value)


@pytest.mark.parametrize("group", ["clustering", "structure", "verification"])
def test_one_class_is_refused_where_classes_are_compared(group):
    with raises(EvaluationError, "too-few-classes"):
        MEASURES[group](ROWS, np.zeros(24, int))


def test_one_class_is_ranked():
    assert ranking_metrics(ROWS, np.zeros(24, int))["map"] == 1


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_memory_mapped_embeddings_are_measured_alike_and_not_changed(measure, tmp_path):
    np.save(tmp_path / "rows.npy", ROWS.astype(np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert measure(mapped, LABELS) == measure(ROWS.astype(np.float32), LABELS)
    np.testing.assert_array_equal(mapped, ROWS.astype(np.float32))


def own_memory() -> int:
    """Bytes that this process has in memory and that no file holds."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MEMORY_LIMIT", 2**20)
    shape = 50_000, 128
    np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, shape)[:] = np.arange(1, 129)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def test_unit_rows_of_mapped_ones_are_mapped_too(mapped):
    before = own_memory()
    unit = unit_rows(mapped)
    assert own_memory() - before < unit.nbytes / 10
    np.testing.assert_allclose(unit[-1], mapped[0] / np.linalg.norm(mapped[0].astype(np.float64)), rtol=1e-7)
    for others in (mapped[:0], mapped[:9], mapped.astype(np.float32), np.asarray(mapped[:9])):
        assert not is_memory_mapped(unit_rows(others)), "few, or in memory as they are"


def test_mapped_embeddings_stay_mapped_in_evaluate(mapped, monkeypatch):
    temporary_map = mock.Mock(wraps=inputs.temporary_map)
    monkeypatch.setattr(inputs, "temporary_map", temporary_map)
    with raises(EvaluationError, "too-few-samples"):
        evaluate(mapped, labels=np.arange(len(mapped)))
    assert temporary_map.called


def test_a_full_disk_is_reported(mapped, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("os.posix_fallocate", "tempfile.TemporaryFile"):
        with monkeypatch.context() as patched, raises(EvaluationError, "disk-full") as caught:
            patched.setattr(name, full)
            unit_rows(mapped)
        assert "25,600,000 bytes" in str(caught.value)
        assert "TMPDIR" in str(caught.value)


def test_an_invalid_k_is_refused_before_a_model_is_loaded():
    with raises(EvaluationError, "invalid-value"):
        evaluate("no-such-model", k=1)


FIRST = np.random.default_rng(0).normal(size=(6, 4))


@pytest.mark.parametrize(
    ("rows", "labels", "recall"),
    [
        (np.repeat(FIRST[:3], 2, 0), [0, 0, 1, 1, 2, 2], 1.0),  # a duplicate of the query is found, not the query
        (np.ones((6, 4)), [0, 0, 0, 1, 1, 1], 0.5),  # all rows are equal: ties go by row, so that class 0 is found
        (FIRST, [0, 0, 1, 2, 3, 4], None),  # four classes of one
    ],
    ids=["duplicates", "collapsed", "classes of one"],
)
def test_every_metric_of_a_degenerate_embedding_is_a_number(rows, labels, recall):
    evaluation = evaluate(rows, labels=labels, k=(1,), metrics=("all",))
    assert all(math.isfinite(value) for value in evaluation.metrics.values())
    assert recall is None or evaluation.metrics["recall_at_1"] == recall
    assert evaluation.queries_without_relatives == sum(labels.count(label) == 1 for label in labels)
