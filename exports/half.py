"""A graph with float16 inside: half the size, and fast where the hardware computes in it (most do not on the CPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from exports.layers import find_layers

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


def write_half(base: Path, path: Path) -> dict[str, Any]:
    """Write the fp32 graph `base` in float16 to `path`; what stayed in float32.

    The pixels' normalisation before the first layer and all that follows the last one (pooling where there are no
    heads, the unit length) stay in float32, as do the operators of `SENSITIVE`.
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = onnx.load(base)
    ends = find_layers(model.graph)
    kept = [*ends.front, *ends.tail]
    half = convert_float_to_float16(
        model,
        keep_io_types=True,
        node_block_list=kept,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *SENSITIVE],
    )
    _unique(half.graph)
    # From one float32 operator to the next the converter goes through float16, which would round the result as well.
    OnnxModel(half).remove_cascaded_cast_nodes()
    OnnxModel.graph_topological_sort(half.graph)
    del half.graph.value_info[:]  # the types of before, for some values
    onnx.save(half, path)
    used = sorted({node.op_type for node in model.graph.node} & set(SENSITIVE))
    return {"kept_in_float": ["pixel normalisation", "pooling after the last layer and unit length", *used]}


def _unique(graph: onnx.GraphProto) -> None:
    """Keep one of the casts that the converter adds once for every reader of a value, all under one name."""
    named = {node.name: node for node in reversed(graph.node)}
    kept = [node for node in graph.node if named[node.name] is node]
    del graph.node[:]
    graph.node.extend(kept)
