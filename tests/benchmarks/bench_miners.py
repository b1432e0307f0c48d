"""Miners against pytorch-metric-learning on the same tensors, and the time of a sampler's batch; medians.

    python tests/benchmarks/bench_miners.py                 miners, then samplers compared with a conv4 step
    python tests/benchmarks/bench_miners.py --only hard     rows whose name contains this

Batches have 4 samples per class. Ours and theirs alternate. Losses with their miners are in bench_losses.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import miners as pml
from torch.nn.functional import normalize

from training.construction import construct
from training.data import TrainingData
from training.execution import Execution
from training.miners import create_miner
from training.recipe import Recipe
from training.recipes import RECIPES
from training.samplers import SAMPLERS
from training.trainer import Trainer

THEIRS: dict[str, Callable[[], Any] | None] = {
    "random": None,
    "semihard": None,
    "softhard": None,
    "hard": pml.BatchHardMiner,
    "distance-weighted": pml.DistanceWeightedMiner,
    "ms": pml.MultiSimilarityMiner,
    "inter-class": None,
    "intra-class": None,
    "rho": None,
    "triplet-margin": pml.TripletMarginMiner,
}


def medians(sides: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the milliseconds of each side; they alternate, and the first round warms up."""
    # On one core the process's own time counts, which other processes do not lengthen.
    clock = time.process_time if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter
    times: list[list[float]] = [[] for _ in sides]
    start = time.perf_counter()
    while len(times[0]) < 4 or time.perf_counter() - start < seconds:
        for side, taken in zip(sides, times, strict=True):
            began = clock()
            side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(1e3 * (clock() - began))
    return [statistics.median(taken[1:]) for taken in times]


def compare_miners(only: str, device: str, seconds: float) -> None:
    print(f"{'miner':20}" + "".join(f"{f'B {b}, D {d}':>30}" for b in (112, 512) for d in (128, 512)))
    print(f"{'':20}" + f"{'ours      PML  ratio':>30}" * 4)
    for name, theirs in THEIRS.items():
        if only not in name:
            continue
        print(f"{name:20}", end="", flush=True)
        miners = [create_miner(name, {"probability": 0.4} if name == "rho" else {}), *([theirs()] if theirs else [])]
        for batch in (112, 512):
            for dim in (128, 512):
                # Classes around centres, as in training: half of the variance is the class's.
                labels = torch.arange(batch, device=device) // 4
                rows = torch.randn(batch, dim, device=device) + torch.randn(batch // 4, dim, device=device)[labels]
                embeddings = normalize(rows, dim=1)
                took = medians([lambda m=miner: m(embeddings, labels) for miner in miners], seconds)  # noqa: B023
                ratio = f"{took[1]:8.1f} {took[1] / took[0]:7.1f}x" if theirs else " " * 17
                print(f"{took[0]:12.2f} {ratio}", end="", flush=True)
        print()


def compare_samplers(only: str, device: str, seconds: float, size: int = 128) -> None:
    print(
        f"\nms a batch of {size}, 60,000 samples of 11,318 classes, and its share of a fp32 step of the small recipes"
    )
    steps = {name: conv4_step(name, device, size, seconds) for name in ("margin-conv4-glyphs", "margin-conv4-omniglot")}
    print(f"{'sampler':20}" + "".join(f"{f'{recipe} (D {d}): {ms:.0f} ms':>46}" for recipe, (d, ms) in steps.items()))
    labels = np.arange(60_000) % 11_318
    for name in SAMPLERS:
        if only in name:
            print(f"{name:20}", end="", flush=True)
            for dim, step in steps.values():
                offered = {"labels": labels, "batch_size": size, "samples_per_class": 4, "embedding_size": dim}
                sampler = construct(SAMPLERS, "sampler", name, {}, offered)
                if hasattr(sampler, "memory"):
                    sampler.memory[:] = normalize(torch.randn(len(labels), dim), dim=1).numpy()
                batches = sampler.epoch(0, 10**9)
                (took,) = medians([lambda b=batches: next(b)], seconds)
                print(f"{took:37.2f} {took / step:7.1%}", end="", flush=True)
            print()


def conv4_step(name: str, device: str, size: int, seconds: float) -> tuple[int, float]:
    """Return a recipe's dimension and the milliseconds of its step: augmentation, forward, mining, backward, update."""
    recipe = RECIPES[name]()
    assert isinstance(recipe, Recipe)
    recipe = dataclasses.replace(recipe, precision="fp32")
    classes, side = size // 4, recipe.data.side
    draw = np.random.default_rng(0)
    squares = torch.from_numpy(draw.integers(0, 256, (size, side, side, recipe.preprocessing.channels), np.uint8))
    data = TrainingData(squares, np.arange(size) // 4, classes, 1, None, [])
    run = Trainer(recipe, data, Execution(torch.device(device)))
    samples = np.arange(size)

    def step() -> None:
        batch = run.minibatch(samples, data.images(samples), "main")
        run.backward(torch.stack(list(run.method.loss(batch).values())).sum())
        run.update()

    (took,) = medians([step], seconds)
    return recipe.dim, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row and size")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    compare_miners(args.only, args.device, args.seconds)
    compare_samplers(args.only, args.device, args.seconds)


if __name__ == "__main__":
    main()
