"""Set-ups of Sharing's table 7: classes, groups and samples of their triplets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import minibatch, trunk
from training.functional import Triplets
from training.methods.grouping import GROUPED, NEGATIVES, POSITIVES, SharedTriplets
from zoo.errors import RecipeError

CLASSES = np.repeat(np.arange(5), 4)
LABELS, SAMPLES = [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 4, 5, 8, 9, 12, 13]


def shared(setup: str, negatives: str = "random", groups: int = 2) -> SharedTriplets:
    return SharedTriplets(setup, negatives, CLASSES, groups, cluster_every=3, seed=0)


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
    assert sorted(result.anchors.tolist()) == list(range(8))
    for a, p, n in zip(*(index.tolist() for index in result), strict=True):
        assert len({LABELS[a], LABELS[p], LABELS[n]}) == 3
        if setup == "nearest":
            others = [i for i in range(8) if LABELS[i] != LABELS[a]]
            assert p == min(others, key=lambda i: (unit[a] - unit[i]).norm().item())


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_unconstrained_triplets_are_of_three_samples_even_of_one_class(negatives: str) -> None:
    _, result = triplets("unconstrained", negatives, [2] * 5, [8, 9, 10, 11, 8])
    assert len(result.anchors) == 5
    for triplet in zip(*(index.tolist() for index in result), strict=True):
        # the first and the last are the same image
        assert len({0 if i == 4 else i for i in triplet}) == 3


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
    assert chosen.targets(CLASSES).tolist() == [i % 2 for i in range(20)]
    features = torch.stack([torch.from_numpy(CLASSES), torch.arange(20) // 2 % 2 * 100], 1).float()
    chosen.start_epoch(0, lambda: features)
    first = chosen.targets(CLASSES)
    assert (first == first[0]).tolist() == [i // 2 % 2 == 0 for i in range(20)]
    assert chosen.grouping is not None
    assert chosen.grouping.standardised == (setup == "grouped-standardised")


@pytest.mark.parametrize("setup", POSITIVES)
def test_other_set_ups_draw_by_class_and_need_no_features(setup: str) -> None:
    chosen = shared(setup)
    assert chosen.targets(CLASSES) is CLASSES
    chosen.start_epoch(0, lambda: pytest.fail("features were asked for"))
    assert not chosen.state_dict()


@pytest.mark.parametrize(
    ("setup", "negatives", "code"),
    [("intra-class", "random", "unknown-triplets"), ("grouped", "hard", "unknown-negatives")],
)
def test_unknown_names_are_rejected(setup: str, negatives: str, code: str) -> None:
    with raises(RecipeError, code):
        shared(setup, negatives)


def test_two_classes_have_no_triplets_of_three() -> None:
    with raises(RecipeError, "too-few-classes"):
        SharedTriplets("inter-class", "random", np.array([0, 0, 1, 1]), 2, 3, 0)
    assert SharedTriplets("unconstrained", "random", np.array([0, 0, 1, 1]), 2, 3, 0)
