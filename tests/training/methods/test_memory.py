"""The cross-batch memory against loops over anchors of the batch, and its queue against a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import method, minibatch, trunk
from training.functional import Pairs, Triplets
from training.methods.memory import CrossBatchMemory, all_pairs, restrict_anchors
from training.miners.hard import BatchHardMiner
from training.recipe import Objective
from zoo.errors import RecipeError

LABELS = [0, 0, 1, 1, 2, 2]


def remembering(loss: str = "contrastive", miner: str | None = None, loss_args: Any = None, **args: Any) -> Objective:
    how = {"size": 10, "warmup": 0, **args}
    return Objective(loss, miner, loss_args or {}, method="cross-batch-memory", method_args=how)


def step(memory: Any, net: nn.Module, labels: list[int], epoch: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """The terms of a batch, which the memory then keeps; its unit embeddings."""
    batch = minibatch(net, labels, epoch=epoch)
    terms = memory.loss(batch)
    memory.end_step(batch)
    return terms, normalize(memory.heads["embedding"](batch.features), dim=1).detach()


def naive(rows: np.ndarray, labels: list[int], anchors: int) -> float:
    """Contrastive loss of margins 0 and 1 over the pairs whose first is one of the anchors."""
    near, far = [], []
    for i in range(anchors):
        for j in range(len(labels)):
            d = float(np.sqrt(((rows[i] - rows[j]) ** 2).sum()))
            if i != j:
                (near if labels[i] == labels[j] else far).append(d if labels[i] == labels[j] else max(0, 1 - d))
    return sum(near) / max(1, len(near)) + sum(far) / max(1, len(far))


def test_terms_equal_the_loop_over_batch_and_past() -> None:
    net = trunk()
    memory = method(remembering(weight=0.7), LABELS, {"embedding": 5}, net)
    kept, classes = np.zeros((0, 5)), list[int]()
    for labels in (LABELS, [0, 1, 2, 0, 1, 2], [2, 2, 2, 1], [0, 0, 1, 1, 0, 2]):
        terms, rows = step(memory, net, labels)
        now = rows.double().numpy()
        assert terms["loss"].item() == pytest.approx(naive(now, labels, len(labels)), rel=1e-5)
        both, everything = np.concatenate([now, kept]), [*labels, *classes]
        assert terms["memory"].item() == pytest.approx(0.7 * naive(both, everything, len(labels)), rel=1e-5)
        kept, classes = np.concatenate([kept, now])[-10:], [*classes, *labels][-10:]


def test_equals_pytorch_metric_learning() -> None:
    # Theirs puts the batch into its memory first and then leaves out each sample's pair with itself.
    net = trunk()
    memory = method(remembering(size=64), LABELS, {"embedding": 5}, net)
    reference = pml_losses.CrossBatchMemory(
        pml_losses.ContrastiveLoss(0, 1, reducer=_mean_over_all()), embedding_size=5, memory_size=64
    )
    for _ in range(3):
        terms, rows = step(memory, net, LABELS)
        assert terms["memory"].item() == pytest.approx(reference(rows, torch.tensor(LABELS)).item(), rel=1e-4)


def _mean_over_all() -> Any:
    from pytorch_metric_learning.reducers import MeanReducer

    return MeanReducer()


def test_the_queue_holds_the_last_embeddings_without_gradient() -> None:
    net = trunk()
    memory = method(remembering(), LABELS, {"embedding": 5}, net)
    batches = [step(memory, net, labels)[1] for labels in (LABELS, [2, 1, 0], [1, 1, 2, 2])]
    assert int(memory.filled) == 10
    assert int(memory.position) == 3
    expected = torch.cat(batches)[3:]
    order = torch.arange(3, 13) % 10
    assert torch.allclose(memory.embeddings[order], expected)
    assert memory.labels[order].tolist() == [*LABELS, 2, 1, 0, 1, 1, 2, 2][3:]
    assert not memory.embeddings.requires_grad


def test_memory_starts_in_its_epoch() -> None:
    net = trunk()
    memory = method(remembering(warmup=2), LABELS, {"embedding": 5}, net)
    terms, _ = step(memory, net, LABELS, epoch=1)
    assert terms.keys() == {"loss"}
    assert int(memory.filled) == 0
    terms, _ = step(memory, net, LABELS, epoch=2)
    assert terms["memory"].item() == pytest.approx(terms["loss"].item(), rel=1e-6)
    assert int(memory.filled) == 6


@pytest.mark.parametrize(
    ("loss", "miner", "loss_args"),
    [
        ("triplet", "hard", {}),
        ("margin", "distance-weighted", {}),
        ("ms", "ms", {"kept_only": True}),
        ("snr-contrastive", None, {}),
        ("quadruplet", "semihard", {}),
    ],
)
@pytest.mark.parametrize("labels", [LABELS, [0, 0, 0], [0, 1, 2], [1]])
def test_any_loss_of_tuples_on_any_batch(
    loss: str, miner: str | None, loss_args: dict[str, Any], labels: list[int]
) -> None:
    net = trunk()
    memory = method(remembering(loss, miner, loss_args), LABELS, {"embedding": 5}, net)
    for _ in range(3):
        terms, _ = step(memory, net, labels)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(torch.isfinite(value) for value in terms.values())
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in net.parameters())


def test_mined_tuples_have_their_anchors_in_the_batch() -> None:
    net = trunk()
    memory = method(remembering("triplet", "hard"), LABELS, {"embedding": 5}, net)
    _, past = step(memory, net, LABELS)
    terms, now = step(memory, net, LABELS)
    rows, labels = torch.cat([now, past]), LABELS * 2
    a, p, n = BatchHardMiner()(rows, torch.tensor(labels))
    d = torch.cdist(rows.double(), rows.double())
    hinges = [max(0.0, (d[i, j] - d[i, k]).item() + 0.2) for i, j, k in zip(a, p, n, strict=True) if i < 6]
    assert len(hinges) == 6
    assert terms["memory"].item() == pytest.approx(sum(hinges) / 6, rel=1e-4)


def test_pairs_of_anchors() -> None:
    pairs = all_pairs(torch.tensor([0, 1, 0, 1]), 2)
    assert set(zip(pairs.anchors_p.tolist(), pairs.positives.tolist(), strict=True)) == {(0, 2), (1, 3)}
    assert set(zip(pairs.anchors_n.tolist(), pairs.negatives.tolist(), strict=True)) == {(0, 1), (0, 3), (1, 0), (1, 2)}
    everything = all_pairs(torch.tensor([0, 1, 0, 1]), 4)
    for kept, expected in zip(restrict_anchors(everything, 2), pairs, strict=True):
        assert torch.equal(kept, expected)
    triplets = restrict_anchors(Triplets(*torch.tensor([[0, 2, 1], [2, 0, 3]]).T), 2)
    assert [field.tolist() for field in triplets] == [[0], [2], [1]]
    assert isinstance(pairs, Pairs)


def test_a_restored_memory_continues_identically() -> None:
    net = trunk()
    first, second = (method(remembering(), LABELS, {"embedding": 5}, net, seed) for seed in (0, 0))
    for labels in (LABELS, [2, 1, 0, 0, 1, 2]):
        step(first, net, labels)
    second.load_state_dict(first.state_dict())
    batch = minibatch(net, LABELS)
    for _ in range(2):
        values = [memory.loss(batch)["memory"].item() for memory in (first, second)]
        assert values[0] == values[1]
        first.end_step(batch)
        second.end_step(batch)
    assert isinstance(first, CrossBatchMemory)


@pytest.mark.parametrize(
    ("objective", "dims", "code"),
    [
        (remembering("arcface"), {"a": 2}, "conflicting-settings"),
        (remembering("margin"), {"a": 2}, "conflicting-settings"),
        (remembering("ms"), {"a": 2}, "conflicting-settings"),
        (remembering(size=7), {"a": 2}, "invalid-value"),
        (remembering(weight=-1), {"a": 2}, "invalid-value"),
        (remembering(), {"a": 2, "b": 2}, "conflicting-settings"),
    ],
)
def test_losses_numbers_and_heads_that_do_not_fit_are_rejected(
    objective: Objective, dims: dict[str, int], code: str
) -> None:
    with raises(RecipeError, code):
        method(objective, LABELS, dims)
