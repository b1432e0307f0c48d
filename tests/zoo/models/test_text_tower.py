"""Text towers: accepted, refused and truncated texts, and checks of the folder's files."""

from __future__ import annotations

import importlib.util
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

import zoo
from tests import text_toys
from tests.models import make_model
from tests.raising import raises
from tests.serving import toys
from zoo.errors import CardError, ModelFolderError, NoTextTowerError, TextError, UsageError, ZooError
from zoo.files import sha256_of
from zoo.hub.push import prepare
from zoo.models.baselines import baselines
from zoo.models.card import read_card
from zoo.models.load import Embedder, load
from zoo.models.text_graph import attach_text_tower
from zoo.models.text_tower import GOLDEN_TEXT_FILE, TEXT_GRAPH, TOKENIZER_FILE, load_tokenizer, read_golden_text
from zoo.models.verify import verify

DIM = toys.DIM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")
    attach_text_tower(model, *text_toys.write_tower(model.parent / "text", DIM, padded=True))
    return model


@pytest.fixture(scope="module")
def model(folder: Path) -> Embedder:
    return load(folder, runtime="onnx")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "toy-pool"))


def test_one_text_several_and_none(model: Embedder) -> None:
    single, several = model.embed_text("a red chair"), model.embed_text(iter(["a red chair", "blue checks"]))
    assert (single.shape, several.shape, model.embed_text([]).shape) == ((1, DIM), (2, DIM), (0, DIM))
    np.testing.assert_allclose(several[:1], single, atol=1e-6)
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
    ("texts", "error", "code", "value"),
    [
        ("", TextError, "invalid-text", "text 1"),
        (["a chair", " \n\t"], TextError, "invalid-text", "text 2"),
        (["a chair", b"bytes"], TextError, "invalid-text", "text 2 is of type bytes"),
        ([None], TextError, "invalid-text", "text 1 is of type NoneType"),
        (["half \ud800"], TextError, "invalid-text", "text 1"),
        (17, UsageError, "invalid-text", "int"),
    ],
)
def test_other_values_are_not_texts(
    model: Embedder, texts: object, error: type[ZooError], code: str, value: str
) -> None:
    with raises(error, code) as caught:
        model.embed_text(texts)
    assert value in str(caught.value)


def test_a_zero_width_text_is_embedded_and_a_batch_of_none_is_refused(model: Embedder) -> None:
    assert model.embed_text("\u200b").shape == (1, DIM)
    with raises(UsageError, "invalid-value"):
        model.embed_text("a chair", batch_size=0)


def test_a_text_without_tokens_is_refused(copy: Path) -> None:
    tokenizer = text_toys.tokenizer(padded=True)
    tokenizer.normalizer = normalizers.Replace("!", "")
    tokenizer.save(str(copy / "text.json"))
    graph, _ = text_toys.write_tower(copy / "text", DIM)
    attach_text_tower(copy, graph, copy / "text.json")
    with raises(TextError, "invalid-text"):
        load(copy, runtime="onnx").embed_text("!!!")


def test_threads_share_a_tower(model: Embedder) -> None:
    texts = ["a red chair", "rain", "two people", "blue checks"]
    expected = model.embed_text(texts)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(model.embed_text, texts * 8))
    np.testing.assert_allclose(np.concatenate(rows), np.tile(expected, (8, 1)), atol=1e-6)


def test_a_model_without_a_tower_names_those_that_can_have_one(tmp_path: Path) -> None:
    model = load(toys.write_model(tmp_path / "plain"), runtime="onnx")
    with raises(NoTextTowerError) as caught:
        model.embed_text("a chair")
    assert "clip-b16, clip-b32, siglip2-b16" in str(caught.value)
    assert caught.value.exit_code == 2


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
    with raises(ModelFolderError, "hash-mismatch"):
        model.embed_text("a chair")
    failed = {check.name for check in verify(copy) if check.ok is False}
    assert {f"sha256 {file}", "golden text"} <= failed
    (copy / file).unlink()
    with raises(ModelFolderError, "missing-file"):
        load(copy, runtime="onnx").embed_text("a chair")


def test_golden_texts_detect_another_tower(copy: Path, tmp_path: Path) -> None:
    other = toys.write_model(tmp_path / "other")
    attach_text_tower(other, *text_toys.write_tower(tmp_path / "text", DIM, seed=6, padded=True))
    shutil.copyfile(other / GOLDEN_TEXT_FILE, copy / GOLDEN_TEXT_FILE)
    (check,) = [check for check in verify(copy) if check.name == "golden text"]
    assert check.ok is False
    (copy / GOLDEN_TEXT_FILE).write_bytes(b"junk")
    with raises(ModelFolderError, "unreadable-file"):
        read_golden_text(copy)
    (copy / GOLDEN_TEXT_FILE).unlink()
    assert [check.ok for check in verify(copy) if check.name == "golden text"] == [False]


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ({"length": 0, "padding": 1}, "card", "0"),
        ({"length": 8}, "card", "padding"),
        ({"length": 8, "padding": "1"}, "card", "text.padding"),
        ({"length": 8, "padding": 1, "lowercase": 1}, "card", "text.lowercase"),
        ({"length": 8, "padding": 1, "lower": True}, "card", "'lowercase'"),
        ([8, 1], "card", "text"),
    ],
)
def test_wrong_text_settings_of_a_card_are_refused(copy: Path, text: object, code: str, value: str) -> None:
    values = json.loads((copy / "card.json").read_text())
    (copy / "card.json").write_text(json.dumps({**values, "text": text}))
    with raises(CardError, code) as caught:
        read_card(copy)
    assert value in str(caught.value)


def test_public_towers_name_the_files_for_the_command() -> None:
    towers = {name: baseline.text for name, baseline in baselines().items() if baseline.text}
    assert set(towers) == {"clip-b32", "clip-b16", "siglip2-b16"}
    for name, text in towers.items():
        assert text.graph.endswith(".onnx")
        assert text.length in (64, 77)
        assert text.joint == name.startswith("clip"), "SigLIP has no projection"
    assert importlib.util.find_spec("tokenizers")


GROWING = normalizers.Replace("q", "qq")
NFKC_AND_BACK = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\u0644", "\ufdfa"), normalizers.NFC()])
UNSAFE_STEPS: dict[str, dict[str, object]] = {
    "doubles a letter": {"normalizer": normalizers.Sequence([GROWING] * 26)},
    "doubles a letter, deep inside": {"normalizer": normalizers.Sequence([normalizers.Sequence([GROWING])])},
    "adds without a letter": {"normalizer": normalizers.Replace("", "q")},
    "grows by an expression": {"normalizer": normalizers.Replace(Regex(r"\s+"), "qq")},
    "a ligature of 18 letters": {"normalizer": NFKC_AND_BACK},
    "writes bytes as characters": {"normalizer": normalizers.Sequence([normalizers.ByteLevel()] * 26)},
    "a long beginning": {"normalizer": normalizers.Prepend("q" * 1000)},
    "a table with a long text": {"normalizer": normalizers.Precompiled(bytes([4, *[0] * 7]) + b"q" * 1000 + b"\0")},
    "a hundred steps": {"normalizer": normalizers.Sequence([normalizers.Replace("q", "r")] * 100)},
    "an exponential search": {"pre_tokenizer": pre_tokenizers.Split(Regex("(q+q+)+z"), "isolated")},
    "an exponential replacement": {"normalizer": normalizers.Replace(Regex("(q+q+)+z"), "")},
    "writes bytes as characters to split": {
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 26)
    },
}
SAFE_STEPS: dict[str, dict[str, object]] = {
    "CLIP": {
        "normalizer": normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        ),
        "pre_tokenizer": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(
                    Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True
                ),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        ),
    },
    "SigLIP 2": {
        "normalizer": normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "\u2581")]),
        "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous"),
    },
    "SentencePiece": {
        "normalizer": normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    },
    "BERT": {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()},
    "none": {"normalizer": None, "pre_tokenizer": None},
}


def write_steps(folder: Path, steps: dict[str, object]) -> None:
    """Give a model's tokenizer other steps, and its card the new hash."""
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    card = read_card(folder)
    replace(card, files={**card.files, TOKENIZER_FILE: sha256_of(folder / TOKENIZER_FILE)}).write(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSAFE_STEPS)
def test_a_tokenizer_that_could_grow_or_search_without_end_is_refused(copy: Path, name: str) -> None:
    write_steps(copy, UNSAFE_STEPS[name])
    with raises(ModelFolderError, "unsafe-file"):
        zoo.load(copy, runtime="onnx").embed_text("q" * 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAFE_STEPS)
def test_the_steps_of_public_tokenizers_are_run(copy: Path, name: str) -> None:
    write_steps(copy, SAFE_STEPS[name])
    assert zoo.load(copy, runtime="onnx").embed_text(["a red chair", "\ufdfa" * 1000]).shape[0] == 2


def test_a_text_of_megabytes_is_refused(model: Embedder) -> None:
    assert model.embed_text("a dog " * 1000).shape[0] == 1
    with raises(TextError, "invalid-text"):
        model.embed_text("a dog " * 10**6)


@pytest.mark.slow
def test_a_panic_of_the_tokenizer_is_an_error_of_the_text(copy: Path) -> None:
    """The search of this expression gives up; the library then panics, which is no `Exception` in Python."""
    tower = load(copy, runtime="onnx").text_tower
    tower.tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(q+q+)+z"), "isolated")
    with raises(TextError, "invalid-text"):
        tower.tokens(["q" * 40])
