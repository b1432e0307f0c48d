"""The page of published numbers and ours: pictures of the tables and of models, without external content."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.serving import toys
from tests.training.studies.test_compare import RECIPE, evaluation, model, save
from tests.zoo.report.test_model import Reader
from training.studies.compare import compare_tables
from training.studies.compare_page import as_html
from zoo.cli.main import main
from zoo.models.published import published_table

NAMES = ("margin-r50-cub", "arcface-r50-cub", "r-margin-r50-cub")


@pytest.fixture
def measured(own_zoo: Path) -> Path:
    """Three models of revisiting-2, measured on both splits, one of them with a log."""
    for number, name in enumerate(NAMES):
        up = number / 100
        scores = {"recall_at_1": 0.60 + up, "map_at_r": 0.25 + up, "nmi": 0.65 - up}
        folder = model(own_zoo, name, {**RECIPE, "name": name}, **scores)
        save(folder, evaluation(name, "train", spectral_decay_drop_1=0.3 - up))
    (folder / "log.jsonl").write_text(json.dumps({"epoch": 1, "validation_recall_at_1": 0.5}) + "\n")
    return own_zoo


def test_pictures_of_published_numbers_and_ours(measured: Path) -> None:
    html = as_html(compare_tables([published_table("revisiting-2")], "cub"))
    text = Reader(html).text
    for heading in ("recall_at_1 on cub, as a picture", "R@1 against spectral decay on cub", "R@1 by epoch"):
        assert heading in text
    assert "ours: r = -1.00" in text  # one up where the other goes down
    assert "Metrics on cub (images not recorded), test split" in text
    assert "over 3 models of this zoo: arcface-r50-cub, margin-r50-cub, r-margin-r50-cub" in text
    triangle = re.findall(r'--share:[\d.]+">([+-][\d.]+)<', html)
    assert triangle == ["+1.00", "-1.00", "-1.00"]
    assert html.count("<img") == 2
    outside = re.sub(r'src="data:[^"]*"', "", html)
    assert not re.search(r"://|url\(|@import|<script|<link", outside)


def test_without_models_and_without_matplotlib_the_tables_stay(own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compare_tables([published_table("revisiting-2")], "cars")
    assert as_html(rows).count("<img") == 1  # published numbers alone have a spectral decay
    monkeypatch.setattr("training.studies.compare_page.find_spec", lambda name: None)
    assert as_html(rows).count("<img") == 0
    assert "Margin (D, 1.2)" in as_html(rows)


@pytest.mark.slow
def test_a_page_can_show_a_model(tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toys.write_model(own_zoo / "models" / "toy-pool")
    pictures, out = toys.write_pictures(tmp_path / "pictures"), tmp_path / "page.html"
    words = ["benchmark", "compare", "mic-main", "--show", "toy-pool", "--runtime", "onnx", "--data", str(pictures)]
    assert main([*words, "--out", str(out)]) == 2
    assert "--format html" in capsys.readouterr().err
    # The comparison is of no data set that a folder of images is: only the model is measured on it.
    assert main([*words, "--show-dataset", "folder", "--format", "html", "--out", str(out)]) == 0
    text = Reader(out.read_text()).text
    assert "mic-main: MIC with ResNet-50 (Sharing, tables 1 to 3)" in text
    for part in ("What it finds", "Map of the embeddings", "Singular values"):
        assert re.search(rf"toy-pool on pictures \([0-9a-f]{{8}}\): {part}", text)
