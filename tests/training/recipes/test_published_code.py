"""Recipes as the authors' published code has them: both forms against naive loops, constants, names and records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from tests.raising import raises
from training.api import origin_facts
from training.build import MethodContext, create_method
from training.construction import construct
from training.functional import Triplets
from training.losses import LOSSES
from training.losses.dance import DaNCELoss
from training.losses.group import choose_anchors
from training.miners import create_miner
from training.optim import create_optimizer
from training.overrides import resolve
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import RECIPES
from training.recipes.published_code import SUFFIX, published_switch, resolve_as_published
from training.studies.study import backbone_settings
from zoo.cli.main import main
from zoo.errors import RecipeError
from zoo.models.card import read_origin

LABELS = [0, 0, 1, 1, 2, 2, 3, 3]
CLASSES, DIM = 4, 5


def pair(name: str, *settings: str) -> tuple[Recipe, Recipe]:
    """Return the paper's recipe and the one as published."""
    paper, code = resolve(name, settings), resolve_as_published(name, settings)
    assert isinstance(paper, Recipe)
    assert isinstance(code, Recipe)
    return paper, code


def rows(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(LABELS), DIM)) * scale


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def loss_of(recipe: Recipe) -> nn.Module:
    objective = recipe.objective
    made: nn.Module = construct(
        LOSSES, "loss", str(objective.loss), objective.loss_args, {"num_classes": 4, "embedding_size": DIM}
    )
    return made.double()


def d(e: np.ndarray, i: int, j: int) -> float:
    return math.sqrt(sum((e[i, k] - e[j, k]) ** 2 for k in range(e.shape[1])))


TRIPLETS = [(0, 1, 4), (1, 0, 6), (2, 3, 0), (4, 5, 2), (6, 7, 1)]


def naive_triplet(e: np.ndarray, power: int, triplets: list[tuple[int, int, int]] = TRIPLETS) -> float:
    """Revisiting, A.1: the mean of [d_ap - d_an + .2]+; the code: of squared distances."""
    terms = [max(0.0, d(e, a, p) ** power - d(e, a, n) ** power + 0.2) for a, p, n in triplets]
    return sum(terms) / len(terms)


def naive_margin(e: np.ndarray, by_tuples: bool) -> float:
    """Wu et al., eq. 10: both hinges over the number of terms above zero; the code: of tuples with such a term."""
    total, terms, tuples = 0.0, 0, 0
    for a, p, n in TRIPLETS:
        near, far = max(0.0, d(e, a, p) - 1.2 + 0.2), max(0.0, 1.2 - d(e, a, n) + 0.2)
        total += near + far
        terms += (near > 0) + (far > 0)
        tuples += near > 0 or far > 0
    return total / (tuples if by_tuples else terms)


def naive_snr(e: np.ndarray, published: bool) -> float:
    """Revisiting, A.1: the mean of [d_ap - d_an + .2]+ and .005 |sum of an embedding|, which the code drops."""
    terms = []
    for a, p, n in TRIPLETS:
        noise_p, noise_n = np.var(e[a] - e[p], ddof=1), np.var(e[a] - e[n], ddof=1)
        terms.append(max(0.0, (noise_p - noise_n) / np.var(e[a], ddof=1) + 0.2))
    if published:
        return sum(terms) / sum(term > 0 for term in terms)
    penalty = sum(abs(sum(row)) for row in e) / len(e)
    return sum(terms) / len(terms) + 0.005 * penalty


MINED: dict[str, Callable[[np.ndarray, bool], float]] = {
    "triplet-d": lambda e, code: naive_triplet(e, 2 if code else 1),
    "margin": naive_margin,
    "snr": naive_snr,
}


@pytest.mark.parametrize("name", MINED)
def test_both_forms_of_losses_of_mined_triplets(name: str) -> None:
    e = unit(rows(3))
    tuples = Triplets(*torch.tensor(TRIPLETS).T)
    values = [
        loss_of(recipe)(torch.tensor(e), torch.tensor(LABELS), tuples).item() for recipe in pair(f"{name}-r50-cub")
    ]
    assert values == pytest.approx([MINED[name](e, False), MINED[name](e, True)], abs=1e-7)
    assert values[0] != pytest.approx(values[1], abs=1e-3)


def test_rho_with_snr_keeps_the_penalty_in_the_code() -> None:
    """The code drops it only where its miner is called "distance"."""
    e, tuples = unit(rows(3)), Triplets(*torch.tensor(TRIPLETS).T)
    _, code = pair("r-snr-r50-cub")
    value = loss_of(code)(torch.tensor(e), torch.tensor(LABELS), tuples).item()
    assert value == pytest.approx(naive_snr(e, True) + 0.005 * np.abs(e.sum(1)).mean(), abs=1e-12)


@pytest.mark.parametrize("exchanged", [False, True])
def test_both_forms_of_rho_with_triplets(exchanged: bool) -> None:
    """The code: (a, a, p) and squared distances; the paper exchanges the negative, (a, p, p), of unsquared ones."""
    e = unit(rows(3))
    forms = (("false", 1, lambda a, p: (a, p, p)), ("true", 2, lambda a, p: (a, a, p)))
    for published, power, exchange in forms:
        settings = (f"objective.miner_args.published={published}", f"objective.miner_args.probability={int(exchanged)}")
        recipe = resolve("r-triplet-d-r50-cub", settings)
        assert isinstance(recipe, Recipe)
        miner: Any = create_miner(str(recipe.objective.miner), recipe.objective.miner_args)
        miner.miner.mine = lambda _: Triplets(*torch.tensor(TRIPLETS).T)
        tuples = miner(torch.tensor(e), torch.tensor(LABELS))
        value = loss_of(recipe)(torch.tensor(e), torch.tensor(LABELS), tuples).item()
        expected = [exchange(a, p) if exchanged else (a, p, n) for a, p, n in TRIPLETS]
        assert value == pytest.approx(naive_triplet(e, power, expected), abs=1e-7)


def partner(i: int) -> int:
    return next(j for j in range(len(LABELS)) if j != i and LABELS[j] == LABELS[i])


def others(i: int) -> list[int]:
    return [j for j in range(len(LABELS)) if LABELS[j] != LABELS[i]]


def naive_n_pair(psi: np.ndarray) -> float:
    """Sohn 2016, eq. 4, with every sample of another class: log(1 + sum exp(a.n - a.p)) of raw embeddings."""
    terms = [sum(math.exp(psi[i] @ psi[j] - psi[i] @ psi[partner(i)]) for j in others(i)) for i in range(len(psi))]
    return sum(math.log(1 + term) for term in terms) / len(terms)


def naive_angular(psi: np.ndarray) -> float:
    """Wang et al. 2017, eqs. 8 and 9, of unit embeddings at 45 degrees, whose tangent is 1, with twice its weight."""
    e, total = unit(psi), 0.0
    for i in range(len(e)):
        a, p = e[i], e[partner(i)]
        total += math.log(1 + sum(math.exp(4 * (a + p) @ e[j] - 2 * 2 * a @ p) for j in others(i)))
    return naive_n_pair(psi) + 2 * total / len(e)


def naive_lifted(psi: np.ndarray) -> float:
    """Hermans et al. 2017, eq. 6: [log sum exp d_ap + log sum exp(1 - d_an)]+ of raw embeddings."""
    pushed = [math.log(sum(math.exp(1 - d(psi, i, j)) for j in others(i))) for i in range(len(psi))]
    return sum(max(0.0, d(psi, i, partner(i)) + pushed[i]) for i in range(len(psi))) / len(psi)


@pytest.mark.parametrize(
    ("name", "naive"), [("npair", naive_n_pair), ("angular", naive_angular), ("lifted", naive_lifted)]
)
def test_both_forms_of_losses_of_raw_embeddings(name: str, naive: Callable[[np.ndarray], float]) -> None:
    """Sohn 2016 penalises the mean of |psi|^2; the code that of |psi|, with the same weight."""
    psi = rows(1)
    lengths = [math.sqrt(sum(x * x for x in row)) for row in psi]
    for recipe, power in zip(pair(f"{name}-r50-cub"), (2, 1), strict=True):
        value = loss_of(recipe)(torch.tensor(psi), torch.tensor(LABELS)).item()
        penalty = sum(length**power for length in lengths) / len(lengths)
        assert value == pytest.approx(naive(psi) + 0.005 * penalty, abs=1e-7)


def test_both_forms_of_the_start_of_softtriple() -> None:
    """criteria/softtriplet.py: even within 1 / sqrt(classes x centres); the recipe within 1 / sqrt(numbers)."""
    for recipe, bound in zip(pair("softtriple-r50-cub"), (1 / math.sqrt(16), 1 / math.sqrt(2 * 50)), strict=True):
        torch.manual_seed(0)
        args = recipe.objective.loss_args
        loss: Any = construct(LOSSES, "loss", "softtriple", args, {"num_classes": 50, "embedding_size": 16})
        largest = loss.centres.detach().abs().max().item()
        assert loss.centres.numel() == 2 * 50 * 16
        assert 0.98 * bound < largest <= bound
        assert loss.centres.detach().std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_both_forms_of_arcface() -> None:
    """Deng et al., eq. 3, with s 16 and m .5; the code sets negative cosines to 0 first."""
    e, y = unit(rows(5)), torch.tensor(LABELS)
    for recipe, clamped in zip(pair("arcface-r50-cub"), (False, True), strict=True):
        loss = loss_of(recipe)
        centres = unit(loss.centres.detach().numpy())  # type: ignore[operator]
        total = 0.0
        for row, label in zip(e, LABELS, strict=True):
            cosines = [float(row @ centre) for centre in centres]
            if clamped:
                cosines = [max(0.0, cosine) for cosine in cosines]
            target = 16 * math.cos(math.acos(cosines[label]) + 0.5)
            others = sum(math.exp(16 * cosine) for j, cosine in enumerate(cosines) if j != label)
            total += math.log(math.exp(target) + others) - target
        assert loss(torch.tensor(e), y).item() == pytest.approx(total / len(e), abs=1e-9)


def naive_group(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, fixed: np.ndarray, temperature: float, code: bool
) -> float:
    """Group, eqs. 1 to 5: five steps, w_ii = 0, mean without anchors; the code: one step, with w_ii, mean over all."""
    n, logits = len(x), x @ weight.T + bias
    centred = x - x.mean(1, keepdims=True)
    w = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            r = centred[i] @ centred[j] / np.linalg.norm(centred[i]) / np.linalg.norm(centred[j])
            w[i, j] = max(0.0, r) if code or i != j else 0.0
    soft = np.exp(logits / temperature)
    rows = soft / soft.sum(1, keepdims=True)
    for i in map(int, np.flatnonzero(fixed)):
        rows[i] = np.eye(CLASSES)[LABELS[i]]
    for _ in range(1 if code else 5):
        rows = rows * (w @ rows)
        rows = rows / rows.sum(1, keepdims=True)
    terms = [-math.log(rows[i, LABELS[i]]) for i in range(n) if not fixed[i]]
    if not code:
        return sum(terms) / len(terms)
    plain = [math.log(np.exp(logits[i]).sum()) - logits[i, LABELS[i]] for i in range(n)]
    return sum(terms) / n + sum(plain) / n


def test_both_forms_of_the_group_loss() -> None:
    x = np.abs(rows(7))
    x[:, 0] = np.asarray(LABELS) + 1.0  # so that every sample has a similar one
    for recipe, code in zip(pair("group-d121-cub"), (False, True), strict=True):
        loss = loss_of(recipe)
        torch.manual_seed(11)
        fixed = choose_anchors(torch.tensor(LABELS), 2).numpy()
        torch.manual_seed(11)
        value = loss(torch.tensor(x), torch.tensor(LABELS)).item()
        weight, bias = (part.detach().numpy() for part in loss.classifier.parameters())  # type: ignore[union-attr]
        assert value == pytest.approx(naive_group(x, weight, bias, fixed, 24.0, code), abs=1e-9)


def log_q(distance: float, dim: int) -> float:
    return (dim - 2) * math.log(distance) + (dim - 3) / 2 * math.log(1 - distance**2 / 4)


@pytest.mark.parametrize("name", ["margin-r50-cub", "r-margin-r50-cub", "diva-ibn-cub"])
def test_both_forms_of_distance_weighted_mining(name: str) -> None:
    """Wu et al., section 4.1: weights 1 / q(d) of d >= .5, none beyond 1.4; the code draws beyond it too."""
    e = unit(rows(2))
    others = torch.tensor([[a != b for b in LABELS] for a in LABELS])
    for recipe, cut in zip(pair(name), (1.4, None), strict=True):
        miner = create_miner(str(recipe.objective.miner), recipe.objective.miner_args)
        miner = getattr(miner, "miner", miner)
        weights = miner.weights(torch.tensor(e), others).numpy()
        for i in range(len(e)):
            near = [j for j in range(len(e)) if LABELS[i] != LABELS[j] and (cut is None or d(e, i, j) <= cut)]
            logs = {j: -log_q(max(0.5, d(e, i, j)), DIM) for j in near}
            expected = [math.exp(logs[j] - max(logs.values())) if j in logs else 0.0 for j in range(len(e))]
            if near:
                assert weights[i] == pytest.approx(expected, abs=1e-5)
    assert any(d(e, i, j) > 1.4 for i in range(len(e)) for j in range(len(e)))


def test_code_of_diva_and_mic_makes_one_triplet_per_anchor() -> None:
    labels = torch.tensor([0] * 4 + [1] * 4 + [2])
    e = normalize(torch.randn(9, DIM, generator=torch.Generator().manual_seed(0)), dim=1)
    for name in ("diva-r50-cub", "mic-r50-cub"):
        counts = []
        for recipe in pair(name):
            mined = create_miner(str(recipe.objective.miner), recipe.objective.miner_args)(e, labels)
            assert (labels[mined.anchors] == labels[mined.positives]).all()
            assert (mined.anchors != mined.positives).all()
            assert (labels[mined.anchors] != labels[mined.negatives]).all()
            counts.append(len(mined.anchors))
        assert counts == [2 * 4 * 3, 2 * 4]


def naive_dance(e: np.ndarray, keys: np.ndarray, queue: np.ndarray, code: bool) -> float:
    """DiVA, eq. 6, with weights 1 / q(d) whose largest in a row is 1, below 1.4; the code adds the positive to the sum
    and divides a weight by the sum of those of all anchors."""
    w = np.zeros((len(e), len(queue)))
    for i in range(len(e)):
        for j in range(len(queue)):
            distance = max(0.5, float(np.linalg.norm(e[i] - queue[j])))
            w[i, j] = math.exp(-log_q(distance, DIM)) if distance <= 1.4 else 0.0
    if code:
        w = np.maximum(w / w.max(), 1e-45)
        w = w / w.sum(0, keepdims=True)
    else:
        w = w / w.max(1, keepdims=True)
    total = 0.0
    for i in range(len(e)):
        positive = float(e[i] @ keys[i]) / 0.1
        pushed = [w[i, j] * float(e[i] @ queue[j]) / 0.1 for j in range(len(queue))]
        largest = max([*pushed, positive])
        inside = sum(math.exp(x - largest) for x in pushed) + (math.exp(positive - largest) if code else 0.0)
        total += math.log(inside) + largest - positive
    return total / len(e)


def test_both_forms_of_dance() -> None:
    draw = np.random.default_rng(4)
    e, keys, queue = (unit(draw.normal(size=(n, DIM))) for n in (4, 4, 12))
    e[:, 0] += 3
    queue[:, 0] += 2
    keys[:, 0] += 3
    e, keys, queue = unit(e), unit(keys), unit(queue)
    for code in (False, True):
        loss = DaNCELoss(0.1, published=code).double()
        value = loss.contrast_keys(*(torch.tensor(part) for part in (e, keys, queue))).item()
        assert value == pytest.approx(naive_dance(e, keys, queue, code), abs=1e-9)
    _, recipe = pair("diva-ibn-sop")
    assert recipe.objective.method_args["auxiliary"] == {
        "dance": {"queue_batches": 70, "published": True},
        "shared": {"permuted_labels": True},
        "intra": {"by_distance": False},
    }


def test_nce_has_the_positive_in_its_sum_as_published() -> None:
    """criteria/moco.py: a cross entropy over the positive and the queue; equation 5 sums over the queue."""
    for name, given in (("diva-nce-ibn-cub", {}), ("diva-nce-conv4-omniglot", {"temperature": 0.05})):
        paper, code = pair(name)
        assert (paper.objective.method_args.get("auxiliary") or {}).get("nce", {}) == given
        assert code.objective.method_args["auxiliary"]["nce"] == {**given, "with_positive": True}


@pytest.mark.parametrize("dataset", ["glyphs", "omniglot", "cifar100"])
def test_small_twins_of_dance_and_nce_have_one_temperature(dataset: str) -> None:
    """Section 4.3 compares the two losses, so that nothing else may differ."""
    dance, nce = (resolve(f"diva-{task}-conv4-{dataset}") for task in ("dn", "nce"))
    assert isinstance(dance, Recipe)
    assert isinstance(nce, Recipe)
    assert dance.objective.method_args["auxiliary"]["dance"] == nce.objective.method_args["auxiliary"]["nce"]


@pytest.mark.parametrize(
    ("task", "alpha", "rho"), [("deepcluster", 1.0, 0.0), ("rotation", 1.0, 0.0), ("instance", 1.0, 300.0)]
)
def test_compared_tasks_have_the_weights_of_the_code(task: str, alpha: float, rho: float) -> None:
    """diva_main.py: the loss of dc, imrot and invariantspread is added unchanged; dc and imrot clear the pairs."""
    paper, code = pair(f"diva-{task}-ibn-cub")
    assert (paper.objective.method_args["alpha"], paper.objective.method_args["rho"]) == (0.1, 300.0)
    assert (code.objective.method_args["alpha"], code.objective.method_args["rho"]) == (alpha, rho)


def test_deep_clustering_has_the_values_of_its_published_command() -> None:
    """The last command of the sample runs: --bs 104 --n_epochs 200 --diva_dc_update_f 2, and no --tau."""
    _, code = pair("diva-deepcluster-ibn-cub")
    assert (code.batch.size, code.schedule.epochs, code.schedule.name) == (104, 200, "constant")
    assert code.objective.method_args["auxiliary"] == {"deepcluster": {"every": 2}}


DIVA_RUNS = {
    "r50-cub": (1500, 0.3, 55, 0.2, 350, 224),
    "ibn-cub": (300, 0.1, 70, 0.3, 350, 227),
    "r50-cars": (100, 0.15, 70, 0.2, 350, 224),
    "ibn-cars": (100, 0.15, 160, 0.3, 350, 227),
    "r50-sop": (150, 0.2, 70, 0.3, 150, 224),
    "ibn-sop": (150, 0.1, 80, 0.3, 150, 227),
}
"""The commands in SampleRuns/ECCV2020_DiVA_SampleRuns.sh: rho, alpha, tau, gamma, n_epochs; and the code's crop."""


@pytest.mark.parametrize("run", DIVA_RUNS)
def test_diva_has_the_values_of_its_published_commands(run: str) -> None:
    _, code = pair(f"diva-{run}")
    args, schedule = code.objective.method_args, code.schedule
    values = (
        args["rho"],
        args["alpha"],
        *schedule.milestones,
        schedule.gamma,
        schedule.epochs,
        code.preprocessing.crop,
    )
    assert values == DIVA_RUNS[run]
    assert (schedule.name, code.optimizer.weight_decay, code.augmentation.crop) == ("multi-step", 4e-4, "resized")
    assert code.backbone.freeze_norm == ("statistics" if run.startswith("r50") else "none")


def test_diva_without_decorrelation_has_the_other_values_of_its_published_command() -> None:
    """Claims compare it with the whole method, and models of single tasks, whose weight remains 1, too."""
    _, code = pair("diva-r50-cub", "objective.method_args.rho=0")
    args = code.objective.method_args
    assert (args["rho"], args["alpha"], code.schedule.milestones, code.schedule.gamma) == (0, 0.3, (55,), 0.2)
    separate = resolve_as_published("diva-separate-r50-cub")
    assert isinstance(separate, EnsembleRecipe)
    for member in separate.members:
        assert (member.objective.method_args["rho"], member.objective.method_args["alpha"]) == (0, 1)
        assert (member.schedule.milestones, member.schedule.gamma) == ((55,), 0.2)


@pytest.mark.parametrize(
    ("dataset", "epochs", "milestones"), [("cub", 100, (50,)), ("cars", 110, (60,)), ("sop", 45, (20, 35))]
)
def test_mic_has_the_values_of_its_published_commands(dataset: str, epochs: int, milestones: tuple[int, ...]) -> None:
    """Result_Runs.sh; gamma, the samples per class and the crops are defaults of main.py and datasets.py."""
    _, code = pair(f"mic-r50-{dataset}")
    assert (code.schedule.epochs, code.schedule.milestones, code.schedule.gamma) == (epochs, milestones, 0.3)
    assert (code.objective.method_args["cluster_every"], code.batch.per_class) == (4, 4)
    assert (code.augmentation.crop, code.augmentation.area) == ("resized", (0.08, 1.0))


@pytest.mark.parametrize(
    ("dataset", "lr", "decay"),
    [("cub", 1.563663718906821e-4, 6.059722614369727e-6), ("cars", 2e-4, 4.863656728256105e-7)],
)
def test_group_has_the_values_of_its_published_code(dataset: str, lr: float, decay: float) -> None:
    """Hyperparameters in train.py, after 10 epochs of train_finetune.py."""
    _, code = pair(f"group-ibn-{dataset}")
    optimizer = code.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.loss_lr) == ("radam", lr, lr)
    assert (optimizer.weight_decay, optimizer.loss_weight_decay) == (decay, decay)
    assert (code.heads, code.schedule.epochs, code.schedule.milestones) == ((), 80, (40,))
    assert code.objective.loss_args["bias"] is True
    paper = resolve(f"group-ibn-{dataset}")
    assert isinstance(paper, Recipe)
    assert (paper.preprocessing.squeeze, code.preprocessing.squeeze) == (True, False)


@pytest.mark.parametrize("loss", ["proxynca", "softtriple"])
def test_other_losses_in_the_protocol_of_group_have_that_of_its_code(loss: str) -> None:
    _, group = pair("group-ibn-cub")
    paper, code = pair("group-ibn-cub", "objective.method=plain", f"objective.loss={loss}")
    assert code.objective == paper.objective
    parts = ("heads", "schedule", "batch", "optimizer", "augmentation", "preprocessing")
    assert [getattr(code, part) for part in parts] == [getattr(group, part) for part in parts]


def test_group_without_weight_decay_has_none_of_the_classifier() -> None:
    _, code = pair("group-ibn-cub", "optimizer.weight_decay=0")
    assert (code.optimizer.weight_decay, code.optimizer.loss_weight_decay) == (0, 0)


@pytest.mark.parametrize(("backbone", "crops"), [("r50", (224, 224)), ("gn", (224, 227)), ("ibn", (224, 224))])
def test_revisiting_crops_googlenet_as_its_code(backbone: str, crops: tuple[int, int]) -> None:
    """datasets/basic_dataset_scaffold.py: 224 if 'googlenet' not in opt.arch else 227."""
    forms = pair("margin-r50-cub", *backbone_settings(backbone, 128))
    assert tuple(recipe.preprocessing.crop for recipe in forms) == crops


def test_weight_decay_of_class_vectors_is_that_of_the_code() -> None:
    """config_optimizers/with_metric_loss_optimizer_bayes_opt.yaml; the margin loss was run without it."""
    for name, decays in (("arcface", (0.0, 1e-4)), ("margin", (0.0, 0.0))):
        for recipe, decay in zip(pair(f"reality-{name}-ibn-cub"), decays, strict=True):
            trunk = nn.Linear(DIM, DIM)
            method = nn.Module()
            method.loss = loss_of(recipe)
            method.parameter_groups = list  # type: ignore[assignment]
            groups = create_optimizer(recipe.optimizer, trunk, method).param_groups  # type: ignore[arg-type]
            assert [group["weight_decay"] for group in groups] == [1e-4, decay]


@pytest.mark.slow
def test_every_recipe_of_a_paper_can_be_trained_as_published() -> None:
    for name in (name for name in RECIPES if name.rpartition("-")[2] in ("cub", "cars", "sop")):
        switch, recipe, plain = published_switch(name), resolve_as_published(name), resolve(name)
        switched = bool(switch.differences)
        assert switched == (switch.repository is not None) != name.startswith(("shared-", "sph-")), name
        assert recipe.name == (f"{name}{SUFFIX}" if switched else name)
        members, before = (each.members if isinstance(each, EnsembleRecipe) else (each,) for each in (recipe, plain))
        for member, other in zip(members, before, strict=True):
            assert member.as_published == switched == (member.digest != other.digest), name
            assert other.digest == dataclasses.replace(other, departures=()).digest, name
        assert all(each.reason and each.paper != each.code for each in switch.differences), name


def test_sharing_has_no_code_of_its_own_and_other_papers_are_not_known() -> None:
    for name, known in (("shared-r50-cub", True), ("pa-lite0-cub2010", False)):
        switch = published_switch(name)
        assert (switch.paper is not None, switch.repository, switch.differences) == (known, None, ())
        assert resolve_as_published(name) == resolve(name)


def test_small_twins_change_their_objective_only() -> None:
    for name in ("margin-conv4-glyphs", "diva-conv4-omniglot", "group-conv4-glyphs", "mic-lite0-cub2010"):
        keys = {each.key.partition(".")[0] for each in published_switch(name).differences}
        assert keys == {"objective"}
    same = ("objective.miner_args.nonzero_loss_cutoff=none", "objective.miner_args.one_positive=true")
    assert not published_switch("contrastive-conv4-glyphs", same).differences


def test_settings_of_the_user_take_precedence() -> None:
    triplet = resolve_as_published("triplet-d-r50-cub", ["objective.loss_args.squared=false"])
    assert isinstance(triplet, Recipe)
    assert triplet.objective.loss_args["squared"] is False
    assert triplet.objective.miner_args == {"nonzero_loss_cutoff": None}
    # Another loss has the departures of that loss.
    other = resolve_as_published("margin-r50-cub", ["objective.loss=triplet"])
    assert isinstance(other, Recipe)
    assert other.objective.loss_args == {"squared": True}
    mic = resolve_as_published("mic-r50-cub", ["schedule.name=constant"])
    assert isinstance(mic, Recipe)
    assert (mic.schedule.name, mic.schedule.milestones) == ("constant", ())
    with raises(RecipeError, "unknown-setting"):
        resolve("margin-r50-cub", ["as_published=true"])


def test_the_origin_records_the_published_code(tmp_path: Path) -> None:
    recipe = resolve_as_published("triplet-d-r50-cub", rename="mine")
    assert (recipe.name, resolve_as_published("diva-separate-ibn-cub").name) == (
        "mine",
        f"diva-separate-ibn-cub{SUFFIX}",
    )
    facts = origin_facts(recipe, "triplet-d-r50-cub")
    expected = {"as_published": True, "backbone.freeze_norm": "statistics", "objective.loss_args.squared": True}
    assert facts["origin"] == "triplet-d-r50-cub"
    assert expected.items() <= facts["settings"].items()
    (tmp_path / "recipe.json").write_text(json.dumps(facts))
    origin = read_origin(tmp_path)
    assert (origin.as_published, origin.exact_recipe) == (True, None)
    assert "as_published" not in origin.text


def test_show_prints_the_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "triplet-d-r50-cub", "--show", "--as-published", "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = {row["key"]: (row["paper"], row["code"]) for row in shown["published_code"]["differences"]}
    assert rows["objective.loss_args.squared"] == (False, True)
    assert rows["objective.miner_args.nonzero_loss_cutoff"] == (1.4, None)
    assert shown["recipe"]["name"] == f"triplet-d-r50-cub{SUFFIX}"
    assert main(["train", "triplet-d-r50-cub", "--show", "--as-published"]) == 0
    table = capsys.readouterr().out
    assert "objective.loss_args.squared" in table
    assert "measured epoch" in table
    assert main(["train", "shared-r50-cub", "--show", "--as-published"]) == 0


def test_methods_accept_the_settings() -> None:
    """Every changed objective can be built: names and arguments of losses, miners, methods and auxiliary tasks."""
    for name in ("diva-r50-cub", "mic-r50-cub", "group-ibn-cub", "r-triplet-d-r50-cub", "softtriple-r50-cub"):
        _, recipe = pair(name)
        heads = nn.ModuleDict({head.name: nn.Linear(DIM, head.dim) for head in recipe.heads})
        context = MethodContext(nn.Linear(DIM, DIM), heads, DIM, np.repeat(np.arange(40), 4), 40)
        assert create_method(recipe.objective, context).heads is heads
