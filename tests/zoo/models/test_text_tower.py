"""Texts in, unit vectors out: what `embed_text` takes, refuses and cuts, and what of the folder is checked."""

from __future__ import annotations

import importlib.util
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zoo
from exports.text import attach_text_tower
from tests import text_toys
from tests.models import make_model
from tests.serving import toys
from zoo.errors import CardError, ModelFolderError, NoTextTowerError, TextError, UsageError
from zoo.hub.push import prepare
from zoo.models.baselines import baselines
from zoo.models.card import read_card
from zoo.models.load import Embedder, load
from zoo.models.text_tower import GOLDEN_TEXT_FILE, TEXT_GRAPH, TOKENIZER_FILE, read_golden_text
from zoo.models.verify import verify

DIM = toys.DIM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")
    attach_text_tower(made, *text_toys.write_tower(made.parent / "text", DIM, padded=True))
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Embedder:
    return load(folder, runtime="onnx")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "toy-pool"))


def test_one_text_several_and_none(model: Embedder) -> None:
    one, several = model.embed_text("a red chair"), model.embed_text(iter(["a red chair", "blue checks"]))
    assert (one.shape, several.shape, model.embed_text([]).shape) == ((1, DIM), (2, DIM), (0, DIM))
    np.testing.assert_allclose(several[:1], one, atol=1e-6)
    assert model.embed_text([]).dtype == np.float32


def test_a_long_text_loses_its_end_and_says_so(model: Embedder) -> None:
    fits, longer = "a red chair on the beach", "a red chair on the beach in rain"  # 6 and 8 words between two marks
    tokens = model.text_tower.tokens([fits, longer, "rain"])
    assert tokens.truncated == (False, True, False)
    assert tokens.mask.sum(1).tolist() == [8, 8, 3]
    assert tokens.ids[:2, -1].tolist() == [3, 3], "the end's mark is kept"
    assert tokens.ids[2, 3:].tolist() == [text_toys.PAD] * 5
    np.testing.assert_allclose(model.embed_text(longer), model.embed_text(fits), atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        ("", TextError, "text 1 is empty"),
        (["a chair", " \n\t"], TextError, "text 2 is empty"),
        (["a chair", b"bytes"], TextError, "text 2 is of type bytes"),
        ([None], TextError, "text 1 is of type NoneType"),
        (["half \ud800"], TextError, "half a character"),
        ("\u200b", None, ""),
        (17, UsageError, "not int"),
    ],
)
def test_what_is_no_text(model: Embedder, texts: object, error: type[Exception] | None, says: str) -> None:
    if error is None:
        assert model.embed_text(texts).shape == (1, DIM)
        return
    with pytest.raises(error, match=says):
        model.embed_text(texts)
    with pytest.raises(UsageError, match="batch_size"):
        model.embed_text("a chair", batch_size=0)


def test_what_the_tokenizer_leaves_nothing_of_is_refused(copy: Path) -> None:
    from tokenizers import normalizers

    made = text_toys.tokenizer(padded=True)
    made.normalizer = normalizers.Replace("!", "")
    made.save(str(copy / "text.json"))
    graph, _ = text_toys.write_tower(copy / "text", DIM)
    attach_text_tower(copy, graph, copy / "text.json")
    with pytest.raises(TextError, match="text 1 holds nothing"):
        load(copy, runtime="onnx").embed_text("!!!")


def test_threads_share_a_tower(model: Embedder) -> None:
    texts = ["a red chair", "rain", "two people", "blue checks"]
    expected = model.embed_text(texts)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(model.embed_text, texts * 8))
    np.testing.assert_allclose(np.concatenate(rows), np.tile(expected, (8, 1)), atol=1e-6)


def test_a_model_without_a_tower_names_those_that_can_have_one(tmp_path: Path) -> None:
    model = load(toys.write_model(tmp_path / "plain"), runtime="onnx")
    with pytest.raises(NoTextTowerError, match=r"no text tower.*clip-b16, clip-b32, siglip2-b16") as raised:
        model.embed_text("a chair")
    assert raised.value.exit_code == 2


def test_torch_embeds_texts_too(tmp_path: Path) -> None:
    card = make_model(tmp_path / "toy")
    attach_text_tower(tmp_path / "toy", *text_toys.write_tower(tmp_path / "text", card.dim, padded=True))
    model = zoo.load(tmp_path / "toy")
    assert model.runtime == "torch"
    expected = text_toys.expected(["a red chair"], card.dim)
    np.testing.assert_allclose(model.embed_text("a red chair"), expected, atol=1e-6)


def test_it_goes_to_the_hub_with_the_model(tmp_path: Path) -> None:
    card = make_model(tmp_path / "toy")
    attach_text_tower(tmp_path / "toy", *text_toys.write_tower(tmp_path / "text", card.dim, padded=True))
    contents = prepare(tmp_path / "toy", "org/toy", "main").contents
    assert {TEXT_GRAPH, TOKENIZER_FILE, GOLDEN_TEXT_FILE} <= contents.keys()
    readme = contents["README.md"].decode()
    assert "texts of up to 8 tokens" in readme
    assert 'runtime="onnx"' not in readme, "its images have no graph"


@pytest.mark.parametrize("file", [TEXT_GRAPH, TOKENIZER_FILE])
def test_an_altered_file_is_not_used(copy: Path, file: str) -> None:
    (copy / file).write_bytes((copy / file).read_bytes() + b" ")
    model = load(copy, runtime="onnx")
    model.embed(toys.query(0))
    with pytest.raises(ModelFolderError, match="SHA-256 differs"):
        model.embed_text("a chair")
    failed = {check.name for check in verify(copy) if check.ok is False}
    assert {f"sha256 {file}", "golden text"} <= failed
    (copy / file).unlink()
    with pytest.raises(ModelFolderError, match="is missing"):
        load(copy, runtime="onnx").embed_text("a chair")


def test_golden_texts_find_another_tower(copy: Path, tmp_path: Path) -> None:
    other = toys.write_model(tmp_path / "other")
    attach_text_tower(other, *text_toys.write_tower(tmp_path / "text", DIM, seed=6, padded=True))
    shutil.copyfile(other / GOLDEN_TEXT_FILE, copy / GOLDEN_TEXT_FILE)
    (check,) = [check for check in verify(copy) if check.name == "golden text"]
    assert check.ok is False
    assert "least cosine" in check.detail
    (copy / GOLDEN_TEXT_FILE).write_bytes(b"junk")
    with pytest.raises(ModelFolderError, match="cannot be read"):
        read_golden_text(copy)
    (copy / GOLDEN_TEXT_FILE).unlink()
    assert [check.ok for check in verify(copy) if check.name == "golden text"] == [False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"length": 0, "padding": 1}, "a length of 1"),
        ({"length": 8}, "text lacks padding"),
        ({"length": 8, "padding": "1"}, "text.padding must be a whole number"),
        ({"length": 8, "padding": 1, "lowercase": 1}, "text.lowercase must be true or false"),
        ({"length": 8, "padding": 1, "lower": True}, "unknown key 'lower'. Did you mean 'lowercase'"),
        ([8, 1], "must be a JSON object"),
    ],
)
def test_cards_that_say_it_wrong(copy: Path, text: object, says: str) -> None:
    values = json.loads((copy / "card.json").read_text())
    (copy / "card.json").write_text(json.dumps({**values, "text": text}))
    with pytest.raises(CardError, match=says):
        read_card(copy)


def test_public_towers_are_named_by_files_that_a_command_can_be_given() -> None:
    towers = {name: each.text for name, each in baselines().items() if each.text}
    assert set(towers) == {"clip-b32", "clip-b16", "siglip2-b16"}
    for name, text in towers.items():
        assert text.graph.endswith(".onnx")
        assert text.length in (64, 77)
        assert text.joint == name.startswith("clip"), "SigLIP has no projection"
    assert importlib.util.find_spec("tokenizers")
