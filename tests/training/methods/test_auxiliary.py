"""Auxiliary tasks: common properties, and each task against a loop or by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import FEATURES, minibatch, trunk
from training.batch import EmbeddingBatch
from training.construction import construct
from training.functional import Triplets
from training.losses.arcface import ArcFaceLoss
from training.losses.margin import MarginLoss
from training.losses.triplet import TripletMarginLoss
from training.methods import AUXILIARY
from training.methods.auxiliary import Auxiliary, IntraClassFeatures, SharedFeatures
from training.methods.base import Minibatch
from zoo.errors import RecipeError

DIM, SAMPLES, BATCH = 6, 8, 4


class Toy:
    """A trunk, a head and its task, for eight training samples in batches of four."""

    def __init__(self, name: str, seed: int = 0, **args: Any) -> None:
        self.trunk = trunk(seed)
        self.head = nn.Linear(FEATURES, DIM)
        self.pixels = torch.randn(SAMPLES, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        offered = {
            "trunk": self.trunk,
            "head": self.head,
            "dim": DIM,
            "create_loss": lambda dim: MarginLoss(num_classes=4, learn_beta=True, by_triplets=False),
        }
        offered |= {"classes": 4, "samples": SAMPLES, "batch_size": BATCH, "seed": seed}
        self.task: Auxiliary = construct(AUXILIARY, "auxiliary task", name, args, offered)

    def loss(self, batch: Minibatch) -> Tensor:
        return self.task.loss(self.head(batch.features), batch)

    @torch.no_grad()
    def observe(self) -> Tensor:
        features: Tensor = self.trunk(self.pixels)
        return features

    def step(self, batch: Minibatch, lr: float = 0.1) -> None:
        """One step downhill of trunk, head and task."""
        parameters = [p for m in (self.trunk, self.head, self.task) for p in m.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(self.loss(batch), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
        self.task.end_step(batch)


LABELS = [0, 0, 0, 1, 2, 2]
SMALL = {
    "dance": {"queue_batches": 3},
    "nce": {"queue_batches": 3},
    "deepcluster": {"clusters": 3},
}


def toy(name: str, seed: int = 0) -> Toy:
    example = Toy(name, seed, **SMALL.get(name, {}))
    torch.manual_seed(seed)
    example.task.start_epoch(0, example.observe)
    return example


@pytest.mark.parametrize("name", AUXILIARY)
@pytest.mark.parametrize(
    "kind", ["random", "equal images", "black images", "no features", "one class", "one sample again"]
)
def test_finite_values_and_gradients(name: str, kind: str) -> None:
    example = toy(name)
    batch = minibatch(example.trunk, [0, 0, 0] if kind == "one class" else LABELS)
    if kind == "equal images":
        batch.images[:] = batch.images[:1].clone()
    elif kind == "black images":
        batch.images[:] = 0
    elif kind == "no features":
        torch.nn.init.zeros_(example.head.weight)
        torch.nn.init.zeros_(example.head.bias)
    elif kind == "one sample again":
        batch.samples[3:] = 3
    value = example.loss(batch)
    assert value.shape == ()
    assert torch.isfinite(value)
    value.backward()
    example.task.end_step(batch)
    for module in (example.trunk, example.head, example.task):
        for parameter in module.parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    assert all(torch.isfinite(value).all() for value in example.task.state_dict().values())


@pytest.mark.parametrize("name", AUXILIARY)
def test_the_gradient_reaches_trunk_head_and_task_only(name: str) -> None:
    example = toy(name)
    example.loss(minibatch(example.trunk, LABELS)).backward()
    for module in (example.trunk, example.head, example.task):
        for parameter in module.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad
    assert all(p.grad.any() for p in example.trunk.parameters() if p.grad is not None)
    live = {id(p) for p in (*example.trunk.parameters(), *example.head.parameters())}
    assert not live & {id(p) for p in example.task.parameters()}


@pytest.mark.parametrize("name", AUXILIARY)
def test_saved_state_continues_identically(name: str) -> None:
    def go_on(example: Toy) -> list[torch.Tensor]:
        torch.manual_seed(7)
        losses = []
        for epoch in (1, 2):
            example.task.start_epoch(epoch, example.observe)
            for _ in range(2):
                batch = minibatch(example.trunk, LABELS, [1, 0, 5, 7, 3, 2])
                losses.append(example.loss(batch).detach())
                example.step(minibatch(example.trunk, LABELS, [1, 0, 5, 7, 3, 2]))
        return [*losses, *example.task.state_dict().values(), *example.trunk.state_dict().values()]

    first, second = toy(name), toy(name, seed=9)
    first.step(minibatch(first.trunk, LABELS))
    for module in ("trunk", "head", "task"):
        saved = {key: value.clone() for key, value in getattr(first, module).state_dict().items()}
        getattr(second, module).load_state_dict(saved)
    if hasattr(first.task, "seed"):
        second.task.seed = first.task.seed  # the recipe's
    for actual, reference in zip(go_on(first), go_on(second), strict=True):
        assert torch.equal(actual, reference)


@pytest.mark.parametrize("name", AUXILIARY)
def test_unknown_arguments_are_rejected(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Toy(name, typo=1)
    assert repr(name) in str(caught.value)
    assert "'typo'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("dance", {"queue_batches": 0}),
        ("dance", {"momentum": 1.0}),
        ("dance", {"temperature": 0}),
        ("deepcluster", {"clusters": SAMPLES + 1}),
        ("deepcluster", {"clusters": 0}),
        ("deepcluster", {"clusters": 2, "every": 0}),
        ("instance", {"temperature": 0}),
        ("instance", {"momentum": -1}),
    ],
)
def test_impossible_values_are_rejected(name: str, args: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        Toy(name, **args)


TRIPLET_LABELS = [0, 0, 0, 1, 1, 1, 2, 3]


def triplets(toy: Toy) -> Triplets:
    unit = nn.functional.normalize(torch.randn(len(TRIPLET_LABELS), DIM), dim=1)
    mined: Triplets = toy.task.miner(unit, torch.tensor(TRIPLET_LABELS))  # type: ignore[operator]
    return mined


def classes(mined: Triplets) -> list[tuple[int, int, int]]:
    return [
        (TRIPLET_LABELS[a], TRIPLET_LABELS[p], TRIPLET_LABELS[n])
        for a, p, n in zip(*(x.tolist() for x in mined), strict=True)
    ]


def test_shared_takes_three_classes() -> None:
    for a, p, n in classes(triplets(Toy("shared"))):
        assert len({a, p, n}) == 3


def test_intra_takes_three_samples_of_one_class() -> None:
    mined = triplets(Toy("intra"))
    assert mined.anchors.tolist() == [0, 1, 2, 3, 4, 5]
    assert all(len(set(triplet)) == 3 for triplet in zip(*(x.tolist() for x in mined), strict=True))
    assert all(a == p == n for a, p, n in classes(mined))


@pytest.mark.parametrize(("args", "share"), [({}, 0.0), ({"by_distance": False}, 0.5)])
def test_intra_draws_negatives_by_distance_or_evenly(args: dict[str, bool], share: float) -> None:
    """Beyond a distance of 1.4 the weight is 0. The last sample is 2 from the first, the others are 1 and 1.2."""
    cosines = torch.tensor([1.0, 1 - 1.0**2 / 2, 1 - 1.2**2 / 2, -1.0])
    unit = torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    torch.manual_seed(0)
    miner, drawn = Toy("intra", **args).task.miner, []
    for _ in range(600):
        mined = miner(nn.functional.pad(unit, (0, DIM - 2)), torch.zeros(4, dtype=torch.int64))  # type: ignore[operator]
        assert mined.anchors.tolist() == [0, 1, 2, 3]
        if mined.positives[0] == 1:
            drawn.append(int(mined.negatives[0]))
    assert set(drawn) <= {2, 3}
    assert drawn.count(3) / len(drawn) == pytest.approx(share, abs=0.12 * (share > 0))


def test_permuted_labels_give_triplets_across_any_classes() -> None:
    torch.manual_seed(0)
    toy = Toy("shared", permuted_labels=True)
    seen = {len(set(result)) for _ in range(20) for result in classes(triplets(toy))}
    assert seen == {1, 2, 3}
    # Two classes of three samples have a positive: one triplet for each of their samples.
    assert len(triplets(toy).anchors) == 6


def test_intra_needs_three_samples_of_a_class() -> None:
    toy = Toy("intra")
    with raises(RecipeError, "too-few-samples"):
        toy.loss(minibatch(toy.trunk, [0, 0, 1, 1]))


def test_intra_uses_a_repeated_sample_once() -> None:
    # Samplers repeat the images of classes with too few: the first has two, the second three.
    toy, seen = Toy("intra"), []
    actual = toy.task.miner.mine  # type: ignore[attr-defined]

    def spy(batch: EmbeddingBatch) -> Triplets:
        seen.append(actual(batch))
        return seen[-1]

    toy.task.miner.mine = spy  # type: ignore[attr-defined]
    toy.loss(minibatch(toy.trunk, [0, 0, 0, 0, 1, 1, 1, 1], [8, 9, 8, 9, 5, 3, 5, 4]))
    assert seen[0].anchors.tolist() == [4, 5, 7]


@pytest.mark.parametrize("task", [SharedFeatures, IntraClassFeatures])
def test_a_loss_without_triplets_is_rejected(task: type[SharedFeatures] | type[IntraClassFeatures]) -> None:
    with raises(RecipeError, "conflicting-settings"):
        task(lambda dim: ArcFaceLoss(4, dim), FEATURES)
    task(lambda dim: TripletMarginLoss(), FEATURES)


GROUPS = torch.arange(SAMPLES) % 3


def grouped() -> torch.Tensor:
    centres = 10 * torch.eye(FEATURES)[:3]
    return centres[GROUPS] + 0.1 * torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))


def test_pseudo_labels_are_the_clusters() -> None:
    toy = Toy("deepcluster", clusters=3)
    toy.task.start_epoch(0, grouped)
    assert toy.task.pseudo_labels.dtype == torch.int64
    assert normalized_mutual_info_score(GROUPS, toy.task.pseudo_labels) == pytest.approx(1)


def test_clusters_and_classifier_are_renewed_every_few_epochs() -> None:
    toy = Toy("deepcluster", clusters=3, every=2)
    weights = []
    for epoch in range(4):
        toy.task.start_epoch(epoch, grouped)
        weights.append(toy.task.classifier.weight.clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[1], weights[2])


def test_deep_cluster_against_a_loop() -> None:
    toy = Toy("deepcluster", clusters=3)
    toy.task.start_epoch(0, grouped)
    samples = [6, 2, 4]
    batch = minibatch(toy.trunk, [0, 0, 0], samples)
    with torch.no_grad():
        logits = toy.task.classifier(toy.head(batch.features)).double().numpy()
    labels = [int(toy.task.pseudo_labels[sample]) for sample in samples]
    terms = [
        -math.log(math.exp(row[label]) / sum(math.exp(x) for x in row))
        for row, label in zip(logits, labels, strict=True)
    ]
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 3, rel=1e-5)


def test_instance_against_a_loop() -> None:
    toy = Toy("instance")
    samples = [5, 0, 7]
    batch = minibatch(toy.trunk, [0, 0, 1], samples)
    f = normalize(toy.head(batch.features), dim=1).detach().double().numpy()
    v = toy.task.bank.double().numpy()
    assert toy.task.bank.norm(dim=1).tolist() == pytest.approx([1] * SAMPLES)
    terms = []
    for row, i in zip(f, samples, strict=True):
        every = sum(math.exp(v[j] @ row / 0.07) for j in range(SAMPLES))
        terms.append(-math.log(math.exp(v[i] @ row / 0.07) / every))
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 3, rel=1e-5)


def test_the_vector_of_a_sample_moves_half_way() -> None:
    toy = Toy("instance")
    bank = toy.task.bank.clone()
    batch = minibatch(toy.trunk, [0, 0, 1, 1], [5, 0, 5, 7])
    f = normalize(toy.head(batch.features), dim=1).detach()
    toy.loss(batch).backward()
    toy.task.end_step(batch)
    for sample, row in ((5, 0), (0, 1), (7, 3)):  # of a sample that is drawn twice the first counts
        assert torch.allclose(toy.task.bank[sample], normalize(bank[sample] / 2 + f[row] / 2, dim=0), atol=1e-6)
    rest = [1, 2, 3, 4, 6]
    assert torch.equal(toy.task.bank[rest], bank[rest])


def test_rotation_against_a_loop() -> None:
    toy = Toy("rotation")
    batch = minibatch(toy.trunk, [0, 1, 2])
    terms = []
    for image in batch.images.numpy():
        for turn in range(4):
            turned = torch.from_numpy(np.rot90(image, turn, axes=(1, 2)).copy())[None]
            with torch.no_grad():
                logits = toy.task.classifier(toy.head(toy.trunk(turned)))[0].double().numpy()
            terms.append(-math.log(math.exp(logits[turn]) / sum(math.exp(logit) for logit in logits)))
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 12, rel=1e-5)


def test_the_task_learns_the_rotation() -> None:
    toy = Toy("rotation")
    images = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) / 4
    images[:, :, 0] += 1  # bright at the top
    for _ in range(40):
        batch = minibatch(toy.trunk, [0] * 8)
        batch.images[:] = images
        toy.step(batch, lr=1.0)
    assert toy.loss(batch).item() < 0.5  # log 4 by guessing


QUEUE_LABELS = [0, 0, 1, 1]


def keys_of(value: float, n: int = BATCH) -> torch.Tensor:
    return torch.full((n, DIM), float(value))


def test_the_queue_keeps_the_latest_in_order_and_wraps_around() -> None:
    toy = Toy("dance", queue_batches=2)
    for value, n in ((1, 4), (2, 3), (3, 3)):
        toy.task._enqueue(keys_of(value, n))
    assert toy.task.queue[:, 0].tolist() == [3, 3, 1, 1, 2, 2, 2, 3]
    assert toy.task.pointer.item() == 2
    toy.task._enqueue(keys_of(4, 4))
    assert toy.task.queue[:, 0].tolist() == [3, 3, 4, 4, 4, 4, 2, 3]
    assert toy.task.pointer.item() == 6


@pytest.mark.parametrize("queue_batches", [1, 5])
def test_the_queue_starts_with_keys_of_the_training_samples(queue_batches: int) -> None:
    toy = Toy("dance", queue_batches=queue_batches)
    toy.task.start_epoch(0, toy.observe)
    every = normalize(toy.head(toy.observe()), dim=1)
    nearest = torch.cdist(toy.task.queue, every).min(1)
    assert nearest.values.max() < 1e-3
    counts = torch.bincount(nearest.indices, minlength=SAMPLES)
    assert counts.max() - counts.min() <= 1  # each about as often
    filled = toy.task.queue.clone()
    again = Toy("dance", queue_batches=queue_batches)
    again.task.start_epoch(0, again.observe)
    assert torch.equal(again.task.queue, filled)
    toy.task.start_epoch(1, toy.observe)
    assert torch.equal(toy.task.queue, filled)


def test_keys_of_another_view_by_the_slow_network_join_the_queue_after_the_step() -> None:
    toy = Toy("dance", queue_batches=2)
    toy.task.start_epoch(0, toy.observe)
    with torch.no_grad():
        for live in (toy.trunk, toy.head):
            for parameter in live.parameters():
                parameter += 0.1
    before = toy.task.queue.clone()
    batch = minibatch(toy.trunk, QUEUE_LABELS)
    torch.manual_seed(3)
    toy.loss(batch).backward()
    assert torch.equal(toy.task.queue, before)
    torch.manual_seed(3)
    keys = normalize(toy.task.head.average(toy.task.trunk.average(batch.another_view())), dim=1)
    toy.task.end_step(batch)
    assert torch.allclose(toy.task.queue, torch.cat([keys, before[BATCH:]]))


@pytest.mark.parametrize("with_positive", [False, True])
@pytest.mark.parametrize("name", ["dance", "nce"])
def test_momentum_contrast_against_a_loop(name: str, with_positive: bool) -> None:
    toy = Toy(name, queue_batches=2, temperature=0.1, with_positive=with_positive)
    toy.task.start_epoch(0, toy.observe)
    batch = minibatch(toy.trunk, QUEUE_LABELS)
    torch.manual_seed(3)
    value = toy.loss(batch).item()
    torch.manual_seed(3)
    with torch.no_grad():
        q = normalize(toy.head(batch.features), dim=1).double().numpy()
        k = normalize(toy.head(toy.trunk(batch.another_view())), dim=1).double().numpy()
    n = toy.task.queue.double().numpy()
    terms = []
    for i in range(BATCH):
        d = np.maximum(0.5, np.sqrt(np.maximum(0, 2 - 2 * n @ q[i])))
        weights = d ** (2 - DIM) * (1 - d**2 / 4) ** ((3 - DIM) / 2)
        assert (d <= 1.4).any()
        weights[d > 1.4] = 0
        weights = weights / weights.max() if name == "dance" else np.ones(len(n))
        pulled = k[i] @ q[i] / 0.1
        inside = np.exp(weights * (n @ q[i]) / 0.1).sum() + (np.exp(pulled) if with_positive else 0)
        terms.append(math.log(inside) - pulled)
    assert value == pytest.approx(float(np.mean(terms)), rel=1e-4)
