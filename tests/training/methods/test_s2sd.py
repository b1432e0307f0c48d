"""S2SD against loops in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import FEATURES, method, minibatch, trunk
from training.functional import similarity_divergence
from training.losses.contrastive import ContrastiveLoss
from training.recipe import Objective
from zoo.errors import RecipeError

LABELS = [0, 0, 1, 1, 2, 2]


def s2sd(loss: str = "contrastive", miner: str | None = None, **args: Any) -> Objective:
    return Objective(loss, miner, method="s2sd", method_args={"dims": [7, 9], **args})


def naive(student: np.ndarray, teacher: np.ndarray, temperature: float) -> float:
    def shares(rows: np.ndarray, i: int) -> list[float]:
        unit = [row / math.sqrt((row**2).sum()) for row in rows]
        powers = [math.exp(sum(unit[i] * other) / temperature) for other in unit]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for i in range(len(student)):
        for t, s in zip(shares(teacher, i), shares(student, i), strict=True):
            total += t * math.log(t / s)
    return temperature**2 * total / len(student)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_divergence_equals_the_loop(temperature: float) -> None:
    student, teacher = (torch.randn(5, d, dtype=torch.float64, requires_grad=True) for d in (3, 8))
    value = similarity_divergence(student, teacher, temperature)
    assert value.item() == pytest.approx(naive(student.detach().numpy(), teacher.detach().numpy(), temperature))
    value.backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert similarity_divergence(student, student).item() == pytest.approx(0, abs=1e-12)


def test_terms_equal_the_loop() -> None:
    net = trunk()
    trained = method(s2sd(features_gamma=30), LABELS, {"embedding": 5}, net)
    batch = minibatch(net, LABELS, epoch=1)
    terms = {name: value.item() for name, value in trained.loss(batch).items()}
    features = batch.features.detach()
    raw = trained.heads["embedding"](features)
    wide = [torch.relu(features @ h[0].weight.T + h[0].bias) @ h[2].weight.T + h[2].bias for h in trained.auxiliary]
    assert [rows.shape[1] for rows in wide] == [7, 9]
    losses = [ContrastiveLoss(active_only=False)(normalize(rows, dim=1), batch.labels).item() for rows in (raw, *wide)]
    student, first, second, pooled = (rows.detach().double().numpy() for rows in (raw, *wide, features))
    assert terms == pytest.approx(
        {
            "loss": losses[0] / 2,
            "auxiliary": (losses[1] + losses[2]) / 4,
            "distillation": 50 * (naive(student, first, 1) + naive(student, second, 1)) / 2,
            "features": 30 * naive(student, pooled, 1),
        },
        rel=1e-3,
    )


def test_terms_start_in_their_epochs() -> None:
    net = trunk()
    trained = method(s2sd(warmup=2, features_gamma=1, features_warmup=3), LABELS, {"embedding": 5}, net)
    names = [set(trained.loss(minibatch(net, LABELS, epoch=epoch))) for epoch in range(4)]
    assert names[1] == {"loss", "auxiliary"}
    assert names[2] == {"loss", "auxiliary", "distillation"}
    assert names[3] == {"loss", "auxiliary", "distillation", "features"}


def test_distillation_moves_head_and_trunk_only() -> None:
    net = trunk()
    trained = method(s2sd(), LABELS, {"embedding": 5}, net)
    trained.loss(minibatch(net, LABELS))["distillation"].backward()
    assert all(p.grad is None for p in trained.auxiliary.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    weight = trained.heads["embedding"].weight
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_every_head_has_a_loss_of_its_own() -> None:
    trained = method(s2sd("arcface"), LABELS, {"embedding": 5})
    sizes = [loss.centres.shape for loss in (trained.objective, *trained.auxiliary_objectives)]
    assert sizes == [(3, 5), (3, 7), (3, 9)]
    assert len({name for name, _ in trained.named_parameters()}) == 2 + 2 * 4 + 3
    default = method(Objective("margin", "distance-weighted", method="s2sd"), LABELS, {"embedding": 5})
    assert [head[2].out_features for head in default.auxiliary] == [512, 1024, 1536, 2048]
    assert default.auxiliary[0][0].in_features == FEATURES


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [1]])
def test_degenerate_batches(labels: list[int]) -> None:
    net = trunk()
    trained = method(s2sd("margin", "distance-weighted", features_gamma=50), LABELS, {"embedding": 5}, net)
    value = sum(trained.loss(minibatch(net, labels, epoch=1)).values())
    value.backward()  # type: ignore[union-attr]
    assert torch.isfinite(value)  # type: ignore[arg-type]
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in [*net.parameters(), *trained.parameters()])


@pytest.mark.parametrize(
    ("objective", "dims", "code"),
    [
        (s2sd(), {}, "conflicting-settings"),
        (s2sd(), {"a": 2, "b": 2}, "conflicting-settings"),
        (s2sd(dims=[]), {"a": 2}, "invalid-value"),
        (s2sd(gamma=-1), {"a": 2}, "invalid-value"),
        (s2sd(temperature=0), {"a": 2}, "invalid-value"),
    ],
)
def test_heads_and_numbers_that_do_not_fit_are_rejected(objective: Objective, dims: dict[str, int], code: str) -> None:
    with raises(RecipeError, code):
        method(objective, LABELS, dims)
