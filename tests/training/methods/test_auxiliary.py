"""Properties of every auxiliary task: finite values, gradients in trunk and head, complete state."""

from __future__ import annotations

import pytest
import torch

from tests.training.methods.batches import minibatch
from tests.training.methods.heads import SAMPLES, Toy
from training.methods.auxiliary import AUXILIARY
from zoo.errors import RecipeError

LABELS = [0, 0, 0, 1, 2, 2]
SMALL = {
    "dance": {"queue_batches": 3},
    "nce": {"queue_batches": 3},
    "deepcluster": {"clusters": 3},
}


def toy(name: str, seed: int = 0) -> Toy:
    task_ = Toy(name, seed, **SMALL.get(name, {}))
    torch.manual_seed(seed)
    task_.task.start_epoch(0, task_.observe)
    return task_


@pytest.mark.parametrize("name", AUXILIARY)
@pytest.mark.parametrize(
    "kind", ["random", "equal images", "black images", "no features", "one class", "one sample again"]
)
def test_finite_values_and_gradients(name: str, kind: str) -> None:
    task_ = toy(name)
    batch = minibatch(task_.trunk, [0, 0, 0] if kind == "one class" else LABELS)
    if kind == "equal images":
        batch.images[:] = batch.images[:1].clone()
    elif kind == "black images":
        batch.images[:] = 0
    elif kind == "no features":
        torch.nn.init.zeros_(task_.head.weight)
        torch.nn.init.zeros_(task_.head.bias)
    elif kind == "one sample again":
        batch.samples[3:] = 3
    value = task_.loss(batch)
    assert value.shape == ()
    assert torch.isfinite(value)
    value.backward()
    task_.task.end_step(batch)
    for module in (task_.trunk, task_.head, task_.task):
        for parameter in module.parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    assert all(torch.isfinite(value).all() for value in task_.task.state_dict().values())


@pytest.mark.parametrize("name", AUXILIARY)
def test_the_gradient_reaches_trunk_head_and_task_only(name: str) -> None:
    task_ = toy(name)
    task_.loss(minibatch(task_.trunk, LABELS)).backward()
    for module in (task_.trunk, task_.head, task_.task):
        for parameter in module.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad
    assert all(p.grad.any() for p in task_.trunk.parameters() if p.grad is not None)
    live = {id(p) for p in (*task_.trunk.parameters(), *task_.head.parameters())}
    assert not live & {id(p) for p in task_.task.parameters()}


@pytest.mark.parametrize("name", AUXILIARY)
def test_saved_state_continues_identically(name: str) -> None:
    def go_on(task_: Toy) -> list[torch.Tensor]:
        torch.manual_seed(7)
        losses = []
        for epoch in (1, 2):
            task_.task.start_epoch(epoch, task_.observe)
            for _ in range(2):
                batch = minibatch(task_.trunk, LABELS, [1, 0, 5, 7, 3, 2])
                losses.append(task_.loss(batch).detach())
                task_.step(minibatch(task_.trunk, LABELS, [1, 0, 5, 7, 3, 2]))
        return [*losses, *task_.task.state_dict().values(), *task_.trunk.state_dict().values()]

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
