"""A small study of two arms, and a folder of images to run it on: a run takes a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from training.studies.plan import Plan, Run, RunSchedule
from training.studies.results import RESULTS_FILE, Results
from training.studies.runner import create_study_context, perform_runs
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Claim, Measure, Study
from zoo.files import write_bytes

HEAD = 'heads=[{"name": "embedding", "dim": 16}]'
"""A head as wide as the features, so that the embedding can fill its dimension."""

SETTINGS = (
    *("data.dataset=folder", "data.side=16", "preprocessing.resize=16", "preprocessing.crop=16", "precision=fp32"),
    *("backbone.args.widths=[8, 8, 12, 16]", "batch.size=8", "batch.per_class=2", "schedule.epochs=2"),
    *("schedule.steps=2", "augmentation.oversample=1", HEAD),
)
"""Settings that make every recipe of glyphs small and let it read a folder."""

STUDY = Study(
    "toys/two",
    "Margin and contrastive",
    "nowhere",
    (Arm("margin", "margin-$backbone-$dataset", x=1), Arm("contrastive", "contrastive-$backbone-$dataset", x=2)),
    (R1, MAP_AT_R, DECAY, Measure("recall_at_1", "test", "features")),
    (Claim("contrastive beats margin", "contrastive"), Claim("they are close", "contrastive", within=2.0)),
    seeds=2,
    x="place",
    correlate=True,
    spectrum=True,
)


def images(folder: Path, classes: int = 8, per_class: int = 4) -> Path:
    """Write coloured noise by class into train and test, as PNG files of 20 x 20."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(classes):
            (folder / split / f"class{number}").mkdir(parents=True)
            tint = draw.integers(0, 200, 3)
            for i in range(per_class):
                pixels = (tint + draw.integers(0, 56, (20, 20, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / f"class{number}" / f"{i}.png")
    return folder


def plan(data: Path, seeds: int = 2, selections: tuple[str, ...] = ("last",), settings: tuple[str, ...] = ()) -> Plan:
    """Return the plan of the study on a folder of images."""
    return Plan(STUDY, "glyphs", seeds, selections, (*SETTINGS, *settings), str(data))


def run_study(data: Path, folder: Path) -> None:
    """Run six seeds of the study, in a process of its own."""
    torch.set_num_threads(1)
    schedule = RunSchedule(plan(data, seeds=6), folder)
    perform_runs(schedule, schedule.runs, create_study_context(torch.device("cpu"), str(data)), lambda line: None)


def rewrite(folder: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replace the results in a folder, as an editor of results.jsonl does."""
    lines = "".join(json.dumps({"run": run, **result}) + "\n" for run, result in results.items())
    write_bytes(folder / RESULTS_FILE, lines.encode())


def change(run: Run, **facts: Any) -> None:
    """Change the facts in the result of a finished run."""
    folder = run.results.path.parent
    rewrite(folder, {**Results(folder), run.name: {**run.result(), **facts}})


def forget(run: Run) -> None:
    """Remove the result of a finished run."""
    folder = run.results.path.parent
    rewrite(folder, {name: result for name, result in Results(folder).items() if name != run.name})


def finish(run: Run, r1: float, spectrum: list[float]) -> None:
    """Finish a run with a result of the usual form, without training."""
    test = {"recall_at_1": r1, "map_at_r": r1 / 2}
    evaluations = [
        {"split": "test", "view": "embedding", "metrics": test, "spectrum": spectrum},
        {
            "split": "train",
            "view": "embedding",
            "metrics": {"spectral_decay": 1 - r1, "spectral_decay_drop_1": 1 - r1},
            "spectrum": spectrum,
        },
        {"split": "test", "view": "features", "metrics": {"recall_at_1": r1}, "spectrum": spectrum},
    ]
    log = [{"epoch": 1, "validation_recall_at_1": r1}, {"epoch": 2, "validation_recall_at_1": 2 * r1}]
    training = [{"epochs": 2, "measured_epoch": 2, "seconds": 30.0, "precision": "fp32", "log": log}]
    facts = {"device": "cpu", "hardware": {"cpu": "x"}, "versions": {"torch": "2"}, "commit": "abc"}
    head = {"arm": run.arm.label, "seed": run.seed, "selection": run.selection, "recipes": run.digests}
    run.finish({**head, "evaluations": evaluations, "training": training, **facts})


SCORES = {"margin": (0.60, 0.62, 0.61), "contrastive": (0.65, 0.66, 0.66)}
