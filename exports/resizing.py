"""ONNX graphs that resize: images of any height and width in, as `zoo.data.preprocessing` would prepare them.

That part is Pillow's resampling (Pillow, src/libImaging/Resample.c) as ONNX operators: for each output pixel the taps
within the filter's support, weighted and normalised, first along the width, then along the height, rounded after each.
Pillow 13 takes tall images the other way round and rounds ties from other sums: pixels may differ by one step, and
after lanczos or bicubic, which overshoot, by more where neighbours differ as much as in noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
import onnx.inliner
import onnxruntime as ort
import onnxscript.optimizer
from onnxscript import script
from onnxscript.onnx_opset import opset20
from onnxscript.onnx_types import UINT8

from exports.parity import EmbedPixels
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import ExportError
from zoo.models.onnx_runtime import IMAGES, INPUT, OUTPUT, open_session
from zoo.models.results import RESIZE_FLOOR

RESIZE_PREFIX = "resize."
"""The prefix of names in the resizing part, which must differ from those of the network."""


op: Any = opset20  # its type hints reject the numbers that its compiler turns into constants

_TYPE: Any = UINT8
ANY_SIZE, ONE_SIZE = _TYPE["n", "h", "w", "c"], _TYPE["n", "crop", "crop", "c"]


@script()
def box(t):  # type: ignore[no-untyped-def]
    return op.Cast(op.And(t > -0.5, t <= 0.5), to=1)


@script()
def bilinear(t):  # type: ignore[no-untyped-def]
    return op.Relu(1.0 - op.Abs(t))


@script()
def hamming(t):  # type: ignore[no-untyped-def]
    x = op.Max(op.Abs(t), 1e-6) * 3.141592653589793
    inside = op.Sin(x) / x * (0.54 + 0.46 * op.Cos(x))
    return op.Where(op.Abs(t) < 1.0, inside, 0.0)


@script()
def bicubic(t):  # type: ignore[no-untyped-def]
    x = op.Abs(t)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return op.Where(x < 1.0, near, op.Where(x < 2.0, far, 0.0))


@script()
def lanczos(t):  # type: ignore[no-untyped-def]
    x = op.Max(op.Abs(t), 1e-6) * 3.141592653589793
    third = x / 3.0
    return op.Where(op.Abs(t) < 3.0, op.Sin(x) / x * (op.Sin(third) / third), 0.0)


FILTERS: dict[str, tuple[Callable[..., Any], float]] = {
    "box": (box, 0.5),
    "bilinear": (bilinear, 1.0),
    "hamming": (hamming, 1.0),
    "bicubic": (bicubic, 2.0),
    "lanczos": (lanczos, 3.0),
}
"""Pillow's filters with half the width of their support. "nearest" is missing: it averages nothing."""


def resizing_graph(preprocessing: Preprocessing) -> onnx.ModelProto:
    """Build a graph from `images` uint8 [n, h, w, c] to `pixels` uint8 [n, crop, crop, c].

    Raises:
        ExportError: If the interpolation is "nearest".
    """
    if preprocessing.interpolation not in FILTERS:
        message = f"a graph can resize by {', '.join(FILTERS)}, not by {preprocessing.interpolation!r}."
        raise ExportError(message, code="unknown-name")
    kernel, support = FILTERS[preprocessing.interpolation]
    crop, side_of_output = preprocessing.crop, float(preprocessing.crop)
    share = preprocessing.crop / preprocessing.resize
    of_short, of_own = (0.0, share) if preprocessing.squeeze else (share, 0.0)

    @script()
    def taps(size, side):  # type: ignore[no-untyped-def]
        """Positions int64 [crop, k] and weights [crop, k] of the pixels along an axis that make each output pixel."""
        scale = side / side_of_output
        stretch = op.Max(scale, 1.0)
        reach = stretch * support
        outputs = op.Cast(op.Range(0, crop, 1), to=1)
        centres = op.Unsqueeze((size - side) / 2.0 + (outputs + 0.5) * scale, [1])
        first = op.Floor(op.Relu(centres - reach + 0.5))
        end = op.Min(op.Floor(centres + reach + 0.5), size)
        count = op.Cast(op.Ceil(reach), to=7) * 2 + 1
        positions = first + op.Cast(op.Unsqueeze(op.Range(0, op.Squeeze(count), 1), [0]), to=1)
        weights = kernel((positions - centres + 0.5) / stretch)
        inside = op.Where(positions < end, weights, 0.0)
        return op.Cast(op.Min(positions, size - 1.0), to=7), inside / op.ReduceSum(inside, [1], keepdims=1)

    @script()
    def rounded(x):  # type: ignore[no-untyped-def]
        return op.Clip(op.Floor(x + 0.5), 0.0, 255.0)

    @script()
    def graph(images: ANY_SIZE) -> ONE_SIZE:  # type: ignore[valid-type]
        planes = op.Transpose(images, perm=[0, 3, 1, 2])
        height = op.Cast(op.Shape(images, start=1, end=2), to=1)
        width = op.Cast(op.Shape(images, start=2, end=3), to=1)
        side = op.Min(height, width) * of_short
        across, across_weights = taps(width, side + width * of_own)
        down, down_weights = taps(height, side + height * of_own)
        lines = op.Cast(op.Gather(planes, across, axis=3), to=1) * across_weights
        narrow = rounded(op.ReduceSum(lines, [4], keepdims=0))
        columns = op.Gather(narrow, down, axis=2) * op.Unsqueeze(down_weights, [2])
        small = rounded(op.ReduceSum(columns, [3], keepdims=0))
        pixels = op.Cast(op.Transpose(small, perm=[0, 2, 3, 1]), to=2)
        return pixels  # noqa: RET504  (the output's name)

    model = onnx.inliner.inline_local_functions(graph.to_model_proto())
    # ONNX Runtime leaves constants alone that it cannot bound (`zoo.models.untrusted_graph`).
    onnxscript.optimizer.fold_constants(model)
    return model


def write_resizing_graph(graph: Path, preprocessing: Preprocessing, path: Path) -> None:
    """Write `graph` with resizing in front of it to `path`: `images` uint8 [n, h, w, c] in, `embeddings` out."""
    model, resizing = onnx.load(graph), resizing_graph(preprocessing)
    resizing.ir_version = model.ir_version
    del resizing.opset_import[1:]  # that of the functions, which are inlined
    merged = onnx.compose.merge_models(resizing, model, io_map=[("pixels", INPUT)], prefix1=RESIZE_PREFIX)
    _rename_input(merged.graph, f"{RESIZE_PREFIX}{IMAGES}", IMAGES)
    onnx.save(merged, path)


def _rename_input(graph: onnx.GraphProto, old: str, new: str) -> None:
    graph.input[0].name = new
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def compare_resizing(
    path: Path, run: EmbedPixels, images: Sequence[np.ndarray], preprocessing: Preprocessing
) -> dict[str, Any]:
    """Compare a graph that resizes with the same graph after Pillow.

    Args:
        path: The resizing graph.
        run: The graph without resizing.
        images: uint8 [h, w, c] each, of different sizes.
        preprocessing: The model's.

    Returns:
        The entry in onnx/parity.json: differences of pixels (of 255) and the least cosine of embeddings.
    """
    resize_session, whole_session = _session(resizing_graph(preprocessing)), open_session(path, "cpu")
    pillow = [to_pixels(image, preprocessing)[None] for image in images]
    resized = [resize_session.run(None, {IMAGES: image[None]})[0].astype(int) for image in images]
    differences = [np.abs(a - b) for a, b in zip(resized, pillow, strict=True)]
    rows = np.concatenate([whole_session.run([OUTPUT], {IMAGES: image[None]})[0] for image in images])
    cosine = float((rows * np.concatenate([run(pixels) for pixels in pillow])).sum(1).min())
    return {
        "images": len(images),
        "min_cosine_to_pillow": cosine,
        "floor": RESIZE_FLOOR,
        "max_pixel_difference": int(max(difference.max() for difference in differences)),
        "mean_pixel_difference": float(np.mean([difference.mean() for difference in differences])),
        "holds": cosine >= RESIZE_FLOOR,
    }


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
