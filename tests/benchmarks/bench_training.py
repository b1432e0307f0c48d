"""Parts of a training step's time, and its speed compared with a bare timm step with cross entropy.

    python tests/benchmarks/bench_training.py                             conv4 on noise, this machine's CPU
    python tests/benchmarks/bench_training.py --recipe margin-r50-cub --device cuda --precision bf16 --compile
    python tests/benchmarks/bench_training.py --recipe diva-r50-cub --device cuda --batch 112

The recipe is trained unchanged, on noise of its size and without its pretrained weights. The bare step is the same
network with a linear classifier, cross entropy and the same optimiser on images in the device's memory. The two
alternate.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from training.build import create_sampler
from training.data import TrainingData, prefetch
from training.recipe import Recipe
from training.recipes import RECIPES
from training.trainer import Execution, Trainer
from zoo.models.network import create_trunk

PARTS = ("wait for data", "augment", "forward", "objective", "backward", "update")


def noise(recipe: Recipe, classes: int = 100, samples: int = 8) -> TrainingData:
    """Draw images of noise in the form in which the recipe keeps its images."""
    side, channels, n = recipe.data.side, recipe.preprocessing.channels, classes * samples
    draw = np.random.default_rng(0)
    squares = torch.from_numpy(draw.integers(0, 256, (n, side, side, channels), np.uint8))
    return TrainingData(squares, np.arange(n) % classes, classes, 1, None, [], torch.ones(n))


def ours(recipe: Recipe, place: Execution, steps: int) -> list[list[float]]:
    """Return the seconds of each part of every step."""
    data = noise(recipe)
    run = Trainer(recipe, data, steps, place)
    run.network.train()
    plan = run.method.plan(0, steps)
    draws = create_sampler(recipe, data.labels).epoch(0, steps)
    times = []
    before = time.perf_counter()
    for task, (samples, squares) in zip(plan, prefetch(draws, data.images, 2), strict=True):
        marks = [before, time.perf_counter()]

        def mark(marks: list[float] = marks) -> None:
            if place.device.type == "cuda":
                torch.cuda.synchronize()
            marks.append(time.perf_counter())

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
        before = time.perf_counter()
    return times


def bare(recipe: Recipe, place: Execution, classes: int = 100) -> Callable[[], None]:
    """Return a step of the same network with cross entropy."""
    how, size = recipe.preprocessing, recipe.batch.size
    trunk = create_trunk(recipe.backbone.architecture, how.channels, recipe.backbone.args)
    net = nn.Sequential(trunk, nn.Linear(int(trunk.num_features), classes))  # type: ignore[arg-type]
    net.to(place.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    forward = torch.compile(net) if place.compiled else net
    optimizer = torch.optim.Adam(net.parameters(), 1e-5)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="margin-conv4-glyphs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=0, help="images per step (default: the recipe's)")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]()
    assert isinstance(recipe, Recipe), "an ensemble's members are trained one by one: name one of another recipe"
    batch = dataclasses.replace(recipe.batch, size=args.batch or recipe.batch.size)
    backbone = dataclasses.replace(recipe.backbone, pretrained=False)
    recipe = dataclasses.replace(recipe, batch=batch, backbone=backbone, precision=args.precision)
    place = Execution(torch.device(args.device), compiled=args.compile)
    step = bare(recipe, place)
    rounds: list[list[float]] = []
    theirs: list[float] = []
    for _ in range(3):  # alternating
        rounds += ours(recipe, place, args.steps)[3:]
        for i in range(args.steps):
            began = time.perf_counter()
            step()
            if i >= 3:
                theirs.append(time.perf_counter() - began)
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    total = statistics.median(sum(row) for row in rounds)
    print(f"{args.recipe}, batch {batch.size}, {args.device}, {args.precision}{', compiled' * args.compile}")
    for part, seconds in zip(PARTS, medians, strict=True):
        print(f"  {part:15}{1e3 * seconds:9.2f} ms{100 * seconds / total:7.1f} %")
    print(f"  {'step':15}{1e3 * total:9.2f} ms{batch.size / total:9.0f} images/s")
    bare_total = statistics.median(theirs)
    print(f"  {'bare timm':15}{1e3 * bare_total:9.2f} ms{batch.size / bare_total:9.0f} images/s")
    print(f"  ratio of images per second, ours to bare: {bare_total / total:.2f}")


if __name__ == "__main__":
    main()
