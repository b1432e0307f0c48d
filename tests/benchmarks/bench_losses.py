"""Losses against pytorch-metric-learning: forward and backward (and mining) on the same tensors, medians.

    python tests/benchmarks/bench_losses.py                    a table for batch 112, 512 and dimension 128, 512
    python tests/benchmarks/bench_losses.py --only histogram   one row
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
from typing import NamedTuple

import torch
from pytorch_metric_learning import distances, miners, regularizers
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from training.construction import construct
from training.distributed import keep_freed_memory
from training.losses import LOSSES
from training.losses.angular import AngularLoss
from training.losses.arcface import ArcFaceLoss
from training.losses.circle import CircleLoss
from training.losses.contrastive import ContrastiveLoss
from training.losses.cosface import CosFaceLoss
from training.losses.fastap import FastAPLoss
from training.losses.histogram import HistogramLoss
from training.losses.lifted import GeneralizedLiftedStructureLoss
from training.losses.margin import MarginLoss
from training.losses.multi_similarity import MultiSimilarityLoss
from training.losses.n_pair import NPairsLoss
from training.losses.norm_softmax import NormalizedSoftmaxLoss
from training.losses.nt_xent import NTXentLoss
from training.losses.proxy_anchor import ProxyAnchorLoss
from training.losses.proxy_nca import ProxyNCALoss
from training.losses.smooth_ap import SmoothAPLoss
from training.losses.snr import SignalToNoiseRatioContrastiveLoss, SNRTripletLoss
from training.losses.softtriple import SoftTripleLoss
from training.losses.subcenter_arcface import SubCenterArcFaceLoss
from training.losses.supcon import SupConLoss
from training.losses.triplet import TripletMarginLoss
from training.miners import MINERS

Miner = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
CLASSES, SOP = 100, 11318
RAW = {"normalize_embeddings": False}


class Contest(NamedTuple):
    """Functions that make our loss and theirs for a dimension, and the two miners."""

    ours: Callable[[int], nn.Module]
    theirs: Callable[[int], nn.Module]
    miners: tuple[Miner, Miner] | None = None


def contests() -> dict[str, Contest]:
    centring = {"embedding_regularizer": regularizers.ZeroMeanRegularizer(), "embedding_reg_weight": 0.005}
    short = {"embedding_regularizer": regularizers.LpRegularizer(power=2), "embedding_reg_weight": 0.005}
    return {
        "angular": Contest(lambda d: AngularLoss(0), lambda d: pml.AngularLoss(alpha=45, **short)),
        "arcface": Contest(
            lambda d: ArcFaceLoss(CLASSES, d), lambda d: pml.ArcFaceLoss(CLASSES, d, margin=28.6, scale=16)
        ),
        "arcface 11k": Contest(lambda d: ArcFaceLoss(SOP, d), lambda d: pml.ArcFaceLoss(SOP, d, margin=28.6, scale=16)),
        "circle": Contest(lambda d: CircleLoss(0), lambda d: pml.CircleLoss()),
        "contrastive": Contest(lambda d: ContrastiveLoss(0), lambda d: pml.ContrastiveLoss()),
        "cosface": Contest(lambda d: CosFaceLoss(CLASSES, d), lambda d: pml.CosFaceLoss(CLASSES, d)),
        "cosface 11k": Contest(lambda d: CosFaceLoss(SOP, d), lambda d: pml.CosFaceLoss(SOP, d)),
        "fastap": Contest(lambda d: FastAPLoss(0), lambda d: pml.FastAPLoss()),
        "histogram": Contest(lambda d: HistogramLoss(0), lambda d: pml.HistogramLoss(n_bins=64)),
        "lifted": Contest(
            lambda d: GeneralizedLiftedStructureLoss(0),
            lambda d: pml.GeneralizedLiftedStructureLoss(distance=distances.LpDistance(**RAW), **short),
        ),
        "margin + distance-weighted": Contest(
            lambda d: MarginLoss(CLASSES * 2),
            lambda d: pml.MarginLoss(num_classes=CLASSES * 2, learn_beta=True),
            (MINERS["distance-weighted"](), miners.DistanceWeightedMiner()),
        ),
        "ms": Contest(lambda d: MultiSimilarityLoss(0), lambda d: pml.MultiSimilarityLoss(beta=40)),
        "ms + miner": Contest(
            lambda d: MultiSimilarityLoss(0),
            lambda d: pml.MultiSimilarityLoss(beta=40),
            (MINERS["ms"](), miners.MultiSimilarityMiner()),
        ),
        "npair": Contest(
            lambda d: NPairsLoss(0, all_samples=False),
            lambda d: pml.NPairsLoss(distance=distances.DotProductSimilarity(**RAW), **short),
        ),
        "softmax": Contest(
            lambda d: NormalizedSoftmaxLoss(CLASSES, d), lambda d: pml.NormalizedSoftmaxLoss(CLASSES, d)
        ),
        "softmax 11k": Contest(lambda d: NormalizedSoftmaxLoss(SOP, d), lambda d: pml.NormalizedSoftmaxLoss(SOP, d)),
        "ntxent": Contest(lambda d: NTXentLoss(0), lambda d: pml.NTXentLoss()),
        "pa": Contest(lambda d: ProxyAnchorLoss(CLASSES, d), lambda d: pml.ProxyAnchorLoss(CLASSES, d)),
        "pa 11k": Contest(lambda d: ProxyAnchorLoss(SOP, d), lambda d: pml.ProxyAnchorLoss(SOP, d)),
        "proxynca": Contest(
            lambda d: ProxyNCALoss(CLASSES, d), lambda d: pml.ProxyNCALoss(CLASSES, d, softmax_scale=9)
        ),
        "proxynca 11k": Contest(lambda d: ProxyNCALoss(SOP, d), lambda d: pml.ProxyNCALoss(SOP, d, softmax_scale=9)),
        "smoothap": Contest(lambda d: SmoothAPLoss(0, query_counted=True), lambda d: pml.SmoothAPLoss()),
        "snr-contrastive": Contest(
            lambda d: SignalToNoiseRatioContrastiveLoss(0), lambda d: pml.SignalToNoiseRatioContrastiveLoss(**centring)
        ),
        "snr": Contest(
            lambda d: SNRTripletLoss(0),
            lambda d: pml.TripletMarginLoss(0.2, distance=distances.SNRDistance(), **centring),
        ),
        "softtriple": Contest(
            lambda d: SoftTripleLoss(CLASSES, d, tau=0), lambda d: pml.SoftTripleLoss(CLASSES, d, centers_per_class=2)
        ),
        "softtriple 11k": Contest(
            lambda d: SoftTripleLoss(SOP, d, tau=0), lambda d: pml.SoftTripleLoss(SOP, d, centers_per_class=2)
        ),
        "subcenter": Contest(
            lambda d: SubCenterArcFaceLoss(CLASSES, d),
            lambda d: pml.SubCenterArcFaceLoss(num_classes=CLASSES, embedding_size=d),
        ),
        "subcenter 11k": Contest(
            lambda d: SubCenterArcFaceLoss(SOP, d),
            lambda d: pml.SubCenterArcFaceLoss(num_classes=SOP, embedding_size=d),
        ),
        "supcon": Contest(lambda d: SupConLoss(0), lambda d: pml.SupConLoss()),
        "triplet": Contest(lambda d: TripletMarginLoss(0), lambda d: pml.TripletMarginLoss(0.2)),
        "triplet + semihard": Contest(
            lambda d: TripletMarginLoss(0),
            lambda d: pml.TripletMarginLoss(0.2),
            (MINERS["semihard"](), miners.TripletMarginMiner(0.2, type_of_triplets="semihard")),
        ),
    }


def step(loss: nn.Module, miner: Miner | None, embeddings: Tensor, labels: Tensor) -> None:
    """Mine, run forward and backward, and wait for the device."""
    embeddings.grad = None
    loss.zero_grad()
    tuples = miner(embeddings.detach(), labels) if miner else None
    loss(embeddings, labels, tuples).backward()
    if embeddings.is_cuda:
        torch.cuda.synchronize()


def milliseconds(contest: Contest, batch: int, dim: int, device: str, seconds: float) -> tuple[float, float]:
    """Return the median times of our step and of theirs."""
    torch.manual_seed(0)
    # Classes around centres, as in training: half of the variance is the class's.
    labels = torch.arange(batch, device=device) // 4
    rows = torch.randn(batch, dim, device=device) + torch.randn(batch // 4, dim, device=device)[labels]
    embeddings = nn.functional.normalize(rows, dim=1).requires_grad_()
    mine, theirs = contest.miners or (None, None)
    sides = [(contest.ours(dim).to(device), mine), (contest.theirs(dim).to(device), theirs)]
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
    for name, contest in contests().items():
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
        sizes = {"classes": SOP, "dim": dim}
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
