"""Triplets of the shared and the intra task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.raising import raises
from tests.training.methods.batches import FEATURES, minibatch
from tests.training.methods.heads import DIM, Toy
from training.functional import Triplets
from training.losses.arcface import ArcFace
from training.losses.triplet import Triplet
from training.methods.auxiliary import IntraClassFeatures, SharedFeatures
from zoo.errors import RecipeError

LABELS = [0, 0, 0, 1, 1, 1, 2, 3]


def triplets(toy: Toy) -> Triplets:
    unit = nn.functional.normalize(torch.randn(len(LABELS), DIM), dim=1)
    mined: Triplets = toy.task.miner(unit, torch.tensor(LABELS))  # type: ignore[operator]
    return mined


def classes(mined: Triplets) -> list[tuple[int, int, int]]:
    return [(LABELS[a], LABELS[p], LABELS[n]) for a, p, n in zip(*(x.tolist() for x in mined), strict=True)]


def test_shared_takes_three_classes() -> None:
    for a, p, n in classes(triplets(Toy("shared"))):
        assert len({a, p, n}) == 3


def test_intra_takes_three_samples_of_one_class() -> None:
    mined = triplets(Toy("intra"))
    assert mined.anchors.tolist() == [0, 1, 2, 3, 4, 5]
    assert all(len(set(triplet)) == 3 for triplet in zip(*(x.tolist() for x in mined), strict=True))
    assert all(a == p == n for a, p, n in classes(mined))


def test_permuted_labels_give_triplets_across_any_classes() -> None:
    torch.manual_seed(0)
    toy = Toy("shared", permuted_labels=True)
    seen = {len(set(result)) for _ in range(20) for result in classes(triplets(toy))}
    assert seen == {1, 2, 3}
    # Two classes of three are six ordered pairs each, whichever samples they are.
    assert len(triplets(toy).anchors) == 12


def test_intra_needs_three_samples_of_a_class() -> None:
    toy = Toy("intra")
    with raises(RecipeError, "class-too-small"):
        toy.loss(minibatch(toy.trunk, [0, 0, 1, 1]))


def test_intra_uses_a_repeated_sample_once() -> None:
    # Samplers repeat the images of classes with too few: the first has two, the second three.
    toy, seen = Toy("intra"), []
    actual = toy.task.miner

    def spy(unit: Tensor, labels: Tensor) -> Triplets:
        seen.append(actual(unit, labels))  # type: ignore[operator]
        return seen[-1]

    toy.task.miner = spy
    toy.loss(minibatch(toy.trunk, [0, 0, 0, 0, 1, 1, 1, 1], [8, 9, 8, 9, 5, 3, 5, 4]))
    assert seen[0].anchors.tolist() == [4, 5, 7]


@pytest.mark.parametrize("task", [SharedFeatures, IntraClassFeatures])
def test_a_loss_without_triplets_is_rejected(task: type[SharedFeatures] | type[IntraClassFeatures]) -> None:
    with raises(RecipeError, "loss-without-triplets"):
        task(lambda dim: ArcFace(4, dim), FEATURES)
    task(lambda dim: Triplet(4), FEATURES)
