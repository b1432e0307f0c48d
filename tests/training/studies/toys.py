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
from training.studies.runner import create_workplace, perform_runs
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Claim, Measure, Study
from zoo.files import write_bytes

HEAD = 'heads=[{"name": "embedding", "dim": 16}]'
"""As wide as the features are, so that the embedding can fill its dimension."""

SETTINGS = (
    *("data.dataset=folder", "data.side=16", "preprocessing.resize=16", "preprocessing.crop=16", "precision=fp32"),
    *("backbone.args.widths=[8, 8, 12, 16]", "batch.size=8", "batch.per_class=2", "schedule.epochs=2"),
    *("schedule.steps=2", "augmentation.oversample=1", HEAD),
)
"""What makes every recipe of glyphs small, and has it read a folder."""

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


def images(folder: Path, classes: int = 8, each: int = 4) -> Path:
    """Coloured noise by class, PNG files of 20 x 20, in train and test."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(classes):
            (folder / split / f"class{number}").mkdir(parents=True)
            tint = draw.integers(0, 200, 3)
            for i in range(each):
                pixels = (tint + draw.integers(0, 56, (20, 20, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / f"class{number}" / f"{i}.png")
    return folder


def plan(data: Path, seeds: int = 2, selections: tuple[str, ...] = ("last",), settings: tuple[str, ...] = ()) -> Plan:
    return Plan(STUDY, "glyphs", seeds, selections, (*SETTINGS, *settings), str(data))


def run_study(data: Path, folder: Path) -> None:
    """Run six seeds of the study, in a process of its own."""
    torch.set_num_threads(1)
    schedule = RunSchedule(plan(data, seeds=6), folder)
    perform_runs(schedule, schedule.runs, create_workplace(torch.device("cpu"), str(data)), lambda line: None)


def rewrite(folder: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replace the results in a folder, as somebody who edits results.jsonl does."""
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
