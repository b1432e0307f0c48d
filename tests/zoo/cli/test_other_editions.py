"""Scores on `cub2010` and `cars-half` say everywhere that these are not CUB-200-2011 and Cars196."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from training.studies.papers import find_study
from training.studies.plan import Plan
from training.studies.render_search import data_name
from training.studies.report import published_score
from training.studies.search import SearchPlan
from zoo.cli.main import main
from zoo.data.dataset import Dataset
from zoo.hub.model_page import readme
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.results import data_title
from zoo.paths import SHIPPED
from zoo.report.model import report

pytestmark = pytest.mark.slow

TITLES = {"cub2010": "cub2010, not CUB-200-2011", "cars-half": "cars-half, not Cars196"}
each_set = pytest.mark.parametrize(("name", "title"), TITLES.items())


def small(name: str) -> Dataset:
    """Sixteen grey images of four classes under the name of a real data set."""
    rng, rows = np.random.default_rng(0), np.arange(16)
    images = [rng.integers(0, 256, (32, 32), np.uint8) for _ in rows]
    return Dataset(name, "test", images, rows % 4, ("owl", "wren", "tern", "jay"), [f"{row}.jpg" for row in rows])


@pytest.fixture
def measured(own_zoo: Path, name: str) -> Path:
    """A copy of a shipped model as if it had been trained and measured on the data set."""
    folder = Path(shutil.copytree(SHIPPED / "margin-conv4-glyphs", own_zoo / "models" / "mine"))
    card, results = (json.loads((folder / file).read_text()) for file in ("card.json", "results.json"))
    (folder / "card.json").write_text(json.dumps(card | {"name": "mine", "dataset": name}))
    data = {**results[0]["data"], "name": small(name).identity.name}
    (folder / "results.json").write_text(json.dumps([results[0] | {"dataset": name, "split": "test", "data": data}]))
    return folder


@each_set
def test_every_listing_of_scores_says_so(
    measured: Path, name: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["info", "mine"], ["list"], ["benchmark", "models", "--dataset", name]):
        assert main(words) == 0
        assert f"{title} (" in capsys.readouterr().out
    assert main(["benchmark", "models", "--dataset", name, "--json"]) == 0
    assert {row["dataset"] for row in json.loads(capsys.readouterr().out)} == {name}
    page = readme(measured, read_card(measured), "org/mine", ())
    assert f"data set `{title}`" in page
    assert f"| {title} (" in page
    assert "published" in page
    assert all(not line.split("|")[-2].strip() for line in page.splitlines() if line.startswith(f"| {title}"))


@each_set
def test_a_measurement_and_its_report_say_so(measured: Path, name: str, title: str) -> None:
    page = report(load("mine", runtime="onnx"), small(name))
    assert f"mine on {title}, test split" in page
    assert f"{title} ({small(name).identity.sha256[:8]})" in page
    assert data_title({"dataset": name}) == f"{title} (images not recorded)"


@each_set
def test_studies_say_so_and_show_no_published_score(name: str, title: str) -> None:
    assert data_name(SearchPlan(("margin",), name)) == title
    papers, larger = find_study("revisiting/table-2"), {"cub2010": "cub", "cars-half": "cars"}[name]
    for dataset, shown in ((larger, True), (name, False)):
        plan = Plan(papers, dataset, 1)
        scores = [published_score(plan, arm, measure) for arm in papers.arms for measure in papers.measures]
        assert any(scores) == shown


def test_the_stored_name_is_the_data_set_s_own() -> None:
    assert [small(name).identity.name for name in TITLES] == list(TITLES)
    assert [str(small(name).identity).rpartition(" (")[0] for name in TITLES] == list(TITLES.values())
