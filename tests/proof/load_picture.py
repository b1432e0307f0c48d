"""Picture of a load test: latencies, memory, and the answers under overload."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.proof.traffic import OVERLOAD, Answers


def draw(path: Path, report: dict[str, Any], steady: Answers, overload: Answers) -> None:
    figure = Figure(figsize=(11, 3), layout="constrained")
    latency, memory, over = figure.subplots(1, 3)
    _percentiles(latency, steady)
    latency.set(title=f"{100 * report['share']:.0f} % of the peak", xlabel="s", ylabel="ms", yscale="log")
    latency.legend(frameon=False)
    memory.plot([at / 60 for at, _ in steady.memory], [mib for _, mib in steady.memory], linewidth=1)
    growth = report["memory_slope_mib_per_minute"]
    slope = "" if growth is None else f": {growth[0]:+.2f} ± {growth[1]:.2f} MiB a minute"
    memory.set(title=f"memory{slope}", xlabel="min", ylabel="MiB", ylim=(0, None))
    seconds = np.arange(np.ceil(max(overload.due)) + 1)
    due, status = np.array(overload.due), np.array(overload.status)
    for name, chosen in (("answered", status < 300), ("429", status == 429)):
        over.plot(seconds[:-1], np.histogram(due[chosen], seconds)[0], label=name)
    over.axhline(report["peaks_per_second"][-1], linestyle=":", color="grey", label="peak")
    over.set(title=f"{OVERLOAD:g} x the peak", xlabel="s", ylabel="requests a second", ylim=(0, None))
    over.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _percentiles(axes: Any, answers: Answers, pieces: int = 60) -> None:
    due, took = np.array(answers.due), 1000 * np.array(answers.seconds)
    edges = np.linspace(0, due.max() + 1e-9, min(pieces, max(2, len(due) // 100)) + 1)
    inside = [took[(due >= low) & (due < high)] for low, high in itertools.pairwise(edges)]
    middle = (edges[1:] + edges[:-1]) / 2
    for q in (50, 99):
        axes.plot(middle, [np.percentile(some, q) if len(some) else np.nan for some in inside], label=f"p{q}")
