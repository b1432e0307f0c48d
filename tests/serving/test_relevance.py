"""The line of relevance without labels: results above it stand out from the rest of the gallery."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

import zoo
from serving.gallery.calibration import calibrate_gallery
from serving.gallery.search import _Sample
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving import toys
from tests.serving.browser import complaints, drop, opened
from tests.serving.running import local_client, serving
from zoo.errors import ModelFolderError
from zoo.evaluation.relevance import RelevanceCurve, Spread
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
    rows = embedder.embed(sorted((gallery.parent / "grids").iterdir())).astype(float).tolist()

    def product(first: list[float], second: list[float]) -> float:
        return sum(a * b for a, b in zip(first, second, strict=True))

    def contrast(image: list[float], similarity: float) -> float:
        background = [product(image, row) for row in rows]
        mean = sum(background) / len(background)
        return (similarity - mean) / math.sqrt(sum((value - mean) ** 2 for value in background) / len(background))

    (asked,) = embedder.embed(query).astype(float).tolist()
    chances: list[float] = []
    for row in sorted(rows, key=lambda row: -product(asked, row))[:k]:
        a, b = CURVE["later" if chances else "first"]
        z = min(contrast(asked, product(asked, row)), contrast(row, product(asked, row)))
        chances.append(min([1 / (1 + math.exp(-(a + b * z))), *chances[-1:]]))
    return [chance >= CURVE["line"] for chance in chances]


def search_notes(gallery: Path, query: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `zoo search` says on stderr about a query."""
    assert run("search", gallery, query) == 0
    return str(capsys.readouterr().err)


def test_over_http_every_result_says_whether_it_is_likely(judged: tuple[Path, Path, Path, Path]) -> None:
    model, gallery, known, new = judged
    with local_client(gallery) as http:
        for query in (known, new):
            files = {"image": query.read_bytes()}
            results = http.post("/search", files=files, params={"k": 10}).json()["results"]
            assert [result["likely"] for result in results] == expected(model, gallery, query, 10)
        pages = [
            http.post("/search", files={"image": known.read_bytes()}, params={"k": 3, "offset": offset}).json()
            for offset in (0, 3)
        ]
        assert [result["likely"] for page in pages for result in page["results"]] == [True] * 4 + [False] * 2


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_draws_the_line_once(judged: tuple[Path, Path, Path, Path], browser: Browser) -> None:
    _, gallery, known, new = judged
    with serving(gallery) as running, opened(browser, running.url) as page:
        places = "() => [...document.querySelectorAll('#grid > li')].map(one => one.matches('.relevance'))"
        for query, likely in ((known, EACH), (new, 0)):
            drop(page, query.read_bytes(), query.name)
            expect(page.locator("#query-name")).to_have_text(query.name)
            expect(page.locator(".relevance")).to_have_count(1)
            assert page.evaluate(places).index(True) == likely
        page.get_by_role("button", name="More results").click()
        expect(page.locator(".card")).to_have_count(CLASSES * EACH)
        expect(page.locator(".relevance")).to_have_count(1)
        page.locator("#k").select_option("12")
        drop(page, known.read_bytes(), "again.png")
        expect(page.locator(".card")).to_have_count(12)
        expect(page.locator(".relevance")).to_have_count(1)
        assert complaints(page) == []


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
    capsys.readouterr()
    lines = {query: search_notes(gallery, query, capsys) for query in (known, new)}
    assert "the first 4" in lines[known]
    assert lines[new]
    assert "the first" not in lines[new]
    with zoo.Gallery(gallery) as opened:
        hits = opened.search(known, k=6)
        assert [hit.likely for hit in hits] == expected(model, gallery, known, 6)


def test_a_result_that_is_near_to_everything_is_not_likely() -> None:
    """Its own background decides where the query's does not."""
    curve = RelevanceCurve((-8, 4), (-8, 4), 0.6)
    query, hub = Spread(0.0, 0.1), Spread(0.4, 0.1)
    similarities = np.array([0.5, 0.5])
    assert curve.likely(query.contrasts(similarities)) == 2
    assert curve.likely(np.minimum(query.contrasts(similarities), hub.contrasts(similarities))) == 0


def test_the_background_of_an_item_leaves_out_its_own_image(
    judged: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    """After two items of one image, the ids of items and of images differ."""
    folder = Path(shutil.copytree(judged[1].parent / "grids", tmp_path / "grids"))
    shutil.copy(folder / "0-0.png", folder / "0-0-copy.png")
    with zoo.index(str(judged[0]), folder, tmp_path / "g") as opened:
        store = opened.vectors.store
        item = next(item.id for item in store.items(limit=100) if item.source == "3-0.png")
        assert store.contents_of([item])[item] != item
        sample, vector = _Sample(opened.vectors), store.embedding(item)
        images = {store.contents_of([other.id])[other.id]: other.id for other in store.items(limit=100)}
        own = store.contents_of([item])[item]
        rows = {image: store.embedding(other).astype(np.float64) for image, other in images.items()}
        for excluded in (item, None):
            expected = [row @ vector for image, row in rows.items() if excluded is None or image != own]
            spread = sample.spread(vector, excluded)
            assert spread == pytest.approx((np.mean(expected), np.std(expected)), abs=1e-6)


def test_the_background_of_a_result_is_of_the_gallery_as_it_is(
    judged: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    """It is computed once for an image, and again after many changes; a removed image has none."""
    copy = Path(shutil.copytree(judged[1], tmp_path / "g"))
    with zoo.Gallery(copy) as opened:
        store, sample = opened.vectors.store, _Sample(opened.vectors)
        ids = [item.id for item in store.items(limit=100)]
        for kept in (ids, ids, ids[:-12]):
            opened.vectors.remove(ids[len(kept) :])
            rows = store.embeddings(kept)[1].astype(np.float64)
            expected = rows[:5] @ rows.T
            spread = sample.spreads(kept[:5])
            assert spread is not None
            np.testing.assert_allclose(spread.mean, expected.mean(axis=1), atol=1e-6)
            np.testing.assert_allclose(spread.deviation, expected.std(axis=1), atol=1e-6)
        assert sample.spreads(ids[-2:]) is None


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


def test_the_command_says_why_a_small_gallery_has_no_line(
    judged: tuple[Path, Path, Path, Path], gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only of a model that has a curve, and not where the line is drawn."""
    model, gallery, known, _ = judged
    shutil.copytree(gallery.parent / "grids", tmp_path / "few", ignore=lambda _, names: names[5:])
    assert run("index", model, tmp_path / "few", "--out", tmp_path / "g") == 0
    capsys.readouterr()
    assert "30" in search_notes(tmp_path / "g", known, capsys)
    assert "30" not in search_notes(gallery, known, capsys)
    assert "30" not in search_notes(gallery_folder, known, capsys)


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"first": [1, NaN], "later": [1, 1], "line": 0.5}'])
def test_a_damaged_curve_is_refused(judged: tuple[Path, Path, Path, Path], tmp_path: Path, text: str) -> None:
    copy = Path(shutil.copytree(judged[0], tmp_path / "toy-pool"))
    (copy / "relevance.json").write_text(text)
    with raises(ModelFolderError, "damaged-file"), zoo.Gallery(judged[1], str(copy)) as opened:
        opened.search(judged[2])


def test_info_says_which_shipped_models_have_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    curve = json.loads((SHIPPED / "photos" / "relevance.json").read_text())
    assert curve["first"][1] > 0 < curve["later"][1]
    for folder in sorted(SHIPPED.iterdir()):
        capsys.readouterr()
        assert run("info", folder.name, "--json") == 0
        assert json.loads(capsys.readouterr().out)["judges_relevance"] is (folder.name == "photos")
