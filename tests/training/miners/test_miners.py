"""Properties of every miner on every batch, including degenerate ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raising import raises
from tests.training.methods.batches import method, minibatch, trunk
from tests.training.miners.batches import LABELS, complete, distance, negatives_of, positives_of, rows
from training.functional import draw_columns
from training.miners import MINERS, create_miner
from training.miners.distance_weighted import DistanceWeightedMiner
from training.miners.hard import BatchHardMiner
from training.miners.inter_class import InterClassMiner
from training.miners.intra_class import IntraClassMiner
from training.miners.multi_similarity import MultiSimilarityMiner
from training.miners.random import RandomMiner
from training.miners.rho import RhoMiner
from training.miners.semihard import SemihardMiner
from training.miners.softhard import SofthardMiner
from training.miners.triplet_margin import TripletMarginMiner
from training.recipe import Objective
from zoo.errors import RecipeError, UsageError

ANY_LABELS = st.lists(st.integers(-1, 3), min_size=1, max_size=12)
KINDS = st.sampled_from(["random", "equal", "zero", "nan"])


@pytest.mark.parametrize(
    "miner", [RandomMiner(), SemihardMiner(), SofthardMiner(), BatchHardMiner(), DistanceWeightedMiner()]
)
@settings(max_examples=40)
@given(labels=ANY_LABELS, kind=KINDS)
def test_triplets_are_valid_and_every_anchor_that_can_has_one(miner: Any, labels: list[int], kind: str) -> None:
    y = torch.tensor(labels)
    anchors, positives, negatives = miner(rows(len(labels), kind=kind), y)
    assert anchors.dtype == positives.dtype == negatives.dtype == torch.int64
    assert (y[anchors] == y[positives]).all()
    assert (anchors != positives).all()
    assert (y[anchors] != y[negatives]).all()
    assert set(anchors.tolist()) == set(complete(labels))
    assert isinstance(miner, DistanceWeightedMiner) or len(anchors) == len(complete(labels))


@settings(max_examples=40)
@given(labels=ANY_LABELS, kind=KINDS)
def test_pairs_are_valid(labels: list[int], kind: str) -> None:
    y = torch.tensor(labels)
    anchors_p, positives, anchors_n, negatives = MultiSimilarityMiner()(rows(len(labels), kind=kind), y)
    assert (y[anchors_p] == y[positives]).all()
    assert (anchors_p != positives).all()
    assert (y[anchors_n] != y[negatives]).all()
    mined = {*anchors_p.tolist(), *anchors_n.tolist()}
    if kind == "nan":  # kept, so that the loss is not finite and the run stops
        assert mined >= set(complete(labels))
    else:
        assert mined <= set(complete(labels))
    if kind in ("equal", "zero"):  # all pairs are equally hard
        assert set(anchors_p.tolist()) == set(anchors_n.tolist()) == set(complete(labels))


@pytest.mark.parametrize("positive", ["distance-weighted", "random", "nearest"])
@pytest.mark.parametrize("negative", ["distance-weighted", "semihard", "random"])
@settings(max_examples=25)
@given(labels=ANY_LABELS, kind=KINDS)
def test_inter_class_triplets_have_three_classes(positive: str, negative: str, labels: list[int], kind: str) -> None:
    y = torch.tensor(labels)
    triplets = InterClassMiner(positive, negative)(rows(len(labels), kind=kind), y)
    assert len(triplets.anchors) == (len(labels) if len(set(labels)) > 2 else 0)
    assert all(len({labels[i] for i in triplet}) == 3 for triplet in zip(*(f.tolist() for f in triplets), strict=True))


@pytest.mark.parametrize("by_distance", [True, False])
@settings(max_examples=40)
@given(labels=ANY_LABELS, kind=KINDS)
def test_intra_class_triplets_are_three_of_one_class(by_distance: bool, labels: list[int], kind: str) -> None:
    able = [i for i, label in enumerate(labels) if labels.count(label) >= 3]
    miner = IntraClassMiner(by_distance)
    if not able:
        most = max(labels.count(label) for label in labels)
        with raises(RecipeError, "too-few-samples") as caught:
            miner(rows(len(labels), kind=kind), torch.tensor(labels))
        assert f" {most} " in str(caught.value)
        return
    triplets = miner(rows(len(labels), kind=kind), torch.tensor(labels))
    assert triplets.anchors.tolist() == able
    for a, p, n in zip(*(field.tolist() for field in triplets), strict=True):
        assert labels[a] == labels[p] == labels[n]
        assert len({a, p, n}) == 3


@settings(max_examples=40)
@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4), min_size=1, max_size=6))
def test_weights_of_zero_are_never_drawn(weights: list[list[float]]) -> None:
    w = torch.tensor(weights)
    able = (w * 2**30).long().sum(1).nonzero()[:, 0].repeat_interleave(20)
    assert (w[able, draw_columns(w, able)] > 0).all()


def test_draws_follow_the_weights() -> None:
    torch.manual_seed(0)
    w = torch.tensor([[0.0, 1.0, 0.25, 0.0], [1.0, 1.0, 1.0, 1e-12]])
    drawn = draw_columns(w, torch.tensor([0, 1]).repeat_interleave(20_000)).reshape(2, -1)
    for row in (0, 1):
        share = torch.bincount(drawn[row], minlength=4) / 20_000
        assert torch.allclose(share, w[row] / w[row].sum(), atol=0.02)


def test_wrappers_are_created_from_names() -> None:
    rho = create_miner("rho", {"probability": 0.4, "miner": "semihard", "miner_args": {"margin": 0.3}})
    assert isinstance(rho.miner, SemihardMiner)
    assert rho.miner.margin == 0.3
    assert isinstance(create_miner("rho", {"probability": 0.4}).miner, DistanceWeightedMiner)


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("semi-hard", {}, "'semihard'"),
        ("rho", {"probability": 0.1, "miner": "hrad"}, "'hard'"),
        ("rho", {}, "probability"),
        ("hard", {"margin": 1}, "'margin'"),
    ],
)
def test_unknown_miners_and_arguments_are_rejected(name: str, args: dict[str, Any], value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        create_miner(name, args)
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: RhoMiner(1.5), "invalid-value"),
        (lambda: InterClassMiner(positive="hard"), "unknown-name"),
        (lambda: InterClassMiner(negative="nearest"), "unknown-name"),
        (lambda: TripletMarginMiner(type_of_triplets="hrad"), "unknown-name"),
    ],
)
def test_impossible_arguments_are_rejected(make: Callable[[], Any], code: str) -> None:
    with raises(RecipeError, code):
        make()


def test_every_miner_of_the_table_is_tested_here() -> None:
    assert set(MINERS) == {
        *("random", "semihard", "softhard", "hard", "distance-weighted", "ms"),
        *("inter-class", "intra-class", "rho", "triplet-margin"),
    }


@pytest.mark.parametrize("miner", [name for name in MINERS if name != "rho"])
def test_labels_that_lack_a_row_are_rejected(miner: str) -> None:
    with pytest.raises(UsageError) as caught:
        create_miner(miner, {})(torch.eye(5)[:, :2], torch.tensor([0, 0, 1, 1]))
    assert "[5, 2] and [4]" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in MINERS if name not in ("rho", "intra-class")])
def test_embeddings_of_any_length_and_type_and_labels_of_any_integer_type(name: str) -> None:
    unit, y = rows(10, seed=2), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    miner = create_miner(name, {})
    drawn = []
    for embeddings, labels in ((unit, y), (4 * unit, y.to(torch.uint8)), (0.25 * unit, y.int())):
        torch.manual_seed(0)
        drawn.append([field.tolist() for field in miner(embeddings, labels)])
    assert drawn[0] == drawn[1] == drawn[2]
    for other in (unit.half(), unit.bfloat16(), unit.double()):
        assert {len(field) for field in miner(other, y)[:2]} == {len(drawn[0][0])} or name in ("ms", "triplet-margin")


@pytest.mark.parametrize("name", [name for name in MINERS if MINERS[name].compares_references])
def test_tuples_of_references_have_their_anchors_in_the_batch(name: str) -> None:
    y, others = torch.tensor([0, 1, 2, 2]), torch.tensor([2, 0, 0, 1, 1, 4])
    mined = create_miner(name, {})(rows(4), y, rows(6, seed=1), others)
    a, p, b, n = mined if len(mined) == 4 else (mined[0], mined[1], mined[0], mined[2])
    assert (y[a] == others[p]).all()
    assert (y[b] != others[n]).all()
    assert set(a.tolist()) == {0, 1, 2, 3} or name in ("ms", "triplet-margin")


@pytest.mark.parametrize("name", ["inter-class", "intra-class", "rho"])
def test_miners_of_other_relations_refuse_references(name: str) -> None:
    y = torch.tensor([0, 0, 0, 1])
    with raises(UsageError, "option-without-effect"):
        create_miner(name, {"probability": 0.5} if name == "rho" else {})(rows(4), y, rows(4), y)


def test_triplets_of_a_margin_are_those_of_the_loop() -> None:
    y, embeddings = torch.tensor(LABELS), rows(10)
    margins = {t: distance(embeddings, t[0], t[2]) - distance(embeddings, t[0], t[1]) for t in all_triplets()}
    kept = {
        "all": {t for t, margin in margins.items() if margin <= 0.2},
        "hard": {t for t, margin in margins.items() if margin <= 0},
        "semihard": {t for t, margin in margins.items() if 0 < margin <= 0.2},
        "easy": {t for t, margin in margins.items() if margin > 0.2},
    }
    for kind, expected in kept.items():
        mined = TripletMarginMiner(0.2, type_of_triplets=kind)(embeddings, y)
        assert set(zip(*(field.tolist() for field in mined), strict=True)) == expected
        assert len(mined.anchors) == len(expected)


def all_triplets() -> list[tuple[int, int, int]]:
    return [(a, p, n) for a in range(10) for p in positives_of(LABELS, a) for n in negatives_of(LABELS, a)]


def test_a_miner_of_the_user_needs_no_annotations_and_any_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __call__(self, embeddings, labels):  # type: ignore[no-untyped-def]
            return tuple(MultiSimilarityMiner()(embeddings, labels))

    monkeypatch.setitem(MINERS, "own", Own)
    net, labels = trunk(), [0, 0, 1, 1, 2, 2]
    for miner in (Objective("margin", "own"), Objective("margin", "rho", {}, {"probability": 0.5, "miner": "own"})):
        built = method(miner, labels, {"embedding": 6}, net)
        assert torch.isfinite(built.loss(minibatch(net, labels))["loss"])
    with raises(RecipeError, "conflicting-settings"):
        method(Objective("arcface", "own"), labels, {"embedding": 6}, net)
