"""A static int8 graph: QuantizeLinear and DequantizeLinear around each operator, weights with one scale a channel.

Activations are unsigned and weights signed, which is what x86's VNNI instructions multiply (ONNX Runtime,
"Quantize ONNX models", Data type selection). Their ranges are the least and greatest values on calibration images.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from exports.layers import LAYERS, find_layers, products
from zoo.errors import ExportError
from zoo.onnx_runtime import INPUT, OUTPUT

BETWEEN = ("Relu", "Clip", "Add", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool")
"""Operators between layers that keep int8, so that values need not become floats from one layer to the next."""

AIM = 0.99
"""The least cosine to fp32 on calibration images at which no more layers are put back into float."""

BATCH = 8
COMPARED = 32


@dataclass(frozen=True)
class Scope:
    """What is quantised: operators of these types; with `ends_in_float` neither the first nor the last layers."""

    name: str
    operators: tuple[str, ...]
    ends_in_float: bool


SCOPES = (
    Scope("layers and what lies between them", (*LAYERS, *BETWEEN), ends_in_float=False),
    Scope("layers and what lies between them, but not the first and last layers", (*LAYERS, *BETWEEN), True),
    Scope("layers alone, but not the first and last", LAYERS, True),
)
"""Tried in turn, from the fastest to the most exact."""


def write_int8(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write the fp32 graph `base` in int8 to `path`, calibrated on pixels uint8 [n, h, w, c]; what was quantised.

    The first scope that keeps every compared embedding within `AIM` of fp32 is taken, else the one that comes nearest.
    Raises `ExportError` where ONNX Runtime can quantise the graph in no scope.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _prepared(base, folder)
        expected = _embed(base, pixels[:COMPARED])
        tried: dict[str, float] = {}
        reasons: list[str] = []
        for number, scope in enumerate(SCOPES):
            candidate = folder / f"{number}.onnx"
            try:
                _quantise(model, pixels, candidate, scope, folder / "ranges.json")
                tried[scope.name] = _least_cosine(_embed(candidate, pixels[:COMPARED]), expected)
            except Exception as error:  # onnx and onnxruntime raise families of their own
                reasons.append(f"{scope.name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
                continue
            if tried[scope.name] == max(tried.values()):
                path.write_bytes(candidate.read_bytes())
            if tried[scope.name] >= AIM:
                break
    if not tried:
        raise ExportError(f"ONNX Runtime cannot quantise this graph: {'; '.join(reasons)}")
    best = max(tried, key=lambda scope: tried[scope])
    return {"quantised": best, "kept_in_float": _kept(path), "tried": tried, "calibration_images": len(pixels)}


def _least_cosine(rows: np.ndarray, expected: np.ndarray) -> float:
    """Of unit rows [n, dim]; NaN, which would compare as neither less nor more, counts as -1."""
    return float(np.nan_to_num((rows * expected).sum(1), nan=-1.0).min())


def _prepared(base: Path, folder: Path) -> onnx.ModelProto:
    """The graph with constants folded, batch norm fused and every shape known, as the quantiser wants it."""
    source, folded = folder / "source.onnx", folder / "folded.onnx"
    model = onnx.load(base)
    # Shapes that the exporter wrote down are of weights before they are transposed.
    del model.graph.value_info[:]
    _untranspose(model.graph)
    onnx.save(model, source)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    options.log_severity_level = 3
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = onnx.shape_inference.infer_shapes(onnx.load(folded))
    add_pre_process_metadata(model)
    return model


def _untranspose(graph: onnx.GraphProto) -> None:
    """Linear layers with `transB` hold their weight transposed, on which per-channel scales take the wrong axis."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        flags = [a for a in node.attribute if a.name == "transB" and a.i]
        if node.op_type == "Gemm" and flags and node.input[1] in weights:
            weight = weights[node.input[1]]
            flipped = np.ascontiguousarray(numpy_helper.to_array(weight).T)
            own = f"{weight.name}.{node.name}"  # another node may share the weight as it is
            graph.initializer.append(numpy_helper.from_array(flipped, own))
            node.input[1] = own
            flags[0].i = 0


def _quantise(model: onnx.ModelProto, pixels: np.ndarray, path: Path, scope: Scope, ranges: Path) -> None:
    ends = find_layers(model.graph)
    excluded = [
        *(*ends.front, *ends.tail, *products(model.graph)),
        *((*ends.first, *ends.last) if scope.ends_in_float else ()),
    ]
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the quantiser changes what it is given
    with _quiet():
        quantize_static(
            copy,
            path,
            _Reader(pixels),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(scope.operators),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
            calibration_cache_path=ranges,
        )


class _Reader(CalibrationDataReader):
    def __init__(self, pixels: np.ndarray) -> None:
        self.batches = (pixels[i : i + BATCH] for i in range(0, len(pixels), BATCH))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser gives advice on the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _embed(path: Path, pixels: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.concatenate(
        [session.run([OUTPUT], {INPUT: pixels[i : i + BATCH]})[0] for i in range(0, len(pixels), BATCH)]
    )


def _kept(path: Path) -> list[str]:
    """The layers of a quantised graph that take no dequantised weight, by name."""
    graph = onnx.load(path).graph
    dequantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return [n.name for n in graph.node if n.op_type in LAYERS and not dequantised.issuperset(n.input[:2])]
