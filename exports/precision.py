"""fp16 graphs, and the choice of the layers that keep fp32 in a lower precision.

A network is sensitive to rounding in a few places: at its ends, in sums and squares, and in single layers.
`find_layers` finds the ends; `insensitive_layers` chooses the layers whose rounding changes the embeddings least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load_file

from zoo.models.card import Card
from zoo.models.folder import HEADS_FILE, WEIGHTS_FILE
from zoo.models.onnx_runtime import INPUT, OUTPUT, open_session
from zoo.models.results import EXPORT_FLOORS

LAYER_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The operators that hold nearly all weights and do nearly all arithmetic."""

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

SUFFICIENT_COSINE = (1 + EXPORT_FLOORS["fp16"]) / 2
"""The least cosine between fp16 and fp32 that leaves room above the floor for other images."""

GROUPS = 12
"""The number of parts of a network that are tried one by one."""

BATCH = 8


@dataclass(frozen=True)
class _Layers:
    """Names of nodes by their place in a graph.

    Attributes:
        front: The nodes before every layer.
        first: The layers with no layer before them.
        last: The layers with no layer after them.
        tail: The nodes after every layer.
    """

    front: tuple[str, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    tail: tuple[str, ...]


def write_fp16(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write a graph in float16: half the size, and fast where the hardware computes in it (most CPUs do not).

    The pixels' normalisation before the first layer, everything after the last layer (pooling where there are no heads,
    the unit length) and `SENSITIVE_OPERATORS` stay in float32. If an embedding then misses `SUFFICIENT_COSINE` to fp32,
    only the layers that change the embeddings least are converted, as many as keep it.

    Args:
        base: The fp32 graph.
        pixels: The images that fp16 is compared with fp32 on, uint8 [n, h, w, c].
        path: The new graph.

    Returns:
        The parts that stayed in float32, under "kept_in_float".
    """
    model = _fold_constants(onnx.load(base))
    layers, expected = find_layers(model.graph), run_graph(base, pixels)

    def cosine(names: Sequence[str]) -> float:
        _convert(model, names, path)
        return least_cosine(run_graph(path, pixels), expected)

    float_nodes = [*layers.front, *layers.tail]
    if cosine(float_nodes) < SUFFICIENT_COSINE:
        weighted, nodes = weighted_layers(model.graph), [node.name for node in model.graph.node]
        insensitive = insensitive_layers(
            weighted, lambda names: 1 - cosine(names_without(nodes, names)), 1 - SUFFICIENT_COSINE
        )
        _convert(model, names_without(nodes, insensitive) if insensitive else float_nodes, path)
        if insensitive:
            return {"kept_in_float": ["all but layers", *names_without(weighted, insensitive)]}
    sensitive = sorted({node.op_type for node in model.graph.node} & set(SENSITIVE_OPERATORS))
    return {"kept_in_float": ["pixel normalisation", "pooling after the last layer and unit length", *sensitive]}


def store_in_half(path: Path, folder: Path, card: Card) -> None:
    """Store a float32 graph's weights in float16 as the model folder does; ONNX Runtime casts them back on opening.

    torch's exporter multiplies a convolution's weight by the scale of the batch norm behind it. Rounding the product
    would round the weight twice, so the graph holds the weight of the model folder, and the scales in float32.

    Args:
        path: The graph, which is replaced.
        folder: The model folder.
        card: Its card.
    """
    stored = {f"network.trunk.{name}": weight for name, weight in load_file(folder / WEIGHTS_FILE).items()}
    if card.heads:
        stored |= {f"network.heads.{name}": weight for name, weight in load_file(folder / HEADS_FILE).items()}
    model, float32 = onnx.load(path), onnx.TensorProto.FLOAT
    nodes = []
    for tensor in list(model.graph.initializer):
        if tensor.data_type != float32 or (half := stored.get(tensor.name)) is None or half.ndim < 2:
            continue
        name, scale = tensor.name, _row_scales(onnx.numpy_helper.to_array(tensor), half)
        if scale is None:
            continue
        tensor.CopyFrom(onnx.numpy_helper.from_array(half, f"{name}.half"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(scale, f"{name}.scale"))
        nodes += [
            onnx.helper.make_node("Cast", [f"{name}.half"], [f"{name}.float"], f"{name}.cast", to=float32),
            onnx.helper.make_node("Mul", [f"{name}.float", f"{name}.scale"], [name], f"{name}.mul"),
        ]
    nodes.extend(model.graph.node)
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


def _row_scales(weight: np.ndarray, half: np.ndarray) -> np.ndarray | None:
    """Return the factors float32 [n, 1, ...] of the rows of `half` that give `weight`; None if it is another weight."""
    if weight.shape != half.shape:
        return None
    rows, own = (values.reshape(len(values), -1).astype(np.float64) for values in (weight, half))
    scale = (rows * own).sum(1) / np.maximum((own * own).sum(1), np.finfo(np.float64).tiny)
    if not np.allclose(own * scale[:, None], rows, rtol=1e-5, atol=1e-6 * np.abs(rows).max()):
        return None
    return scale.astype(np.float32).reshape(-1, *[1] * (weight.ndim - 1))


def insensitive_layers(layers: Sequence[str], change: Callable[[Sequence[str]], float], allowed: float) -> list[str]:
    """Choose as many layers as change the embeddings by at most `allowed` together.

    Neighbouring layers are tried together, in `GROUPS` parts. Rounding errors are independent, so their squares add up,
    and one minus a cosine measures such squares: the sum over the parts that change least predicts how many parts fit.
    The change of all of them together then decides.

    Args:
        layers: Names in the order of computation.
        change: The change of the embeddings (one minus the least cosine) when only the named layers are reduced.
        allowed: The largest change.

    Returns:
        The chosen names in their order; empty if no part fits.
    """
    parts = [part.tolist() for part in np.array_split(np.array(list(layers), object), min(GROUPS, len(layers) or 1))]
    changes = np.array([change(part) for part in parts])
    order = np.argsort(changes, kind="stable")
    for count in range(int((np.cumsum(changes[order]) <= allowed).sum()), 0, -1):
        selection = [name for part in sorted(order[:count]) for name in parts[part]]
        if change(selection) <= allowed:
            return selection
    return []


def find_layers(graph: onnx.GraphProto) -> _Layers:
    """Find the ends of a graph whose nodes are in the order of computation, as ONNX demands."""
    nodes = list(graph.node)
    after_layer = _reached(nodes, [node.input for node in nodes], [node.output for node in nodes])
    before_layer = _reached(nodes[::-1], [node.output for node in nodes[::-1]], [node.input for node in nodes[::-1]])
    layers = [node.name for node in nodes if node.op_type in LAYER_OPERATORS]
    other_nodes = [node.name for node in nodes if node.op_type not in LAYER_OPERATORS]
    return _Layers(
        front=tuple(name for name in other_nodes if name not in after_layer and name in before_layer),
        first=tuple(name for name in layers if name not in after_layer),
        last=tuple(name for name in layers if name not in before_layer),
        tail=tuple(name for name in other_nodes if name not in before_layer),
    )


def weighted_layers(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the layers that have weights, in the order of computation."""
    layers = [node.name for node in graph.node if node.op_type in LAYER_OPERATORS]
    return names_without(layers, activation_products(graph))


def activation_products(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the matrix products of two activations, as in attention.

    They have no weights to make smaller, and 8 bits cost much there: for vit_tiny_patch16_224 with random weights the
    least cosine to float is 0.24 with them and 0.998 without.
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and weights.isdisjoint(node.input)]


def names_without(names: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """Return the names except those left out, in their order."""
    absent = set(left_out)
    return [name for name in names if name not in absent]


def run_graph(path: Path, pixels: np.ndarray) -> np.ndarray:
    """Run a graph with ONNX Runtime on the CPU.

    Args:
        path: The graph.
        pixels: uint8 [n, h, w, c].

    Returns:
        The embeddings, [n, dim].
    """
    session = open_session(path, "cpu")
    return np.concatenate(
        [session.run([OUTPUT], {INPUT: pixels[i : i + BATCH]})[0] for i in range(0, len(pixels), BATCH)]
    )


def least_cosine(rows: np.ndarray, expected: np.ndarray) -> float:
    """Return the least cosine between unit rows [n, dim] and the expected ones. NaN, which compares as false, is -1."""
    return float(np.nan_to_num((rows * expected).sum(1), nan=-1.0).min())


def _reached(
    nodes: Sequence[onnx.NodeProto], entries: Sequence[Iterable[str]], exits: Sequence[Iterable[str]]
) -> set[str]:
    """Return the nodes that a layer's value reaches on the way from `entries` to `exits`."""
    values: set[str] = set()
    names: set[str] = set()
    for node, entry, leave in zip(nodes, entries, exits, strict=True):
        if reached := not values.isdisjoint(entry):
            names.add(node.name)
        if reached or node.op_type in LAYER_OPERATORS:
            values.update(name for name in leave if name)
    return names


def _fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn everything that is computed from weights alone, as in standardised convolutions, into weights.

    Their mean and variance come from `SENSITIVE_OPERATORS`, which would keep the weights themselves in float32.
    """
    from onnxscript.optimizer import fold_constants

    any_size = 2**40
    fold_constants(model, onnx_shape_inference=False, input_size_limit=any_size, output_size_limit=any_size)
    return model


def _convert(model: onnx.ModelProto, float_nodes: Sequence[str], path: Path) -> None:
    """Write the graph in float16, except `float_nodes` and `SENSITIVE_OPERATORS`."""
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the converter changes its argument
    half = convert_float_to_float16(
        copy,
        keep_io_types=True,
        node_block_list=list(float_nodes),
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *SENSITIVE_OPERATORS],
    )
    _remove_repeated_casts(half.graph)
    # Between two float32 operators the converter goes through float16, which would round the result as well.
    OnnxModel(half).remove_cascaded_cast_nodes()
    OnnxModel.graph_topological_sort(half.graph)
    del half.graph.value_info[:]  # some still state the types from before the conversion
    onnx.save(half, path)


def _remove_repeated_casts(graph: onnx.GraphProto) -> None:
    """Keep one of the casts that the converter adds for every reader of a value, all under one name."""
    by_name = {node.name: node for node in reversed(graph.node)}
    remaining = [node for node in graph.node if by_name[node.name] is node]
    del graph.node[:]
    graph.node.extend(remaining)
