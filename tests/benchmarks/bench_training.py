"""Parts of a training step's time, and its speed compared with a bare timm step with cross entropy.

    python tests/benchmarks/bench_training.py                             conv4 on noise, this machine's CPU
    python tests/benchmarks/bench_training.py --recipe margin-r50-cub --device cuda --precision bf16 --compile
    python tests/benchmarks/bench_training.py --recipe diva-r50-cub --device cuda --batch 112
    python tests/benchmarks/bench_training.py --recipe margin-lite0-cub2010 --steps 6

The recipe is trained unchanged, on noise of its size and without its pretrained weights. The bare step is the same
network with a linear classifier, cross entropy and the same optimiser, frozen batch norms, precision and memory format,
on images in the device's memory. The two alternate, and figures are medians; on one core, of processor time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.figures import Figure, clock, print_conditions, print_figures, write_figures
from training.build import create_sampler
from training.data import TrainingData, prefetch
from training.execution import Execution
from training.optim import freeze_norm
from training.recipe import OPTIMIZERS, Recipe
from training.recipes import RECIPES
from training.trainer import Trainer
from zoo.models.network import create_trunk

PARTS = ("wait for data", "augment", "forward", "objective", "backward", "update")

SHARE = 0.9
"""Target: images per second of ours as a share of the bare step's."""


def noise(recipe: Recipe, classes: int = 100, samples: int = 8) -> TrainingData:
    """Draw images of noise in the form in which the recipe keeps its images."""
    side, channels, n = recipe.data.side, recipe.preprocessing.channels, classes * samples
    draw = np.random.default_rng(0)
    squares = torch.from_numpy(draw.integers(0, 256, (n, side, side, channels), np.uint8))
    return TrainingData(squares, np.arange(n) % classes, classes, 1, None, [], torch.ones(n))


def ours(recipe: Recipe, place: Execution, steps: int, now: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of each part of every step."""
    data = noise(recipe)
    run = Trainer(recipe, data, place)
    run.network.train()
    plan = run.method.plan(0, steps)
    draws = create_sampler(recipe, data.labels).epoch(0, steps)
    times = []
    before = now()
    for task, (samples, squares) in zip(plan, prefetch(draws, data.images, 2), strict=True):
        marks = [before, now()]

        def mark(marks: list[float] = marks) -> None:
            if place.device.type == "cuda":
                torch.cuda.synchronize()
            marks.append(now())

        batch = run.minibatch(samples, squares, task)
        mark()
        batch.features.sum().item()
        mark()
        loss = torch.stack(list(run.method.loss(batch).values())).sum()
        mark()
        run.backward(loss)
        mark()
        run.update()
        run.method.end_step(batch)
        mark()
        times.append([b - a for a, b in itertools.pairwise(marks)])
        before = now()
    return times


def bare(recipe: Recipe, place: Execution, classes: int = 100) -> Callable[[], None]:
    """Return a step of the same network with cross entropy."""
    how, size = recipe.preprocessing, recipe.batch.size
    trunk = create_trunk(recipe.backbone.architecture, how.channels, recipe.backbone.args)
    freeze_norm(trunk, recipe.backbone.freeze_norm)
    net = nn.Sequential(trunk, nn.Linear(int(trunk.num_features), classes))  # type: ignore[arg-type]
    net.to(place.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    forward = torch.compile(net) if place.compiled else net
    optimizer = OPTIMIZERS[recipe.optimizer.name]([p for p in net.parameters() if p.requires_grad], lr=1e-5)
    images = torch.randn(size, how.channels, how.crop, how.crop, device=place.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels: Tensor = torch.arange(size, device=place.device) % classes

    def step() -> None:
        with torch.autocast(place.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            logits = forward(images)
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if place.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def measure(recipe: Recipe, place: Execution, steps: int, rounds: int) -> list[Figure]:
    """Measure both steps in turn, without the first step of each round and the first three of all."""
    now = clock()
    step = bare(recipe, place)
    parts: list[list[float]] = []
    theirs: list[float] = []
    for number in range(rounds):
        skipped = min(1 if number else 3, steps - 1)
        parts += ours(recipe, place, steps, now)[skipped:]
        for i in range(steps):
            began = now()
            step()
            if i >= skipped:
                theirs.append(now() - began)
    total, bare_total = statistics.median(sum(row) for row in parts), statistics.median(theirs)
    medians = [statistics.median(column) for column in zip(*parts, strict=True)]
    name, size = f"{recipe.name}, batch {recipe.batch.size}, {recipe.precision}", recipe.batch.size
    return [
        *(Figure(f"{name}: {part}", 1e3 * seconds, "ms") for part, seconds in zip(PARTS, medians, strict=True)),
        Figure(f"{name}: step", size / total, "images/s"),
        Figure(f"{name}: bare step", size / bare_total, "images/s"),
        Figure(f"{name}: step to bare step", bare_total / total, "share", SHARE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="margin-conv4-glyphs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=0, help="images per step (default: the recipe's)")
    parser.add_argument("--steps", type=int, default=20, help="steps of each side per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]()
    assert isinstance(recipe, Recipe), "an ensemble's members are trained one by one: name one of another recipe"
    batch = dataclasses.replace(recipe.batch, size=args.batch or recipe.batch.size)
    backbone = dataclasses.replace(recipe.backbone, pretrained=False)
    recipe = dataclasses.replace(recipe, batch=batch, backbone=backbone, precision=args.precision, head_start="random")
    place = Execution(torch.device(args.device), compiled=args.compile)
    print_conditions()
    figures = measure(recipe, place, args.steps, args.rounds)
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
