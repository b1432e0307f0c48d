"""A search from query to page, re-ranking by hand calculation, and the choice of the ONNX variant that embeds."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import get_args

import httpx
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from serving.gallery import NewItem, VectorGallery
from serving.gallery.calibration import background_of, calibrate_gallery
from serving.gallery.filters import Filter
from serving.gallery.query import SearchQuery
from serving.gallery.search import (
    Models,
    Searcher,
    SearchOptions,
)
from serving.schemas import Rerank
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import run, serving
from zoo.cli.main import main
from zoo.data.images import Limits
from zoo.data.preprocessing import to_pixels
from zoo.errors import ImageTooLargeError, UsageError, VariantNotFoundError, command
from zoo.files import sha256_of
from zoo.models.card import Card, read_card
from zoo.models.load import Embedder
from zoo.models.onnx_runtime import GRAPH_FILES


@pytest.fixture(scope="module")
def varied(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy model with an int8 variant: its projection rounded to 8 bits, which other embeddings tell."""
    folder = tmp_path_factory.mktemp("models") / "varied"
    shutil.copytree(model_folder, folder)
    graph = onnx.load(folder / GRAPH_FILES["fp32"])
    for constant in graph.graph.initializer:
        if constant.name == "projection":
            weights = numpy_helper.to_array(constant)
            step = np.abs(weights).max() / 127
            rounded = (np.round(weights / step) * step).astype(np.float32)
            constant.CopyFrom(numpy_helper.from_array(rounded, "projection"))
    onnx.save(graph, folder / GRAPH_FILES["int8"])
    card = read_card(folder)
    card.files[GRAPH_FILES["int8"]] = sha256_of(folder / GRAPH_FILES["int8"])
    card.write(folder)
    return folder


@pytest.fixture(scope="module")
def gallery(varied: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexed with int8."""
    out = tmp_path_factory.mktemp("galleries") / "varied"
    assert main(["index", str(varied), str(pictures), "--out", str(out), "--precision", "int8"]) == 0
    return out


def by_hand(folder: Path, precision: str, image: bytes) -> np.ndarray:
    pixels = to_pixels(image, read_card(folder).preprocessing)[None]
    session = onnxruntime.InferenceSession(folder / GRAPH_FILES[precision])
    return session.run(None, {"pixels": pixels})[0]


def test_limits_of_requests_do_not_hold_for_the_golden_image(gallery_folder: Path) -> None:
    searcher = Searcher.open(gallery_folder, limits=Limits(max_bytes=1, max_pixels=1))
    assert searcher.is_ready()
    with raises(ImageTooLargeError, "image-too-large"):
        searcher.embed(toys.query(0))
    searcher.close()


def test_index_embeds_with_the_variant(varied: Path, gallery: Path, pictures: Path) -> None:
    with VectorGallery.open(gallery) as opened:
        for item in opened.store.items()[:5]:
            image = (pictures / item.source).read_bytes()
            embedding = opened.store.embedding(item.id)
            np.testing.assert_allclose(embedding, by_hand(varied, "int8", image)[0], atol=1e-6)
            assert np.abs(embedding - by_hand(varied, "fp32", image)[0]).max() > 1e-4


@pytest.mark.slow
def test_add_and_search_take_it_too(
    varied: Path, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, image = tmp_path / "gallery", tmp_path / "new.png"
    shutil.copytree(gallery, copy)
    image.write_bytes(toys.query(1))
    assert main(["gallery", "add", str(copy), str(image), "--precision", "int8"]) == 0
    found = {}
    for precision in ("fp32", "int8"):
        capsys.readouterr()
        assert main(["search", str(copy), str(image), "-k", "1", "--json", "--precision", precision]) == 0
        found[precision] = json.loads(capsys.readouterr().out)["results"][0]
    assert found["int8"]["source"] == found["fp32"]["source"]
    assert found["int8"]["similarity"] == pytest.approx(1, abs=1e-6)
    expected = float((by_hand(varied, "fp32", toys.query(1)) @ by_hand(varied, "int8", toys.query(1)).T)[0, 0])
    assert found["fp32"]["similarity"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_service_embeds_with_it_and_says_so(varied: Path, gallery: Path) -> None:
    image = toys.query(2)
    with serving(gallery, "--precision", "int8") as running:
        assert httpx.get(f"{running.url}/model").json()["precision"] == "int8"
        answer = httpx.post(f"{running.url}/embed", content=image, headers={"Content-Type": "image/png"}).json()
        assert httpx.get(f"{running.url}/readyz").status_code == 200
    np.testing.assert_allclose(answer["embeddings"][0], by_hand(varied, "int8", image)[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("unannounced")
def test_going_back_to_a_model_takes_it_too(
    gallery: Path, other_model: Embedder, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(gallery, tmp_path / "gallery"))
    other = str(other_model.folder)
    assert main(["gallery", "rebuild", str(copy), "--model", other, "--images", str(pictures), "--swap"]) == 0
    capsys.readouterr()
    with raises(VariantNotFoundError) as caught:
        run_here("gallery rollback", copy, "--precision", "fp16", "--runtime", "onnx")
    assert "fp16" in str(caught.value)
    assert main(["gallery", "rollback", str(copy), "--precision", "int8"]) == 0


@pytest.mark.slow
def test_a_service_is_not_started_where_there_is_no_such_variant(model_folder: Path, gallery_folder: Path) -> None:
    outcome = run("serve", gallery_folder, "--precision", "int8", "--port", 0)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert command("export", model_folder, "--precision", "int8") in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_the_variants_model_may_have_moved(
    gallery_folder: Path, gallery: Path, varied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.run.serve", lambda *given: None)
    assert run_here("serve", gallery, "--precision", "int8") == 0
    assert run_here("serve", gallery_folder, "--model", varied, "--precision", "int8") == 0
    with raises(VariantNotFoundError):
        run_here("serve", gallery_folder, "--precision", "int8")
    with pytest.raises(UsageError):
        run_here("serve", gallery, "--precision", "double")


def test_a_model_without_it_is_served_in_fp32_where_nobody_watches(
    model_folder: Path, gallery_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The case after a rebuild to a model that was not exported in int8."""
    card: Card = read_card(model_folder)
    with pytest.raises(VariantNotFoundError):
        Models(precision="int8").load(card, str(model_folder))
    models = Models(precision="int8", or_fp32=True)
    searcher = Searcher.open(gallery_folder, models=models)
    assert searcher.embedder.precision == "fp32"
    searcher.close()
    assert command("export", model_folder, "--precision", "int8") in caplog.text


def test_a_search_at_a_service_takes_no_precision() -> None:
    with raises(UsageError, "option-without-effect"):
        run_here("search", "--url", "http://127.0.0.1:1", "--id", 1, "--precision", "int8")


def test_an_item_that_is_replaced_during_a_search_by_its_key_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = Searcher.open(path)
    store = searcher.gallery.store
    store.describe(1, key="k")
    former = store.item_of_key("k")
    store.describe(1, key="former")
    searcher.gallery.remove([1])
    store.describe(2, key="k")
    answers = iter([former, store.item_of_key("k")])
    monkeypatch.setattr(store, "item_of_key", lambda key: next(answers))
    result = searcher.find(SearchQuery.of(item="k"), SearchOptions(24))
    assert result.items == (2,)
    assert sorted(hit.id for hit in result.hits) == list(range(3, 25))
    searcher.close()


@pytest.mark.slow
@pytest.mark.parametrize("rerank", get_args(Rerank))
def test_a_search_calibrates_cuts_and_paginates(gallery_folder: Path, tmp_path: Path, rerank: str) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    searcher, query = Searcher.open(path), SearchQuery.of(item=1)
    assert {hit.p_same for hit in searcher.find(query, SearchOptions(24, rerank=rerank)).hits} == {None}
    with raises(UsageError, "no-calibration"):
        searcher.find(query, SearchOptions(min_p=0.5, rerank=rerank))
    calibration = calibrate_gallery(searcher.gallery)
    hits = searcher.find(query, SearchOptions(24, rerank=rerank)).hits
    own = searcher.gallery.store.embedding(1)
    base = background_of(searcher.gallery, own[None], exclude=1)
    assert sorted(hit.id for hit in hits) == list(range(2, 25))
    for hit in hits:
        assert hit.similarity == pytest.approx(float(own @ searcher.gallery.store.embedding(hit.id)), abs=1e-6)
        assert hit.p_same == pytest.approx(
            float(calibration.probability(hit.similarity, base.level, base.nearest)), abs=5e-5
        )
        assert (hit.rerank_score is None) == (rerank == "none")
    scores = [hit.similarity if hit.rerank_score is None else hit.rerank_score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert searcher.find(query, SearchOptions(3, 2, rerank=rerank)).hits == hits[2:5]
    likely = searcher.find(query, SearchOptions(24, min_p=0.5, rerank=rerank)).hits
    assert 0 < len(likely) < 23
    assert likely == [hit for hit in hits if hit.p_same >= 0.5]
    near = searcher.find(query, SearchOptions(24, min_similarity=hits[5].similarity, rerank=rerank)).hits
    assert near == [hit for hit in hits if hit.similarity >= hits[5].similarity]
    for hit in searcher.find(query, SearchOptions(24, selection=Filter((hits[0].label,)), rerank=rerank)).hits:
        known = next(other for other in hits if other.id == hit.id)
        assert hit.p_same == known.p_same, "a filter does not change the background"
    searcher.close()


def test_the_identical_image_is_of_the_same_class(gallery_folder: Path, tmp_path: Path) -> None:
    """Its file is recognised by its bytes, also where a variant of the model embeds it a little differently."""
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    searcher = Searcher.open(path)
    calibration = calibrate_gallery(searcher.gallery)
    assert calibration.probabilities[-1] < 1, "only the identical image is certain"
    item = searcher.gallery.store.items(0, 1)[0]
    data = toys.query(0)
    added = NewItem("sent", searcher.embed(toys.query(1))[0], toys.thumbnail(1), sha256(data).hexdigest())
    (number,) = searcher.gallery.add([added]).ids  # the bytes of one image with the embedding of another
    (tmp_path / "sent.png").write_bytes(data)
    for query in (data, tmp_path / "sent.png", str(tmp_path / "sent.png")):
        hits = {hit.id: hit for hit in searcher.find(SearchQuery.of(query), SearchOptions(30)).hits}
        assert hits[number].similarity < 0.99
        assert hits[number].p_same == 1
    vector = searcher.gallery.store.embedding(item.id)
    twin = NewItem("twin", vector, toys.thumbnail(1), "f" * 64)
    (number,) = searcher.gallery.add([twin]).ids
    best = searcher.find(SearchQuery.of(item=item.id), SearchOptions(1, min_p=1)).hits
    assert [(hit.id, hit.p_same) for hit in best] == [(number, 1)]
    searcher.close()
