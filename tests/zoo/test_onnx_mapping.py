"""Graphs whose weights stay in their file are the same graphs, by the reference library of ONNX."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from zoo.cards import read_card
from zoo.onnx_mapping import LARGE, pointing
from zoo.onnx_runtime import INPUT, open_session
from zoo.paths import SHIPPED

GRAPHS = sorted(SHIPPED.glob("*/onnx/*.onnx"))


def whole(path: Path) -> onnx.ModelProto:
    """What `pointing` gives, with the weights read from where it says that they are."""
    model = onnx.load_model_from_string(pointing(path))
    load_external_data_for_model(model, str(path.parent))
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
    return model


@pytest.mark.parametrize("path", GRAPHS, ids=[path.parts[-3] for path in GRAPHS])
def test_all_that_a_graph_says_is_there(path: Path) -> None:
    original = onnx.load(path)
    for tensor in original.graph.initializer:
        tensor.ClearField("data_location")
    assert whole(path) == original
    large = [one for one in original.graph.initializer if len(one.raw_data) >= LARGE]
    assert large
    assert len(pointing(path)) < path.stat().st_size - sum(len(one.raw_data) for one in large) + 100 * len(large)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("size", [0, 1, LARGE // 8 - 1, LARGE, 100_000])
def test_weights_of_every_kind_and_size(tmp_path: Path, kind: type, size: int) -> None:
    values = np.random.default_rng(size).integers(-100, 100, size).astype(kind)
    weight = numpy_helper.from_array(values, "weight")
    of = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    made = helper.make_tensor_value_info("y", of, [size])
    graph = helper.make_graph([helper.make_node("Identity", ["weight"], ["y"])], "g", [], [made], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "a b ü.onnx")
    assert whole(tmp_path / "a b ü.onnx").graph.initializer[0].raw_data == weight.raw_data
    (found,) = open_session(tmp_path / "a b ü.onnx", "cpu").run(None, {})
    np.testing.assert_array_equal(found, values)


def test_weights_that_are_not_kept_as_bytes_are_left_as_they_are(tmp_path: Path) -> None:
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [5000], np.arange(5000.0))
    assert weight.float_data
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5000])
    graph = helper.make_graph([helper.make_node("Identity", ["weight"], ["y"])], "g", [], [made], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    assert whole(tmp_path / "a.onnx") == onnx.load(tmp_path / "a.onnx")


def test_links_as_in_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    """The weights are in the file that a link leads to, which lies in another folder under another name."""
    folder = Path(shutil.copytree(SHIPPED / "margin-conv4-glyphs", tmp_path / "m"))
    graph = folder / "onnx" / "model.onnx"
    (tmp_path / "blobs").mkdir()
    graph.rename(tmp_path / "blobs" / "0123")
    graph.symlink_to(Path("../../blobs/0123"))
    session = open_session(graph, "cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (2, *read_card(folder).preprocessing.shape), dtype=np.uint8)
    expected = open_session(SHIPPED / "margin-conv4-glyphs" / "onnx" / "model.onnx", "cpu").run(None, {INPUT: pixels})
    np.testing.assert_array_equal(session.run(None, {INPUT: pixels})[0], expected[0])
