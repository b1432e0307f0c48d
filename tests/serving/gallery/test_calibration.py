"""`zoo gallery calibrate` on a gallery of two similarities whose probabilities are known by hand."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import Gallery, NewItem
from serving.gallery.calibration import (
    ENOUGH_MARKS,
    NO_ERROR,
    calibrate_gallery,
    held_out_bins,
    known_pairs,
    stored_calibration,
)
from serving.gallery.evaluate import evaluate_gallery
from serving.gallery.feedback import QueryImage
from serving.gallery.gallery import STORE
from serving.gallery.types import Thumbnail
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.gallery.test_gallery import CARD
from zoo.errors import EvaluationError, UsageError

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
            items.append(NewItem(digest, vector, Thumbnail(b"picture", "image/png"), digest, label))
    card = replace(CARD, dim=len(BLOCKS) * (SIDE + 1))
    with Gallery.create(tmp_path / "g", card, "toy") as gallery:
        gallery.add(items)
    return tmp_path / "g"


def run(*words: object) -> None:
    run_here("gallery calibrate", *words)


def by_hand() -> tuple[float, float, dict[float, float]]:
    """Slope, offset and the shares. Two values of similarity leave the logistic curve no choice: it goes through the
    mean of Platt's targets at each.
    """
    shares = {s: sum(n * (n - 1) for n in sizes) / (SIDE * (SIDE - 1)) for s, sizes in BLOCKS}
    pairs = 2 * SIDE * (SIDE - 1)
    positives = pairs * sum(shares.values())
    high, low = (positives + 1) / (positives + 2), 1 / (2 * pairs - positives + 2)
    logits = {s: math.log(p / (1 - p)) for s, share in shares.items() for p in [share * high + (1 - share) * low]}
    slope = (logits[0.9] - logits[0.5]) / 0.4
    return slope, logits[0.9] - slope * 0.9, shares


def test_the_curve_goes_through_the_known_shares(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slope, offset, shares = by_hand()
    run(path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["slope"], told["offset"]) == pytest.approx((slope, offset), abs=1e-3)
    assert (told["pairs"], told["neighbours"]) == (len(BLOCKS) * SIDE * 10, 10)
    low, high = told["reliability"]
    assert (low["share"], high["share"]) == pytest.approx((shares[0.5], shares[0.9]))
    assert (low["probability"], high["probability"]) == pytest.approx((shares[0.5], shares[0.9]), abs=0.01)
    assert low["count"] == high["count"] == 2 * SIDE * 10
    with Gallery.open(path) as gallery:
        kept = stored_calibration(gallery)
        assert kept
        assert kept.probability(0.9) == pytest.approx(shares[0.9], abs=0.01)


def test_the_table_has_the_same_curve(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slope, offset, shares = by_hand()
    run(path)
    said = capsys.readouterr().out
    assert f"exp(-({slope:.1f}" in said
    assert f"{offset:+.1f}"[:4] in said
    assert f"{shares[0.5]:.3f}" in said
    assert "on other classes: 0." in said


def test_marked_results_count_beside_labelled_ones(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand as above, with the marks among the pairs of their similarity."""
    _, _, shares = by_hand()
    near, marked = BLOCKS[0][0], SIDE * (SIDE - 1)
    with Gallery.open(path) as gallery:
        for query, item in permutations(range(1, SIDE + 1), 2):  # all pairs of the first block
            gallery.store.marks.put(query, item, False)
    run(path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["pairs"], told["marked"]) == (len(BLOCKS) * SIDE * 10 + marked, marked)
    low, high = told["reliability"]
    assert low["share"] == pytest.approx(shares[0.5])
    assert high["share"] == pytest.approx(shares[near] * 2 / 3), "a third of the near pairs are marked wrong"
    run(path)
    assert f"marked results: {marked}" in capsys.readouterr().out


def test_marks_alone_are_enough(tmp_path: Path) -> None:
    vectors = np.concatenate([block(0, 0.9)[:, : SIDE + 1], block(0, 0.5)[:, : SIDE + 1]])
    with Gallery.create(tmp_path / "g", replace(CARD, dim=SIDE + 1), "toy") as gallery:
        picture = Thumbnail(b"picture", "image/png")
        gallery.add([NewItem(str(n), row, picture, f"{n:064x}") for n, row in enumerate(vectors)])
        for number in range(2, 2 + ENOUGH_MARKS // 2):
            with raises(EvaluationError, "too-few-pairs") as caught:
                calibrate_gallery(gallery)
            assert str(ENOUGH_MARKS) in str(caught.value)
            gallery.store.marks.put(1, number, number > 3)  # near ones, of which eight are right
            gallery.store.marks.put(SIDE + 1, SIDE + number, number <= 3)  # of far ones two are
        found = calibrate_gallery(gallery)
        assert (found.pairs, found.marked, found.neighbours) == (20, 20, 0)
        right, wrong = 11 / 12, 1 / 12  # Platt's targets of ten right and ten wrong ones
        assert found.probability(0.9) == pytest.approx(0.8 * right + 0.2 * wrong, abs=1e-4)
        assert found.probability(0.5) == pytest.approx(0.2 * right + 0.8 * wrong, abs=1e-4)
        assert held_out_bins(known_pairs(gallery)) == [], "only two queries were asked"


def test_marks_of_sent_images_that_another_model_measured_are_counted(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Gallery.open(path) as gallery:
        gallery.store.marks.put(QueryImage("e" * 64, gallery.store.embedding(2)), 1, True)
        gallery.store.marks.put(2, 3, True)
    with closing(sqlite3.connect(path / STORE)) as db, db:
        db.execute("UPDATE marks SET model = 'the one before'")
    run(path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["marked"], told["marks_left_out"]) == (1, 1), "of two items the similarity is known"
    run(path)
    assert "marked results: 1, and 1 more left out" in capsys.readouterr().out


def test_the_reason_for_a_missing_error_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two labels are too few to leave half of them out."""
    with Gallery.create(tmp_path / "g", replace(CARD, dim=2 * (SIDE + 1)), "toy") as gallery:
        rows = np.concatenate([block(0, 0.9), block(1, 0.5)])[:, : 2 * (SIDE + 1)]
        labels = ["a"] * SIDE + ["a", "b"] * (SIDE // 2) + ["b"]
        picture = Thumbnail(b"picture", "image/png")
        gallery.add([NewItem(str(n), row, picture, f"{n:064x}", labels[n]) for n, row in enumerate(rows)])
    run(tmp_path / "g", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["error"], found["error_not_measured"]) == (None, NO_ERROR)
    run(tmp_path / "g")
    assert f"on other classes: {NO_ERROR}" in capsys.readouterr().out
    with Gallery.open(tmp_path / "g") as gallery:
        assert evaluate_gallery(gallery)["calibration"]["error_not_measured"] == NO_ERROR


def test_a_gallery_without_labels_is_refused(path: Path, tmp_path: Path) -> None:
    with raises(UsageError, "bad-number"):
        run(path, "--queries", 0)
    with Gallery.create(tmp_path / "empty", CARD, "toy"):
        pass
    with raises(EvaluationError, "too-few-pairs"):
        run(tmp_path / "empty")
