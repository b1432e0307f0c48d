"""A graph with float16 inside: half the size, and fast where the hardware computes in it (most do not on the CPU)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from exports.layers import find_layers, weighted
from exports.sensitivity import embed, insensitive, least_cosine, without
from zoo.models.results import EXPORT_FLOORS

SENSITIVE = (
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

ENOUGH = (1 + EXPORT_FLOORS["fp16"]) / 2
"""The least cosine that leaves room above the floor for other images."""


def write_half(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write the fp32 graph `base` in float16 to `path`; what stayed in float32.

    The pixels' normalisation before the first layer and all that follows the last one (pooling where there are no
    heads, the unit length) stay in float32, as do the operators of `SENSITIVE`. Where that does not keep every
    embedding of the pixels uint8 [n, h, w, c] within `ENOUGH` of fp32, only the layers that change least are in
    float16, as many as keep it.
    """
    model = _folded(onnx.load(base))
    ends, expected = find_layers(model.graph), embed(base, pixels)

    def cosine(kept: Sequence[str]) -> float:
        _convert(model, kept, path)
        return least_cosine(embed(path, pixels), expected)

    kept = [*ends.front, *ends.tail]
    said = ["pixel normalisation", "pooling after the last layer and unit length"]
    if cosine(kept) < ENOUGH:
        layers, nodes = weighted(model.graph), [node.name for node in model.graph.node]
        chosen = insensitive(layers, lambda names: 1 - cosine(without(nodes, names)), 1 - ENOUGH)
        _convert(model, without(nodes, chosen) if chosen else kept, path)
        if chosen:
            return {"kept_in_float": ["all but layers", *without(layers, chosen)]}
    return {"kept_in_float": said + sorted({node.op_type for node in model.graph.node} & set(SENSITIVE))}


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
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *SENSITIVE],
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
