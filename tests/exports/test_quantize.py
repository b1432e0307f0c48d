"""Static int8 of one linear layer, compared with the arithmetic by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exports import quantize
from exports.precision import run_graph
from exports.quantize import SCOPES, write_int8
from zoo.models.onnx_runtime import INPUT, OUTPUT, open_session

DRAW = np.random.default_rng(0)
WEIGHTS = (DRAW.normal(size=(6, 3)) * [0.01, 1, 100]).astype(np.float32)
PIXELS = DRAW.integers(0, 256, (40, 1, 2, 3)).astype(np.uint8)


def linear(path: Path) -> Path:
    """Write a graph from pixels [n, 1, 2, 3] to 6 floats times WEIGHTS [6, 3], transposed as torch exports them."""
    pixels = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", 1, 2, 3])
    rows = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", 3])
    nodes = [
        helper.make_node("Cast", [INPUT], ["floats"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "weight"], [OUTPUT], name="linear", transB=1),
    ]
    weight = numpy_helper.from_array(np.ascontiguousarray(WEIGHTS.T), "weight")
    graph = helper.make_graph(nodes, "linear", [pixels], [rows], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_weights_and_outputs_of_a_linear_layer(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    details = write_int8(linear(tmp_path / "fp32.onnx"), PIXELS, path)
    assert details["calibration_images"] == 30
    assert details["kept_in_float"] == []

    scale = np.abs(WEIGHTS).max(0) / 127
    integers = np.rint(WEIGHTS / scale)
    held = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.data_type == TensorProto.INT8]
    np.testing.assert_array_equal(next(h for h in held if h.shape == (6, 3)), integers)

    # Ranges hold 0: pixels up to 255 have a scale of 1 and are exact; the outputs share one scale of 255 steps.
    assert PIXELS.max() == 255
    got = open_session(path, "cpu").run([OUTPUT], {INPUT: PIXELS})[0]
    by_hand = PIXELS.reshape(40, 6).astype(np.float64) @ (integers * scale)
    float32 = PIXELS.reshape(40, 6) @ WEIGHTS
    step = (max(float32.max(), 0) - min(float32.min(), 0)) / 255
    assert np.abs(got - by_hand).max() <= 1.01 * step
    assert np.abs(got[:, 2] - float32[:, 2]).max() > 0


@pytest.mark.slow
def test_a_scope_that_gives_nan_is_worse_than_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates: list[bool] = []

    def broken(path: Path, pixels: np.ndarray) -> np.ndarray:
        rows = run_graph(path, pixels)
        candidates.append(path.name == "candidate.onnx")
        return np.full_like(rows, np.nan) if candidates[-1] and sum(candidates) == 1 else rows

    monkeypatch.setattr(quantize, "run_graph", broken)
    path = tmp_path / "int8.onnx"
    details = write_int8(linear(tmp_path / "fp32.onnx"), PIXELS, path)
    assert details["tried"][SCOPES[0].name] == -1
    assert details["quantised"] in {scope.name for scope in SCOPES[1:]}
    assert path.is_file()


@pytest.mark.slow
def test_the_first_of_equally_near_scopes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "run_graph", lambda path, pixels: np.full_like(run_graph(path, pixels), np.nan))
    details = write_int8(linear(tmp_path / "fp32.onnx"), PIXELS, tmp_path / "int8.onnx")
    assert details["quantised"] == SCOPES[0].name
    assert details["kept_in_float"] == []
