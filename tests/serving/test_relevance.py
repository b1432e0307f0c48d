"""The line of relevance without labels: results above it stand out from the rest of the gallery."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from serving.gallery.calibration import calibrate_gallery
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving import toys
from zoo.errors import ModelFolderError
from zoo.models.load import Embedder
from zoo.paths import SHIPPED

CURVE = {"first": [-8.0, 4.0], "later": [-8.5, 4.25], "line": 0.6}
CLASSES, EACH = 12, 4


def draw(folder: Path, name: str, grid: np.ndarray, rng: np.random.Generator) -> Path:
    noisy = np.clip(grid + rng.normal(0, 20, grid.shape), 0, 255).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noisy).resize((32, 32)).save(folder / name)
    return folder / name


@pytest.fixture(scope="module")
def judged(model: Embedder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, Path]:
    """A model with a curve, a gallery of grids, a query with relatives and one without."""
    root, rng = tmp_path_factory.mktemp("relevance"), np.random.default_rng(5)
    own = Path(shutil.copytree(model.folder, root / "toy-pool"))
    (own / "relevance.json").write_text(json.dumps(CURVE))
    grids = rng.uniform(0, 255, (CLASSES + 1, 8, 8, 3))
    for label, grid in enumerate(grids[:-1]):
        for number in range(EACH):
            draw(root / "grids", f"{label}-{number}.png", grid, rng)
    queries = draw(root / "queries", "known.png", grids[3], rng), draw(root / "queries", "new.png", grids[-1], rng)
    assert run("index", own, root / "grids", "--out", root / "g") == 0
    return own, root / "g", *queries


def expected(model: Path, gallery: Path, query: Path, k: int) -> list[bool]:
    """A plain loop over the definition."""
    embedder = zoo.load(model, runtime="onnx")
    files = sorted((gallery.parent / "grids").iterdir())
    similarities = [float(row @ embedder.embed(query)[0]) for row in embedder.embed(files)]
    mean = sum(similarities) / len(similarities)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in similarities) / len(similarities))
    chances: list[float] = []
    for value in sorted(similarities, reverse=True)[:k]:
        a, b = CURVE["later" if chances else "first"]
        chance = 1 / (1 + math.exp(-(a + b * (value - mean) / deviation)))
        chances.append(min([chance, *chances[:1]]))
    return [chance >= CURVE["line"] for chance in chances]


def test_relatives_are_likely_and_strangers_are_not(
    judged: tuple[Path, Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, gallery, known, new = judged
    for query in (known, new):
        capsys.readouterr()
        assert run("search", gallery, query, "-k", 10, "--json") == 0
        results = json.loads(capsys.readouterr().out)["results"]
        assert [result["likely"] for result in results] == expected(model, gallery, query, 10)
        likely = [result["source"] for result in results if result["likely"]]
        assert sorted(likely) == ([f"3-{number}.png" for number in range(EACH)] if query == known else [])
    assert run("search", gallery, known) == 0
    assert "after the first 4, nothing more is likely" in capsys.readouterr().err
    with zoo.Gallery(gallery) as opened:
        hits = opened.search(known, k=6)
        assert [hit.likely for hit in hits] == expected(model, gallery, known, 6)


def test_labels_replace_the_default_curve(judged: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    _, gallery, known, _ = judged
    copy = Path(shutil.copytree(gallery, tmp_path / "g"))
    with zoo.Gallery(copy) as opened:
        for item in opened.vectors.store.items(limit=100):
            opened.vectors.store.describe(item.id, item.source.partition("-")[0], {})
        calibrate_gallery(opened.vectors)
        hits = opened.search(known, k=8)
    assert [hit.likely for hit in hits] == [hit.p_same >= 0.5 for hit in hits]


def test_without_a_curve_or_with_few_items_nothing_is_said(
    judged: tuple[Path, Path, Path, Path], gallery_folder: Path, tmp_path: Path
) -> None:
    model, _, known, _ = judged
    with zoo.Gallery(gallery_folder) as opened:
        assert {hit.likely for hit in opened.search(toys.query(0))} == {None}
    (tmp_path / "few").mkdir()
    for number in range(3):
        shutil.copy(known, tmp_path / "few" / f"{number}.png")
        Image.new("RGB", (9, 9), (number, 80, 90)).save(tmp_path / "few" / f"x{number}.png")
    with zoo.index(str(model), tmp_path / "few", tmp_path / "g") as opened:
        assert {hit.likely for hit in opened.search(known)} == {None}


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"first": [1, NaN], "later": [1, 1], "line": 0.5}'])
def test_a_damaged_curve_is_refused(judged: tuple[Path, Path, Path, Path], tmp_path: Path, text: str) -> None:
    copy = Path(shutil.copytree(judged[0], tmp_path / "toy-pool"))
    (copy / "relevance.json").write_text(text)
    with raises(ModelFolderError, "damaged-file"), zoo.Gallery(judged[1], str(copy)) as opened:
        opened.search(judged[2])


def test_photos_has_a_curve() -> None:
    curve = json.loads((SHIPPED / "photos" / "relevance.json").read_text())
    assert curve["first"][1] > 0 < curve["later"][1]
