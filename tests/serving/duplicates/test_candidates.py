"""Candidates: range searches against a plain loop, for few and for many items."""

from __future__ import annotations

import numpy as np
import pytest

from serving.duplicates import candidates
from serving.duplicates.candidates import CandidateIndex, build_index
from serving.duplicates.pictures import Pictures
from serving.duplicates.rule import RULE
from zoo.data.perceptual_hash import BITS, MIRRORED, hamming, mirror_hash

DIM = 24


def pictures(count: int, seed: int = 0) -> Pictures:
    """Items of which every second is near the one before, by its embedding, its hash, or its mirrored hash."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, DIM))
    hashes = rng.integers(0, 256, (count, BITS // 8), dtype=np.uint8)
    for row in range(1, count, 2):
        if row % 6 == 1:
            vectors[row] = vectors[row - 1] + 0.3 * rng.normal(size=DIM)
            continue
        flipped = np.zeros(BITS, np.uint8)
        flipped[rng.choice(BITS, rng.integers(0, 40), replace=False)] = 1
        hashes[row] = hashes[row - 1] ^ np.packbits(flipped) ^ (MIRRORED if row % 6 == 3 else np.uint8(0))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Pictures(10 + 3 * np.arange(count), vectors.astype(np.float32), hashes)


def near(items: Pictures) -> set[tuple[int, int]]:
    """Pairs of ids, the larger first, by a plain loop."""
    bits = np.unpackbits(items.hashes, axis=1).astype(int)
    mirror = np.unpackbits(MIRRORED).astype(int)
    found = set()
    for row in range(len(items.ids)):
        for other in range(row):
            different = bits[row] ^ bits[other]
            distance = min(different.sum(), (different ^ mirror).sum())
            cosine = float(items.vectors[row].astype(np.float64) @ items.vectors[other])
            if cosine >= RULE.similarity or distance <= RULE.candidate_distance:
                found.add((int(items.ids[row]), int(items.ids[other])))
    return found


def part(items: Pictures, rows: slice) -> Pictures:
    return Pictures(items.ids[rows], items.vectors[rows], items.hashes[rows])


def ids_of(items: Pictures, index: CandidateIndex) -> set[tuple[int, int]]:
    """Pairs of an item and a candidate, the larger id first."""
    pairs = set()
    for nearest in index.nearest(items):
        for ids in (nearest.similar, nearest.close):
            assert len(ids) == len(set(ids))
            pairs |= {(int(items.ids[nearest.row]), other) for other in ids}
    return {(max(pair), min(pair)) for pair in pairs}


def test_all_near_pairs_are_found():
    items = pictures(160)
    index = build_index(DIM, 160, [part(items, slice(0, 100)), part(items, slice(100, 160))], None)
    expected = near(items)
    assert len(expected) > 100
    assert ids_of(items, index) == expected
    halves = [part(items, slice(0, 90)), part(items, slice(90, 160))]
    assert set().union(*(ids_of(half, index) for half in halves)) == expected


def test_many_items_are_found_by_lists_and_parts_of_hashes(monkeypatch: pytest.MonkeyPatch):
    items = pictures(160)
    monkeypatch.setattr(candidates, "PROBES", candidates.lists(160))  # all lists: the search is exact
    assert ids_of(items, build_index(DIM, 160, [items], items.vectors)) == near(items)


def test_items_outside_the_index_are_compared_with_those_inside():
    items = pictures(120)
    old, new = part(items, slice(0, 90)), part(items, slice(90, 120))
    index = build_index(DIM, 30, [new], None)
    assert ids_of(old, index) | ids_of(new, index) == {pair for pair in near(items) if pair[0] in new.ids}


def test_the_nearest_candidates_come_first():
    items = pictures(60)
    vectors = dict(zip(items.ids.tolist(), items.vectors.astype(np.float64), strict=True))
    hashes = dict(zip(items.ids.tolist(), items.hashes, strict=True))
    for nearest in build_index(DIM, 60, [items], None).nearest(items):
        item = int(items.ids[nearest.row])
        cosines = [float(vectors[item] @ vectors[other]) for other in nearest.similar]
        distances = [
            min(hamming(hashes[item], one) for one in (hashes[other], mirror_hash(hashes[other])))
            for other in nearest.close
        ]
        assert cosines == pytest.approx(sorted(cosines, reverse=True))
        assert distances == sorted(distances)


def test_candidates_of_one_item_are_bounded():
    count = candidates.MAX_NEAR + 40
    same = Pictures(
        np.arange(count), np.eye(1, DIM, dtype=np.float32).repeat(count, 0), np.zeros((count, 32), np.uint8)
    )
    for nearest in build_index(DIM, count, [same], None).nearest(same):
        assert 0 < len(nearest.similar) <= candidates.MAX_NEAR
        assert 0 < len(nearest.close) <= candidates.MAX_NEAR


def test_an_empty_index_has_no_candidates():
    assert list(build_index(DIM, 0, [], None).nearest(pictures(5))) == []
