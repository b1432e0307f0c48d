"""Evaluation under a memory limit and by pytorch-metric-learning, on growing numbers of rows: time and peak memory.

    python tests/benchmarks/bench_memory.py 10000 30000 100000 [--dim 512] [--memory 2GiB] [--out growth.json]
        [--picture growth.png] [--only ours|theirs] [--queries N] [--estimate 1000000]

Rows are memory-mapped, of unit length, five per class, and search one another; with `--queries` the first N rows, of
classes that the others have too, search the others. "ours" is `zoo.evaluate` with the limit
(R@K, R-precision, MAP@R, with intervals over classes), "theirs" pytorch-metric-learning's AccuracyCalculator with its
FAISS search (precision at 1, R-precision, MAP@R, the smallest k that they allow). Each run has a process of its own;
the peak is the resident set of the whole process, libraries and pages of mapped files included. Processor time does not
depend on what else runs on the machine as much as wall time does. `--out` keeps earlier runs, so sizes can be added.
`--estimate` extrapolates both by the last two sizes that ran: time by a power law, memory linearly.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_metrics import SHARED, mapped
from zoo.evaluation.memory import release_pages

Run = dict[str, Any]


def ours(rows: np.ndarray, labels: np.ndarray, memory: str, queries: int) -> dict[str, float]:
    import zoo

    searching = np.arange(len(rows)) < queries if queries else None
    return zoo.evaluate(rows, labels=labels, queries=searching, memory=memory).metrics


def theirs(rows: np.ndarray, labels: np.ndarray, memory: str, queries: int) -> dict[str, float]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(include=tuple(SHARED), k="max_bin_count")
    reference = (np.array(rows[queries:]), labels[queries:]) if queries else ()
    searching = slice(0, queries or None)
    scores = calculator.get_accuracy(np.array(rows[searching]), labels[searching], *reference)
    return {SHARED[key]: value for key, value in scores.items()}


SIDES = {"ours": ours, "theirs": theirs}


def measure(side: str, rows: np.ndarray, labels: np.ndarray, memory: str, queries: int) -> Run:
    """Measure one side in this process, which should be fresh; the peak does not count the making of the rows."""
    release_pages(rows)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    start, worked = time.perf_counter(), time.process_time()
    scores = SIDES[side](rows, labels, memory, queries)
    return {
        "side": side,
        "rows": len(rows),
        "queries": queries or len(rows),
        "dim": rows.shape[1],
        "wall": time.perf_counter() - start,
        "processor": time.process_time() - worked,
        "peak_mib": peak_mib(),
        "scores": {name: float(scores[name]) for name in SHARED.values()},
    }


def peak_mib() -> float:
    """Return the peak of the resident set of this process (VmHWM), in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def estimate(runs: list[Run], rows: int) -> dict[str, float]:
    """Return hours of processor and GiB of peak for a number of rows, by the last two runs of one side."""
    first, last = sorted(runs, key=lambda run: run["rows"])[-2:]
    ratio = math.log(last["rows"] / first["rows"])
    power = math.log(last["processor"] / first["processor"]) / ratio
    slope = (last["peak_mib"] - first["peak_mib"]) / (last["rows"] - first["rows"])
    return {
        "hours": last["processor"] * (rows / last["rows"]) ** power / 3600,
        "gib": (last["peak_mib"] + slope * (rows - last["rows"])) / 1024,
    }


def draw(runs: list[Run], picture: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    names = {"ours": "zoo.evaluate with a limit", "theirs": "pytorch-metric-learning"}
    for panel, key, label in zip(
        panels, ("processor", "peak_mib"), ("processor seconds", "peak of the process, MiB"), strict=True
    ):
        for side, name in names.items():
            own = sorted((run for run in runs if run["side"] == side), key=lambda run: run["rows"])
            if key == "processor":
                own = [run for run in own if run["queries"] == run["rows"]]
            panel.loglog([run["rows"] for run in own], [run[key] for run in own], marker="o", label=name)
        panel.set(xlabel=f"rows of {runs[0]['dim']} numbers", ylabel=label)
        panel.legend()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", metavar="ROWS")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--out", type=Path, help="JSON file; runs in it are kept")
    parser.add_argument("--picture", help="draw all runs to this file")
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--queries", type=int, default=0, metavar="N", help="only the first N rows search")
    parser.add_argument("--estimate", type=int, metavar="ROWS")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        (n,) = args.sizes
        labels = np.arange(n) % (n // 5) if args.queries else np.arange(n) // 5
        print(json.dumps(measure(args.side, mapped(n, args.dim), labels, args.memory, args.queries)))
        return
    runs: list[Run] = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    for n in args.sizes:
        for side in [args.only] if args.only else SIDES:
            options = [str(n), "--dim", str(args.dim), "--memory", args.memory, "--queries", str(args.queries)]
            options += ["--side", side]
            command = [sys.executable, "-m", "tests.benchmarks.bench_memory", *options]
            run = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            runs.append(run)
            facts = f"{run['queries']:9} queries {run['processor']:9.1f} s processor {run['peak_mib']:7.0f} MiB"
            print(f"{side:7}{n:9} rows {facts}", flush=True)
            if args.out:
                args.out.write_text(json.dumps(runs, indent=1) + "\n")
    for side in SIDES if args.estimate else ():
        if len(own := [run for run in runs if run["side"] == side and run["queries"] == run["rows"]]) > 1:
            print(side, args.estimate, estimate(own, args.estimate))
    if args.picture:
        draw(runs, args.picture)


if __name__ == "__main__":
    main()
