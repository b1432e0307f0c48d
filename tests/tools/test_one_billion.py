"""docs/one-billion.md: its tables are those of its unit figures, and equal to calculations by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tools import one_billion
from tools.one_billion import DOCS


@pytest.fixture(scope="module")
def plans() -> ModuleType:
    return one_billion


@pytest.fixture
def units(plans: ModuleType, tmp_path: Path) -> object:
    """Return an index of 10 bytes per vector whose search takes 1 ms at 100 vectors, 2 ms at 400: a growth of 0.5."""
    figures = {"decode": 0.01, "network": 0.09, "image": 1000.0, "thumbnail": 100.0, "row": 20.0, "write": 0.001}
    for n, seconds in ((100, 0.001), (400, 0.002)):
        figures |= {f"ivf-pq at {n}: bytes": 10, f"ivf-pq at {n}: search": seconds}
        figures |= {f"ivf-pq at {n}: build": 0.001, f"ivf-pq at {n}: recall": 0.97}
    known = {key: {"value": value, "of": "effort 1, shortlist 4 k, k 10"} for key, value in figures.items()}
    (tmp_path / "units.json").write_text(json.dumps({"runs": {}, "figures": known}))
    return plans.Units(tmp_path / "units.json")


def test_the_page_has_the_tables_of_its_unit_figures(plans: ModuleType) -> None:
    text = (DOCS / "one-billion.md").read_text(encoding="utf-8")
    assert plans.page(text, plans.Units(), plans.Plan()) == text, "run: python tools/one_billion.py --write"
    assert all(f"<!-- {name} -->" in text for name in plans.TABLES)


def test_every_figure_says_where_it_comes_from() -> None:
    known = json.loads((DOCS / "units.json").read_text(encoding="utf-8"))
    for key, figure in known["figures"].items():
        run = known["runs"][figure["run"]]
        assert {"command", "date", "processor", "cores", "load", "versions"} <= run.keys(), key
        assert figure["value"] > 0
        assert figure["unit"]


def test_searching_by_hand(plans: ModuleType, units: object) -> None:
    plan = plans.Plan(images=160_000, shard=40_000, queries=50, cores=2, memory=1e6, used=0.5, copies=2)
    needs = plans.searching("ivf-pq", units, plan)
    assert needs.shard_seconds == pytest.approx(0.02), "100 times 400 vectors: sqrt(100) times 2 ms"
    assert needs.cores == pytest.approx(50 * 4 * 0.02)
    assert (needs.by_memory, needs.by_cores) == (4, 4), "1.6 MB at 0.5 MB each; 4 cores at 1 each"
    assert needs.machines == 8
    assert needs.reads == pytest.approx(50 * 4 * 10 * 4 / 8)
    assert needs.build_hours == pytest.approx(160_000 * 0.001 / 3600)


def test_work_and_money_by_hand(plans: ModuleType, units: object) -> None:
    plan = plans.Plan(images=3_600_000_000, cores=10, days=1, price=2.0)
    rows = {row[0]: row[1:] for row in _rows(plans.work_table(units, plan))}
    assert rows["embed"] == ["90", "9,000", "375", "18,000"]
    plan = plans.Plan(images=3_600_000_000, cores=10, days=1)
    assert "9,000 x PRICE" in plans.work_table(units, plan)


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_growth_is_never_less_than_the_method_must_have(plans: ModuleType, units: object) -> None:
    assert units.growth("ivf-pq", "search") == pytest.approx(0.5)  # type: ignore[attr-defined]
    units.figures["ivf-pq at 400: search"]["value"] = 0.001  # type: ignore[attr-defined]
    assert units.growth("ivf-pq", "search") == 0.5  # type: ignore[attr-defined]
    assert units.growth("ivf-pq", "build") == 0  # type: ignore[attr-defined]
