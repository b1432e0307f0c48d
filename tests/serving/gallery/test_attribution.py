"""Origin of what is measured on a gallery: model, items, protocol, seed and date, kept beside the setting."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gallery import NewItem, VectorGallery
from serving.gallery.evaluate import evaluate_gallery
from serving.gallery.index_files import compact
from tests.commandline import run_here
from tests.serving import toys
from tests.serving.gallery.test_gallery import CARD, unit_rows

LABELS = [f"label {n % 6}" if n % 7 else None for n in range(60)]


def items(rows: np.ndarray) -> list[NewItem]:
    """The SHA-256 falls as the number rises, so that the order of the hashes is not that of the ids."""
    picture = toys.thumbnail(1)
    return [
        NewItem(str(n), row, picture, f"{1000 - n:064x}", label)
        for n, (row, label) in enumerate(zip(rows, LABELS, strict=True))
    ]


def documented_hash() -> str:
    rows = sorted([f"{1000 - n:064x}", label] for n, label in enumerate(LABELS))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directions = np.eye(6, CARD.dim)[[int((label or "label 0")[-1]) for label in LABELS]]
    rows = directions + 0.7 * unit_rows(60)
    with VectorGallery.create(tmp_path / "birds", CARD, "toy") as gallery:
        gallery.add(items((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)))
    return tmp_path / "birds"


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    run_here(*words, "--json")
    return json.loads(capsys.readouterr().out)


def assert_origin(measured: dict[str, Any], queries: int) -> None:
    assert measured["model"] == {"name": CARD.name, "fingerprint": CARD.fingerprint}
    data = measured["data"]
    assert (data["name"], data["images"], data["classes"]) == ("birds", 60, 6), "no label is not a class"
    assert data["sha256"] == documented_hash()
    assert (measured["queries"], measured["seed"]) == (queries, 0)
    assert measured["protocol"]
    assert datetime.fromisoformat(measured["date"]).utcoffset() is not None


def test_tuning_is_kept_with_its_origin(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "gallery stats", path)["index"]["measured"] is None
    chosen = told(capsys, "gallery tune", path, "--kind", "flat")["chosen"]
    assert_origin(chosen["measured"], 60)
    assert told(capsys, "gallery stats", path)["index"]["measured"] == chosen["measured"]
    again = told(capsys, "gallery tune", path, "--kind", "flat")
    assert again["before"]["measured"] == chosen["measured"]
    run_here("gallery tune", path, "--kind", "flat")
    run_here("gallery stats", path)
    said = capsys.readouterr().out
    assert said.count(CARD.fingerprint[:8]) == said.count(documented_hash()[:8]) + 1 == 3, "stats names the model twice"


def test_a_compaction_measures_a_tuned_gallery_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flat index is not measured by it, and has no origin then."""
    with VectorGallery.open(path) as gallery:
        gallery.store.set_state("plan", json.dumps({"kind": "flat-fp16", "recall": 0.5, "k": 5}))
        facts = compact(path, gallery.store)
        assert facts is not None
        assert facts.setting.kind == "flat-fp16"
        assert facts.measured is not None
        assert_origin(told(capsys, "gallery stats", path)["index"]["measured"], 60)
        gallery.store.set_state("plan", json.dumps({"kind": "flat", "recall": 1.0, "k": 5}))
        facts = compact(path, gallery.store)
        assert facts is not None
        assert (facts.recall, facts.measured) == (None, None)


def test_a_calibration_is_kept_with_its_table_and_origin(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labelled = len([label for label in LABELS if label])
    assert told(capsys, "gallery stats", path)["calibration"] is None
    fitted = told(capsys, "gallery calibrate", path)
    assert_origin(fitted["measured"], labelled)
    assert "other half" in fitted["measured"]["protocol"]
    stored = told(capsys, "gallery stats", path)["calibration"]
    assert stored == fitted
    assert sum(part["count"] for part in stored["reliability"]) == stored["pairs"]
    assert_origin(told(capsys, "gallery calibrate", path, "--queries", 9)["measured"], 9)


def test_an_evaluation_names_its_items(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        values = evaluate_gallery(gallery)
    assert (values["data"]["sha256"], values["model"]) == (documented_hash(), CARD.identity)
    assert values["calibration"]["measured"]["data"] == values["data"]
