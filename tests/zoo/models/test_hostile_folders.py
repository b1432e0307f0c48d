"""Model folders from strangers: their cards agree with their files, and their files are built to do harm."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import zoo
from tests.raising import raises
from zoo.errors import ModelFolderError, UsageError, ZooError
from zoo.files import sha256_of
from zoo.models import onnx_runtime
from zoo.models.card import read_card
from zoo.models.folder import WEIGHTS_FILE, count_parameters
from zoo.models.golden import GOLDEN_FILE, MAX_GOLDEN_BYTES, read_golden
from zoo.models.pretrained.onnx_folder import save_graph
from zoo.models.text_tower import (
    GOLDEN_TEXT_FILE,
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    load_tokenizer,
    open_text_tower,
    read_golden_text,
)
from zoo.models.untrusted_graph import check_graph
from zoo.models.verify import verify
from zoo.paths import SHIPPED

pytestmark = pytest.mark.slow

MODEL = SHIPPED / "margin-conv4-glyphs"
WITH_TEXT = Path(__file__).parents[1] / "fixtures" / "with-text"
GRAPH = "onnx/model.onnx"
DIM, SHAPE = read_card(MODEL).dim, read_card(MODEL).preprocessing.shape
HUGE = 10**12
node = helper.make_node


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def vouch(folder: Path, *names: str) -> None:
    """Store the hashes of files in the card, as a stranger would."""
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, **{name: sha256_of(folder / name) for name in names}}).write(folder)


def constant(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def graph(nodes: Sequence[onnx.NodeProto] = (), tensors: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """Return a graph with the inputs and outputs of the model's.

    Each embedding is the mean of the pixels, plus the scalar `extra` that the nodes compute from the scalar `mean`.
    """
    inputs = [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", *SHAPE])]
    outputs = [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["n", DIM])]
    before = [
        node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        node("ReduceMean", ["floats"], ["mean"], keepdims=0),
        node("ReduceMean", ["floats", "image"], ["row"], keepdims=0),
        node("Unsqueeze", ["row", "last"], ["column"]),
        node("Expand", ["column", "width"], ["rows"]),
    ]
    after = node("Add", ["rows", "extra"], ["embeddings"])
    tensors = [*tensors, constant("image", 1, 2, 3), constant("last", 1), constant("width", 1, DIM)]
    nodes = nodes or [node("Identity", ["mean"], ["extra"])]
    made = helper.make_graph([*before, *nodes, after], "g", inputs, outputs, tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def grown(*growing: onnx.NodeProto) -> onnx.ModelProto:
    """Return a graph whose nodes make a tensor `large` of the scalar `mean`."""
    tensors = [
        constant("size", HUGE), constant("sides", 10**6, 10**6), constant("one", 1), constant("four", 1, 1, 1, 1),
        constant("wide", 1, 1, 10**6, 10**6), constant("zero", 0), numpy_helper.from_array(np.float32(1), "unit"),
    ]  # fmt: skip
    return graph([*growing, node("ReduceMax", ["large"], ["extra"], keepdims=0)], tensors)


def loop(condition: bool) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9), ("sum", 1))]
    results = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("again", 9), ("total", 1))]
    inner = [node("Identity", ["go"], ["again"]), node("Identity", ["sum"], ["total"])]
    body = helper.make_graph(inner, "body", values, results)
    return graph(
        [node("Loop", ["", "ever", "mean"], ["extra"], body=body)],
        [numpy_helper.from_array(np.array(condition), "ever")],
    )


def branch() -> onnx.ModelProto:
    inner = helper.make_graph(
        [node("Identity", ["mean"], ["x"])], "b", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])]
    )
    return graph(
        [node("Cast", ["mean"], ["yes"], to=TensorProto.BOOL), node("If", ["yes"], ["extra"], then_branch=inner,
                                                                    else_branch=inner)]
    )  # fmt: skip


def with_functions() -> onnx.ModelProto:
    """Return a graph of functions, each of which calls the one below ten times: 10^12 nodes when they are inlined."""
    model = graph([node("F12", ["mean"], ["extra"], domain="own")])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    model.opset_import.append(imports[1])
    for level in range(13):
        kind, domain = (f"F{level - 1}", "own") if level else ("Identity", "")
        names = ["x", *(f"v{number}" for number in range(9)), "y"]
        calls = [node(kind, [a], [b], domain=domain) for a, b in pairwise(names)]
        model.functions.append(helper.make_function("own", f"F{level}", ["x"], ["y"], calls, imports))
    return model


def sparse() -> onnx.ModelProto:
    model = graph([node("ReduceMax", ["w"], ["extra"], keepdims=0)])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    model.graph.sparse_initializer.append(
        onnx.SparseTensorProto(values=values, indices=constant("at", 0), dims=[10**10])
    )
    return model


def outside(location: str) -> onnx.ModelProto:
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "extra")
    onnx.external_data_helper.set_external_data(tensor, location, 0, 4)
    tensor.ClearField("raw_data")
    return graph([node("Identity", ["mean"], ["unused"])], [tensor])


def claimed(dims: list[int]) -> onnx.ModelProto:
    """Return a graph with a tensor of four bytes that claims to be larger."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(4))
    return graph([node("ReduceMax", ["w"], ["extra"], keepdims=0)], [tensor])


def of_texts() -> onnx.ModelProto:
    return graph(tensors=[helper.make_tensor("extra2", TensorProto.STRING, [2], [b"a", b"b"])],
                 nodes=[node("ReduceMax", ["extra2"], ["extra"], keepdims=0)])  # fmt: skip


UNSAFE: dict[str, Callable[[], onnx.ModelProto]] = {
    "texts": of_texts,
    "texts of a constant": lambda: graph(
        [node("Constant", [], ["text"], value_strings=["a"] * 9), node("Identity", ["mean"], ["extra"])]
    ),
    "texts of numbers": lambda: graph(
        [node("Cast", ["floats"], ["texts"], to=TensorProto.STRING), node("Identity", ["mean"], ["extra"])]
    ),
    "places of numbers": lambda: graph(
        [node("NonZero", ["floats"], ["places"]), node("Identity", ["mean"], ["extra"])]
    ),
    "different numbers": lambda: graph(
        [node("Unique", ["floats"], ["different"]), node("Identity", ["mean"], ["extra"])]
    ),
    "a loop without end": lambda: loop(condition=True),
    "a loop that ends": lambda: loop(condition=False),
    "a branch": branch,
    "functions in functions": with_functions,
    "sparse weights": sparse,
    "an operator of another domain": lambda: graph([node("Run", ["mean"], ["extra"], domain="evil")]),
    "a compiled program": lambda: graph(
        [node("EPContext", ["mean"], ["extra"], domain="com.microsoft", ep_cache_context="../x.engine", embed_mode=0)]
    ),
}
UNREADABLE: dict[str, Callable[[], onnx.ModelProto]] = {
    "an unknown operator": lambda: graph([node("Run", ["mean"], ["extra"])]),
    "an unknown operator of ONNX Runtime": lambda: graph([node("Run", ["mean"], ["extra"], domain="com.microsoft")]),
    "a tensor of 4 TB in 4 bytes": lambda: claimed([HUGE]),
    "a tensor of 2^80 numbers in 4 bytes": lambda: claimed([2**40, 2**40]),
    "a tensor of fewer than no numbers": lambda: claimed([-1]),
    "a node that feeds itself": lambda: graph([node("Add", ["extra", "mean"], ["extra"])]),
}
GROWING: dict[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape": lambda: grown(node("ConstantOfShape", ["size"], ["large"])),
    "Expand of a constant": lambda: grown(node("Expand", ["unit", "size"], ["large"])),
    "Expand": lambda: grown(node("Expand", ["mean", "size"], ["large"])),
    "Expand to a matrix": lambda: grown(node("Expand", ["mean", "sides"], ["large"])),
    "Tile": lambda: grown(node("Unsqueeze", ["mean", "zero"], ["one_mean"]), node("Tile", ["one_mean", "size"],
                                                                                ["large"])),
    "Pad": lambda: grown(node("Unsqueeze", ["mean", "zero"], ["one_mean"]),
                         node("Concat", ["zero", "size"], ["pads"], axis=0),
                         node("Pad", ["one_mean", "pads"], ["large"])),
    "Resize": lambda: grown(node("Reshape", ["mean", "four"], ["image_mean"]),
                            node("Resize", ["image_mean", "", "", "wide"], ["large"])),
    "Range": lambda: grown(node("Range", ["a", "b", "c"], ["numbers"]),
                           node("Cast", ["numbers"], ["large"], to=TensorProto.FLOAT)),
    "OneHot": lambda: grown(node("OneHot", ["one", "depth", "pair"], ["large"])),
}  # fmt: skip


def install(folder: Path, model: onnx.ModelProto) -> None:
    if any(name in {"a", "depth"} for entry in model.graph.node for name in entry.input):
        scalars = {"a": 0, "b": HUGE, "c": 1, "depth": HUGE}
        model.graph.initializer.extend(
            numpy_helper.from_array(np.array(value, np.int64), name) for name, value in scalars.items()
        )
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "pair"))
    (folder / GRAPH).write_bytes(model.SerializeToString())
    vouch(folder, GRAPH)


def embed(folder: Path) -> np.ndarray:
    return zoo.load(folder, runtime="onnx").embed(read_golden(MODEL)[0])


def peak() -> int:
    """Return the largest memory that this process has had, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_plain_foreign_graph_is_run(copy: Path) -> None:
    install(copy, graph())
    images = read_golden(MODEL)[0]
    assert embed(copy).shape == (len(images), DIM)


@pytest.mark.parametrize("name", UNSAFE)
def test_graphs_that_are_no_plain_arithmetic_are_refused(copy: Path, name: str) -> None:
    install(copy, UNSAFE[name]())
    with raises(ModelFolderError, "unsafe-file"):
        embed(copy)
    assert {check.name: check for check in verify(copy)}["golden onnx fp32"].fails


@pytest.mark.parametrize("name", UNREADABLE)
def test_graphs_that_contradict_themselves_are_refused(copy: Path, name: str) -> None:
    install(copy, UNREADABLE[name]())
    with raises(ModelFolderError, "unreadable-file"):
        embed(copy)


@pytest.mark.parametrize("name", GROWING)
def test_a_graph_cannot_take_the_machines_memory(copy: Path, name: str) -> None:
    install(copy, GROWING[name]())
    before = peak()
    with raises(ModelFolderError, "unsupported-graph"):
        embed(copy)
    assert peak() - before < 200 * 2**20


def doubled(first: str, times: int) -> list[onnx.NodeProto]:
    """Return nodes that double a vector many times; the last makes `many`."""
    names = [first, *(f"twice{number}" for number in range(times - 1)), "many"]
    return [node("Concat", [one, one], [other], axis=0) for one, other in pairwise(names)]


ONE = numpy_helper.from_array(np.ones(1, np.float32), "one")
LAST = node("ReduceMax", ["many"], ["extra"], keepdims=0)
LARGEST = node("ReduceMax", ["large"], ["extra"], keepdims=0)


def behind_a_shape(*last: onnx.NodeProto) -> onnx.ModelProto:
    """Return a graph that doubles the sizes of the pixels 26 times, which ONNX Runtime does while it infers shapes."""
    return graph([node("Shape", ["floats"], ["sizes"]), *doubled("sizes", 26), *last])


GREEDY: dict[str, Callable[[], onnx.ModelProto]] = {
    "filled": lambda: graph([node("ConstantOfShape", ["much"], ["many"]), LAST], [constant("much", 2**28)]),
    "expanded": lambda: graph([node("Expand", ["one", "much"], ["many"]), LAST], [ONE, constant("much", 2**28)]),
    "doubled": lambda: graph([*doubled("one", 28), LAST], [ONE]),
    "broadcast": lambda: graph(
        [node("Unsqueeze", ["row1", "last"], ["column1"]), node("Mul", ["row1", "column1"], ["many"]), LAST],
        [numpy_helper.from_array(np.ones(2**14, np.float32), "row1")],
    ),
    "a shape to reshape to": lambda: behind_a_shape(node("Reshape", ["mean", "many"], ["large"]), LARGEST),
    "a shape to expand to": lambda: behind_a_shape(node("Expand", ["mean", "many"], ["large"]), LARGEST),
}
"""Graphs that take a gigabyte and more while they are loaded."""


@pytest.mark.parametrize("name", GREEDY)
def test_a_graph_cannot_take_the_machines_memory_while_it_is_loaded(copy: Path, name: str) -> None:
    install(copy, GREEDY[name]())
    before = peak()
    with raises(ModelFolderError, "unreadable-file"):
        zoo.load(copy, runtime="onnx")
    assert peak() - before < 100 * 2**20


def test_a_graph_is_tried_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(copy, graph())
    zoo.load(copy, runtime="onnx")
    monkeypatch.setattr(subprocess, "Popen", None)
    zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("location", ["../secret", "{outside}", "secret", "*/_ORT_MEM_ADDR_/*", "linked"])
def test_no_graph_reads_another_file(copy: Path, location: str) -> None:
    """Wherever the weights are: above the folder, at an absolute path, in the folder, in memory or behind a link."""
    secret = copy.parent / "secret"
    secret.write_bytes(bytes(4))
    (copy / "onnx" / "secret").write_bytes(bytes(4))
    (copy / "onnx" / "linked").symlink_to(secret)
    install(copy, outside(location.format(outside=secret)))
    with raises(ModelFolderError, "unsafe-file"):
        embed(copy)


@pytest.mark.parametrize("location", ["../secret", "{outside}", "linked"])
def test_no_graph_that_becomes_a_model_reads_a_file_outside_its_folder(tmp_path: Path, location: str) -> None:
    """`zoo baseline FILE.onnx` takes weights beside the file, but from nowhere else."""
    secret, folder = tmp_path / "secret", tmp_path / "graph"
    secret.write_bytes(bytes(4))
    folder.mkdir()
    (folder / "linked").symlink_to(secret)
    (folder / "g.onnx").write_bytes(outside(location.format(outside=secret)).SerializeToString())
    with raises(UsageError, "unreadable-file"):
        save_graph(folder / "g.onnx", tmp_path / "out", "toy", (0.5,), (0.5,))
    assert not (tmp_path / "out").exists()


def test_a_linked_graph_is_not_followed_out_of_the_folder(copy: Path) -> None:
    install(copy, graph())
    elsewhere = copy.parent / "elsewhere.onnx"
    (copy / GRAPH).rename(elsewhere)
    (copy / GRAPH).symlink_to(elsewhere)
    with raises(ModelFolderError, "unsafe-file"):
        embed(copy)


@pytest.mark.parametrize("change", ["input", "output", "type", "shape", "second"])
def test_graphs_of_other_inputs_and_outputs_are_refused(copy: Path, change: str) -> None:
    model = graph()
    values = {"input": model.graph.input, "output": model.graph.output}.get(change, model.graph.input)
    if change in ("input", "output"):
        old, values[0].name = values[0].name, "other"
        for entry in model.graph.node:
            entry.input[:] = ["other" if name == old else name for name in entry.input]
            entry.output[:] = ["other" if name == old else name for name in entry.output]
    elif change == "type":
        values[0].type.tensor_type.elem_type = TensorProto.FLOAT
    elif change == "shape":
        values[0].type.tensor_type.shape.dim[1].dim_value += 1
    else:
        values.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, ["n"]))
    install(copy, model)
    with raises(ModelFolderError, "unsupported-graph"):
        embed(copy)


def test_a_run_of_a_graph_ends_in_time(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of products that would take minutes."""
    monkeypatch.setattr(onnx_runtime, "RUN_SECONDS", (0.5, 0))
    names = ["x0", *(f"x{number}" for number in range(1, 20_000))]
    chain = [node("MatMul", [first, "x0"], [second]) for first, second in pairwise(names)]
    large = node("Expand", ["mean", "sides"], ["x0"])
    last = node("ReduceMax", [names[-1]], ["extra"], keepdims=0)
    install(copy, graph([large, *chain, last], [constant("sides", 600, 600)]))
    model = zoo.load(copy, runtime="onnx")
    begun = time.monotonic()
    with raises(ModelFolderError, "unsupported-graph"):
        model.embed(read_golden(MODEL)[0])
    assert time.monotonic() - begun < 30


def sparse_file(path: Path, size: int, head: bytes = b"") -> None:
    """Write a file that takes no space on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


@pytest.mark.parametrize("size", [2**30, 2**36])
@pytest.mark.parametrize("head", [b"", b"\x3a\xff\xff\xff\xff\x7f"], ids=["zeros", "one field"])
def test_a_graph_of_gigabytes_is_refused_at_once(tmp_path: Path, size: int, head: bytes) -> None:
    sparse_file(tmp_path / "g.onnx", size, head)
    before = peak()
    with raises(ModelFolderError, "unreadable-file"):
        check_graph(tmp_path / "g.onnx")
    assert peak() - before < 100 * 2**20


def test_a_graph_of_countless_fields_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"\x40\0" * 4_000_000)
    with raises(ModelFolderError, "unsafe-file"):
        check_graph(tmp_path / "g.onnx")


def header(values: object, length: int | None = None) -> bytes:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "longer than the file": header({}, 2**63),
    "of 1 GB": header({}, 2**30),
    "of nothing": b"",
    "cut": b"\1\0\0",
    "of no JSON": header(b"{" * 100_000),
    "nested": header(b'{"a":' + b"[" * 100_000),
    "of a huge shape": header({"embeddings": entry([10**6, 10**6], 0, 4)}) + bytes(4),
    "of a shape beyond 64 bits": header({"embeddings": entry([2**40, 2**40], 0, 4)}) + bytes(4),
    "of data beyond the file": header({"embeddings": entry([2**40], 0, 2**42)}),
    "of overlapping data": header({"embeddings": entry([1], 0, 4), "image_0": entry([1], 0, 4)}) + bytes(4),
    "of data that run backwards": header({"embeddings": entry([1], 4, 0)}) + bytes(4),
    "of negative numbers": header({"embeddings": entry([-1], 0, 4)}) + bytes(4),
    "of an unknown type": header({"embeddings": entry([1], 0, 4, "OBJECT")}) + bytes(4),
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_safetensors_are_refused(copy: Path, name: str) -> None:
    before = peak()
    (copy / GOLDEN_FILE).write_bytes(HEADERS[name])
    with raises(ModelFolderError, "unreadable-file"):
        read_golden(copy)
    (copy / WEIGHTS_FILE).write_bytes(HEADERS[name])
    vouch(copy, WEIGHTS_FILE)
    with pytest.raises(ZooError):
        zoo.load(copy, runtime="torch")
    assert peak() - before < 400 * 2**20


def test_golden_images_of_many_gigabytes_are_not_read(copy: Path) -> None:
    size = 8 * 2**30
    head = header({"embeddings": entry([size // 4], 0, size)})
    sparse_file(copy / GOLDEN_FILE, len(head) + size, head)
    assert size > MAX_GOLDEN_BYTES
    with raises(ModelFolderError, "unreadable-file"):
        read_golden(copy)


TEXTS = {
    "large": lambda: b'"' + b"x" * 20_000_000 + b'"',
    "deep": lambda: b"[" * 1_000_000,
    "deep and closed": lambda: b'{"name":' * 5000 + b"1" + b"}" * 5000,
    "a number of a million digits": lambda: b'{"name": ' + b"9" * 1_000_000 + b"}",
    "no text": lambda: b"\xff\xfe" * 100,
    "a list": lambda: b"[]",
}


@pytest.mark.parametrize("file", ["card.json", "config.json"])
@pytest.mark.parametrize("name", TEXTS)
def test_hostile_json_is_refused(copy: Path, name: str, file: str) -> None:
    (copy / file).write_bytes(TEXTS[name]())
    with pytest.raises(ModelFolderError):
        zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("name", [*TEXTS, "a file of 4 GB"])
def test_hostile_tokenizers_are_refused(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(WITH_TEXT, tmp_path / "model"))
    if name in TEXTS:
        (folder / TOKENIZER_FILE).write_bytes(TEXTS[name]())
        vouch(folder, TOKENIZER_FILE)
        with raises(ModelFolderError, "unreadable-file"):
            open_text_tower(folder, read_card(folder))
    else:
        from zoo.models.text_tower import load_tokenizer

        sparse_file(folder / TOKENIZER_FILE, 4 * 2**30)
        assert (folder / TOKENIZER_FILE).stat().st_size > MAX_TOKENIZER_BYTES
        with raises(ModelFolderError, "unreadable-file"):
            load_tokenizer(folder / TOKENIZER_FILE)


@pytest.mark.parametrize(
    "file", ["card.json", "config.json", "recipe.json", "results.json", "onnx/parity.json", GOLDEN_FILE, WEIGHTS_FILE]
)
def test_a_file_without_an_end_is_refused_as_an_unreadable_one(copy: Path, file: str) -> None:
    """A pipe, a link to a device, and a folder in the place of a file."""
    outcomes = []
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")):
        (copy / file).unlink(missing_ok=True)
        make(copy / file)
        try:
            outcomes.append([(check.name, check.ok) for check in verify(copy)])
        except ModelFolderError as error:
            outcomes.append([(error.code, None)])
        assert count_parameters(copy, read_card(MODEL)) is None or file != WEIGHTS_FILE
        if (copy / file).is_dir():
            (copy / file).rmdir()
    assert outcomes[1:] == outcomes[:1] * 2


@pytest.mark.parametrize("file", [TOKENIZER_FILE, GOLDEN_TEXT_FILE])
def test_a_text_tower_without_an_end_is_refused(tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(WITH_TEXT, tmp_path / "copy"))
    read = load_tokenizer if file == TOKENIZER_FILE else lambda path: read_golden_text(path.parent)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/null")):
        (copy / file).unlink()
        make(copy / file)
        with raises(ModelFolderError, "unreadable-file"):
            read(copy / file)
