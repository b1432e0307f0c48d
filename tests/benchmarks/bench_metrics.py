"""Time and memory of `retrieval_metrics` beside pytorch-metric-learning's AccuracyCalculator, on the same rows.

    python tests/benchmarks/bench_metrics.py [--rows 5924] [--dim 128] [--per-class 59] [--repeats 3]

Each side runs in a process of its own: best wall time of the repeats, peak memory above what was there before the
first. Their calculator gets its FAISS search, only the shared metrics and the smallest k that they allow.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

SHARED = {"precision_at_1": "precision_at_1", "r_precision": "r_precision", "mean_average_precision_at_r": "map_at_r"}


def rows(n: int, dim: int, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [n, dim] around one centre a class, at about the R@1 of a trained model."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) // per_class
    centres = rng.normal(size=(labels[-1] + 1, dim)).astype(np.float32)
    values = 0.5 * centres[labels] + rng.normal(size=(n, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True), labels


def ours(embeddings: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, float]]:
    from zoo.evaluation import retrieval_metrics

    return lambda: retrieval_metrics(embeddings, labels)


def theirs(embeddings: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, float]]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(include=tuple(SHARED), k="max_bin_count")
    return lambda: {SHARED[key]: value for key, value in calculator.get_accuracy(embeddings, labels).items()}


def measure(side: str, n: int, dim: int, per_class: int, repeats: int) -> None:
    """Print one side's figures as JSON; run in a fresh process."""
    run = {"ours": ours, "theirs": theirs}[side](*rows(n, dim, per_class))
    before, seconds = peak_mb(), []
    for _ in range(repeats):
        start = time.perf_counter()
        scores = run()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": min(seconds), "megabytes": peak_mb() - before, "scores": scores}))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="retrieval metrics beside pytorch-metric-learning's")
    for flag, default in (("--rows", 5924), ("--dim", 128), ("--per-class", 59), ("--repeats", 3)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return measure(args.side, args.rows, args.dim, args.per_class, args.repeats)
    figures = {}
    for side in ("ours", "theirs"):
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
        figures[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{side:7} {figures[side]['seconds']:7.2f} s  {figures[side]['megabytes']:7.0f} MB above imports and input"
        )
    ratio = figures["theirs"]["seconds"] / figures["ours"]["seconds"]
    apart = max(abs(figures["ours"]["scores"][name] - figures["theirs"]["scores"][name]) for name in SHARED.values())
    print(f"{args.rows} x {args.dim}: ours is {ratio:.1f} times as fast; the metrics differ by at most {apart:.1e}")
    return None


if __name__ == "__main__":
    main()
