"""Model folders that were cut off, mixed up or altered: an error of ours, whatever the byte, and nothing of others'."""

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
WITH_TEXT = Path(__file__).parents[1] / "fixtures" / "schema-3"
CARD = read_card(MODEL)
IMAGES, GOLDEN = read_golden(MODEL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def some(length: int, count: int) -> list[int]:
    """Places to cut at: the first and last bytes, and others spread over the file."""
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
    data, whole = (copy / file).read_bytes(), read(copy)
    for end in range(0, len(data) - 1, 1 + len(data) // 500):  # the last byte ends the line
        (copy / file).write_bytes(data[:end])
        with pytest.raises(ModelFolderError, match=file):
            read(copy)
    (copy / file).write_bytes(data[:-1])
    assert read(copy) == whole


@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors", "onnx/model.onnx"])
def test_a_weight_file_cut_anywhere_is_not_the_cards(copy: Path, file: str) -> None:
    data = (copy / file).read_bytes()
    for end in some(len(data), 20):
        (copy / file).write_bytes(data[:end])
        with pytest.raises(ModelFolderError, match=r"SHA-256 differs"):
            check_files(copy, CARD, [file])


def test_a_pickle_in_place_of_safetensors_is_named(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(
        ModelFolderError, match=r"model\.safetensors is missing.*pytorch_model\.bin: pickles.*zoo convert"
    ):
        check_files(copy, CARD)
    (copy / "card.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"card\.json.*pytorch_model\.bin: pickles.*zoo convert"):
        zoo.load(copy)


def test_golden_embeddings_cut_anywhere(copy: Path) -> None:
    data = (copy / "golden.safetensors").read_bytes()
    for end in some(len(data), 40):
        (copy / "golden.safetensors").write_bytes(data[:end])
        with pytest.raises(ModelFolderError, match="golden"):
            read_golden(copy)
    np.testing.assert_allclose(zoo.load(copy, runtime="onnx").embed(IMAGES), GOLDEN, atol=1e-5)


def test_a_graph_cut_anywhere_for_which_the_card_vouches(copy: Path) -> None:
    graph = copy / "onnx" / "model.onnx"
    data = graph.read_bytes()
    for end in some(len(data), 8):
        graph.write_bytes(data[:end])
        vouch(copy, "onnx/model.onnx")
        with pytest.raises(ModelFolderError, match=r"model\.onnx|ONNX graph"):
            zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_graph_for_one_batch_size_alone_is_refused_when_it_is_opened(copy: Path, side: str) -> None:
    graph = onnx.load(copy / "onnx" / "model.onnx")
    getattr(graph.graph, side)[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, copy / "onnx" / "model.onnx")
    vouch(copy, "onnx/model.onnx")
    with pytest.raises(
        ModelFolderError, match=r"for batches of 1 alone, as the first axis of '(pixels|embeddings)' says"
    ):
        zoo.load(copy, runtime="onnx")


def test_a_text_graph_for_one_batch_size_alone_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    graph = onnx.load(copy / TEXT_GRAPH)
    for value in graph.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, copy / TEXT_GRAPH)
    vouch(copy, TEXT_GRAPH)
    with pytest.raises(ModelFolderError, match=r"the text graph of .* is for batches of 1 alone"):
        open_text_tower(copy, read_card(copy))


@pytest.mark.parametrize("file", [TEXT_GRAPH, TOKENIZER_FILE])
def test_a_text_tower_cut_anywhere_whether_or_not_the_card_vouches_for_it(tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    data = (copy / file).read_bytes()
    for end in some(len(data), 20):
        (copy / file).write_bytes(data[:end])
        with pytest.raises(ModelFolderError, match=r"SHA-256 differs"):
            open_text_tower(copy, read_card(WITH_TEXT))
        vouch(copy, file)
        if not data[end:].isspace():  # the last byte ends the line
            with pytest.raises(ModelFolderError, match=r"text\.onnx|text graph|tokenizer"):
                open_text_tower(copy, read_card(copy))


def test_recipe_and_parity_cut_anywhere_do_not_keep_a_model_from_embedding(copy: Path) -> None:
    for file in ("recipe.json", "onnx/parity.json"):
        data = (copy / file).read_bytes()
        for end in some(len(data), 5):
            (copy / file).write_bytes(data[:end])
            assert read_origin(copy, CARD.name) is not None
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
    """Make the card list the file as it is."""
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, file: sha256_of(folder / file)}).write(folder)


LIES: dict[str, Callable[[Card], Card]] = {
    "resize": lambda card: how(card, resize=40),
    "crop": lambda card: how(card, crop=30),
    "interpolation": lambda card: how(card, interpolation="nearest"),
    "mean": lambda card: how(card, mean=(0.4, 0.5, 0.5)),
    "std": lambda card: how(card, std=(0.25, 0.25, 0.3)),
    "mode": lambda card: how(card, mode="L", mean=(0.5,), std=(0.25,)),
    "architecture": lambda card: dataclasses.replace(card, architecture="resnet18"),
    "hash": lambda card: dataclasses.replace(card, files=dict.fromkeys(card.files, "0" * 64)),
    "dim": lambda card: dataclasses.replace(card, dim=32, heads=(dataclasses.replace(card.heads[0], dim=32),)),
}


def how(card: Card, **changes: Any) -> Card:
    return dataclasses.replace(card, preprocessing=dataclasses.replace(card.preprocessing, **changes))


@pytest.mark.parametrize("lie", LIES)
def test_a_card_that_lies_is_refused(copy: Path, lie: str) -> None:
    LIES[lie](CARD).write(copy)
    with pytest.raises(ModelFolderError):
        zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("lie", ["resize", "interpolation"])
def test_a_lie_that_nothing_else_contradicts_is_found_by_the_golden_images(
    copy: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    LIES[lie](CARD).write(copy)
    (copy / "config.json").unlink()
    failed = [check.name for check in verify(copy) if check.ok is False]
    assert "golden onnx fp32" in failed


@pytest.mark.parametrize("file", ["onnx/model.onnx", "card.json", "model.safetensors"])
def test_a_file_that_was_cut_in_the_hubs_cache_is_refused_and_comes_anew(
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


def forge(folder: Path, images: list[np.ndarray], embeddings: np.ndarray) -> None:
    named = {f"image_{i}": image for i, image in enumerate(images)}
    save_file({**named, "embeddings": embeddings}, folder / "golden.safetensors")


@pytest.mark.parametrize(
    ("images", "embeddings", "says"),
    [
        ([], GOLDEN[:0], "no image"),
        (IMAGES, 1000 * np.random.default_rng(0).random(GOLDEN.shape, np.float32), "embedding 0 is not of unit length"),
        (IMAGES, np.where(np.arange(len(GOLDEN))[:, None] == 1, np.float32(np.nan), GOLDEN), "embedding 1 is not"),
        (IMAGES, np.zeros_like(GOLDEN), "not of unit length"),
        (IMAGES, 1.01 * GOLDEN, "not of unit length"),
        (IMAGES, GOLDEN[1:], "one row an image"),
        (IMAGES, GOLDEN[0], "one row an image"),
        (IMAGES, GOLDEN.astype(np.float64), "expected float32"),
        ([*IMAGES[1:], np.zeros((3, 3, 3), np.float32)], GOLDEN, "is no picture"),
        (IMAGES, np.eye(len(GOLDEN), CARD.dim - 1, dtype=np.float32), "golden are"),
        (IMAGES, np.eye(len(GOLDEN), CARD.dim, dtype=np.float32), r"least cosine (-1|-?0)\."),
    ],
)
def test_golden_embeddings_that_would_let_any_model_pass_are_refused(
    copy: Path, images: list[np.ndarray], embeddings: np.ndarray, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    forge(copy, images, embeddings.astype(embeddings.dtype))
    checks = {check.name: check for check in verify(copy)}
    assert checks["golden onnx fp32"].ok is False
    assert re.search(says, checks["golden onnx fp32"].detail)


def test_the_least_cosine_is_one_however_long_the_rows_are() -> None:
    a, b = np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[6.0, 8.0], [2.0, 2.0]])
    assert _least_cosine(a, b) == pytest.approx(2**-0.5)
    assert _least_cosine(1000 * a[:1], b[:1]) == 1
    assert np.isnan(_least_cosine(0 * a, b))


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("file", ["card.json", "config.json"])
def test_json_that_is_nested_without_end_is_refused(copy: Path, file: str, depth: int) -> None:
    values = json.loads((copy / file).read_text())
    deep = "[" * depth + "]" * depth
    (copy / file).write_text(json.dumps({**values, "architecture_args": {"x": 0}}).replace('"x": 0', f'"x": {deep}'))
    with pytest.raises(ModelFolderError, match=file):
        zoo.load(copy, runtime="onnx")
