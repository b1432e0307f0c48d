"""Indicators of a step against naive float64 loops, and the steps that a monitor measures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.toys import CPU, noise, recipe
from training.construction import construct
from training.functional import Triplets
from training.health.indicators import (
    chosen_steps,
    dead_share,
    embedding_indicators,
    observed,
    pair_separation,
    parameter_parts,
)
from training.losses import LOSSES
from training.losses.contrastive import ContrastiveLoss
from training.losses.margin import MarginLoss
from training.losses.snr import SignalToNoiseRatioContrastiveLoss
from training.losses.triplet import TripletMarginLoss
from training.methods.base import objective_loss
from training.miners.hard import BatchHardMiner
from training.recipe import Objective, Optimizer, Schedule
from training.recipes import RECIPES
from training.trainer import Trainer, fit
from zoo.render import flatten_numbers

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])


def unit_rows(seed: int = 0, dim: int = 5) -> torch.Tensor:
    rows = torch.randn(len(LABELS), dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


def pairs(rows: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return the distances of pairs of one class and of two classes."""
    found: tuple[list[float], list[float]] = ([], [])
    for i, j in itertools.permutations(range(len(rows)), 2):
        found[int(LABELS[i] != LABELS[j])].append(math.dist(rows[i].tolist(), rows[j].tolist()))
    return found


def test_indicators_of_embeddings_are_those_of_a_naive_loop() -> None:
    rows = unit_rows()
    values = embedding_indicators(rows, LABELS)
    within, between = pairs(rows)
    cosines = [float(rows[i] @ rows[j]) for i, j in itertools.permutations(range(len(rows)), 2)]
    nearer = np.mean([(p < n) + (p == n) / 2 for p in within for n in between])
    eigenvalues = np.linalg.eigvalsh(np.cov(rows.double().numpy().T))
    expected = {
        "classes": 4,
        "spread": 1 - np.mean(cosines),
        "separation": nearer,
        "directions": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
    }
    assert {name: float(values[name]) for name in expected} == pytest.approx(expected, rel=1e-4)


def test_wide_embeddings_use_as_many_directions_as_their_covariance_says() -> None:
    rows = unit_rows(dim=30)
    eigenvalues = np.linalg.eigvalsh(np.cov(rows.double().numpy().T))
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    assert float(embedding_indicators(rows, LABELS)["directions"]) == pytest.approx(expected, rel=1e-4)


def test_equal_distances_separate_like_chance() -> None:
    assert float(pair_separation(torch.ones(3), torch.ones(4))) == 0.5
    assert float(pair_separation(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0]))) == 0.5
    assert float(pair_separation(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0]))) == 1.0


def test_a_batch_of_one_class_has_no_separation_and_a_collapsed_one_no_spread() -> None:
    values = embedding_indicators(torch.eye(5)[:1].expand(12, 5), torch.zeros(12, dtype=torch.int64))
    assert "separation" not in values
    assert values["classes"] == 1
    assert float(values["spread"]) == pytest.approx(0, abs=1e-6)
    assert "spread" not in embedding_indicators(torch.full((12, 5), math.nan), LABELS)


def test_dead_class_vectors_are_no_nearer_to_their_own_samples() -> None:
    rows = torch.nn.functional.one_hot(LABELS, 4).float()
    vectors = torch.eye(4)
    assert float(dead_share(rows, LABELS, vectors)) == 0
    assert float(dead_share(rows, LABELS, -vectors)) == 1
    assert float(dead_share(rows, LABELS, vectors[[0, 1, 3, 2]])) == 0.5
    # The nearer of two centres counts.
    assert float(dead_share(rows, LABELS, torch.stack([vectors, vectors[[1, 0, 3, 2]]]))) == 0


@pytest.mark.parametrize("mined", [True, False])
def test_active_terms_of_a_triplet_loss(mined: bool) -> None:
    rows, loss = unit_rows(), TripletMarginLoss(0.2, active_only=False)
    every = [
        (a, p, n)
        for a, p, n in itertools.product(range(12), repeat=3)
        if a != p and LABELS[a] == LABELS[p] and LABELS[a] != LABELS[n]
    ]
    gaps = [float((rows[a] - rows[p]).norm() - (rows[a] - rows[n]).norm()) for a, p, n in every]
    tuples = Triplets(*torch.tensor(every).T) if mined else None
    with observed(loss) as seen:
        loss(rows, LABELS, tuples)
    ((active, number, total),) = seen.terms
    assert (float(active), float(number)) == (sum(gap > -0.2 for gap in gaps), len(every))
    assert float(total) == pytest.approx(sum(max(0, gap + 0.2) for gap in gaps), rel=1e-4)


def test_active_terms_of_pair_losses() -> None:
    rows = unit_rows()
    within, between = pairs(rows)
    contrast = ContrastiveLoss(0.9, 1.1, active_only=False)
    losses = nn.ModuleList(
        [
            contrast,
            MarginLoss(beta=1.0, by_triplets=False),
            SignalToNoiseRatioContrastiveLoss(0.5, 1.0, active_only=False),
        ]
    )
    with observed(losses) as seen:
        for loss in losses:
            loss(rows, LABELS)
    numbers = len(within), len(between)
    contrastive = [sum(d > 0.9 for d in within), sum(d < 1.1 for d in between)]
    margin = [sum(d > 0.8 for d in within), sum(d < 1.2 for d in between)]
    found = [(float(active), float(terms)) for active, terms, _ in seen.terms]
    assert float(seen.terms[0][2]) == pytest.approx(sum(max(0, d - 0.9) for d in within), rel=1e-4)
    assert float(seen.terms[1][2]) == pytest.approx(sum(max(0, 1.1 - d) for d in between), rel=1e-4)
    expected = [*zip(contrastive, numbers, strict=True), *zip(margin, numbers, strict=True)]
    assert found[:4] == expected
    centred = rows - rows.mean(1, keepdim=True)
    snr = [
        (float((centred[i] - centred[j]).square().sum() / centred[i].square().sum()), bool(LABELS[i] == LABELS[j]))
        for i, j in itertools.permutations(range(12), 2)
    ]
    assert found[4:] == [
        (sum(d > 0.5 for d, same in snr if same), numbers[0]),
        (sum(d < 1.0 for d, same in snr if not same), numbers[1]),
    ]


def test_nothing_is_observed_outside_the_block() -> None:
    loss = TripletMarginLoss(0.2, active_only=False)
    with observed(loss) as seen:
        pass
    loss(unit_rows(), LABELS)
    assert seen.terms == []


@pytest.mark.parametrize("name", ["arcface", "cosface", "subcenter", "softtriple"])
def test_active_terms_of_a_loss_of_class_vectors_are_misclassified_samples(name: str) -> None:
    rows = unit_rows()
    constants = {"la" if name == "softtriple" else "scale": 1000.0}
    sizes = {"num_classes": 4, "embedding_size": rows.shape[1]}
    loss = construct(LOSSES, "loss", name, constants, sizes)
    with torch.no_grad(), observed(loss) as seen:
        loss(rows, LABELS)
    ((active, number, total),) = seen.terms
    assert (number, total) == (12, None)
    assert 0 < int(active) <= 12
    # At this scale a sample costs next to nothing if and only if its class has the largest logit.
    with torch.no_grad():
        alone = [float(loss(rows[i : i + 1], LABELS[i : i + 1])) for i in range(12)]
    assert sum(cost > 1 for cost in alone) == int(active)


def log_of(tmp_path: Path, **change: Any) -> list[dict[str, Any]]:
    return fit(recipe(**change), noise(), tmp_path, CPU, progress=False).log


def test_hard_mining_takes_the_hardest_and_random_mining_any(tmp_path: Path) -> None:
    hard = log_of(tmp_path / "hard", objective=Objective("triplet", "hard"))[-1]["indicators"]
    assert hard["hard_negatives"] == 1
    even = log_of(tmp_path / "random", objective=Objective("triplet", "random"))[-1]["indicators"]
    assert 0.2 < even["hard_negatives"] < 0.8


def test_the_miner_of_a_loss_is_observed() -> None:
    loss = TripletMarginLoss(0.2, active_only=False)
    with observed(loss) as seen:
        objective_loss(loss, BatchHardMiner(), unit_rows(), LABELS)
    assert seen.mined is not None
    assert torch.equal(seen.mined[1], LABELS)


def test_the_gradient_and_the_update_are_those_of_the_step(tmp_path: Path) -> None:
    # One step of plain gradient descent: the update is the rate times the gradient.
    quick = recipe(
        objective=Objective("margin", loss_args={"beta": 1.2}),
        optimizer=Optimizer("sgd", 0.1, 0.0, 0.1),
        schedule=Schedule(1, 1),
    )
    before = Trainer(quick, noise(), CPU)
    values = fit(quick, noise(), tmp_path, CPU, progress=False).log[0]["start"]
    for part, parameters in parameter_parts(before.network, before.method).items():
        size = math.sqrt(sum(float(p.detach().double().square().sum()) for p in parameters))
        assert values["update"][part] == pytest.approx(0.1 * values["gradient"][part] / size, rel=1e-3)
    assert values["radial_gradient"] == pytest.approx(0, abs=1e-5)
    assert set(values["norm"]) == {"embedding"}


def test_a_loss_of_raw_rows_has_a_radial_gradient(tmp_path: Path) -> None:
    values = log_of(tmp_path, objective=Objective("npair"))[-1]["indicators"]
    assert values["radial_gradient"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["diva", "shared", "mic", "group", "s2sd", "xbm", "mixup", "pa", "margin-noise-in"],
)
def test_every_method_is_measured(name: str, tmp_path: Path) -> None:
    source = RECIPES[f"{name}-conv4-glyphs"]()
    heads = tuple(dataclasses.replace(head, dim=8) for head in source.heads)
    objective = source.objective
    if name == "mic":
        objective = dataclasses.replace(objective, method_args={**objective.method_args, "groups": 4})
    quick = recipe(objective=objective, heads=heads, batch=dataclasses.replace(source.batch, size=12, per_class=3))
    log = fit(quick, noise(), tmp_path, CPU, progress=False).log
    for record in log:
        values = record["indicators"]
        assert {"spread", "separation", "norm", "gradient", "update", "classes"} <= values.keys()
        assert set(values["norm"]) == ({head.name for head in heads} or {"features"})
        assert values["gradient"]["trunk"] > 0
    assert ("dead_proxies" in log[-1]["indicators"]) == (name == "pa")
    json.dumps(log, allow_nan=False)


def test_the_trunk_is_scored_before_training(tmp_path: Path) -> None:
    held_out = np.random.default_rng(1).integers(0, 256, (20, 16, 16, 3), np.uint8)
    labels = np.arange(20) % 5
    data = dataclasses.replace(noise(), validation=(held_out, labels))
    log = fit(recipe(), data, tmp_path, CPU, progress=False).log
    trunk = Trainer(recipe(), data, CPU).network.trunk.eval()
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ((0.5,) * 3, (0.25,) * 3))
    with torch.no_grad():
        rows = trunk((torch.from_numpy(held_out).permute(0, 3, 1, 2) / 255 - mean) / std).numpy()
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = (rows @ rows.T - 4 * np.eye(20)).argmax(1)
    assert log[0]["start"]["trunk_recall_at_1"] == pytest.approx((labels[nearest] == labels).mean())
    assert "start" not in log[1]


def test_the_measured_steps_update_and_train_the_main_task() -> None:
    assert chosen_steps(["main"] * 10, "main", 1, first_epoch=False) == {5, 10}
    assert chosen_steps(["main"] * 10, "main", 4, first_epoch=True) == {1, 8, 10}
    assert chosen_steps(["a", "b"] * 3, "a", 1, first_epoch=False) == {3, 5}
    assert chosen_steps(["main"], "main", 1, first_epoch=True) == {1}
    assert chosen_steps(["b", "b"], "a", 1, first_epoch=False) == {2}
    assert chosen_steps(["main"] * 10, "main", 1, first_epoch=False, several=False) == {10}


def test_trackers_get_the_indicators_as_numbers() -> None:
    record = {"epoch": 3, "loss": 1.0, "terms": {"a": 2.0}, "indicators": {"norm": {"x": 1.5}, "spread": None}}
    assert flatten_numbers({**record, "findings": [{}]}) == {"loss": 1.0, "terms/a": 2.0, "indicators/norm/x": 1.5}
