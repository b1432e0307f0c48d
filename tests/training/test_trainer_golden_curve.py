"""The golden curve: the losses of a short run of fixed seed never change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.toys import CPU, noise, recipe
from training.recipe import Objective, Optimizer, Schedule
from training.trainer import fit

GOLDEN = Path(__file__).with_name("golden_curve.json")
RUNS = {
    "margin": Objective("margin", loss_args={"beta": 1.2}),  # a mined negative could change by rounding
    "ms": Objective("ms", "ms", {"kept_only": True}),
    "softmax": Objective("softmax"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_curve_is_the_golden_one_and_repeats(name: str, tmp_path: Path) -> None:
    # SGD, and few steps: rounding, which differs from processor to processor, has no time to grow.
    quick = recipe(objective=RUNS[name], optimizer=Optimizer("sgd", 0.05, momentum=0.9), schedule=Schedule(3, 4))
    curves = []
    for again in "ab":
        log = fit(quick, noise(), tmp_path / again, CPU, progress=False).log
        curves.append([record["loss"] for record in log])
    assert curves[0] == curves[1]
    assert curves[0] == pytest.approx(json.loads(GOLDEN.read_text())[name], rel=2e-3)
