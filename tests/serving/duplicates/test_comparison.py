"""Comparison of a store's items: copies of all kinds, additions, removals and other models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.duplicates.comparison import compare
from serving.duplicates.pictures import COMPARED, PictureTable
from serving.duplicates.rule import RULE
from serving.gallery.store import Store
from serving.gallery.types import Thumbnail
from tests.serving.duplicates.toys import copies, new_item, open_store, picture

ALIKE = {(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)}
"""Pairs of the four items that `copies` makes first."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four copies of one picture (items 1 to 4), and six other pictures, two of which have near embeddings."""
    others = [new_item(10 + seed, picture(50 + seed), of=min(seed, 4)) for seed in range(6)]
    with closing(open_store(tmp_path, [*copies(1, of=7), *others])) as opened:
        yield opened


def found(table: PictureTable, mirrored: bool = True) -> set[tuple[int, int]]:
    return {(pair.first, pair.second) for pair in table.pairs(mirrored)}


@pytest.mark.parametrize("exact", [True, False])
def test_copies_are_confirmed_and_near_embeddings_alone_are_not(store: Store, exact: bool):
    table = PictureTable(store)
    result = compare(table, exact=exact)
    assert (result.added, result.confirmed) == (10, len(ALIKE))
    assert result.candidates > len(ALIKE), "the two other pictures are candidates by their embeddings"
    assert found(table) == ALIKE
    assert found(table, mirrored=False) == {(1, 2), (1, 4), (2, 4)}
    evidence = {(pair.first, pair.second): pair.evidence for pair in table.pairs(mirrored=True)}
    assert (evidence[1, 2].mirrored, evidence[1, 2].part) == (False, False)
    assert (evidence[1, 3].mirrored, evidence[1, 4].part, evidence[3, 4].mirrored) == (True, True, True)
    vectors = store.embeddings([1, 2])[1].astype(np.float64)
    assert evidence[1, 2].similarity == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_additions_are_compared_with_all_items_and_removals_are_forgotten(store: Store, tmp_path: Path):
    table = PictureTable(store)
    compare(table)
    assert compare(table).added == 0
    store.add([new_item(30, picture(7).convert("L").convert("RGB"), of=7), new_item(31, picture(99), of=99)])
    assert compare(table).added == 2
    assert found(table) == ALIKE | {(item, 11) for item in range(1, 5)}
    store.remove([2])
    assert compare(table).added == 0
    incremental = found(table)
    assert incremental == {pair for pair in ALIKE if 2 not in pair} | {(item, 11) for item in (1, 3, 4)}
    table.forget()
    compare(table)
    assert found(table) == incremental


def test_an_interrupted_comparison_begins_again(store: Store, monkeypatch: pytest.MonkeyPatch):
    table = PictureTable(store)
    monkeypatch.setattr(PictureTable, "set_compared", lambda table, change: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare(table)
    monkeypatch.undo()
    assert compare(table).added == 10
    assert found(table) == ALIKE


def test_another_model_or_rule_compares_everything_again(store: Store):
    table = PictureTable(store)
    compare(table)
    with store.database.transaction() as db:
        db.execute("INSERT INTO copies VALUES (5, 6, 0.9, 3, 0, 0)")
    for known in (
        '{"model": "another", "rule": "2", "change": 1}',
        '{"model": "fingerprint", "rule": "0", "change": 1}',
    ):
        store.set_state(COMPARED, known)
        assert compare(table).added == 10
        assert found(table) == ALIKE


def test_comparisons_of_items_that_are_all_alike_grow_with_their_number(tmp_path: Path):
    counts = {}
    for number in (8, 16):
        (tmp_path / str(number)).mkdir()
        alike = [new_item(item, picture(100 + item), of=1) for item in range(1, number + 1)]
        with closing(open_store(tmp_path / str(number), alike)) as store:
            result = compare(PictureTable(store))
        assert result.confirmed == 0
        counts[number] = result.candidates
    assert 0 < counts[8] <= RULE.misses * 8
    assert 0 < counts[16] <= RULE.misses * 16


def test_a_thumbnail_that_cannot_be_decoded_is_left_out(store: Store):
    broken = replace(new_item(40, picture(7), of=7), thumbnail=Thumbnail(b"\x89PNG\r\n\x1a\nno picture", "image/png"))
    store.add([broken])
    table = PictureTable(store)
    assert (compare(table).added, table.unknown()) == (11, 1)
    assert found(table) == ALIKE
