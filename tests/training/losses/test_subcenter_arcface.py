"""Sub-center ArcFace against loops and pytorch-metric-learning, and its margins by class size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from tests.raising import raises
from tests.training.losses.batches import DIM, LABELS, batch, create, mean, unit
from tests.training.methods.batches import method
from training.losses import HALF_RADIAN
from training.losses.subcenter_arcface import SubCenterArcFaceLoss, margins_by_size
from training.recipe import Objective
from zoo.errors import RecipeError

SIZES = [10, 160, 40, 10]
MARGINS = [0.5, 0.05, 0.05 + 0.45 * (40**-0.25 - 160**-0.25) / (10**-0.25 - 160**-0.25), 0.5]
"""By hand, from the formula of Ha et al."""


def naive(loss: SubCenterArcFaceLoss, e: np.ndarray, margins: list[float], scale: float) -> float:
    w, terms = unit(loss.centres.detach().numpy()), []
    for x, y in zip(e, LABELS, strict=True):
        cosines = [max(x @ w[k, c] for k in range(len(w))) for c in range(4)]
        theta = math.acos(cosines[y]) + margins[y]
        target = math.cos(theta) if theta <= math.pi else cosines[y] - margins[y] * math.sin(margins[y])
        others = sum(math.exp(scale * cosine) for c, cosine in enumerate(cosines) if c != y)
        terms.append(-math.log(math.exp(scale * target) / (math.exp(scale * target) + others)))
    return mean(terms)


@pytest.mark.parametrize("centres", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, centres: int) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = create("subcenter", sub_centers=centres, scale=20, class_sizes=SIZES)
    loss.margins = torch.tensor(MARGINS, dtype=torch.float64)  # of which the loss keeps float32
    assert loss(embeddings, y).item() == pytest.approx(naive(loss, embeddings.numpy(), MARGINS, 20), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_with_one_margin_it_is_that_of_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = create("subcenter", least_margin=HALF_RADIAN, class_sizes=SIZES)
    theirs = losses.SubCenterArcFaceLoss(num_classes=4, embedding_size=DIM, margin=math.degrees(0.5))
    theirs.W.data = loss.centres.data.permute(2, 1, 0).reshape(DIM, 12)
    assert loss(embeddings, y).item() == pytest.approx(theirs(embeddings, y).item(), abs=1e-9)


def test_with_one_centre_it_is_arcface() -> None:
    embeddings, y = batch(0, LABELS)
    loss, arcface = create("subcenter", sub_centers=1), create("arcface", scale=64)
    arcface.centres.data = loss.centres.data[0]
    assert loss(embeddings, y).item() == pytest.approx(arcface(embeddings, y).item(), abs=1e-12)


def test_small_classes_have_large_margins() -> None:
    assert create("subcenter", class_sizes=SIZES).margins.numpy() == pytest.approx(MARGINS, abs=1e-7)
    assert margins_by_size(np.array([7, 7, 7]), 0.5, 0.05, 0.25).tolist() == [0.5, 0.5, 0.5]
    assert margins_by_size(np.array([0, 1, 16]), 0.5, 0.1, 0.25) == pytest.approx([0.5, 0.5, 0.1])


def test_a_run_passes_the_sizes_of_its_classes() -> None:
    labels = [0] * 10 + [1] * 160 + [2] * 40 + [3] * 10
    built = method(Objective("subcenter"), labels, {"embedding": DIM})
    assert built.objective.margins.numpy() == pytest.approx(MARGINS, abs=1e-7)


@pytest.mark.parametrize("wrong", [{"sub_centers": 0}, {"margin": 0.04}, {"least_margin": -0.1}, {"power": -1.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with raises(RecipeError, "invalid-value"):
        SubCenterArcFaceLoss(4, DIM, **wrong)  # type: ignore[arg-type]


def test_there_is_one_size_per_class() -> None:
    with raises(RecipeError, "invalid-value"):
        SubCenterArcFaceLoss(4, DIM, class_sizes=[1, 2, 3])
