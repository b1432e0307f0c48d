"""The runs and tables of docs/frozen-features.md: heads on a frozen trunk against training end to end, by seeds.

    python tools/frozen_features.py --seeds 0 1 2         train and measure the arms that frozen-features.json lacks
    python tools/frozen_features.py --write               write the page's tables from frozen-features.json

Models are written to the local zoo (ZOO_HOME); the images of CIFAR-100 are read from ZOO_DATA.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from training.studies.statistics import interval_over_seeds
from zoo.evaluation.bootstrap import bootstrap_intervals
from zoo.render import Table, replace_parts

DOCS = Path(__file__).parent.parent / "docs"
METRICS = {"recall_at_1": "R@1", "map_at_r": "MAP@R"}
NARROW = ("--set", "backbone.args.widths=[16,32,64,128]")
"""A trunk small enough for long runs on one core."""

EPOCHS = 10
"""Epochs of 150 steps; the recipes have 15. 15 epochs end to end take as long as a trunk of 10, features and head."""

NAMES = {
    "softmax": "softmax, end to end: the trunk's own head",
    "pooled": "its pooled features, no head",
    "margin-frozen": "margin, head on the frozen trunk",
    "margin": "margin, end to end, the same number of steps",
    "margin-longer": "margin, end to end, half as many steps again",
    "diva-frozen": "DiVA, heads on the frozen trunk",
    "diva": "DiVA, end to end, the same number of steps",
}
COMPARED = (
    ("margin-frozen", "margin"),
    ("margin-frozen", "margin-longer"),
    ("margin-frozen", "softmax"),
    ("margin-frozen", "pooled"),
    ("diva-frozen", "diva"),
    ("diva-frozen", "margin-frozen"),
    ("diva-frozen", "pooled"),
)
PARTS = {
    "pooled": ("softmax",),
    "margin-frozen": ("softmax", "features", "margin-frozen"),
    "diva-frozen": ("softmax", "features", "diva-frozen"),
}
"""Arms whose CPU time counts for a row, by the row's arm (default: the arm itself)."""


def command(arm: str, seed: int) -> list[str]:
    """Return the arguments of `zoo` for one arm of one seed."""
    if arm == "features":
        views = ("--views", "4", "--batch-size", "128", "--seed", str(seed))
        return ["features", f"softmax-{seed}", "--dataset", "cifar100", *views, "-o", _file(seed), "--quiet"]
    method, _, kind = arm.partition("-")
    source = ["--features", _file(seed)] if kind == "frozen" else [*NARROW]
    length = [] if kind == "longer" else ["--set", f"schedule.epochs={EPOCHS}"]
    ends = ["--set", "data.validation=0", "--seed", str(seed), "--quiet"]
    return ["train", f"{method}-conv4-cifar100", "--as", f"{arm}-{seed}", *source, *length, *ends]


def _file(seed: int) -> str:
    return f"features-{seed}.safetensors"


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Return the CPU seconds of one call of `zoo`, including imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "zoo.cli.main", *arguments], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(name: str, pooled: bool = False) -> dict[str, Any]:
    """Return the mean of each metric for each test class, in the order of the classes; pooled: without heads."""
    import torch

    from zoo.data import load_dataset
    from zoo.evaluation.remeasure import measure_retrieval
    from zoo.models.card import read_card
    from zoo.models.load import Embedder, find_model
    from zoo.models.network import Network, PixelNetwork, load_network

    folder = find_model(name)
    card = read_card(folder)
    network = load_network(card, folder)
    if pooled:
        network = Network(network.trunk, torch.nn.ModuleDict())
    pixel_network = PixelNetwork(network, card.preprocessing).eval()

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return pixel_network(torch.from_numpy(pixels)).numpy()

    scores = measure_retrieval(load_dataset("cifar100", "test"), Embedder(card, folder, "torch", "fp32", "cpu", run))
    classes = np.unique(scores.classes)
    return {m: [float(scores.values[m][scores.classes == c].mean()) for c in classes] for m in METRICS}


def run(seed: int, arms: Sequence[str], known: dict[str, Any], file: Path) -> None:
    """Train and measure the arms of a seed that are not known yet, and write the file after each."""
    rows = known["runs"].setdefault(str(seed), {})
    for arm in arms:
        row = rows.setdefault(arm, {})
        if "cpu_seconds" not in row and arm != "pooled":
            row |= {"cpu_seconds": cpu_seconds(command(arm, seed)), "command": f"zoo {' '.join(command(arm, seed))}"}
        if arm != "features" and "recall_at_1" not in row:
            row |= measure(f"softmax-{seed}" if arm == "pooled" else f"{arm}-{seed}", arm == "pooled")
        row.setdefault("date", datetime.now(UTC).date().isoformat())
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def scores_table(runs: Mapping[str, Any]) -> str:
    """Return one row per arm: means and standard deviations over seeds, CPU seconds."""
    lines = [("", "seeds", *METRICS.values(), "CPU seconds, all in all", "of it the last step")]
    for arm, name in NAMES.items():
        seeds = measured(runs, arm)
        if seeds:
            parts = [cpu(runs, part, seeds) for part in PARTS.get(arm, (arm,))]
            last = f"{parts[-1]:.0f}" if len(parts) > 1 else ""
            lines.append((name, str(len(seeds)), *(_spread(runs, arm, m) for m in METRICS), f"{sum(parts):.0f}", last))
    return _table(lines)


def measured(runs: Mapping[str, Any], *arms: str) -> list[str]:
    """Return the seeds for which all these arms are measured."""
    return [seed for seed, rows in runs.items() if all("recall_at_1" in rows.get(arm, {}) for arm in arms)]


def cpu(runs: Mapping[str, Any], arm: str, seeds: Sequence[str]) -> float:
    return statistics.fmean(runs[seed][arm]["cpu_seconds"] for seed in seeds)


def _spread(runs: Mapping[str, Any], arm: str, metric: str) -> str:
    values = [statistics.fmean(runs[seed][arm][metric]) for seed in measured(runs, arm)]
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{deviation}"


def differences_table(runs: Mapping[str, Any]) -> str:
    """Return one row per pair of arms: the mean difference in points and its intervals over seeds and classes."""
    lines: list[tuple[str, ...]] = [
        ("difference, in points", "seeds", "metric", "mean", "95 % over seeds", "95 % over classes", "by seed")
    ]
    for first, second in COMPARED:
        seeds = measured(runs, first, second)
        for metric, title in METRICS.items():
            if seeds:
                name = f"{first} - {second}"
                lines.append((name, str(len(seeds)), title, *_difference(runs, first, second, metric, seeds)))
    return _table(lines)


def _difference(runs: Mapping[str, Any], first: str, second: str, metric: str, seeds: Sequence[str]) -> tuple[str, ...]:
    table = 100 * np.array([np.subtract(runs[s][first][metric], runs[s][second][metric]) for s in seeds])
    by_seed = table.mean(1)
    by_class = bootstrap_intervals({metric: table.mean(0)}, np.arange(table.shape[1]))[metric]
    values = ", ".join(f"{value:+.2f}" for value in by_seed)
    over_seeds = _interval(interval_over_seeds(by_seed.tolist())) if len(seeds) > 1 else "-"
    return f"{by_seed.mean():+.2f}", over_seeds, _interval(by_class), values


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return Table(lines[0], lines[1:]).markdown()


def page(text: str, runs: Mapping[str, Any]) -> str:
    """Return the page with new tables between `<!-- name -->` and `<!-- end -->`."""
    return replace_parts(text, {"scores": scores_table(runs), "differences": differences_table(runs)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[], metavar="N")
    arms = ["softmax", "pooled", "features", "margin-frozen", "margin", "margin-longer"]
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*NAMES, "features"],
        default=arms,
        help=f"in this order (default: {' '.join(arms)})",
    )
    parser.add_argument(
        "--json", type=Path, default=DOCS / "frozen-features.json", help="file of the figures; new ones are added"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into frozen-features.md")
    args = parser.parse_args()
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else {"runs": {}}
    for seed in args.seeds:
        run(seed, args.arms, known, args.json)
    if args.write:
        file = DOCS / "frozen-features.md"
        file.write_text(page(file.read_text(encoding="utf-8"), known["runs"]), encoding="utf-8")
    else:
        print(scores_table(known["runs"]), differences_table(known["runs"]), sep="\n\n")


if __name__ == "__main__":
    main()
