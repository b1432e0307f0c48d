"""Benchmark of growing galleries, on a small one: its measurements, records and chart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.benchmarks import bench_gallery, bench_keys
from tests.benchmarks.gallery_picture import by_kind


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return bench_gallery.vectors(60, 16)


def test_vectors_are_unit_rows(rows: np.ndarray) -> None:
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_as_many_come_as_go(rows: np.ndarray, tmp_path: Path) -> None:
    with bench_gallery.filled(tmp_path / "g", rows[:40]) as gallery:
        for turn in range(2):
            bench_gallery.change(gallery, rows, 40 + 10 * turn, 10)
            assert gallery.store.count() == 40
        left = {item.source for item in gallery.store.items(limit=100)}
        assert left == {f"{number}.png" for number in (*range(30), *range(50, 60))}


def test_what_was_measured_is_kept_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--rows 150 300 --dim 16 --kinds flat flat-fp16 --held 100 --changes 20 --repeats 2 --open 0"
    files = ["--json", str(tmp_path / "found.json"), "--picture", str(tmp_path / "found.png")]
    monkeypatch.setattr("sys.argv", ["bench_gallery.py", *words.split(), *files])
    bench_gallery.main()
    found = json.loads((tmp_path / "found.json").read_text())
    (caught_up,) = found["catching_up"]
    assert (caught_up["held"], caught_up["changes"], caught_up["repeats"]) == (100, 20, 2)
    assert 0 < caught_up["median_ms"] <= caught_up["worst_ms"]
    assert "100 x 16: caught up with 20 changes" in capsys.readouterr().out
    assert [(row["rows"], row["kind"]) for row in found["kinds"] if row["kind"] == "flat"] == [
        (150, "flat"),
        (300, "flat"),
    ]
    assert all(row["recall"] >= 0.99 for row in found["kinds"])
    assert {row["bytes"] for row in by_kind(found)["flat"]} == {64}
    with Image.open(tmp_path / "found.png") as picture:
        assert picture.width > 1000


def test_a_gallery_is_opened_by_a_fresh_process(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench_gallery.Found(None)
    bench_gallery.open_large(found, 100, 16, 1)
    (opened,) = found.parts["opening"]
    assert opened["rows"] == 100
    assert 0 < opened["median_ms"] == opened["worst_ms"]
    assert opened["compaction_peak_mib"] < 100
    assert opened["vectors_mib"] == 100 * 16 * 4 / 2**20


def test_all_contestants_find_what_was_replaced_by_key(tmp_path: Path) -> None:
    seconds = bench_keys.measure(held=40, batch=12, rounds=2, dim=16, folder=tmp_path)
    assert {name: len(some) for name, some in seconds.items()} == dict.fromkeys(bench_keys.CONTESTANTS, 2)
