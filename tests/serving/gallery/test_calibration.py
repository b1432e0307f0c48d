"""`zoo gallery calibrate` on a gallery of two similarities whose probabilities are known by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import NewItem, VectorGallery
from serving.gallery.calibration import (
    FACT,
    NO_ERROR,
    calibrate_gallery,
    calibration_json,
    calibration_record,
    known_pairs,
    stored_calibration,
    take_over_calibration,
)
from serving.gallery.evaluate import evaluate_gallery
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.test_gallery import CARD
from zoo.errors import EvaluationError, GalleryError, UsageError
from zoo.evaluation.calibration import held_out_bins

SIDE = 11
"""Items of a block: each has just the others of its block as its ten nearest."""
BLOCKS = ((0.9, (10, 1)), (0.5, (4, 4, 3))) * 2
"""Similarity of all pairs of a block, and how many of its items share a label."""


def block(number: int, similarity: float) -> np.ndarray:
    """SIDE unit rows of which each two have this similarity; blocks are at right angles."""
    rows = np.zeros((SIDE, len(BLOCKS) * (SIDE + 1)))
    first = number * (SIDE + 1)
    rows[:, first] = math.sqrt(similarity)
    rows[np.arange(SIDE), first + 1 + np.arange(SIDE)] = math.sqrt(1 - similarity)
    return rows.astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    items = []
    for number, (similarity, sizes) in enumerate(BLOCKS):
        labels = [f"{number} {part}" for part, size in enumerate(sizes) for _ in range(size)]
        for vector, label in zip(block(number, similarity), labels, strict=True):
            digest = f"{len(items):064x}"
            items.append(NewItem(digest, vector, toys.thumbnail(1), digest, label))
    card = replace(CARD, dim=len(BLOCKS) * (SIDE + 1))
    with VectorGallery.create(tmp_path / "g", card, "toy") as gallery:
        gallery.add(items)
    return tmp_path / "g"


def run(*words: object) -> None:
    run_here("gallery calibrate", *words)


FAR = len(BLOCKS) * SIDE * (len(BLOCKS) - 1) * SIDE
"""Pairs of items of different blocks, at similarity 0; they are the background, which is 0 too."""


def by_hand() -> dict[float, float]:
    """The probability at each similarity: shares of pairs, rank r counting 0.9 ** (r - 1), and half a pair of either
    kind more. Equally near items are in the order of their ids.
    """
    out = {0.0: 0.5 / (FAR + 1)}
    for similarity, sizes in BLOCKS:
        labels = [part for part, size in enumerate(sizes) for _ in range(size)]
        weights = [0.9**rank for rank in range(SIDE - 1)]
        right = 2 * sum(
            weight * (labels[other] == labels[own])
            for own in range(SIDE)
            for weight, other in zip(weights, [n for n in range(SIDE) if n != own], strict=True)
        )
        count = 2 * SIDE * (SIDE - 1)
        out[similarity] = (right / (2 * SIDE * sum(weights)) * count + 0.5) / (count + 1)
    return out


def test_the_curve_goes_through_the_known_shares(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = by_hand()
    run(path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["contrasts"] == pytest.approx(sorted(expected), abs=1e-6)
    assert told["probabilities"] == pytest.approx([expected[s] for s in sorted(expected)], abs=1e-5)
    assert (told["pairs"], told["neighbours"]) == (len(BLOCKS) * SIDE * (SIDE * len(BLOCKS) - 1), 43)
    assert sum(part["count"] for part in told["reliability"]) == told["pairs"]
    assert told["reliability"][0]["share"] == 0
    assert told["reliability"][0]["count"] == FAR
    with VectorGallery.open(path) as gallery:
        kept = stored_calibration(gallery)
        assert kept
        assert kept.probability([0.9, 1.0], 0) == pytest.approx([expected[0.9], 1], abs=1e-5)


def test_the_table_is_of_other_classes_with_intervals(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = by_hand()
    run(path)
    said = capsys.readouterr().out
    assert f"{expected[0.0]:.3f} to {expected[0.9]:.3f}" in said
    assert "on other classes: 0." in said
    with VectorGallery.open(path) as gallery:
        bins = held_out_bins(known_pairs(gallery).pairs)
    for part in bins:
        assert f"{part.low:.3f} to {part.high:.3f}" in said


def test_the_reason_for_a_missing_error_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two labels are too few to leave half of them out."""
    with VectorGallery.create(tmp_path / "g", replace(CARD, dim=2 * (SIDE + 1)), "toy") as gallery:
        rows = np.concatenate([block(0, 0.9), block(1, 0.5)])[:, : 2 * (SIDE + 1)]
        labels = ["a"] * SIDE + ["a", "b"] * (SIDE // 2) + ["b"]
        picture = toys.thumbnail(1)
        gallery.add([NewItem(str(n), row, picture, f"{n:064x}", labels[n]) for n, row in enumerate(rows)])
    run(tmp_path / "g", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["error"], found["error_not_measured"]) == (None, NO_ERROR)
    run(tmp_path / "g")
    assert f"on other classes: {NO_ERROR}" in capsys.readouterr().out
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert evaluate_gallery(gallery)["calibration"]["error_not_measured"] == NO_ERROR


def test_a_gallery_without_labels_is_refused(path: Path, tmp_path: Path) -> None:
    with raises(UsageError, "invalid-value"):
        run(path, "--queries", 0)
    with VectorGallery.create(tmp_path / "empty", CARD, "toy"):
        pass
    with raises(EvaluationError, "too-few-samples"):
        run(tmp_path / "empty")


def test_the_calibration_goes_along_with_an_export(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def imported(target: Path, export: str = "out") -> dict:
        capsys.readouterr()
        run_here("gallery import", tmp_path / export, target, "--json")
        return json.loads(capsys.readouterr().out)

    run_here("gallery export", path, tmp_path / "plain")
    assert imported(tmp_path / "uncalibrated", "plain")["calibrated"] is None
    run(path)
    run_here("gallery export", path, tmp_path / "out")
    assert imported(tmp_path / "new")["calibrated"] is True
    with VectorGallery.open(path) as old, VectorGallery.open(tmp_path / "new") as new:
        assert calibration_json(new) == calibration_json(old)
        assert calibration_json(new)["measured"]["data"]["name"] == "g"
    assert imported(tmp_path / "uncalibrated")["calibrated"] is True

    with VectorGallery.open(tmp_path / "new") as new:  # a later one of its own stays
        record = calibration_record(new)
        record["measured"]["date"] = "9999-01-01T00:00:00+00:00"
        new.store.set_fact(FACT, json.dumps(record))
    assert imported(tmp_path / "new")["calibrated"] is False
    with VectorGallery.open(tmp_path / "new") as new:
        assert calibration_record(new) == record

    with VectorGallery.create(tmp_path / "more", replace(CARD, dim=len(BLOCKS) * (SIDE + 1)), "toy") as more:
        vector = np.eye(1, len(BLOCKS) * (SIDE + 1), dtype=np.float32)[0]
        more.add([NewItem("f" * 64, vector, toys.thumbnail(1), "f" * 64, "other")])
    assert imported(tmp_path / "more")["calibrated"] is False
    run_here("gallery import", tmp_path / "out", tmp_path / "more")
    assert f"zoo gallery calibrate {tmp_path / 'more'}" in capsys.readouterr().out
    with VectorGallery.open(tmp_path / "more") as more:
        assert stored_calibration(more) is None

    for damage in ("{", "{}", '{"measured": {}}'):
        (tmp_path / "out" / "calibration.json").write_text(damage)
        with raises(GalleryError, "damaged-file", "calibration.json"):
            run_here("gallery import", tmp_path / "out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_calibration_of_another_model_is_not_taken_over(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        calibrate_gallery(gallery)
        record = calibration_record(gallery)
        own, record["measured"]["date"] = calibration_record(gallery), "9999-01-01T00:00:00+00:00"
        record["measured"]["model"] = {"name": "other", "fingerprint": "0" * 64}
        assert not take_over_calibration(gallery, record, gallery.store.count())
        assert calibration_record(gallery) == own
