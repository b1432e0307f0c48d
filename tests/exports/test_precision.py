"""The ends of a graph, and the choice of layers by their change: by hand, and in graphs with one fragile layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from exports.precision import GROUPS, activation_products, find_layers, insensitive_layers, run_graph, write_fp16
from exports.quantize import SELECTED_LAYERS, SUFFICIENT_COSINE, write_int8
from zoo.models.onnx_runtime import INPUT, OUTPUT

DRAW = np.random.default_rng(0)


def test_the_ends_of_a_graph_with_a_branch_and_two_heads() -> None:
    made = [
        ("Cast", ["x"], "a"),
        ("Conv", ["a", "w1"], "b"),
        ("Relu", ["b"], "c"),
        ("Conv", ["c", "w2"], "d"),
        ("Add", ["c", "d"], "e"),
        ("MatMul", ["e", "w3"], "f"),
        ("MatMul", ["e", "w4"], "g"),
        ("Shape", ["x"], "s"),
        ("Concat", ["f", "g"], "h"),
        ("Reshape", ["h", "s"], "y"),
    ]
    nodes = [helper.make_node(kind, inputs, [out], name=out) for kind, inputs, out in made]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    ends = find_layers(helper.make_graph(nodes, "g", [x], [y]))
    assert ends.front == ("a",)
    assert ends.first == ("b",)
    assert ends.last == ("f", "g")
    assert ends.tail == ("s", "h", "y")


def test_products_of_two_activations_are_not_layers() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], name="layer"),
        helper.make_node("MatMul", ["q", "q"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], name="softmax"),
        helper.make_node("MatMul", ["p", "q"], ["y"], name="mixing"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2, 3, 4])
    assert activation_products(helper.make_graph(nodes, "g", [x], [y], [weight])) == ["scores", "mixing"]


@pytest.mark.parametrize(
    ("allowed", "chosen"), [(0.0, []), (0.9, []), (1.0, ["b"]), (5.9, ["b", "d"]), (6.0, ["a", "b", "d"]), (99, "abcd")]
)
def test_the_cheapest_that_fit_in_the_order_of_computation(allowed: float, chosen: Sequence[str]) -> None:
    costs = {"a": 3.0, "b": 1.0, "c": 90.0, "d": 2.0}
    assert insensitive_layers("abcd", lambda names: sum(costs[name] for name in names), allowed) == list(chosen)


def test_the_change_of_all_together_decides() -> None:
    """Alone each costs 1, together the square of their number."""
    assert insensitive_layers("abcd", lambda names: len(names) ** 2, 3) == ["a"]
    assert insensitive_layers("abcd", lambda names: len(names) ** 2, 4) == ["a", "b"]
    assert insensitive_layers([], lambda names: 0.0, 1) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 5))
def test_the_change_is_never_larger_than_allowed(costs: list[float], allowed: float) -> None:
    asked: list[Sequence[str]] = []

    def change(names: Sequence[str]) -> float:
        asked.append(names)
        return sum(costs[int(name)] for name in names)

    chosen = insensitive_layers([str(i) for i in range(len(costs))], change, allowed)
    assert sum(costs[int(name)] for name in chosen) <= allowed
    assert chosen == sorted(chosen, key=int)
    assert len(asked) <= 2 * GROUPS


def fragile(path: Path, huge: float) -> Path:
    """Write a graph from pixels [n, 1, 2, 3] to unit rows; one layer gives huge numbers with small differences.

    Rounding the fragile layer's output loses those differences, which a later layer subtracts.
    """
    weights = {
        "first": DRAW.normal(size=(6, 8)) / 200,
        "second": DRAW.normal(size=(8, 8)) / 3,
        "fragile": np.concatenate([np.eye(8), np.eye(8)], axis=1),
        "difference": np.concatenate([np.eye(8), -np.eye(8) / 3]),
    }
    offset = np.concatenate([np.full(8, huge), np.full(8, 3 * huge)])
    nodes, value = [helper.make_node("Cast", [INPUT], ["floats"], name="cast", to=TensorProto.FLOAT)], "flat"
    nodes.append(helper.make_node("Flatten", ["floats"], ["flat"], name="flatten"))
    for name in weights:
        inputs = [value, f"{name}.weight"] + (["offset"] if name == "fragile" else [])
        nodes.append(helper.make_node("Gemm", inputs, [f"{name}.out"], name=name))
        value = f"{name}.out"
    nodes.append(helper.make_node("LpNormalization", [value], [OUTPUT], name="unit", axis=1, p=2))
    held = {**{f"{name}.weight": weight for name, weight in weights.items()}, "offset": offset}
    graph = helper.make_graph(
        nodes,
        "fragile",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", 1, 2, 3])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in held.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


PIXELS = DRAW.integers(0, 256, (40, 1, 2, 3)).astype(np.uint8)


def test_int8_leaves_a_fragile_layer_in_float(tmp_path: Path) -> None:
    base, path = fragile(tmp_path / "fp32.onnx", 40), tmp_path / "int8.onnx"
    details = write_int8(base, PIXELS, path)
    assert details["quantised"] == SELECTED_LAYERS.name
    assert max(cosine for name, cosine in details["tried"].items() if name != SELECTED_LAYERS.name) < SUFFICIENT_COSINE
    assert "difference" in details["kept_in_float"]  # its input is the fragile layer's output
    assert "second" not in details["kept_in_float"]
    assert (run_graph(path, PIXELS) * run_graph(base, PIXELS)).sum(1).min() >= SUFFICIENT_COSINE


def test_fp16_leaves_a_fragile_layer_in_float(tmp_path: Path) -> None:
    base, path = fragile(tmp_path / "fp32.onnx", 2000), tmp_path / "fp16.onnx"
    details = write_fp16(base, PIXELS, path)
    assert details["kept_in_float"][0] == "all but layers"
    assert "difference" in details["kept_in_float"]
    assert "second" not in details["kept_in_float"]
    assert (run_graph(path, PIXELS) * run_graph(base, PIXELS)).sum(1).min() >= 0.9999
    halves = {t.name for t in onnx.load(path).graph.initializer if t.data_type == TensorProto.FLOAT16}
    assert {"first.weight", "second.weight"} <= halves


def standardised(path: Path) -> Path:
    """Write a graph of one layer whose weights are computed from others, minus their means: unit rows."""
    weight = DRAW.normal(size=(6, 64)).astype(np.float32)
    held = {"raw": weight, "axes": np.array([0], np.int64)}
    nodes = [
        helper.make_node("Cast", [INPUT], ["floats"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"], name="flatten"),
        helper.make_node("ReduceMean", ["raw", "axes"], ["mean"], name="mean"),
        helper.make_node("Sub", ["raw", "mean"], ["weight"], name="standardise"),
        helper.make_node("Gemm", ["flat", "weight"], ["out"], name="layer", alpha=0.01),
        helper.make_node("LpNormalization", ["out"], [OUTPUT], name="unit", axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "standardised",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", 1, 2, 3])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_fp16_stores_weights_that_are_computed_from_weights(tmp_path: Path) -> None:
    base, path = standardised(tmp_path / "fp32.onnx"), tmp_path / "fp16.onnx"
    write_fp16(base, PIXELS, path)
    assert (run_graph(path, PIXELS) * run_graph(base, PIXELS)).sum(1).min() >= 0.9999
    graph = onnx.load(path).graph
    assert not {"mean", "standardise"} & {node.name for node in graph.node}
    large = [t for t in graph.initializer if np.prod(t.dims) >= 64]
    assert [t.data_type for t in large] == [TensorProto.FLOAT16]
    (weight,) = [n for n in onnx.load(base).graph.initializer if n.name == "raw"]
    raw = numpy_helper.to_array(weight).astype(np.float64)
    np.testing.assert_allclose(numpy_helper.to_array(large[0]), raw - raw.mean(0), atol=2e-3)
