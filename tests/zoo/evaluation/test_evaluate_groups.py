"""Groups of metrics asked for by name, and what each does with input that cannot be measured."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import zoo.evaluation
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
    with pytest.raises(UsageError, match=r"'clusterin'\. Did you mean 'clustering'"):
        parse_groups(["retrieval", "clusterin"])


@pytest.mark.parametrize("group", GROUPS[1:])
def test_a_group_adds_its_keys_and_leaves_the_rest(group):
    plain, more = evaluate(ROWS, labels=LABELS, k=(1, 2)), evaluate(ROWS, labels=LABELS, k=(1, 2), metrics=[group])
    own = MEASURES[group](ROWS, LABELS)
    assert not own.keys() & plain.metrics.keys()
    assert more.metrics == pytest.approx({**plain.metrics, **own})
    assert plain.intervals.items() <= more.intervals.items()
    assert more.intervals.keys() == plain.intervals.keys() | (own.keys() if group == "ranking" else set())
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
    found = evaluate(ROWS, known, k=(1,), metrics="all").metrics
    expected = ranking_metrics(ROWS[~asks], LABELS[~asks], ROWS[asks], LABELS[asks])
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "map_at_r_query_counted" not in found
    assert found["nmi"] == clustering_metrics(ROWS, LABELS)["nmi"]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(
    ("change", "labels", "says"),
    [
        (lambda rows: rows * np.where(np.arange(24) == 5, np.nan, 1)[:, None], LABELS, "row 5 of embeddings holds NaN"),
        (lambda rows: rows * np.where(np.arange(24) == 5, np.inf, 1)[:, None], LABELS, "row 5 of embeddings holds NaN"),
        (lambda rows: rows * (np.arange(24) != 5)[:, None], LABELS, "row 5 of embeddings is all zero"),
        (lambda rows: rows, LABELS[:-1], "labels must be one for each of the 24 rows"),
        (lambda rows: rows, LABELS / 2, "integers or strings"),
        (lambda rows: rows[0], LABELS, r"\[rows, dimensions\]"),
        (lambda rows: rows, np.arange(24), "relative|two samples"),
        (lambda rows: rows[:0], LABELS[:0], "nothing|no rows|at least|fewer"),
    ],
)
def test_trap_nan_and_what_else_cannot_be_measured_is_refused_by_every_group(measure, change, labels, says):
    with pytest.raises(EvaluationError, match=says):
        measure(change(ROWS), labels)


@pytest.mark.parametrize("group", ["clustering", "structure", "verification"])
def test_one_class_is_refused_where_classes_are_compared(group):
    with pytest.raises(EvaluationError, match="two classes"):
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
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon"))
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


def test_mapped_embeddings_stay_so_however_they_are_measured(mapped, monkeypatch):
    made = mock.Mock(wraps=inputs._temporary_map)
    monkeypatch.setattr(inputs, "_temporary_map", made)
    with pytest.raises(EvaluationError, match="no query has a relative"):
        evaluate(mapped, labels=np.arange(len(mapped)))
    assert made.called


def test_without_room_on_the_disk_it_is_said(mapped, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("os.posix_fallocate", "tempfile.TemporaryFile"):
        with monkeypatch.context() as patched, pytest.raises(EvaluationError, match=r"room for 25,600,000 b.*TMPDIR"):
            patched.setattr(name, full)
            unit_rows(mapped)
