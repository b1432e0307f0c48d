"""Graphs with weights in another file, which the card's SHA-256 does not cover: they are not opened."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import zoo
from tests.raising import raises
from zoo.errors import ModelFolderError
from zoo.files import sha256_of
from zoo.models.card import read_card
from zoo.models.golden import read_golden
from zoo.models.text_tower import TEXT_GRAPH, open_text_tower
from zoo.models.untrusted_graph import check_graph
from zoo.models.verify import verify
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"
WITH_TEXT = Path(__file__).parents[1] / "fixtures" / "with-text"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def externalise(folder: Path, name: str) -> None:
    """Move a graph's weights into another file, and store the graph's hash in the card."""
    graph = onnx.load(folder / name)
    (folder / name).unlink()
    onnx.save(graph, folder / name, save_as_external_data=True, location="w.data", size_threshold=0)
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, name: sha256_of(folder / name)}).write(folder)


def test_a_graph_with_external_weights_is_neither_loaded_nor_pushed(copy: Path) -> None:
    externalise(copy, "onnx/model.onnx")
    assert (copy / "onnx" / "w.data").stat().st_size > 100_000
    with raises(ModelFolderError, "unsafe-file"):
        zoo.load(copy, runtime="onnx")
    with pytest.raises(ModelFolderError) as caught:
        zoo.push(copy, "org/toy", dry_run=True)
    assert "external data" in str(caught.value)


@pytest.mark.parametrize("lacking", ["torch", "onnxruntime"])
def test_verify_names_external_weights(copy: Path, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    externalise(copy, "onnx/model.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == lacking else object())
    checks = {check.name: check for check in verify(copy)}
    assert checks["sha256 onnx/model.onnx"].fails
    assert "external data" in checks["sha256 onnx/model.onnx"].detail


def test_a_text_tower_with_external_weights_is_not_opened(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    externalise(copy, TEXT_GRAPH)
    with raises(ModelFolderError, "unsafe-file"):
        open_text_tower(copy, read_card(copy))


def outside(name: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.ones(2, np.float32), name)
    onnx.external_data_helper.set_external_data(tensor, "w.data")
    tensor.ClearField("raw_data")
    return tensor


def graph_of(nodes: list[onnx.NodeProto], tensors: list[TensorProto], name: str = "g") -> onnx.GraphProto:
    values = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [2]) for value in "xy"]
    return helper.make_graph(nodes, name, values[:1], values[1:], tensors)


def field(number: int, data: bytes, overlong: bool = False) -> bytes:
    """Encode a field of a protobuf message; overlong: its key in five bytes instead of one."""
    key, size, length = number << 3 | 2, len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    written = bytes([key & 127 | 128, 128, 128, 128, 112]) if overlong else bytes([key])
    return written + length + bytes([size]) + data


PLAIN = numpy_helper.from_array(np.ones(2, np.float32), "location")
ADD = helper.make_node("Add", ["x", "location"], ["y"], name="location of the sum")


def model_of(place: str) -> onnx.ModelProto:
    """Return a model with external data in one of the places where ONNX has tensors."""
    if place == "initializer":
        return helper.make_model(graph_of([ADD], [PLAIN, outside("w")]))
    if place == "several":
        return helper.make_model(graph_of([helper.make_node("Own", ["x"], ["y"], values=[PLAIN, outside("w")])], []))
    constant = helper.make_node("Constant", [], ["w"], value=outside("w"))
    inner = graph_of([constant], [])
    branches = helper.make_node("If", ["x"], ["y"], then_branch=graph_of([ADD], [PLAIN]), else_branch=inner)
    sparse = onnx.SparseTensorProto(values=outside("w"), indices=PLAIN, dims=[2])
    function = helper.make_function("own", "f", ["x"], ["y"], [constant], [helper.make_opsetid("", 17)])
    model = helper.make_model(graph_of([constant if place == "constant" else ADD], [PLAIN]))
    if place == "branch":
        model.graph.node.append(branches)
    if place == "sparse":
        model.graph.sparse_initializer.append(sparse)
    if place == "function":
        model.functions.append(function)
    if place == "training":
        model.training_info.add().initialization.CopyFrom(inner)
    return model


@pytest.mark.parametrize("place", ["initializer", "constant", "several"])
def test_external_data_is_found_in_every_place(tmp_path: Path, place: str) -> None:
    (tmp_path / "g.onnx").write_bytes(model_of(place).SerializeToString())
    with raises(ModelFolderError, "unsafe-file"):
        check_graph(tmp_path / "g.onnx")


@pytest.mark.parametrize("place", ["branch", "sparse", "function", "training"])
def test_other_places_of_weights_are_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "g.onnx").write_bytes(model_of(place).SerializeToString())
    with raises(ModelFolderError, "unsafe-file"):
        check_graph(tmp_path / "g.onnx")


def test_a_graph_with_the_name_location_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(model_of("nowhere").SerializeToString())
    check_graph(tmp_path / "g.onnx")


def test_an_overlong_key_hides_nothing(tmp_path: Path) -> None:
    """Keys of five bytes, of which protobuf uses the lower 32 bits."""
    for overlong in (False, True):
        tensor = field(13, field(1, b"location") + field(2, b"w.data"), overlong)
        (tmp_path / "g.onnx").write_bytes(field(7, field(5, tensor, overlong), overlong))
        with raises(ModelFolderError, "unsafe-file"):
            check_graph(tmp_path / "g.onnx")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x3a", b"\x3a\x7f", b"\x3b\x00", b"\xff" * 40, b"no graph", b"\x3a\x02\x0a\x7f"],
    ids=["empty", "key", "cut", "group", "endless", "text", "inner"],
)
def test_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "g.onnx").write_bytes(data)
    with raises(ModelFolderError, "unreadable-file"):
        check_graph(tmp_path / "g.onnx")


def test_deeply_nested_graphs_are_refused(tmp_path: Path) -> None:
    """A node that holds a graph that holds a node, deeper than the recursion limit."""
    data = b"location"
    for number in [*[6, 5, 1] * 1000, 7]:
        data = field(number, data)
    (tmp_path / "g.onnx").write_bytes(data)
    with raises(ModelFolderError, "unsafe-file"):
        check_graph(tmp_path / "g.onnx")


def test_every_shipped_graph_holds_its_weights() -> None:
    graphs = [*SHIPPED.glob("*/onnx/*.onnx")]
    assert graphs
    for graph in graphs:
        check_graph(graph)
    images, golden = read_golden(MODEL)
    np.testing.assert_allclose(zoo.load(MODEL, runtime="onnx").embed(images), golden, atol=1e-5)
