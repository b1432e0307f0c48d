"""`zoo text-tower`: a published graph and tokenizer for a model of images, compared with NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import text_toys
from tests.raising import raises
from tests.serving import toys
from zoo.cli.main import main
from zoo.errors import ExportError, ModelFolderError, UsageError, ZooError
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.text_graph import GOLDEN_TEXTS, attach_text_tower
from zoo.models.verify import verify

DIM = toys.DIM
TEXTS = ["a red chair", "Two DOGS on the beach", "blue checks", "rain " * 50, "zebra"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toys.write_model(tmp_path / "toy-pool")


def text_tower(folder: Path, graph: Path, tokenizer: Path, *more: str) -> int:
    return main(["text-tower", str(folder), "--graph", str(graph), "--tokenizer", str(tokenizer), *more])


@pytest.mark.slow
@pytest.mark.parametrize(("masked", "half"), [(True, False), (False, False), (True, True)])
def test_text_rows_are_numpys(folder: Path, tmp_path: Path, masked: bool, half: bool) -> None:
    files = text_toys.write_tower(tmp_path / "text", DIM, masked=masked, half=half)
    assert text_tower(folder, *files, "--length", "8", "--padding", "[PAD]") == 0
    model = load(folder, runtime="onnx")
    rows = model.embed_text(TEXTS)
    assert (rows.shape, rows.dtype) == ((5, DIM), np.float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(rows, text_toys.expected(TEXTS, DIM, masked=masked), atol=2e-3 if half else 1e-6)
    np.testing.assert_allclose(model.embed_text(TEXTS, batch_size=2), rows, atol=1e-6)
    assert {check.name: check.ok for check in verify(folder)}["golden text"] is True


def test_the_images_embeddings_stay_equal(folder: Path, tmp_path: Path) -> None:
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


def test_length_and_padding_come_from_the_tokenizer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text_tower(folder, *text_toys.write_tower(tmp_path / "text", DIM, padded=True), "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert out["card"]["text"] == {"length": text_toys.LENGTH, "padding": text_toys.PAD, "lowercase": False}
    assert out["folder"] == str(folder)
    assert main(["info", str(folder)]) == 0
    assert "texts of up to 8 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"padding": "[PAD]"}, UsageError, "unknown-name"),
        ({"length": 8}, UsageError, "unknown-name"),
        ({"length": 8, "padding": "[NONE]"}, UsageError, "unknown-name"),
        ({"length": 8, "padding": "4711"}, UsageError, "unknown-name"),
        ({"length": 8, "padding": "1", "output": "embeds"}, UsageError, "unknown-name"),
        ({"length": 8, "padding": "1", "output": "last_hidden_state"}, ExportError, "unsupported-graph"),
        ({"length": 1, "padding": "1"}, ZooError, None),
        ({"length": 0, "padding": "1"}, ZooError, None),
    ],
)
def test_missing_and_unknown_arguments(
    folder: Path, tmp_path: Path, options: dict, error: type[ZooError], code: str | None
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(error) as caught:
        attach_text_tower(folder, *text_toys.write_tower(tmp_path / "text", DIM), **options)
    assert code in (None, caught.value.code)
    assert sorted(folder.rglob("*")) == before
    assert read_card(folder).text is None


def changed(path: Path, **values: object) -> Path:
    """Change the toy graph: another dtype of its input, a fixed batch or length, one more input, or rows of zeros."""
    model = onnx.load(path)
    for value in model.graph.input:
        tensor = value.type.tensor_type
        tensor.elem_type = values.get("kind", TensorProto.INT64)
        if "batch" in values:
            tensor.shape.dim[0].dim_value = values["batch"]
        if "length" in values:
            tensor.shape.dim[1].dim_value = values["length"]
    if more := values.get("more"):
        model.graph.input.append(helper.make_tensor_value_info(more, TensorProto.FLOAT, ["batch", 3]))
    for weight in model.graph.initializer:
        if weight.name == values.get("zero"):
            weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": TensorProto.INT32}, "unsupported-graph"),
        ({"batch": 1}, "unsupported-graph"),
        ({"length": 77}, "unsupported-graph"),
        ({"more": "pixel_values"}, "unsupported-graph"),
        ({"more": "attention_mask_2"}, "unsupported-graph"),
        ({"zero": "projection"}, "unsupported-graph"),
        ({"zero": "vectors"}, "unsupported-graph"),
    ],
)
def test_graphs_that_do_not_fit(folder: Path, tmp_path: Path, change: dict, code: str) -> None:
    graph, tokenizer = text_toys.write_tower(tmp_path / "text", DIM)
    with raises(ExportError, code):
        attach_text_tower(folder, changed(graph, **change), tokenizer, length=8, padding="1")
    assert read_card(folder).text is None


def test_another_dimension_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert text_tower(folder, *text_toys.write_tower(tmp_path / "text", DIM + 1, padded=True)) == 1
    message = capsys.readouterr().err
    assert "text_embeds ['batch', 17]" in message
    assert "--joint" in message


def test_missing_and_damaged_files(folder: Path, tmp_path: Path) -> None:
    graph, tokenizer = text_toys.write_tower(tmp_path / "text", DIM, padded=True)
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x00junk")
    for files, bad_file in (
        ((junk, tokenizer), junk),
        ((graph, junk), junk),
        ((graph, tmp_path / "none"), tmp_path / "none"),
        ((tmp_path / "none", tokenizer), tmp_path / "none"),
    ):
        with pytest.raises(ModelFolderError) as caught:
            attach_text_tower(folder, *files)
        assert str(bad_file) in str(caught.value)


def test_one_golden_text_is_cut_off() -> None:
    assert len(GOLDEN_TEXTS) == len(set(GOLDEN_TEXTS))
    assert max(len(text.split()) for text in GOLDEN_TEXTS) > 77
