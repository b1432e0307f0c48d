"""Fp16 and int8: which layers stay fp32.

Where a graph's layers with weights begin and end: the parts that are kept in float32 by every precision.

Which layers take a lower precision, where all of them together would change the embeddings too much.

A graph with float16 inside: half the size, and fast where the hardware computes in it (most do not on the CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from zoo.models.onnx_runtime import INPUT, OUTPUT, open_session
from zoo.models.results import EXPORT_FLOORS

LAYER_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The operators that hold nearly all weights and nearly all arithmetic."""


@dataclass(frozen=True)
class Layers:
    """Names of nodes. front: before any layer; first and last: layers with none before or after; tail: after all."""

    front: tuple[str, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    tail: tuple[str, ...]


def find_layers(graph: onnx.GraphProto) -> Layers:
    """The ends of a graph whose nodes are in the order of computation, as ONNX demands."""
    nodes = list(graph.node)
    before = _reached(nodes, [node.input for node in nodes], [node.output for node in nodes])
    after = _reached(nodes[::-1], [node.output for node in nodes[::-1]], [node.input for node in nodes[::-1]])
    return Layers(
        front=tuple(
            n.name for n in nodes if n.op_type not in LAYER_OPERATORS and n.name not in before and n.name in after
        ),
        first=tuple(n.name for n in nodes if n.op_type in LAYER_OPERATORS and n.name not in before),
        last=tuple(n.name for n in nodes if n.op_type in LAYER_OPERATORS and n.name not in after),
        tail=tuple(n.name for n in nodes if n.op_type not in LAYER_OPERATORS and n.name not in after),
    )


def weighted_layers(graph: onnx.GraphProto) -> list[str]:
    """Names of the layers that have weights, in the order of computation."""
    without = set(activation_products(graph))
    return [n.name for n in graph.node if n.op_type in LAYER_OPERATORS and n.name not in without]


def activation_products(graph: onnx.GraphProto) -> list[str]:
    """Names of the matrix products of two activations, as in attention: of queries and keys, of shares and values.

    They have no weights to make smaller, and 8 bits cost much there: of vit_tiny_patch16_224 with random weights the
    least cosine to float is 0.24 with them and 0.998 without.
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [n.name for n in graph.node if n.op_type == "MatMul" and weights.isdisjoint(n.input)]


def _reached(
    nodes: Sequence[onnx.NodeProto], entries: Sequence[Iterable[str]], exits: Sequence[Iterable[str]]
) -> set[str]:
    """Nodes that a value of some layer reaches, walking from `entries` to `exits`."""
    values: set[str] = set()
    names: set[str] = set()
    for node, entry, leave in zip(nodes, entries, exits, strict=True):
        if reached := not values.isdisjoint(entry):
            names.add(node.name)
        if reached or node.op_type in LAYER_OPERATORS:
            values.update(name for name in leave if name)
    return names


GROUPS = 12
"""How many parts of a network are tried by themselves."""

BATCH = 8


def insensitive_layers(layers: Sequence[str], change: Callable[[Sequence[str]], float], allowed: float) -> list[str]:
    """As many of the layers as change the embeddings by at most `allowed` together; none where no part of them does.

    layers: names in the order of computation. change: how much it changes the embeddings to reduce these layers alone,
    as one minus the least cosine. Neighbours are tried together, in `GROUPS` parts. Roundings are independent, so that
    their squares add up, which one minus a cosine measures: the sum over the parts that change least says how many of
    them to begin with. What they change together decides.
    """
    parts = [part.tolist() for part in np.array_split(np.array(list(layers), object), min(GROUPS, len(layers) or 1))]
    alone = np.array([change(part) for part in parts])
    order = np.argsort(alone, kind="stable")
    for number in range(int((np.cumsum(alone[order]) <= allowed).sum()), 0, -1):
        chosen = [name for part in sorted(order[:number]) for name in parts[part]]
        if change(chosen) <= allowed:
            return chosen
    return []


def names_without(names: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """The names but those left out, in their order."""
    absent = set(left_out)
    return [name for name in names if name not in absent]


def run_graph(path: Path, pixels: np.ndarray) -> np.ndarray:
    """A graph's output on pixels uint8 [n, h, w, c], by ONNX Runtime on the CPU: [n, dim]."""
    session = open_session(path, "cpu")
    return np.concatenate(
        [session.run([OUTPUT], {INPUT: pixels[i : i + BATCH]})[0] for i in range(0, len(pixels), BATCH)]
    )


def least_cosine(rows: np.ndarray, expected: np.ndarray) -> float:
    """Of unit rows [n, dim]; NaN, which would compare as neither less nor more, counts as -1."""
    return float(np.nan_to_num((rows * expected).sum(1), nan=-1.0).min())


SENSITIVE_OPERATORS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "ReduceMean",
    "ReduceSum",
    "ReduceL2",
    "Pow",
    "Sqrt",
    "Softmax",
)
"""Operators that sum many numbers or square them, where float16 overflows (65,504) or loses small addends."""

_ANY = 2**40
"""Weights of any size are folded."""

SUFFICIENT_COSINE = (1 + EXPORT_FLOORS["fp16"]) / 2
"""The least cosine that leaves room above the floor for other images."""


def write_fp16(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write the fp32 graph `base` in float16 to `path`; what stayed in float32.

    The pixels' normalisation before the first layer and all that follows the last one (pooling where there are no
    heads, the unit length) stay in float32, as do the operators of `SENSITIVE`. Where that does not keep every
    embedding of the pixels uint8 [n, h, w, c] within `ENOUGH` of fp32, only the layers that change least are in
    float16, as many as keep it.
    """
    model = _folded(onnx.load(base))
    ends, expected = find_layers(model.graph), run_graph(base, pixels)

    def cosine(kept: Sequence[str]) -> float:
        _convert(model, kept, path)
        return least_cosine(run_graph(path, pixels), expected)

    kept = [*ends.front, *ends.tail]
    said = ["pixel normalisation", "pooling after the last layer and unit length"]
    if cosine(kept) < SUFFICIENT_COSINE:
        layers, nodes = weighted_layers(model.graph), [node.name for node in model.graph.node]
        chosen = insensitive_layers(
            layers, lambda names: 1 - cosine(names_without(nodes, names)), 1 - SUFFICIENT_COSINE
        )
        _convert(model, names_without(nodes, chosen) if chosen else kept, path)
        if chosen:
            return {"kept_in_float": ["all but layers", *names_without(layers, chosen)]}
    return {"kept_in_float": said + sorted({node.op_type for node in model.graph.node} & set(SENSITIVE_OPERATORS))}


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in which what is computed from weights alone is a weight, as in standardised convolutions.

    Their mean and variance are of `SENSITIVE` operators, which would keep the weights themselves in float32.
    """
    from onnxscript.optimizer import fold_constants

    fold_constants(model, onnx_shape_inference=False, input_size_limit=_ANY, output_size_limit=_ANY)
    return model


def _convert(model: onnx.ModelProto, kept: Sequence[str], path: Path) -> None:
    """The graph with all in float16 but the nodes named and the operators of `SENSITIVE`."""
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the converter changes what it is given
    half = convert_float_to_float16(
        copy,
        keep_io_types=True,
        node_block_list=list(kept),
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *SENSITIVE_OPERATORS],
    )
    _unique(half.graph)
    # From one float32 operator to the next the converter goes through float16, which would round the result as well.
    OnnxModel(half).remove_cascaded_cast_nodes()
    OnnxModel.graph_topological_sort(half.graph)
    del half.graph.value_info[:]  # the types of before, for some values
    onnx.save(half, path)


def _unique(graph: onnx.GraphProto) -> None:
    """Keep one of the casts that the converter adds once for every reader of a value, all under one name."""
    named = {node.name: node for node in reversed(graph.node)}
    kept = [node for node in graph.node if named[node.name] is node]
    del graph.node[:]
    graph.node.extend(kept)
