"""Evaluation under a limit of memory: the scores, the peak in a child process, and refusals in advance."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.children import run_python
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation import evaluate, memory, per_query
from zoo.evaluation.inputs import bounded_unit_rows
from zoo.evaluation.memory import MIB, Budget, parse_size, require_memory
from zoo.models.load import load

RNG = np.random.default_rng(5)
LABELS = np.arange(900) % 90
ROWS = (RNG.standard_normal((900, 12)) + 2 * RNG.standard_normal((90, 12))[LABELS]).astype(np.float32)
BUDGETS = [Budget(4 * MIB, MIB // 2, symmetric) for symmetric in (True, False)]


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process count as small, however much the tests before have loaded into it."""
    monkeypatch.setattr(memory, "resident_bytes", lambda: 56 * MIB)


@pytest.fixture
def mapped(tmp_path):
    """Rows in a file, float32 [900, 12]."""
    np.save(tmp_path / "rows.npy", ROWS)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def naive_map_at_r(rows: np.ndarray, labels: np.ndarray) -> float:
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    scores = []
    for query in range(len(unit)):
        similar = (unit @ unit[query]).astype(np.float32)
        similar[query] = -np.inf
        relatives = int((labels == labels[query]).sum()) - 1
        order = np.argsort(-similar, kind="stable")[:relatives]
        hits = labels[order] == labels[query]
        scores.append(sum(hits[: i + 1].mean() for i in range(relatives) if hits[i]) / relatives)
    return float(np.mean(scores))


@pytest.mark.parametrize("budget", BUDGETS)
def test_scores_under_a_limit_are_those_of_a_plain_loop(budget, mapped):
    scores = per_query(bounded_unit_rows(mapped, budget), LABELS).means()
    assert scores["map_at_r"] == pytest.approx(naive_map_at_r(ROWS, LABELS), abs=1e-12)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("n", [600, 8300])  # one block, several blocks
def test_collapsed_rows_are_ordered_by_their_index(budget, n):
    # 300 rows are equal, more than their lists hold: the neighbours of each are the first rows but itself.
    rows, labels = RNG.standard_normal((n, 3)).astype(np.float32), np.arange(n) // 10
    rows[:300] = rows[0]
    scores = per_query(bounded_unit_rows(rows, budget), labels, k=(1,)).values
    assert scores["precision_at_1"][:300].tolist() == [float(row < 10) for row in range(300)]


def test_every_group_is_the_same_with_and_without_a_limit(mapped):
    plain, limited = (evaluate(mapped, labels=LABELS, metrics="all", memory=limit) for limit in (None, "2GiB"))
    assert limited.metrics == pytest.approx(plain.metrics, rel=1e-8)  # structure rounds unit rows twice without limit
    assert limited.intervals == plain.intervals
    assert limited.data == plain.data


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.float32])
def test_queries_and_other_types_are_measured_alike(tmp_path, dtype):
    np.save(tmp_path / "rows.npy", ROWS.astype(dtype))
    rows, queries = np.load(tmp_path / "rows.npy", mmap_mode="r"), np.arange(900) < 200
    plain, limited = (
        evaluate(rows, labels=LABELS, queries=queries, metrics=["ranking", "structure"], memory=limit)
        for limit in (None, 2**31)
    )
    assert limited.protocol == plain.protocol
    assert limited.metrics == pytest.approx(plain.metrics, rel=1e-8)


CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from zoo.evaluation import evaluate, memory

path, per_class, limit, group = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
rows = np.load(path, mmap_mode="r")
needs = []
require = memory.require_memory
def recorded(*arguments):
    needs.append(require(*arguments))
    return needs[0]
module = sys.modules["zoo.evaluation.evaluate"]
module.require_memory = recorded
labels = np.array([f"class {row // per_class}" for row in range(len(rows))])
evaluate(rows, labels=labels, metrics=group, memory=limit)
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps([1024 * int(line.split()[1]), needs[0].total, needs[0].limit]))
"""


@pytest.mark.parametrize(
    ("rows", "dim", "per_class", "limit", "group"),
    [
        (12_000, 16, 5, "290MiB", "retrieval"),
        # 39 MiB of rows, and as much in the temporary file
        pytest.param(5_000, 2048, 4, "300MiB", "verification", marks=pytest.mark.slow),
        pytest.param(8_300, 8, 700, "250MiB", "retrieval", marks=pytest.mark.slow),
        pytest.param(6_000, 16, 5, "230MiB", "ranking", marks=pytest.mark.slow),
    ],
)
def test_the_peak_of_a_child_process_stays_below_the_requirement(tmp_path, rows, dim, per_class, limit, group):
    file = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, (rows, dim))
    file[:] = np.random.default_rng(0).standard_normal((rows, dim), np.float32)
    file.flush()
    peak, required, allowed = json.loads(run_python(CHILD, tmp_path / "rows.npy", per_class, limit, group))
    assert peak <= required <= allowed


def test_what_does_not_fit_is_refused_with_the_numbers_before_any_work(monkeypatch):
    labels = np.arange(450_000) // 5
    monkeypatch.setattr(memory, "temporary_map", None)
    for group in ("clustering", "structure"):
        with raises(EvaluationError, "too-large") as caught:
            require_memory(2 * 2**30, 450_000, 512, labels, (group,), (1, 2, 4, 8))
        assert group in str(caught.value)
        assert "GiB" in str(caught.value)
        assert "measure only retrieval" in str(caught.value)
    fits = require_memory(2 * 2**30, 450_000, 512, labels, ("ranking", "verification"), (1, 2, 4, 8))
    assert fits.budget.symmetric
    assert fits.total < 2 * 2**30
    assert fits.disk == 450_000 * 512 * 4
    with raises(EvaluationError, "too-large"):
        require_memory(100 * MIB, 450_000, 512, labels, (), (1,))


def test_the_budget_shrinks_before_an_evaluation_is_refused():
    labels = np.arange(100_000) // 50_000  # lists of 50,000 neighbours
    limits = (memory.resident_bytes() + size * MIB for size in (2000, 300))
    roomy, tight = (require_memory(limit, 100_000, 64, labels, (), (1,)).budget for limit in limits)
    assert not tight.symmetric
    assert tight.chunk < roomy.chunk


def test_sizes():
    sizes = {"2GiB": 2**31, "512 MiB": 2**29, "1.5GB": 1_500_000_000, "2g": 2**31, "4096": 4096, 4096: 4096}
    assert {text: parse_size(text) for text in sizes} == sizes
    for wrong in ("2 potatoes", "", "-1GiB", 0, True, 1.5, "0"):
        with raises(UsageError, "invalid-value"):
            parse_size(wrong)


@pytest.mark.parametrize(("value", "code"), [(np.nan, "not-finite"), (0.0, "invalid-embedding")])
def test_rows_that_cannot_be_measured_are_named(value, code):
    rows = ROWS.copy()
    rows[713] = value
    with raises(EvaluationError, code) as caught:
        evaluate(rows, labels=LABELS, memory="1GiB")
    assert "713" in str(caught.value)


def test_a_model_has_no_limit():
    with raises(UsageError, "conflicting-options"):
        evaluate(load("margin-conv4-glyphs", runtime="onnx"), memory="1GiB")


def test_score_prints_the_requirement_and_refuses_what_does_not_fit(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "labels.npy", LABELS)
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS)
    command = ["score", str(tmp_path / "rows.npy"), "--labels", str(tmp_path / "labels.npy"), "--json"]
    assert main([*command, "--memory", "1024GiB"]) == 0
    out, err = capsys.readouterr()
    assert "memory: at most" in err
    assert json.loads(out)["metrics"]["map_at_r"] == pytest.approx(naive_map_at_r(ROWS, LABELS), abs=1e-12)
    assert main([*command, "--memory", "16MiB"]) == 2
    assert main([*command, "--memory", "lots"]) == 2
    assert main(["score", str(tmp_path / "rows.npz"), "--memory", "1MiB"]) == 2
    assert ".npy" in capsys.readouterr().err
