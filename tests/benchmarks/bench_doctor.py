"""Cost of the indicators of a run's health: steps that are measured beside steps that are not, in turn in one run.

    python tests/benchmarks/bench_doctor.py
    python tests/benchmarks/bench_doctor.py --recipe margin-lite0-cub2010 --steps 6 --epoch 52

The additional time of an epoch's measured steps is given as a share of an epoch of `--epoch` steps (default: the
recipe's): two steps, and with --heads, on cached features of noise, one. On one core the times are of the processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from tests.benchmarks.bench_training import noise
from tests.benchmarks.figures import Figure, clock, print_conditions, print_figures, write_figures
from training.build import create_sampler
from training.cached.samples import CachedData, Samples
from training.execution import Execution
from training.health.indicators import Monitor
from training.recipe import Recipe
from training.recipes import RECIPES
from training.trainer import Trainer

SHARE = 0.02
"""Target: the additional time of the measured steps of an epoch as a share of its time."""


def features(classes: int = 100, samples: int = 50, dim: int = 1280, views: int = 8) -> CachedData:
    """Draw cached features of noise, with several views of each sample."""
    draw = np.random.default_rng(0)
    n = classes * samples
    made: Any = SimpleNamespace(
        plain=draw.normal(size=(n, dim)).astype(np.float16), views=draw.normal(size=(views, n, dim)).astype(np.float16)
    )
    return CachedData(made, np.arange(n), np.arange(n) % classes, classes, None, Path(), cast(Any, None))


def measure(recipe: Recipe, data: Samples, steps: int, epoch: int) -> list[Figure]:
    """Time steps with and without a measurement in turn, without the first two."""
    run = Trainer(recipe, data, Execution(torch.device("cpu")))
    monitor, now = Monitor(run), clock()
    monitor.begin_epoch(["main"] * steps)
    run.network.train()
    times: tuple[list[float], list[float]] = ([], [])
    for number, samples in enumerate(create_sampler(recipe, data.labels).epoch(0, 2 * steps + 2)):
        monitor.numbers = {number} if number % 2 else set()
        began = now()
        batch = run.minibatch(samples, data.images(samples), run.method.plan(0, 1)[0])
        with monitor.step(number, batch):
            torch.stack(list(run.method.loss(batch).values())).sum().backward()
        run.update(monitor.update())
        if number > 1:
            times[number % 2].append(now() - began)
    plain, measured = (statistics.median(values) for values in times)
    length = epoch or run.steps
    name = f"{recipe.name}, batch {recipe.batch.size}"
    number = 1 if isinstance(data, CachedData) else 2
    share = number * (measured - plain) / (length * plain)
    return [
        Figure(f"{name}: step", 1e3 * plain, "ms"),
        Figure(f"{name}: measuring a step adds", 1e3 * (measured - plain), "ms"),
        Figure(f"{name}: an epoch of {length} steps", 100 * share, "%", 100 * SHARE, at_most=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="margin-conv4-glyphs")
    parser.add_argument("--heads", action="store_true", help="on cached features")
    parser.add_argument("--steps", type=int, default=30, help="steps of each kind")
    parser.add_argument("--epoch", type=int, default=0, help="steps of an epoch (default: the recipe's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]()
    assert isinstance(recipe, Recipe), "an ensemble's members are trained one by one: name one of another recipe"
    backbone = dataclasses.replace(recipe.backbone, pretrained=False)
    recipe = dataclasses.replace(recipe, backbone=backbone, precision="fp32", head_start="random")
    print_conditions()
    found = measure(recipe, features() if args.heads else noise(recipe), args.steps, args.epoch)
    print_figures(found)
    write_figures(args.json, found)


if __name__ == "__main__":
    main()
