"""results.jsonl: appended by several processes, read once, robust against a killed writer."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.raising import raises
from training.studies import results as results_module
from training.studies.results import RESULTS_FILE, Results, has_results
from zoo.errors import TrainingError


def test_results_are_kept_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    results = Results(tmp_path / "study")
    assert dict(results) == {}
    results.add("b/seed-0", {"score": 0.1 + 0.2})
    results.add("a/seed-0", {"score": None, "name": "\u00e9"})
    assert list(results.items()) == [
        ("b/seed-0", {"score": 0.1 + 0.2}),
        ("a/seed-0", {"score": None, "name": "\u00e9"}),
    ]
    assert dict(Results(tmp_path / "study")) == dict(results)
    with pytest.raises(ValueError, match="float"):
        results.add("c/seed-0", {"score": float("nan")})
    assert len(Results(tmp_path / "study")) == 2


def test_an_unfinished_line_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add("a/seed-0", {"score": 1})
    with results.path.open("a") as file:
        file.write('{"run": "b/seed-0", "score": 0.' + 2**17 * "1")  # longer than what is read at a time
    assert list(results) == list(Results(tmp_path)) == ["a/seed-0"]
    results.add("c/seed-0", {"score": 2})
    assert dict(results) == dict(Results(tmp_path)) == {"a/seed-0": {"score": 1}, "c/seed-0": {"score": 2}}
    results.path.write_text("x")
    results.add("d/seed-0", {})
    assert list(results) == ["d/seed-0"]


def test_compressed_lines_come_first_and_new_ones_are_appended_to_the_plain_file(tmp_path: Path) -> None:
    assert not has_results(tmp_path)
    lines = b'{"run": "a/seed-0", "score": 1}\n{"run": "b/seed-0", "score": 2}\n'
    (tmp_path / f"{RESULTS_FILE}.gz").write_bytes(gzip.compress(lines))
    results = Results(tmp_path)
    assert has_results(tmp_path)
    assert list(results.items()) == [("a/seed-0", {"score": 1}), ("b/seed-0", {"score": 2})]
    results.add("a/seed-0", {"score": 3})
    results.add("c/seed-0", {"score": 4})
    expected = {"a/seed-0": {"score": 3}, "b/seed-0": {"score": 2}, "c/seed-0": {"score": 4}}
    assert dict(results) == dict(Results(tmp_path)) == expected


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    for damaged in ("{", "[]", "3", '{"score": 1}'):
        (tmp_path / RESULTS_FILE).write_text(f'{{"run": "a/seed-0"}}\n{damaged}\n')
        with raises(TrainingError, "damaged-file") as caught:
            len(Results(tmp_path))
        assert repr(damaged) in str(caught.value)


def test_each_result_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = Results(tmp_path), Results(tmp_path)
    read = []
    complete_lines = results_module.complete_lines

    def counted(path: Path, start: int) -> list[bytes]:
        lines = complete_lines(path, start)
        read.extend(lines)
        return lines

    monkeypatch.setattr(results_module, "complete_lines", counted)
    for number in range(5):
        others.add(f"a/seed-{number}", {"score": number})
        assert [mine[f"a/seed-{n}"]["score"] for n in range(number + 1)] == list(range(number + 1))
    assert len(read) == 5
    (tmp_path / RESULTS_FILE).unlink()
    assert dict(mine) == {}


WRITER = """
import sys
from pathlib import Path
from training.studies.results import Results
results = Results(Path(sys.argv[1]))
for number in range(50):
    results.add(f"{sys.argv[2]}/seed-{number}", {"text": 1000 * sys.argv[2]})
"""


def test_processes_append_to_one_file(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    results = Results(tmp_path)
    assert {name: result["text"] for name, result in results.items()} == {
        f"{name}/seed-{number}": 1000 * name for name in "ab" for number in range(50)
    }
