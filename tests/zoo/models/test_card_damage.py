"""Model folders that were cut, mixed up or altered: always a `ModelFolderError`, at any byte."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

import zoo
from tests.raising import raises
from tests.zoo.hub_client import connected
from zoo.errors import ModelFolderError, ModelNotFoundError
from zoo.files import sha256_of
from zoo.models.card import Card, read_card, read_origin
from zoo.models.folder import check_config, check_files
from zoo.models.golden import read_golden
from zoo.models.results import read_results
from zoo.models.text_tower import TEXT_GRAPH, TOKENIZER_FILE, open_text_tower
from zoo.models.verify import _least_cosine, verify
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"
WITH_TEXT = Path(__file__).parents[1] / "fixtures" / "with-text"
CARD = read_card(MODEL)
IMAGES, GOLDEN = read_golden(MODEL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def cuts(length: int, count: int) -> list[int]:
    """Offsets to cut at: the first and last bytes, and others spread over the file."""
    return sorted({0, 1, 7, 8, 9, length - 2, length - 1, *np.linspace(10, length - 3, count).astype(int).tolist()})


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("card.json", read_card),
        ("config.json", lambda folder: check_config(folder, CARD)),
        ("results.json", read_results),
    ],
)
def test_a_text_file_cut_anywhere(copy: Path, file: str, read: Callable[[Path], Any]) -> None:
    data, complete = (copy / file).read_bytes(), read(copy)
    for end in range(0, len(data) - 1, 1 + len(data) // 500):  # the last byte ends the line
        (copy / file).write_bytes(data[:end])
        with pytest.raises(ModelFolderError) as caught:
            read(copy)
        assert file in str(caught.value)
    (copy / file).write_bytes(data[:-1])
    assert read(copy) == complete


@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors", "onnx/model.onnx"])
def test_a_weight_file_cut_anywhere_is_not_the_cards(copy: Path, file: str) -> None:
    data = (copy / file).read_bytes()
    for end in cuts(len(data), 20):
        (copy / file).write_bytes(data[:end])
        with raises(ModelFolderError, "hash-mismatch"):
            check_files(copy, CARD, [file])


def test_a_pickle_in_place_of_safetensors_is_named(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with raises(ModelFolderError, "missing-file") as caught:
        check_files(copy, CARD)
    assert all(value in str(caught.value) for value in ("model.safetensors", "pytorch_model.bin", "zoo convert"))
    (copy / "card.json").unlink()
    with raises(ModelNotFoundError, "model-not-found") as missing:
        zoo.load(copy)
    assert all(value in str(missing.value) for value in ("card.json", "pytorch_model.bin", "zoo baseline"))


def test_golden_embeddings_cut_anywhere(copy: Path) -> None:
    data = (copy / "golden.safetensors").read_bytes()
    for end in cuts(len(data), 40):
        (copy / "golden.safetensors").write_bytes(data[:end])
        with raises(ModelFolderError, "unreadable-file"):
            read_golden(copy)
    np.testing.assert_allclose(zoo.load(copy, runtime="onnx").embed(IMAGES), GOLDEN, atol=1e-5)


def test_a_graph_cut_anywhere_that_the_card_lists(copy: Path) -> None:
    graph = copy / "onnx" / "model.onnx"
    data = graph.read_bytes()
    for end in cuts(len(data), 8):
        graph.write_bytes(data[:end])
        vouch(copy, "onnx/model.onnx")
        with raises(ModelFolderError, "unreadable-file"):
            zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_graph_with_a_fixed_batch_size_is_refused(copy: Path, side: str) -> None:
    graph = onnx.load(copy / "onnx" / "model.onnx")
    getattr(graph.graph, side)[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, copy / "onnx" / "model.onnx")
    vouch(copy, "onnx/model.onnx")
    with raises(ModelFolderError, "unsupported-graph") as caught:
        zoo.load(copy, runtime="onnx")
    assert ("'pixels'" if side == "input" else "'embeddings'") in str(caught.value)


def test_a_text_graph_with_a_fixed_batch_size_is_refused(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    graph = onnx.load(copy / TEXT_GRAPH)
    for value in graph.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, copy / TEXT_GRAPH)
    vouch(copy, TEXT_GRAPH)
    with raises(ModelFolderError, "unsupported-graph"):
        open_text_tower(copy, read_card(copy))


@pytest.mark.parametrize("file", [TEXT_GRAPH, TOKENIZER_FILE])
def test_a_text_tower_cut_anywhere(tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    data = (copy / file).read_bytes()
    for end in cuts(len(data), 20):
        (copy / file).write_bytes(data[:end])
        with raises(ModelFolderError, "hash-mismatch"):
            open_text_tower(copy, read_card(WITH_TEXT))
        vouch(copy, file)
        if not data[end:].isspace():  # the last byte ends the line
            with raises(ModelFolderError, "unreadable-file"):
                open_text_tower(copy, read_card(copy))


def test_a_model_embeds_with_a_damaged_recipe_or_parity(copy: Path) -> None:
    for file in ("recipe.json", "onnx/parity.json"):
        data = (copy / file).read_bytes()
        for end in cuts(len(data), 5):
            (copy / file).write_bytes(data[:end])
            assert read_origin(copy) is not None
            assert zoo.info(str(copy)).card == CARD
        np.testing.assert_allclose(zoo.load(copy, runtime="onnx").embed(IMAGES), GOLDEN, atol=1e-5)


@pytest.mark.parametrize("end", [0, 1, 100, -3])
def test_a_parity_json_that_is_cut_fails_verify(copy: Path, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    data = (copy / "onnx" / "parity.json").read_bytes()
    (copy / "onnx" / "parity.json").write_bytes(data[:end])
    failed = [check.name for check in verify(copy) if check.ok is False]
    assert failed == ["onnx/parity.json"]


def vouch(folder: Path, file: str) -> None:
    """Store the file's hash in the card."""
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, file: sha256_of(folder / file)}).write(folder)


FALSE_CARDS: dict[str, Callable[[Card], Card]] = {
    "resize": lambda card: with_preprocessing(card, resize=40),
    "crop": lambda card: with_preprocessing(card, crop=30),
    "interpolation": lambda card: with_preprocessing(card, interpolation="nearest"),
    "mean": lambda card: with_preprocessing(card, mean=(0.4, 0.5, 0.5)),
    "std": lambda card: with_preprocessing(card, std=(0.25, 0.25, 0.3)),
    "mode": lambda card: with_preprocessing(card, mode="L", mean=(0.5,), std=(0.25,)),
    "architecture": lambda card: dataclasses.replace(card, architecture="resnet18"),
    "hash": lambda card: dataclasses.replace(card, files=dict.fromkeys(card.files, "0" * 64)),
    "dim": lambda card: dataclasses.replace(card, dim=32, heads=(dataclasses.replace(card.heads[0], dim=32),)),
}


def with_preprocessing(card: Card, **changes: Any) -> Card:
    return dataclasses.replace(card, preprocessing=dataclasses.replace(card.preprocessing, **changes))


@pytest.mark.parametrize("change", FALSE_CARDS)
def test_a_wrong_card_is_refused(copy: Path, change: str) -> None:
    FALSE_CARDS[change](CARD).write(copy)
    with pytest.raises(ModelFolderError):
        zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("change", ["resize", "interpolation"])
def test_golden_images_detect_wrong_preprocessing(copy: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    FALSE_CARDS[change](CARD).write(copy)
    (copy / "config.json").unlink()
    failed = [check.name for check in verify(copy) if check.ok is False]
    assert "golden onnx fp32" in failed


@pytest.mark.parametrize("file", ["onnx/model.onnx", "card.json", "model.safetensors"])
def test_a_file_cut_in_the_hubs_cache_is_refused_and_downloaded_again(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.relative_to(MODEL).as_posix(): path.read_bytes() for path in MODEL.rglob("*") if path.is_file()}
    with connected(monkeypatch, tmp_path) as (hub, _):
        hub.add("org/toy", files)
        folder = zoo.load("org/toy", runtime="onnx").folder
        (folder / file).resolve().write_bytes(files[file][:-3])
        with pytest.raises(ModelFolderError):
            check_files(folder, read_card(folder), [file])
        assert (zoo.load("org/toy", runtime="onnx", revision="main").folder / file).read_bytes() == files[file]


def write_raw_golden(folder: Path, images: list[np.ndarray], embeddings: np.ndarray) -> None:
    named = {f"image_{i}": image for i, image in enumerate(images)}
    save_file({**named, "embeddings": embeddings}, folder / "golden.safetensors")


@pytest.mark.parametrize(
    ("images", "embeddings", "pattern"),
    [
        ([], GOLDEN[:0], "no image"),
        (IMAGES, 1000 * np.random.default_rng(0).random(GOLDEN.shape, np.float32), "embedding 0 "),
        (IMAGES, np.where(np.arange(len(GOLDEN))[:, None] == 1, np.float32(np.nan), GOLDEN), "embedding 1 "),
        (IMAGES, np.zeros_like(GOLDEN), "embedding 0 "),
        (IMAGES, 1.01 * GOLDEN, "embedding 0 "),
        (IMAGES, GOLDEN[1:], rf"float32 \[{len(IMAGES)}, dim\]"),
        (IMAGES, GOLDEN[0], rf"float32 \[{len(IMAGES)}, dim\]"),
        (IMAGES, GOLDEN.astype(np.float64), "float64 .* float32"),
        ([*IMAGES[1:], np.zeros((3, 3, 3), np.float32)], GOLDEN, "image_3 is float32 .* uint8"),
        (IMAGES, np.eye(len(GOLDEN), CARD.dim - 1, dtype=np.float32), rf", {CARD.dim - 1}\]"),
        (IMAGES, np.eye(len(GOLDEN), CARD.dim, dtype=np.float32), r"cosine (-1|-?0)\."),
    ],
)
def test_golden_embeddings_that_would_let_any_model_pass_are_refused(
    copy: Path, images: list[np.ndarray], embeddings: np.ndarray, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    write_raw_golden(copy, images, embeddings.astype(embeddings.dtype))
    checks = {check.name: check for check in verify(copy)}
    assert checks["golden onnx fp32"].ok is False
    assert re.search(pattern, checks["golden onnx fp32"].detail)


def test_the_least_cosine_does_not_depend_on_the_rows_lengths() -> None:
    a, b = np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[6.0, 8.0], [2.0, 2.0]])
    assert _least_cosine(a, b) == pytest.approx(2**-0.5)
    assert _least_cosine(1000 * a[:1], b[:1]) == 1
    assert np.isnan(_least_cosine(0 * a, b))


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("file", ["card.json", "config.json"])
def test_deeply_nested_json_is_refused(copy: Path, file: str, depth: int) -> None:
    values = json.loads((copy / file).read_text())
    deep = "[" * depth + "]" * depth
    (copy / file).write_text(json.dumps({**values, "architecture_args": {"x": 0}}).replace('"x": 0', f'"x": {deep}'))
    with pytest.raises(ModelFolderError) as caught:
        zoo.load(copy, runtime="onnx")
    assert file in str(caught.value)
