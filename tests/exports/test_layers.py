"""Which nodes of a graph lie before, at and after its layers with weights."""

from __future__ import annotations

from onnx import TensorProto, helper

from exports.layers import find_layers


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
