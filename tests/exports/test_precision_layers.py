"""The nodes of a graph before, between and after its layers with weights."""

from __future__ import annotations

from onnx import TensorProto, helper

from exports.precision import activation_products, find_layers


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
