"""Retrieval metrics and exact search beside their peers, on the same rows: time, memory, and how both grow.

    python tests/benchmarks/bench_metrics.py [--rows 5924] [--dim 128] [--per-class 59] [--repeats 3]
    python tests/benchmarks/bench_metrics.py --neighbours 50 --rows 60502 --dim 512 --per-class 5 --repeats 1
    python tests/benchmarks/bench_metrics.py --growth 10000 100000 1000000 --neighbours 12

The first compares `retrieval_metrics` with pytorch-metric-learning's AccuracyCalculator (its FAISS search, only the
shared metrics, the smallest k that they allow), the second `nearest_neighbours` with FAISS's flat index, the third
searches memory-mapped rows of growing number. Each side runs in a process of its own: best wall and processor time
of the repeats, and peak memory above what was there before the first (pages of a mapped file count as memory).
"numpy" is ours as it runs where torch is not loaded, "torch" where it is.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHARED = {"precision_at_1": "precision_at_1", "r_precision": "r_precision", "mean_average_precision_at_r": "map_at_r"}
Rows = tuple[np.ndarray, np.ndarray]
Run = Callable[[], dict[str, float]]


def rows(n: int, dim: int, per_class: int) -> Rows:
    """Unit rows float32 [n, dim] around one centre a class, at about the R@1 of a trained model."""
    labels = np.arange(n) // per_class
    values = np.empty((n, dim), np.float32)
    _fill(values, labels)
    return values, labels


def _fill(values: np.ndarray, labels: np.ndarray) -> None:
    """Unit rows, block by block: the peak of memory is to be the search's, not theirs."""
    for start in range(0, len(labels), 4096):
        block, classes = values[start : start + 4096], labels[start : start + 4096]
        block[:] = np.random.default_rng([0, start]).standard_normal(block.shape, np.float32)
        for label in np.unique(classes):
            block[classes == label] += 0.5 * np.random.default_rng([1, label]).standard_normal(
                block.shape[1], np.float32
            )
        block /= np.linalg.norm(block, axis=1, keepdims=True)


def mapped(n: int, dim: int) -> np.ndarray:
    """Unit rows in a file, memory-mapped: float32 [n, dim], five to a class."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        file = np.lib.format.open_memmap(path, "w+", np.float32, (n, dim))
        _fill(file, np.arange(n) // 5)
        file.flush()
        return np.load(path, mmap_mode="r")  # the file lives as long as it is mapped


def metrics(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    from zoo.evaluation import retrieval_metrics

    return lambda: retrieval_metrics(embeddings, labels, k=(1,))


def calculator(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    theirs = AccuracyCalculator(include=tuple(SHARED), k="max_bin_count")
    return lambda: {SHARED[key]: value for key, value in theirs.get_accuracy(embeddings, labels).items()}


def neighbours(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    from zoo.evaluation import nearest_neighbours

    return lambda: _mean(nearest_neighbours(embeddings, embeddings, k, exclude_self=True)[0])


def flat(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    import faiss

    def search() -> dict[str, float]:
        index = faiss.IndexFlatIP(embeddings.shape[1])
        index.add(embeddings)
        similarities, _ = index.search(embeddings, k + 1)
        # Random rows have no duplicates: each finds itself first.
        return _mean(similarities[:, 1:])

    return search


def stream(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    from zoo.evaluation.neighbours import neighbour_chunks

    chunks = lambda: neighbour_chunks(embeddings, embeddings, k, exclude_self=True)  # noqa: E731
    return lambda: {"similarity": sum(float(found.sum()) for _, found, _ in chunks())}


def _mean(similarities: np.ndarray) -> dict[str, float]:
    return {"similarity": float(similarities.mean(dtype=np.float64))}


SIDES = {"metrics": metrics, "calculator": calculator, "neighbours": neighbours, "flat": flat, "stream": stream}


def measure(side: str, args: argparse.Namespace) -> None:
    """Print one side's figures as JSON; run in a fresh process."""
    name, _, library = side.partition("-")
    if library == "torch":
        import faiss  # noqa: F401
        import torch  # noqa: F401
    data = (mapped(args.rows, args.dim), np.empty(0)) if name == "stream" else rows(args.rows, args.dim, args.per_class)
    run = SIDES[name](*data, args.neighbours)
    before, wall, processor = peak_mb(), [], []
    for _ in range(args.repeats):
        start, worked = time.perf_counter(), time.process_time()
        scores = run()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - worked)
    figures = {"wall": min(wall), "processor": min(processor), "megabytes": peak_mb() - before, "scores": scores}
    print(json.dumps(figures))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(side: str, options: list[str]) -> dict[str, Any]:
    """One side's figures from a process of its own, printed as a line, too."""
    command = [sys.executable, __file__, *options, "--side", side]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(
        f"{side:18} {found['wall']:8.2f} s {found['processor']:8.2f} s processor {found['megabytes']:7.0f} MB",
        flush=True,
    )
    return found


def compare(ours: str, theirs: str) -> None:
    peer = alone(theirs, sys.argv[1:])
    for library in ("numpy", "torch"):
        found = alone(f"{ours}-{library}", sys.argv[1:])
        wall, processor, memory = (peer[key] / max(found[key], 1e-9) for key in ("wall", "processor", "megabytes"))
        shared = [name for name in peer["scores"] if name in found["scores"]]
        apart = max(abs(found["scores"][name] - peer["scores"][name]) for name in shared)
        print(f"    {wall:.1f} times as fast (processor {processor:.1f}), memory 1/{memory:.0f}; apart by {apart:.1e}")


def grow(sizes: list[int], args: argparse.Namespace) -> None:
    for library in ("numpy", "torch"):
        for n in sizes:
            print(f"{n:9} x {args.dim} ", end="")
            options = ["--dim", str(args.dim), "--neighbours", str(args.neighbours), "--repeats", "1", "--rows", str(n)]
            alone(f"stream-{library}", options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("--rows", 5924), ("--dim", 128), ("--per-class", 59), ("--repeats", 3), ("--neighbours", 0)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--growth", type=int, nargs="+", metavar="ROWS", help="search memory-mapped rows instead")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        measure(args.side, args)
    elif args.growth:
        args.neighbours = args.neighbours or 12
        grow(args.growth, args)
    elif args.neighbours:
        compare("neighbours", "flat")
    else:
        compare("metrics", "calculator")


if __name__ == "__main__":
    main()
