"""`zoo text-tower`: a published graph and tokenizer beside a model's images, checked against NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exports.text import GOLDEN_TEXTS, attach_text_tower
from tests import text_toys
from tests.serving import toys
from zoo.cli.main import main
from zoo.errors import ExportError, ModelFolderError, UsageError, ZooError
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.verify import verify

DIM = toys.DIM
TEXTS = ["a red chair", "Two DOGS on the beach", "blue checks", "rain " * 50, "zebra"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toys.write_model(tmp_path / "toy-pool")


def told(folder: Path, graph: Path, tokenizer: Path, *more: str) -> int:
    return main(["text-tower", str(folder), "--graph", str(graph), "--tokenizer", str(tokenizer), *more])


@pytest.mark.parametrize(("masked", "half"), [(True, False), (False, False), (True, True)])
def test_texts_get_the_rows_that_numpy_finds(folder: Path, tmp_path: Path, masked: bool, half: bool) -> None:
    files = text_toys.write_tower(tmp_path / "text", DIM, masked=masked, half=half)
    assert told(folder, *files, "--length", "8", "--padding", "[PAD]") == 0
    model = load(folder, runtime="onnx")
    rows = model.embed_text(TEXTS)
    assert (rows.shape, rows.dtype) == ((5, DIM), np.float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(rows, text_toys.expected(TEXTS, DIM, masked=masked), atol=2e-3 if half else 1e-6)
    np.testing.assert_allclose(model.embed_text(TEXTS, batch_size=2), rows, atol=1e-6)
    assert {check.name: check.ok for check in verify(folder)}["golden text"] is True


def test_it_changes_nothing_for_the_images(folder: Path, tmp_path: Path) -> None:
    before, pictures = read_card(folder), [toys.query(kind) for kind in range(4)]
    rows = load(folder, runtime="onnx").embed(pictures)
    attach_text_tower(folder, *text_toys.write_tower(tmp_path / "text", DIM), length=8, padding="1")
    after = read_card(folder)
    assert after.fingerprint == before.fingerprint, "galleries stay the model's"
    assert (after.text.length, after.text.padding, after.text.lowercase) == (8, 1, False)
    assert before.files.items() < after.files.items()
    np.testing.assert_array_equal(load(folder, runtime="onnx").embed(pictures), rows)
    attach_text_tower(folder, *text_toys.write_tower(tmp_path / "other", DIM, seed=6, padded=True), lowercase=True)
    again = load(folder, runtime="onnx")
    assert again.card.text.lowercase, "the last one counts"
    np.testing.assert_allclose(again.embed_text(TEXTS), text_toys.expected(TEXTS, DIM, seed=6), atol=1e-6)


def test_what_the_tokenizer_says_need_not_be_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(folder, *text_toys.write_tower(tmp_path / "text", DIM, padded=True), "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert out["card"]["text"] == {"length": text_toys.LENGTH, "padding": text_toys.PAD, "lowercase": False}
    assert out["folder"] == str(folder)
    assert main(["info", str(folder)]) == 0
    assert "texts of up to 8 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"padding": "[PAD]"}, UsageError, "how many tokens"),
        ({"length": 8}, UsageError, "--padding"),
        ({"length": 8, "padding": "[NONE]"}, UsageError, r"'\[NONE\]' is no token"),
        ({"length": 8, "padding": "4711"}, UsageError, "'4711' is no token"),
        ({"length": 8, "padding": "1", "output": "embeds"}, UsageError, "Did you mean 'text_embeds'"),
        ({"length": 8, "padding": "1", "output": "last_hidden_state"}, ExportError, r"needs floats \[n, 16\]"),
        ({"length": 1, "padding": "1"}, ZooError, "."),
        ({"length": 0, "padding": "1"}, ZooError, "."),
    ],
)
def test_what_has_to_be_said(folder: Path, tmp_path: Path, options: dict, error: type[ZooError], says: str) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=says):
        attach_text_tower(folder, *text_toys.write_tower(tmp_path / "text", DIM), **options)
    assert sorted(folder.rglob("*")) == before
    assert read_card(folder).text is None


def changed(path: Path, **values: object) -> Path:
    """The toy graph with another dtype of its input, a fixed batch or length, an input more, or rows of zeros."""
    model = onnx.load(path)
    for each in model.graph.input:
        tensor = each.type.tensor_type
        tensor.elem_type = values.get("kind", TensorProto.INT64)
        if "batch" in values:
            tensor.shape.dim[0].dim_value = values["batch"]
        if "length" in values:
            tensor.shape.dim[1].dim_value = values["length"]
    if more := values.get("more"):
        model.graph.input.append(helper.make_tensor_value_info(more, TensorProto.FLOAT, ["batch", 3]))
    for each in model.graph.initializer:
        if each.name == values.get("zero"):
            each.raw_data = bytes(len(each.raw_data))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"kind": TensorProto.INT32}, r"expected token ids int64 \[n, 8\]"),
        ({"batch": 1}, "of any n"),
        ({"length": 77}, r"input_ids \['batch', 77\]"),
        ({"more": "pixel_values"}, "both towers"),
        ({"more": "attention_mask_2"}, "perhaps an attention mask"),
        ({"zero": "projection"}, "no direction"),
        ({"zero": "vectors"}, "no direction"),
    ],
)
def test_graphs_that_do_not_fit(folder: Path, tmp_path: Path, how: dict, says: str) -> None:
    graph, tokenizer = text_toys.write_tower(tmp_path / "text", DIM)
    with pytest.raises(ExportError, match=says):
        attach_text_tower(folder, changed(graph, **how), tokenizer, length=8, padding="1")
    assert read_card(folder).text is None


def test_another_dimension_is_refused_with_the_way_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(folder, *text_toys.write_tower(tmp_path / "text", DIM + 1, padded=True)) == 1
    said = capsys.readouterr().err
    assert "text_embeds ['batch', 17]" in said
    assert "--joint" in said


def test_files_that_are_none(folder: Path, tmp_path: Path) -> None:
    graph, tokenizer = text_toys.write_tower(tmp_path / "text", DIM, padded=True)
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x00junk")
    for one, other, says in (
        (junk, tokenizer, "cannot be read as an ONNX graph"),
        (graph, junk, "cannot be read as a tokenizer"),
        (graph, tmp_path / "none", "is not there"),
        (tmp_path / "none", tokenizer, "is not there"),
    ):
        with pytest.raises(ModelFolderError, match=says):
            attach_text_tower(folder, one, other)


def test_golden_texts_hold_one_that_is_cut() -> None:
    assert len(GOLDEN_TEXTS) == len(set(GOLDEN_TEXTS))
    assert max(len(text.split()) for text in GOLDEN_TEXTS) > 77
