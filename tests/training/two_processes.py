"""One step and a short run, alone or shared: `python two_processes.py OUT` or `torchrun ... two_processes.py OUT`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.training.toys import SMALL, noise, recipe
from training.loop import train
from training.processes import connect
from training.recipe import Augmentation, Objective, Optimizer, Recipe
from training.run import Place, Run


def shared(method: str) -> Recipe:
    """Frozen batch norm, mined tuples, random augmentation: all that must not depend on the number of processes."""
    return recipe(
        backbone=dataclasses.replace(SMALL, freeze_norm="statistics"),
        augmentation=Augmentation(rotate=10, translate=0.1, elastic=0.1, contrast=0.2, flip=0.5, oversample=1),
        objective=Objective("margin", "distance-weighted", method=method),
        optimizer=Optimizer("sgd", 0.05, momentum=0.9),  # Adam would turn the rounding of tiny gradients into steps
    )


def gradients(place: Place) -> dict[str, torch.Tensor]:
    run = Run(shared("plain"), noise(), 3, place)
    run.network.train()
    samples = torch.arange(8).numpy() * 7 % 60
    part = run.data.images(samples[place.processes.part(8)])
    batch = run.minibatch(samples, part, "main")
    batch.labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    sum(run.method.loss(batch).values()).backward()
    named = {**dict(run.network.named_parameters()), **dict(run.method.objective.named_parameters())}
    place.processes.average_gradients(named.values())
    return {name: parameter.grad.contiguous() for name, parameter in named.items() if parameter.grad is not None}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    processes, device = connect(torch.device("cpu"))
    place = Place(device, processes)
    found = gradients(place)
    trained = train(shared("plain"), noise(), out / "run", place, progress=False)
    if processes.first:
        save_file(found, out / "gradients.safetensors")
        weights = {name: weight.contiguous() for name, weight in trained.network.state_dict().items()}
        save_file(weights, out / "weights.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
