"""Groups of samples (members, renewal, checkpoint), and the triplets of Sharing's table 7."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import minibatch, trunk
from training.functional import Triplets
from training.methods.grouping import GROUPED, NEGATIVES, UNGROUPED, Grouping, SharedTriplets
from training.miners.inter_class import InterClassMiner
from zoo.errors import RecipeError

CLASSES = np.repeat(np.arange(6), 8)
TRAITS = np.tile([0, 1], 24)


def observe() -> Tensor:
    """The first feature tells the classes, far apart in two halves; the second a trait of every other sample."""
    halves = 100.0 * (CLASSES >= 3) + CLASSES
    return torch.from_numpy(np.stack([halves, TRAITS + 0.01 * np.arange(48)], 1)).float()


@pytest.mark.parametrize(("standardised", "expected"), [(True, TRAITS), (False, CLASSES >= 3)])
def test_standardised_groups_contain_several_classes(standardised: bool, expected: np.ndarray) -> None:
    grouping = Grouping(CLASSES, 2, every=1, seed=0, standardised=standardised)
    grouping.start_epoch(0, observe)
    assert adjusted_rand_score(expected, grouping.targets()) == 1


def test_groups_change_only_before_every_third_epoch() -> None:
    grouping = Grouping(CLASSES, 2, every=3, seed=0)
    calls = []

    def seen() -> Tensor:
        calls.append(epoch)
        return observe()

    for epoch in range(8):
        grouping.start_epoch(epoch, seen)
    assert calls == [0, 3, 6]


def test_before_the_first_features_every_group_has_members() -> None:
    targets = Grouping(CLASSES, 5, every=3, seed=0).targets()
    assert targets.dtype == np.int64
    assert np.unique(targets).tolist() == [0, 1, 2, 3, 4]


def test_a_checkpoint_holds_the_groups_alone() -> None:
    grouping, other = (Grouping(CLASSES, 2, every=3, seed=seed) for seed in (0, 1))
    grouping.start_epoch(0, observe)
    assert list(grouping.state_dict()) == ["groups"]
    other.load_state_dict(grouping.state_dict())
    assert other.targets().tolist() == grouping.targets().tolist()


@pytest.mark.parametrize(("number", "every"), [(1, 3), (49, 3), (2, 0)])
def test_numbers_out_of_range_are_rejected(number: int, every: int) -> None:
    with raises(RecipeError, "invalid-value"):
        Grouping(CLASSES, number, every, seed=0)


SHARED_CLASSES = np.repeat(np.arange(5), 4)
LABELS, SAMPLES = [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 4, 5, 8, 9, 12, 13]


def shared(setup: str, negatives: str = "random", groups: int = 2) -> SharedTriplets:
    return SharedTriplets(setup, negatives, SHARED_CLASSES, groups, cluster_every=3, seed=0)


def triplets(setup: str, negatives: str, labels: list[int], samples: list[int]) -> tuple[torch.Tensor, Triplets]:
    """Unit embeddings, and what is mined of them by a miner that is called with other labels than it should go by."""
    torch.manual_seed(0)
    unit = normalize(torch.randn(len(labels), 6), dim=1)
    miner = shared(setup, negatives).miner(minibatch(trunk(), labels, samples))
    result = miner(unit, torch.zeros(len(labels), dtype=torch.int64))
    assert isinstance(result, Triplets)
    return unit, result


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("setup", ["inter-class", "nearest"])
def test_triplets_are_of_three_classes(setup: str, negatives: str) -> None:
    unit, result = triplets(setup, negatives, LABELS, SAMPLES)
    assert set(result.anchors.tolist()) == set(range(8))
    for a, p, n in zip(*(index.tolist() for index in result), strict=True):
        assert len({LABELS[a], LABELS[p], LABELS[n]}) == 3
        if setup == "nearest":
            others = [i for i in range(8) if LABELS[i] != LABELS[a]]
            assert p == min(others, key=lambda i: (unit[a] - unit[i]).norm().item())


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_unconstrained_triplets_are_of_three_samples_even_of_one_class(negatives: str) -> None:
    _, result = triplets("unconstrained", negatives, [2] * 5, [8, 9, 10, 11, 8])
    assert set(result.anchors.tolist()) == set(range(5))
    for triplet in zip(*(index.tolist() for index in result), strict=True):
        # the first and the last are the same image
        assert len({0 if i == 4 else i for i in triplet}) == 3


def test_all_negatives_are_the_samples_of_third_classes() -> None:
    _, result = triplets("inter-class", "all", LABELS, SAMPLES)
    found: dict[tuple[int, int], set[int]] = {}
    for a, p, n in zip(*(index.tolist() for index in result), strict=True):
        found.setdefault((a, p), set()).add(n)
    assert sorted(a for a, _ in found) == list(range(8))
    for (a, p), negatives in found.items():
        assert LABELS[a] != LABELS[p]
        assert negatives == {i for i in range(8) if LABELS[i] not in (LABELS[a], LABELS[p])}


@pytest.mark.parametrize(
    ("negatives", "positives", "drawn"),
    [
        ("distance-weighted", None, "distance-weighted"),  # algorithm 1: every constituent by 1 / q
        ("all", None, "distance-weighted"),
        ("semihard", None, "random"),
        ("random", None, "random"),
        ("distance-weighted", "random", "random"),
    ],
)
def test_positives_are_drawn_like_negatives(negatives: str, positives: str | None, drawn: str) -> None:
    chosen = SharedTriplets("inter-class", negatives, SHARED_CLASSES, 2, 3, 0, positives)
    assert cast(InterClassMiner, chosen.base_miner).positive == drawn


def test_set_ups_with_positives_of_their_own_take_no_other() -> None:
    with raises(RecipeError, "option-without-effect"):
        SharedTriplets("nearest", "random", SHARED_CLASSES, 2, 3, 0, "random")


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_grouped_triplets_follow_the_groups(negatives: str) -> None:
    _, result = triplets("grouped", negatives, LABELS, SAMPLES)
    # before the first clustering the groups are even and odd samples
    for a, p, n in zip(*(index.tolist() for index in result), strict=True):
        assert a != p
        assert SAMPLES[a] % 2 == SAMPLES[p] % 2 != SAMPLES[n] % 2


@pytest.mark.parametrize("setup", GROUPED)
def test_grouped_triplets_are_drawn_and_renewed_by_group(setup: str) -> None:
    chosen = shared(setup)
    assert chosen.targets(SHARED_CLASSES).tolist() == [i % 2 for i in range(20)]
    features = torch.stack([torch.from_numpy(SHARED_CLASSES), torch.arange(20) // 2 % 2 * 100], 1).float()
    chosen.start_epoch(0, lambda: features)
    first = chosen.targets(SHARED_CLASSES)
    assert (first == first[0]).tolist() == [i // 2 % 2 == 0 for i in range(20)]
    assert chosen.grouping is not None
    assert chosen.grouping.standardised == (setup == "grouped-standardised")


@pytest.mark.parametrize("setup", UNGROUPED)
def test_other_set_ups_draw_by_class_and_need_no_features(setup: str) -> None:
    chosen = shared(setup)
    assert chosen.targets(SHARED_CLASSES) is SHARED_CLASSES
    chosen.start_epoch(0, lambda: pytest.fail("features were asked for"))
    assert not chosen.state_dict()


@pytest.mark.parametrize(
    ("setup", "negatives", "code"),
    [("intra-class", "random", "unknown-name"), ("grouped", "hard", "unknown-name")],
)
def test_unknown_names_are_rejected(setup: str, negatives: str, code: str) -> None:
    with raises(RecipeError, code):
        shared(setup, negatives)


def test_two_classes_have_no_triplets_of_three() -> None:
    with raises(RecipeError, "too-few-classes"):
        SharedTriplets("inter-class", "random", np.array([0, 0, 1, 1]), 2, 3, 0)
    assert SharedTriplets("unconstrained", "random", np.array([0, 0, 1, 1]), 2, 3, 0)
