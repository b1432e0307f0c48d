"""DiVA: its terms against loops, the parameters that each term changes, and its state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import method, minibatch, trunk
from tests.training.toys import CPU, noise, recipe
from training import checkpoint
from training.functional import Triplets
from training.methods.base import ParameterGroup
from training.methods.diva import DiVA
from training.recipe import Batch, Objective, Schedule
from training.trainer import fit
from zoo.errors import RecipeError
from zoo.models.card import Head

LABELS = [0, 0, 0, 1, 1, 1, 2, 2]
PAPER = ("discriminative", "shared", "intra", "dance")
ARMS = ("nce", "deepcluster", "rotation", "instance")
SMALL = {"dance": {"queue_batches": 2}, "nce": {"queue_batches": 2}, "deepcluster": {"clusters": 3}}
DISCRIMINATIVE = Triplets(*torch.tensor([[0, 1, 3], [4, 5, 7], [6, 7, 2]]).T)
SHARED = Triplets(*torch.tensor([[0, 3, 6], [5, 7, 1]]).T)
INTRA = Triplets(*torch.tensor([[0, 1, 2], [4, 3, 5]]).T)


def diva(
    names: tuple[str, ...] = PAPER, net: nn.Module | None = None, dim: int = 5, seed: int = 0, **args: Any
) -> DiVA:
    auxiliary = {name: value for name, value in SMALL.items() if name in names}
    objective = Objective("margin", "distance-weighted", method="diva", method_args={"auxiliary": auxiliary, **args})
    trained = method(objective, LABELS, dict.fromkeys(names, dim), net, seed)
    return cast(DiVA, trained)


def start(trained: DiVA, net: nn.Module, epoch: int = 0) -> None:
    pixels = torch.randn(len(LABELS), 3, 4, 4, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        features = net(pixels)
    trained.start_epoch(epoch, lambda: features)


def margin(e: np.ndarray, triplets: Triplets, beta: list[float], m: float = 0.2) -> float:
    terms = []
    for a, p, n in zip(*(x.tolist() for x in triplets), strict=True):
        b = beta[LABELS[a]]
        near, far = math.sqrt(((e[a] - e[p]) ** 2).sum()), math.sqrt(((e[a] - e[n]) ** 2).sum())
        terms += [max(0.0, near - b + m), max(0.0, b - far + m)]
    return sum(terms) / max(1, sum(t > 0 for t in terms))


def correlation(a: np.ndarray, b: np.ndarray, regressor: nn.Module) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        first, _, second = cast(list[nn.Linear], list(regressor))  # type: ignore[call-overload]
        hidden = np.maximum(0, first.weight.detach().double().numpy() @ y + first.bias.detach().double().numpy())
        p = second.weight.detach().double().numpy() @ hidden + second.bias.detach().double().numpy()
        p /= math.sqrt((p**2).sum())
        total += sum((x[s] * p[s]) ** 2 for s in range(len(x))) / len(x)
    return total / len(a)


def test_every_term_against_a_loop() -> None:
    net = trunk()
    trained = diva(net=net, alpha=0.25, rho=40.0)
    start(trained, net)
    miners = trained.miner, trained.auxiliary["shared"].miner, trained.auxiliary["intra"].miner
    for miner, tuples in zip(miners, (DISCRIMINATIVE, SHARED, INTRA), strict=True):
        miner.mine = lambda batch, tuples=tuples: tuples
    losses = [
        trained.discriminative["discriminative"],
        *(trained.auxiliary[name].objective for name in ("shared", "intra")),
    ]
    for place, loss in enumerate(losses):  # a beta of its own each
        loss.beta.data = torch.tensor([1.2, 0.9, 1.4]) - 0.1 * place
    batch = minibatch(net, LABELS)
    torch.manual_seed(3)
    terms = trained.loss(batch)
    assert list(terms) == [*PAPER, "decorrelation"]
    with torch.no_grad():
        e = {n: normalize(head(batch.features), dim=1).double().numpy() for n, head in trained.heads.items()}
        torch.manual_seed(3)
        dance = trained.auxiliary["dance"].loss(trained.heads["dance"](batch.features), batch).item()
    beta = [1.2, 0.9, 1.4]
    assert terms["discriminative"].item() == pytest.approx(margin(e["discriminative"], DISCRIMINATIVE, beta), rel=1e-5)
    shared = margin(e["shared"], SHARED, [b - 0.1 for b in beta])
    assert terms["shared"].item() == pytest.approx(0.25 * shared, rel=1e-5)
    intra = margin(e["intra"], INTRA, [b - 0.2 for b in beta])
    assert terms["intra"].item() == pytest.approx(0.25 * intra, rel=1e-5)
    assert terms["dance"].item() == pytest.approx(0.25 * dance, rel=1e-5)
    pairs = zip(PAPER[1:], trained.decorrelations, strict=True)
    correlations = [correlation(e["discriminative"], e[name], pair.regressor) for name, pair in pairs]
    assert terms["decorrelation"].item() == pytest.approx(-40 * sum(correlations), rel=1e-5)


@pytest.mark.parametrize("name", [*PAPER[1:], *ARMS])
def test_each_term_moves_the_trunk_its_own_head_and_its_own_task(name: str) -> None:
    net = trunk()
    trained = diva(("discriminative", name), net)
    start(trained, net)
    learnt = {f"net.{key}": p for key, p in net.named_parameters()}
    learnt |= {key: p for key, p in trained.named_parameters() if p.requires_grad}
    for term, value in trained.loss(minibatch(net, LABELS)).items():
        gradients = torch.autograd.grad(value, list(learnt.values()), allow_unused=True, retain_graph=True)
        reached = [key for key, gradient in zip(learnt, gradients, strict=True) if gradient is not None]
        assert any(key.startswith("net.") for key in reached)
        own = [key for key in reached if not key.startswith("net.")]
        if term == "decorrelation":
            assert all(key.startswith(("heads.", "decorrelations.")) for key in own)
            assert {key.split(".")[1] for key in own if key.startswith("heads.")} == {"discriminative", name}
        else:
            group = "discriminative" if term == "discriminative" else "auxiliary"
            assert all(key.startswith((f"heads.{term}.", f"{group}.{term}.")) for key in own)
            assert any(key.startswith(f"heads.{term}.") for key in own)


def test_descending_decorrelates_heads_while_the_regressors_pursue() -> None:
    net = trunk()
    trained = diva(("discriminative", "rotation"), net, rho=1.0)
    batch = minibatch(net, LABELS)

    def term(unit: dict[str, Tensor]) -> Tensor:
        return trained._decorrelation(unit)

    unit = {name: normalize(head(batch.features), dim=1).detach() for name, head in trained.heads.items()}
    (regressor, *_) = trained.decorrelations.parameters()
    rows = unit["discriminative"].requires_grad_()
    before = term(unit)
    to_rows, to_regressor = torch.autograd.grad(before, [rows, regressor])
    with torch.no_grad():
        apart = term({**unit, "discriminative": rows - 1e-2 * to_rows / to_rows.norm()})
        regressor -= 1e-2 * to_regressor / to_regressor.norm()
        result = term(unit)
    assert -apart < -before < -result


def test_the_momentum_network_follows_without_gradients() -> None:
    net = trunk()
    trained = diva(("discriminative", "dance"), net)
    start(trained, net)
    slow = trained.auxiliary["dance"].trunk.average
    assert {id(p) for p in slow.parameters()}.isdisjoint(id(p) for p in net.parameters())
    assert {id(p) for p in net.parameters()}.isdisjoint(id(p) for p in trained.parameters())
    before = [p.clone() for p in slow.parameters()]
    batch = minibatch(net, LABELS)
    torch.stack(list(trained.loss(batch).values())).sum().backward()
    assert all(p.grad is None for p in trained.auxiliary["dance"].parameters())
    with torch.no_grad():
        for p in net.parameters():
            p += 1
    trained.end_step(batch)
    for old, new in zip(before, slow.parameters(), strict=True):
        assert torch.allclose(new, old + 0.1, atol=1e-6)


@pytest.mark.parametrize("names", [PAPER, *(("discriminative", arm) for arm in ARMS)])
def test_saved_state_continues_identically(names: tuple[str, ...]) -> None:
    def steps(trained: DiVA, net: nn.Module, epoch: int) -> list[Tensor]:
        start(trained, net, epoch)
        seen = []
        for _ in range(2):
            batch = minibatch(net, LABELS, [4, 1, 2, 0, 7, 5, 6, 3])
            terms = trained.loss(batch)
            learnt = [p for p in (*net.parameters(), *trained.parameters()) if p.requires_grad]
            gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), learnt)
            with torch.no_grad():
                for p, gradient in zip(learnt, gradients, strict=True):
                    p -= 0.01 * gradient
            trained.end_step(batch)
            seen += [term.detach() for term in terms.values()]
        return seen

    net, again = trunk(), trunk(5)
    first, second = diva(names, net), diva(names, again)
    steps(first, net, 0)
    with torch.no_grad():
        for p in second.parameters():
            p += 1
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    again.load_state_dict({key: value.clone() for key, value in net.state_dict().items()})
    torch.manual_seed(8)
    expected = steps(first, net, 1)
    torch.manual_seed(8)
    for actual, reference in zip(steps(second, again, 1), expected, strict=True):
        assert torch.equal(actual, reference)
    for key, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[key], value)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_fewer_tasks(tasks: int) -> None:
    dims = {1: 512, 2: 256, 3: 170, 4: 128}
    net = trunk()
    trained = diva(PAPER[:tasks], net, dim=dims[tasks])
    assert sum(cast(nn.Linear, head).out_features for head in trained.heads.values()) in (510, 512)
    start(trained, net)
    terms = trained.loss(minibatch(net, LABELS))
    assert list(terms) == [*PAPER[:tasks], *(["decorrelation"] if tasks > 1 else [])]
    assert all(torch.isfinite(term) for term in terms.values())


def test_an_ensemble_is_decorrelated_pair_by_pair() -> None:
    names = ("discriminative", "discriminative-2", "rotation", "discriminative-3")
    trained = diva(names, trunk())
    assert trained.pairs == [
        ("discriminative", "discriminative-2"),
        ("discriminative", "discriminative-3"),
        ("discriminative-2", "discriminative-3"),
        ("discriminative", "rotation"),
    ]
    assert list(trained.discriminative) == ["discriminative", "discriminative-2", "discriminative-3"]
    assert len({id(loss) for loss in trained.discriminative.values()}) == 3


def test_heads_may_differ_in_dim_and_rho_0_takes_no_adversary() -> None:
    net = trunk()
    objective = Objective("margin", "distance-weighted", method="diva")
    trained = method(objective, LABELS, {"discriminative": 6, "rotation": 3}, net)
    assert torch.isfinite(trained.loss(minibatch(net, LABELS))["decorrelation"])
    without = diva(("discriminative", "rotation"), net, rho=0)
    assert set(without.loss(minibatch(net, LABELS))) == {"discriminative", "rotation"}
    assert not list(without.decorrelations.parameters())


def test_the_sum_of_the_paper_is_dim_times_the_mean() -> None:
    net, names = trunk(), ("discriminative", "rotation")
    trained = [diva(names, net, dim=5, seed=1, sum_over_dim=total) for total in (False, True)]
    trained[1].load_state_dict(trained[0].state_dict())
    batch = minibatch(net, LABELS)
    mean, total = (each.loss(batch)["decorrelation"].item() for each in trained)
    assert total == pytest.approx(5 * mean, rel=1e-5)
    assert mean < 0


def test_the_adversary_learns_at_its_own_rate() -> None:
    trained = diva()
    (rates,) = trained.parameter_groups()
    assert isinstance(rates, ParameterGroup)
    assert (rates.lr, rates.weight_decay) == (1e-5, 1e-6)
    assert {id(p) for p in rates.parameters} == {id(p) for p in trained.decorrelations.parameters()}
    assert len(trained.decorrelations) == 3


def test_the_features_are_extracted_once() -> None:
    net, calls = trunk(), []
    trained = diva(("discriminative", "dance", "deepcluster"), net)

    def observe() -> Tensor:
        calls.append(1)
        return torch.randn(len(LABELS), 12)

    trained.start_epoch(0, observe)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("names", "args", "code", "value"),
    [
        (("shared", "dance"), {}, "conflicting-settings", "shared, dance"),
        (("discriminative", "dans"), {}, "unknown-name", "'dance'"),
        (("discriminative", "discriminative-x"), {}, "unknown-name", "'discriminative-x'"),
        (("discriminative",), {"auxiliary": {"dance": {}}}, "unknown-name", "'dance'"),
        (("discriminative",), {"auxiliary": {"discriminative": {}}}, "unknown-name", "'discriminative'"),
        (("discriminative",), {"alpha": -1}, "invalid-value", "-1"),
    ],
)
def test_heads_and_values_that_do_not_fit_are_rejected(
    names: tuple[str, ...], args: dict[str, Any], code: str, value: str
) -> None:
    with raises(RecipeError, code) as caught:
        diva(names, **args)
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("args", "owner"), [({"auxiliary": {"intra": {"typo": 1}}}, "'intra'"), ({"typo": 1}, "'diva'")]
)
def test_unknown_arguments_are_rejected(args: dict[str, Any], owner: str) -> None:
    with pytest.raises(RecipeError) as caught:
        diva(("discriminative", "intra"), **args)
    assert owner in str(caught.value)
    assert "'typo'" in str(caught.value)


def test_training_has_all_tasks_and_an_interrupted_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (*PAPER, *ARMS, "discriminative-2")
    toy = recipe(
        heads=tuple(Head(name, 8) for name in names),
        batch=Batch(12, "spc", 4),
        objective=Objective("margin", "distance-weighted", method="diva", method_args={"auxiliary": SMALL}),
        schedule=Schedule(3, 2),
    )
    whole = fit(toy, noise(), tmp_path / "whole", CPU, progress=False)
    assert all(set(record["terms"]) == {*names, "decorrelation"} for record in whole.log)
    saved = checkpoint.save

    def stop_after_two(value: dict[str, Any], path: Path) -> None:
        if value["epoch"] == 3:
            raise KeyboardInterrupt
        saved(value, path)

    monkeypatch.setattr(checkpoint, "save", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        fit(toy, noise(), tmp_path / "cut", CPU, progress=False)
    monkeypatch.undo()
    rest = fit(toy, noise(), tmp_path / "cut", CPU, progress=False)
    assert rest.resumed_at == 2
    assert [record["terms"] for record in rest.log] == [record["terms"] for record in whole.log]
    for actual, reference in zip(rest.network.state_dict().values(), whole.network.state_dict().values(), strict=True):
        assert torch.equal(actual, reference)
    assert not any("average" in key for key in rest.network.state_dict())
