"""Static int8 graphs: QuantizeLinear and DequantizeLinear around each operator, weights with one scale per channel.

Activations are unsigned and weights signed, which is what x86's VNNI instructions multiply (ONNX Runtime,
"Quantize ONNX models", Data type selection). The activations' ranges are the least and greatest values on calibration
images.
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
"""Operators between layers that stay in int8, so that values do not become floats from one layer to the next."""

TARGET_COSINE = 0.99
"""The least cosine to fp32 at which no more layers are put back into float."""

SUFFICIENT_COSINE = (2 + EXPORT_FLOORS["int8"]) / 3
"""The least cosine that leaves room above the floor: the worst of other images loses two or three times as much."""


@dataclass(frozen=True)
class _Scope:
    """A choice of the operators that are quantised.

    Attributes:
        name: The name in onnx/parity.json.
        operators: The types of the operators.
        ends_in_float: The first and the last layers stay in float.
    """

    name: str
    operators: tuple[str, ...]
    ends_in_float: bool


SCOPES = (
    _Scope("layers and what lies between them", (*LAYER_OPERATORS, *BETWEEN_LAYERS), ends_in_float=False),
    _Scope(
        "layers and what lies between them, but not the first and last layers",
        (*LAYER_OPERATORS, *BETWEEN_LAYERS),
        ends_in_float=True,
    ),
    _Scope("layers alone, but not the first and last", LAYER_OPERATORS, ends_in_float=True),
)
"""The scopes in the order in which they are tried, from the fastest to the most exact."""

SELECTED_LAYERS = _Scope("the layers that change least", LAYER_OPERATORS, ends_in_float=False)
"""The last scope, tried if all others miss `SUFFICIENT_COSINE`: as many layers as keep it."""


def write_int8(base: Path, pixels: np.ndarray, path: Path) -> dict[str, Any]:
    """Write a graph in int8.

    Three quarters of the images calibrate the ranges. Scopes are compared on the others, which may exceed the ranges.
    The first scope that keeps every embedding within `TARGET_COSINE` of fp32 is taken, else the nearest one.

    Args:
        base: The fp32 graph.
        pixels: The calibration images, uint8 [n, h, w, c].
        path: The new graph.

    Returns:
        The taken scope ("quantised"), the layers in float ("kept_in_float"), each scope's least cosine ("tried") and
        the number of "calibration_images".

    Raises:
        ExportError: If ONNX Runtime can quantise the graph in no scope.
    """
    compared = max(1, len(pixels) // 4)
    calibration = pixels[:-compared] if len(pixels) > 1 else pixels
    with tempfile.TemporaryDirectory() as scratch:
        search = _ScopeSearch(base, calibration, pixels[-compared:], Path(scratch), path)
        for scope in SCOPES:
            if search.best < TARGET_COSINE:
                search.try_scope(scope)
        if search.cosines and search.best < SUFFICIENT_COSINE:
            search.try_selected_layers()
    if not search.cosines:
        reasons = "; ".join(search.failures)
        raise ExportError(f"ONNX Runtime cannot quantise this graph: {reasons}")
    return {
        "quantised": max(search.cosines, key=lambda name: search.cosines[name]),
        "kept_in_float": _layers_in_float(path),
        "tried": search.cosines,
        "calibration_images": len(calibration),
    }


class _ScopeSearch:
    """Quantised graphs of several scopes; the one nearest to fp32 on unseen pixels is kept.

    Attributes:
        cosines: The least cosine by scope, for scopes that can be quantised.
        failures: The reasons why the other scopes failed.
    """

    def __init__(self, base: Path, calibration: np.ndarray, unseen: np.ndarray, scratch: Path, out: Path) -> None:
        self.model, self.calibration, self.scratch, self.out = _prepare(base, scratch), calibration, scratch, out
        self.unseen, self.expected = unseen, run_graph(base, unseen)
        self.candidate = scratch / "candidate.onnx"
        self.cosines: dict[str, float] = {}
        self.failures: list[str] = []

    @property
    def best(self) -> float:
        """The largest of the least cosines so far."""
        return max(self.cosines.values(), default=-np.inf)

    def try_scope(self, scope: _Scope, excluded: Sequence[str] = ()) -> None:
        """Quantise a scope without the layers `excluded`; keep the graph if it is nearer to fp32 than all before."""
        with self._note_failure(scope):
            cosine = self._cosine(scope, excluded)
            if cosine > self.best:
                self.out.write_bytes(self.candidate.read_bytes())
            self.cosines[scope.name] = cosine

    def try_selected_layers(self) -> None:
        """Quantise as many layers as keep every compared embedding within `SUFFICIENT_COSINE`."""
        layers = weighted_layers(self.model.graph)

        def change(names: Sequence[str]) -> float:
            return 1 - self._cosine(SELECTED_LAYERS, names_without(layers, names))

        with self._note_failure(SELECTED_LAYERS):
            if insensitive := insensitive_layers(layers, change, 1 - SUFFICIENT_COSINE):
                self.try_scope(SELECTED_LAYERS, names_without(layers, insensitive))

    @contextmanager
    def _note_failure(self, scope: _Scope) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # onnx and onnxruntime raise families of their own
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.failures.append(f"{scope.name}: {reason}")

    def _cosine(self, scope: _Scope, excluded: Sequence[str]) -> float:
        _quantise(self.model, self.calibration, self.candidate, scope, excluded, self.scratch / "ranges.json")
        return least_cosine(run_graph(self.candidate, self.unseen), self.expected)


def _prepare(base: Path, scratch: Path) -> onnx.ModelProto:
    """Fold constants, fuse batch norm and infer every shape, as the quantiser needs it."""
    source, folded = scratch / "source.onnx", scratch / "folded.onnx"
    model = onnx.load(base)
    # The exporter's shapes are those of weights before they are transposed.
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
    """Transpose the weights of linear layers with `transB`, whose per-channel scales would take the wrong axis."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        flags = [attribute for attribute in node.attribute if attribute.name == "transB" and attribute.i]
        if node.op_type == "Gemm" and flags and node.input[1] in weights:
            weight = weights[node.input[1]]
            transposed = np.ascontiguousarray(numpy_helper.to_array(weight).T)
            name = f"{weight.name}.{node.name}"  # another node may share the original weight
            graph.initializer.append(numpy_helper.from_array(transposed, name))
            node.input[1] = name
            flags[0].i = 0


def _quantise(
    model: onnx.ModelProto, pixels: np.ndarray, path: Path, scope: _Scope, excluded: Sequence[str], ranges: Path
) -> None:
    layers = find_layers(model.graph)
    ends = (*layers.first, *layers.last) if scope.ends_in_float else ()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the quantiser changes its argument
    with _without_advice():
        quantize_static(
            copy,
            path,
            _Batches(pixels),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(scope.operators),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[*excluded, *layers.front, *layers.tail, *activation_products(model.graph), *ends],
            calibration_cache_path=ranges,
        )


class _Batches(CalibrationDataReader):
    """Batches of calibration images for the quantiser."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.batches = (pixels[i : i + BATCH] for i in range(0, len(pixels), BATCH))

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next batch, None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the quantiser's advice on the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _layers_in_float(path: Path) -> list[str]:
    """Return the names of a quantised graph's layers that take no dequantised weight."""
    graph = onnx.load(path).graph
    dequantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return [
        node.name
        for node in graph.node
        if node.op_type in LAYER_OPERATORS and not dequantised.issuperset(node.input[:2])
    ]
