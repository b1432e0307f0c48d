"""Gradients and short runs, alone or shared: `python two_processes.py OUT` or `torchrun ... two_processes.py OUT`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.optim.optimizer import Optimizer as TorchOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.training.toys import SMALL, noise, recipe
from training.distributed import connect
from training.execution import Execution
from training.recipe import Augmentation, Batch, Objective, Optimizer, Recipe, Schedule
from training.trainer import Trainer, fit
from zoo.models.card import Head

KINDS = ("noise", "diva", "mic", "ddm", "sharing", "group", "cross-batch-memory", "s2sd")
BY_GRADIENT = ("diva of four", "mic", "sharing", "group", "cross-batch-memory", "s2sd")
ARGS: dict[str, dict[str, Any]] = {
    "noise": {"input_noise": 0.1},
    "diva": {"rho": 1.0},
    "diva of four": {"rho": 1.0},
    "mic": {"groups": 6},
    "group": {"pretraining": 1},
    "cross-batch-memory": {"size": 24},
    "s2sd": {"dims": [12]},
}
HEADS = {
    "diva": ("discriminative", "dance"),
    "diva of four": ("discriminative", "shared", "intra", "dance"),
    "mic": ("class",),
    "sharing": ("discriminative", "shared"),
}


def shared(kind: str) -> Recipe:
    """Return a recipe with frozen batch norm, mined tuples and augmentation: all must not depend on the processes."""
    quick = _plain()
    if kind == "plain":
        return quick
    if kind == "ddm":
        return dataclasses.replace(quick, batch=Batch(8, "ddm", 2, {"pool": 20, "candidates": 3}))
    if kind == "diva of four":
        quick = dataclasses.replace(quick, batch=Batch(12, "spc", 4))  # three classes, and three samples of each
    method = {"noise": "plain", "diva of four": "diva"}.get(kind, kind)
    loss = {"group": "group", "cross-batch-memory": "contrastive"}.get(kind, "margin")
    args = {"beta": 1.2} if loss == "margin" else {}
    # Every pair counts: a mined negative could be another one by rounding.
    objective = Objective(loss, loss_args=args, method=method, method_args=ARGS.get(kind, {}))
    heads = tuple(Head(name, 8) for name in HEADS.get(kind, ("embedding",)))
    return dataclasses.replace(quick, objective=objective, heads=heads)


def _plain() -> Recipe:
    return recipe(
        backbone=dataclasses.replace(SMALL, freeze_norm="statistics"),
        augmentation=Augmentation(rotate=10, translate=0.1, elastic=0.1, contrast=0.2, flip=0.5, oversample=1),
        objective=Objective("margin", "distance-weighted"),
        optimizer=Optimizer("sgd", 0.05, momentum=0.9),  # Adam would turn the rounding of tiny gradients into steps
    )


def gradients(execution: Execution) -> dict[str, torch.Tensor]:
    run = Trainer(shared("plain"), noise(), execution)
    run.network.train()
    samples = torch.arange(8).numpy() * 7 % 60
    part = run.data.images(samples[execution.processes.part(8)])
    batch = run.minibatch(samples, part, "main")
    batch.labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    sum(run.method.loss(batch).values()).backward()
    named = {**dict(run.network.named_parameters()), **dict(run.method.objective.named_parameters())}
    execution.processes.average_gradients(named.values())
    return {name: parameter.grad.contiguous() for name, parameter in named.items() if parameter.grad is not None}


@contextmanager
def kept(kind: str, found: dict[str, torch.Tensor]) -> Iterator[None]:
    """Append the gradients of every update to `found` instead of applying them."""
    updates = 0

    def keep(optimizer: TorchOptimizer, *_: Any) -> None:
        nonlocal updates
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(trained):
            if parameter.grad is not None:
                found[f"{kind}, update {updates}, parameter {number}"] = parameter.grad.clone().contiguous()
                parameter.grad = None
        updates += 1

    hook = register_optimizer_step_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    processes, device = connect(torch.device("cpu"))
    execution = Execution(device, processes)
    found = gradients(execution)
    trained = fit(shared("plain"), noise(), out / "run", execution, progress=False)
    for kind in KINDS:
        fit(shared(kind), noise(61), out / kind, execution, progress=False)
    for kind in BY_GRADIENT:
        # Two epochs of two steps: of both tasks, before and after pre-training, and with a memory that has filled.
        quick = dataclasses.replace(shared(kind), schedule=Schedule(2, 2))
        with kept(kind, found):
            fit(quick, noise(61), out / f"gradients of {kind}", execution, progress=False)
    if processes.first:
        save_file(found, out / "gradients.safetensors")
        weights = {name: weight.contiguous() for name, weight in trained.network.state_dict().items()}
        save_file(weights, out / "weights.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
