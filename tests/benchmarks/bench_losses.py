"""Losses against pytorch-metric-learning by the same line of code: mining, forward and backward, medians.

    python tests/benchmarks/bench_losses.py                    a table for batch 112, 512 and dimension 128, 512
    python tests/benchmarks/bench_losses.py --only Histogram   one row
    python tests/benchmarks/bench_losses.py --memory 8192      peak memory of each loss at that batch instead

Batches have 4 samples per class; losses with class vectors have 100 classes, "11k" 11,318 (SOP). Ours and theirs
alternate, so that other work on the machine affects both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor, nn

from training.construction import construct
from training.distributed import keep_freed_memory
from training.losses import LOSSES
from zoo import losses, miners

Miner = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
CLASSES, SOP = 100, 11318
BY_CLASS = ("ArcFace", "CosFace", "NormalizedSoftmax", "ProxyAnchor", "ProxyNCA", "SoftTriple", "SubCenterArcFace")
CONTESTS = {
    **{
        name: (f"losses.{name}Loss()", None)
        for name in (
            *("Angular", "Circle", "Contrastive", "FastAP", "GeneralizedLiftedStructure", "Histogram", "Margin"),
            *("MultiSimilarity", "NPairs", "NTXent", "SignalToNoiseRatioContrastive", "SmoothAP", "SupCon"),
            "TripletMargin",
        )
    },
    "Margin, distance-weighted": (
        f"losses.MarginLoss(num_classes={2 * CLASSES}, learn_beta=True)",
        "miners.DistanceWeightedMiner()",
    ),
    "MultiSimilarity, its miner": ("losses.MultiSimilarityLoss()", "miners.MultiSimilarityMiner()"),
    "TripletMargin, semihard": (
        "losses.TripletMarginLoss()",
        'miners.TripletMarginMiner(type_of_triplets="semihard")',
    ),
    **{
        f"{name}{end}": (f"losses.{name}Loss(num_classes={classes}, embedding_size=dim)", None)
        for name in BY_CLASS
        for end, classes in (("", CLASSES), (" 11k", SOP))
    },
}
"""The line of code of a loss, and that of its miner."""
OURS = {"losses": losses, "miners": miners}
THEIRS = {"losses": pml_losses, "miners": pml_miners}


def step(loss: nn.Module, miner: Miner | None, embeddings: Tensor, labels: Tensor) -> None:
    """Mine, run forward and backward, and wait for the device."""
    embeddings.grad = None
    loss.zero_grad()
    tuples = miner(embeddings.detach(), labels) if miner else None
    loss(embeddings, labels, tuples).backward()
    if embeddings.is_cuda:
        torch.cuda.synchronize()


def milliseconds(
    contest: tuple[str, str | None], batch: int, dim: int, device: str, seconds: float
) -> tuple[float, float]:
    """Return the median times of our step and of theirs by the same line of code."""
    torch.manual_seed(0)
    # Classes around centres, as in training: half of the variance is the class's.
    labels = torch.arange(batch, device=device) // 4
    rows = torch.randn(batch, dim, device=device) + torch.randn(batch // 4, dim, device=device)[labels]
    embeddings = rows.requires_grad_()
    sides = [
        tuple(None if line is None else eval(line, {**names, "dim": dim}) for line in contest)  # noqa: S307
        for names in (OURS, THEIRS)
    ]
    for loss, _ in sides:
        loss.to(device)
    if batch // 4 > CLASSES and any(True for _ in sides[0][0].parameters()):
        labels = labels % CLASSES
    times: list[list[float]] = [[], []]
    # On one core the process's own time counts, which other processes do not lengthen.
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = time.perf_counter()
    while not times[0] or time.perf_counter() - start < seconds or 1 < len(times[0]) < 4:
        for (loss, miner), taken in zip(sides, times, strict=True):
            began = clock()
            step(loss, miner, embeddings, labels)
            taken.append(1e3 * (clock() - began))
    # The first round warms up, unless it alone exceeded the time for all rounds.
    return statistics.median(times[0][1:] or times[0]), statistics.median(times[1][1:] or times[1])


def compare(only: str, device: str, seconds: float) -> None:
    print(f"{'':28}" + "".join(f"{f'B {b}, D {d}':>30}" for b in (112, 512) for d in (128, 512)))
    print(f"{'':28}" + f"{'ours      PML  ratio':>30}" * 4)
    for name, contest in CONTESTS.items():
        if only in name:
            print(f"{name:28}", end="", flush=True)
            for batch in (112, 512):
                for dim in (128, 512):
                    ours, theirs = milliseconds(contest, batch, dim, device, seconds)
                    print(f"{ours:12.2f} {theirs:8.1f} {theirs / ours:7.1f}x", end="", flush=True)
            print()


def step_beyond_baseline(name: str, batch: int, dim: int) -> float:
    """Return the peak memory in MiB of a step at this batch beyond a step of 64 samples, in this process."""
    used = []
    for size in (64, batch):
        labels = torch.arange(size) // 4
        embeddings = nn.functional.normalize(torch.randn(size, dim), dim=1).requires_grad_()
        sizes = {"num_classes": SOP, "embedding_size": dim}
        step(construct(LOSSES, "loss", name, {}, sizes), None, embeddings, labels)
        used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return used[1] - used[0]


def memory(only: str, batch: int, dim: int = 128) -> None:
    """Print the peak memory of each loss, alone in a process, also as matrices of batch x batch and batch x classes."""
    unit = 4 * batch / 2**20
    print(f"{'':28}{'MiB':>10}{'batch^2':>10}{'batch x 11k':>14}")
    for name in LOSSES:
        if only in name:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                used = alone.submit(step_beyond_baseline, name, batch, dim).result()
            print(f"{name:28}{used:10.0f}{used / unit / batch:10.1f}{used / unit / SOP:14.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--memory", type=int, metavar="BATCH", help="measure peak memory at this batch instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contest and size")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", "Using a non-tuple sequence")  # pytorch-metric-learning's histogram
    if args.memory:
        memory(args.only, args.memory)
    else:
        keep_freed_memory()  # for both sides, as in training
        compare(args.only, args.device, args.seconds)


if __name__ == "__main__":
    main()
