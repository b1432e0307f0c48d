"""A static int8 graph: QuantizeLinear and DequantizeLinear around each operator, weights with one scale a channel.

Activations are unsigned and weights signed, which is what x86's VNNI instructions multiply (ONNX Runtime,
"Quantize ONNX models", Data type selection). Their ranges are the least and greatest values on calibration images.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
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

from exports.precision import (
    BATCH,
    LAYER_OPERATORS,
    activation_products,
    find_layers,
    insensitive_layers,
    least_cosine,
    names_without,
    run_graph,
    weighted_layers,
)
from zoo.errors import ExportError
from zoo.models.onnx_runtime import INPUT
from zoo.models.results import EXPORT_FLOORS

BETWEEN_LAYERS = ("Relu", "Clip", "Add", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool")
"""Operators between layers that keep int8, so that values need not become floats from one layer to the next."""

TARGET_COSINE = 0.99
"""The least cosine to fp32 at which no more layers are put back into float."""

SUFFICIENT_COSINE = (2 + EXPORT_FLOORS["int8"]) / 3
"""The least cosine that leaves room above the floor: the worst of other images is off by some two or three times as
much."""


@dataclass(frozen=True)
class Scope:
    """What is quantised: operators of these types; with `ends_in_float` neither the first nor the last layers."""

    name: str
    operators: tuple[str, ...]
    ends_in_float: bool


SCOPES = (
    Scope("layers and what lies between them", (*LAYER_OPERATORS, *BETWEEN_LAYERS), ends_in_float=False),
    Scope(
        "layers and what lies between them, but not the first and last layers",
        (*LAYER_OPERATORS, *BETWEEN_LAYERS),
        True,
    ),
    Scope("layers alone, but not the first and last", LAYER_OPERATORS, True),
)
"""Tried in turn, from the fastest to the most exact."""

SELECTED_LAYERS = Scope("the layers that change least", LAYER_OPERATORS, ends_in_float=False)
"""Tried where all of those fall short of `ENOUGH`: as many layers as hold it."""


def write_int8(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write the fp32 graph `base` in int8 to `path`, calibrated on pixels uint8 [n, h, w, c]; what was quantised.

    Ranges are those of three quarters of the images; scopes are compared on the others, which may lie outside them. The
    first that keeps every embedding within `AIM` of fp32 is taken, else the one that comes nearest. Raises
    `ExportError` where ONNX Runtime can quantise the graph in no scope.
    """
    others = max(1, len(pixels) // 4)
    seen, unseen = pixels[:-others] if len(pixels) > 1 else pixels, pixels[-others:]
    with tempfile.TemporaryDirectory() as name:
        attempts = _Attempts(base, seen, unseen, Path(name), path)
        for scope in SCOPES:
            if attempts.best < TARGET_COSINE:
                attempts.write(scope)
        if attempts.tried and attempts.best < SUFFICIENT_COSINE:
            attempts.write_fewer()
    if not attempts.tried:
        raise ExportError(f"ONNX Runtime cannot quantise this graph: {'; '.join(attempts.reasons)}")
    best = max(attempts.tried, key=lambda scope: attempts.tried[scope])
    return {
        "quantised": best,
        "kept_in_float": _kept(path),
        "tried": attempts.tried,
        "calibration_images": len(seen),
    }


class _Attempts:
    """Graphs of several scopes, of which the one that comes nearest to fp32 on unseen pixels is kept.

    tried: each scope's least cosine; reasons: why others failed.
    """

    def __init__(self, base: Path, seen: np.ndarray, unseen: np.ndarray, folder: Path, kept: Path) -> None:
        self.model, self.seen, self.folder, self.kept = _prepared(base, folder), seen, folder, kept
        self.unseen, self.expected = unseen, run_graph(base, unseen)
        self.tried: dict[str, float] = {}
        self.reasons: list[str] = []

    @property
    def best(self) -> float:
        return max(self.tried.values(), default=-np.inf)

    def write(self, scope: Scope, excluded: Sequence[str] = ()) -> None:
        """Try a scope without the layers named, and keep its graph where it comes nearer than all before."""
        with self._noting_failure(scope):
            found = self._cosine(scope, excluded)
            if found > self.best:
                self.kept.write_bytes(self._candidate.read_bytes())
            self.tried[scope.name] = found

    def write_fewer(self) -> None:
        """Try as many layers as leave every compared embedding within `ENOUGH`."""
        layers = weighted_layers(self.model.graph)
        with self._noting_failure(SELECTED_LAYERS):
            if chosen := insensitive_layers(
                layers,
                lambda names: 1 - self._cosine(SELECTED_LAYERS, names_without(layers, names)),
                1 - SUFFICIENT_COSINE,
            ):
                self.write(SELECTED_LAYERS, names_without(layers, chosen))

    @contextmanager
    def _noting_failure(self, scope: Scope) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # onnx and onnxruntime raise families of their own
            self.reasons.append(f"{scope.name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")

    @property
    def _candidate(self) -> Path:
        return self.folder / "candidate.onnx"

    def _cosine(self, scope: Scope, excluded: Sequence[str]) -> float:
        _quantise(self.model, self.seen, self._candidate, scope, excluded, self.folder / "ranges.json")
        return least_cosine(run_graph(self._candidate, self.unseen), self.expected)


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


def _quantise(
    model: onnx.ModelProto, pixels: np.ndarray, path: Path, scope: Scope, excluded: Sequence[str], ranges: Path
) -> None:
    ends = find_layers(model.graph)
    excluded = [
        *(*excluded, *ends.front, *ends.tail, *activation_products(model.graph)),
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


def _kept(path: Path) -> list[str]:
    """The layers of a quantised graph that take no dequantised weight, by name."""
    graph = onnx.load(path).graph
    dequantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return [n.name for n in graph.node if n.op_type in LAYER_OPERATORS and not dequantised.issuperset(n.input[:2])]
