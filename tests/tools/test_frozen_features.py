"""docs/frozen-features.md: its tables are those of its figures, and equal to calculations by hand."""

from __future__ import annotations

import json
from types import ModuleType

import numpy as np
import pytest

from tools import frozen_features
from tools.frozen_features import DOCS


@pytest.fixture(scope="module")
def frozen() -> ModuleType:
    return frozen_features


def arm(values: list[float], seconds: float) -> dict[str, object]:
    return {"recall_at_1": values, "map_at_r": [v / 10 for v in values], "cpu_seconds": seconds}


RUNS = {
    "0": {
        "softmax": arm([0.25, 0.35], 100),
        "features": {"cpu_seconds": 30},
        "margin-frozen": arm([0.3, 0.4], 20),
        "margin": arm([0.2, 0.4], 90),
    },
    "1": {
        "softmax": arm([0.25, 0.35], 110),
        "features": {"cpu_seconds": 30},
        "margin-frozen": arm([0.4, 0.4], 20),
        "margin": arm([0.3, 0.38], 90),
    },
    "2": {"softmax": arm([0.1, 0.1], 500)},
}


def test_the_page_has_the_tables_of_its_figures(frozen: ModuleType) -> None:
    text = (DOCS / "frozen-features.md").read_text(encoding="utf-8")
    known = json.loads((DOCS / "frozen-features.json").read_text(encoding="utf-8"))
    assert frozen.page(text, known["runs"]) == text


def test_the_page_names_the_commands_that_were_run(frozen: ModuleType) -> None:
    known = json.loads((DOCS / "frozen-features.json").read_text(encoding="utf-8"))
    for seed, rows in known["runs"].items():
        for name, row in rows.items():
            if "command" in row:
                assert row["command"] == f"zoo {' '.join(frozen.command(name, int(seed)))}"


def test_differences_and_both_of_their_intervals(frozen: ModuleType) -> None:
    line = next(x for x in frozen.differences_table(RUNS).splitlines() if "| margin-frozen - margin | 2 | R@1" in x)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # By seed: 5 and 6 points; Student's t for one degree of freedom is 12.706.
    half = 12.706 * np.std([5, 6], ddof=1) / np.sqrt(2)
    assert cells[3] == "+5.50"
    assert cells[4] == f"{5.5 - half:+.2f} to {5.5 + half:+.2f}"
    # By class: 10 and 1 points; of two classes a bootstrap draws one twice a quarter of the time.
    assert cells[5] == "+1.00 to +10.00"
    assert cells[6] == "+5.00, +6.00"


def test_a_head_costs_the_trunk_and_its_features_too(frozen: ModuleType) -> None:
    line = next(x for x in frozen.scores_table(RUNS).splitlines() if "head on the frozen trunk" in x)
    assert line.endswith("| 2 | 0.3750 ± 0.0354 | 0.0375 ± 0.0035 | 155 | 20 |")


def test_seeds_that_lack_an_arm_are_left_out(frozen: ModuleType) -> None:
    assert frozen.measured(RUNS, "margin") == ["0", "1"]
    assert frozen.measured(RUNS, "margin", "softmax") == ["0", "1"]
    assert frozen.measured(RUNS, "softmax") == ["0", "1", "2"]
