"""Retrieval metrics and exact search compared with other libraries on the same rows: time, memory, and their growth.

    python tests/benchmarks/bench_metrics.py [--rows 5924] [--dim 128] [--per-class 59] [--repeats 3]
    python tests/benchmarks/bench_metrics.py --neighbours 50 --rows 60502 --dim 512 --per-class 5 --repeats 1
    python tests/benchmarks/bench_metrics.py --matmul --neighbours 50 --rows 60502 --dim 512 --per-class 5
    python tests/benchmarks/bench_metrics.py --growth 10000 100000 1000000 --neighbours 12 [--queries 10000]
        [--picture growth.png]

The first compares `retrieval_metrics` with pytorch-metric-learning's AccuracyCalculator (its FAISS search, only the
shared metrics, the smallest k that they allow), the second `nearest_neighbours` with FAISS's flat index, the third with
torch's matmul and topk, both on the GPU that torch sees or else on the CPU. The fourth searches memory-mapped rows of
growing number: every row among all, or only the first `--queries` rows. Each side runs in a process of its own: best
wall and processor time of the repeats, and peak memory above that before the first (pages of a mapped file count as
memory).
"numpy" is our code without torch, "torch" our code with torch loaded.
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
    """Draw unit rows, float32 [n, dim], around one centre per class, with about the R@1 of a trained model."""
    labels = np.arange(n) // per_class
    values = np.empty((n, dim), np.float32)
    _fill(values, labels)
    return values, labels


def _fill(values: np.ndarray, labels: np.ndarray) -> None:
    """Draw unit rows block by block, so that the peak of memory is the search's."""
    for start in range(0, len(labels), 4096):
        block, classes = values[start : start + 4096], labels[start : start + 4096]
        block[:] = np.random.default_rng([0, start]).standard_normal(block.shape, np.float32)
        for label in np.unique(classes):
            block[classes == label] += 0.5 * np.random.default_rng([1, label]).standard_normal(
                block.shape[1], np.float32
            )
        block /= np.linalg.norm(block, axis=1, keepdims=True)


def mapped(n: int, dim: int) -> np.ndarray:
    """Return unit rows in a memory-mapped file, float32 [n, dim], five per class."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        file = np.lib.format.open_memmap(path, "w+", np.float32, (n, dim))
        _fill(file, np.arange(n) // 5)
        file.flush()
        return np.load(path, mmap_mode="r")  # a mapped file survives its removal


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


def multiplied(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def search() -> dict[str, float]:
        there, found = torch.from_numpy(embeddings).to(device), []
        for start in range(0, len(there), 2048):
            products = there[start : start + 2048] @ there.T
            products.diagonal(start).fill_(-torch.inf)
            found.append(products.topk(k).values.cpu())
        return _mean(torch.cat(found).numpy())

    return search


def stream(embeddings: np.ndarray, labels: np.ndarray, k: int) -> Run:
    from zoo.evaluation.knn import neighbour_chunks

    queries = embeddings[labels == 1] if len(labels) else embeddings
    chunks = lambda: neighbour_chunks(queries, embeddings, k, exclude_self=queries is embeddings)  # noqa: E731
    return lambda: {"similarity": sum(float(found.sum()) for _, found, _ in chunks())}


def _mean(similarities: np.ndarray) -> dict[str, float]:
    return {"similarity": float(similarities.mean(dtype=np.float64))}


SIDES = {
    "metrics": metrics,
    "calculator": calculator,
    "neighbours": neighbours,
    "flat": flat,
    "multiplied": multiplied,
    "stream": stream,
}


def measure(side: str, args: argparse.Namespace) -> None:
    """Print one side's figures as JSON; run in a fresh process."""
    name, _, library = side.partition("-")
    if library == "torch":
        import faiss  # noqa: F401
        import torch  # noqa: F401
    if name == "stream":  # labels mark the rows that search; without labels all do
        asking = np.arange(args.rows) < args.queries if args.queries else np.empty(0)
        data: Rows = mapped(args.rows, args.dim), asking
    else:
        data = rows(args.rows, args.dim, args.per_class)
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
    """Return one side's figures from a process of its own, and print them as a line."""
    command = [sys.executable, __file__, *options, "--side", side]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(
        f"{side:18} {found['wall']:8.2f} s {found['processor']:8.2f} s processor {found['megabytes']:7.0f} MB",
        flush=True,
    )
    return found


def compare(ours: str, theirs: str, libraries: tuple[str, ...] = ("numpy", "torch")) -> None:
    peer = alone(theirs, sys.argv[1:])
    for library in libraries:
        found = alone(f"{ours}-{library}", sys.argv[1:])
        wall, processor, memory = (peer[key] / max(found[key], 1e-9) for key in ("wall", "processor", "megabytes"))
        shared = [name for name in peer["scores"] if name in found["scores"]]
        apart = max(abs(found["scores"][name] - peer["scores"][name]) for name in shared)
        print(f"    {wall:.1f} times as fast (processor {processor:.1f}), memory 1/{memory:.0f}; apart by {apart:.1e}")


def grow(sizes: list[int], args: argparse.Namespace) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for library in ("numpy", "torch"):
        for n in sizes:
            print(f"{n:9} x {args.dim} ", end="")
            options = ["--dim", str(args.dim), "--neighbours", str(args.neighbours), "--repeats", "1", "--rows", str(n)]
            options += ["--queries", str(args.queries)]
            found.setdefault(library, []).append(alone(f"stream-{library}", options))
    if args.picture:
        draw(sizes, found, args)


def draw(sizes: list[int], found: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for panel, key, unit in zip(panels, ("wall", "megabytes"), ("seconds", "MB above the start"), strict=True):
        for library, figures in found.items():
            panel.loglog(sizes, [max(one[key], 1e-3) for one in figures], marker="o", label=library)
        panel.set(xlabel=f"rows of {args.dim}, {args.queries or 'all'} of them queries", ylabel=unit)
        panel.legend()
    figure.savefig(args.picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("--rows", 5924), ("--dim", 128), ("--per-class", 59), ("--repeats", 3), ("--neighbours", 0)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--growth", type=int, nargs="+", metavar="ROWS", help="search memory-mapped rows instead")
    parser.add_argument("--queries", type=int, default=0, help="with --growth: how many rows search (default: all)")
    parser.add_argument("--picture", help="with --growth: also draw it to this file")
    parser.add_argument("--matmul", action="store_true", help="compare with torch on its best device")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        measure(args.side, args)
    elif args.growth:
        args.neighbours = args.neighbours or 12
        grow(args.growth, args)
    elif args.matmul:
        if not args.neighbours:
            parser.error("--matmul takes --neighbours K")
        compare("neighbours", "multiplied", ("torch",))
    elif args.neighbours:
        compare("neighbours", "flat")
    else:
        compare("metrics", "calculator")


if __name__ == "__main__":
    main()
