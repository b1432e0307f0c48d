"""Model folders of foreign ONNX graphs: the graph is wrapped to take uint8 pixels and give unit embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from zoo.data.preprocessing import Preprocessing, per_channel
from zoo.errors import CardError, ModelFolderError, UsageError, missing
from zoo.files import atomic_folder, sha256_of, write_json
from zoo.models.baselines import PRETRAINED
from zoo.models.card import Card
from zoo.models.folder import ONNX
from zoo.models.golden import draw_images, write_golden
from zoo.models.onnx_runtime import FINGERPRINT, GRAPH_FILES, INPUT, OUTPUT, PRECISION, open_graph, open_session, runner

LAYOUTS = {"nchw": (0, 3, 1, 2), "nhwc": (0, 1, 2, 3)}
"""Order of a graph's axes -> permutation from pixels [n, h, w, c]."""

OWN = "dml-zoo."
"""Beginning of the names that wrapping adds to a graph."""


def save_graph(
    path: Path,
    out: Path,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    size: int | None = None,
    layout: str | None = None,
) -> Card:
    """Write an ONNX graph from float images to vectors as a model folder, which ONNX Runtime runs.

    Args:
        path: The graph: one input of images, one output [n, d].
        out: The folder to write.
        name: The model's name.
        mean: Mean of each channel (or of all) on the scale 0 to 1; the graph gets (pixel - mean) / std.
        std: Standard deviation in the same form.
        size: Side of the input in pixels; by default the graph's own.
        layout: nchw or nhwc; by default by the place of the 1 or 3 channels.

    Raises:
        UsageError: `unreadable-file`, `unsupported-graph` for other inputs and outputs, `missing-value`,
            `invalid-value`, `weights-mismatch` if the graph takes another size, or `invalid-value`.
        ModelFolderError: `unsafe-file`, as `open_graph` raises it.
        MissingDependencyError: Without the package onnx.
    """
    try:
        import onnx
    except ImportError:
        raise missing("onnx", "export") from None
    try:
        model = onnx.load(path)  # with its external data, which the wrapped graph holds itself
    except Exception as error:  # protobuf and onnx raise their own types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} cannot be read as an ONNX graph: {reason}", code="unreadable-file") from None
    channels, layout, own_size = _input(model, path, layout)
    if size is not None and own_size not in (None, size):
        raise UsageError(f"{path} takes images of {own_size} pixels, not --size {size}.", code="weights-mismatch")
    if (side := size or own_size) is None:
        raise UsageError(f"{path} takes images of any size; name the one to use: --size 224.", code="missing-value")
    means, deviations = per_channel(mean, channels), per_channel(std, channels)
    mode = "L" if channels == 1 else "RGB"
    try:
        images = Preprocessing(round(side / 0.875), side, mode, "bicubic", means, deviations)
    except CardError as error:
        raise UsageError(str(error), code="invalid-value") from None
    digest = sha256_of(path)
    _wrap(model, images, layout)
    card = Card(
        name=name,
        method=PRETRAINED,
        backbone=ONNX,
        dataset="unknown",
        architecture=ONNX,
        architecture_args={"sha256": digest},  # so that the fingerprint is of this graph
        dim=_dim(model, images, path),
        preprocessing=images,
        licence="unknown",
        description=f"The ONNX graph {path.name}, not trained further.",
    )
    file = GRAPH_FILES["fp32"]
    for key, value in ((FINGERPRINT, card.fingerprint), (PRECISION, "fp32")):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    with atomic_folder(out) as folder:
        (folder / file).parent.mkdir()
        onnx.save(model, folder / file)
        card = dataclasses.replace(card, files={file: sha256_of(folder / file)})
        card.write(folder)
        run, _ = open_graph(folder / file, card)
        _check_batches(run, card, path)
        write_golden(folder, card, draw_images(), run)
        record = {"file": path.name, "weights": digest, "date": datetime.now(UTC).date().isoformat()}
        versions = {"onnx": version("onnx"), "dml-zoo": version("dml-zoo")}
        write_json(folder / "recipe.json", {"model": card.identity, "baseline": record, "versions": versions})
    return card


def _input(model: Any, path: Path, layout: str | None) -> tuple[int, str, int | None]:
    """Return channels, layout and size (None for any) of a graph's images."""
    from onnx import TensorProto

    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16)
    if len(inputs) != 1 or inputs[0].type.tensor_type.elem_type not in kinds:
        found = ", ".join(value.name for value in inputs)
        raise UsageError(
            f"{path} has the inputs {found}; expected one, of float images [n, 3, h, w] or [n, h, w, 3].",
            code="unsupported-graph",
        )
    shape = [axis.dim_value or None for axis in inputs[0].type.tensor_type.shape.dim]
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"--layout is nchw or nhwc, not {layout!r}.", code="invalid-value")
    found_layouts = [key for key, axis in (("nchw", 1), ("nhwc", 3)) if len(shape) == 4 and shape[axis] in (1, 3)]
    layout = layout or (found_layouts[0] if found_layouts else None)
    if len(shape) != 4 or layout not in found_layouts:
        raise UsageError(
            f"{path} takes {shape}; expected [n, 3, h, w] (--layout nchw) or [n, h, w, 3] (--layout nhwc).",
            code="unsupported-graph",
        )
    sides = shape[2:] if layout == "nchw" else shape[1:3]
    if None not in sides and sides[0] != sides[1]:
        raise UsageError(f"{path} takes {sides[0]} x {sides[1]} pixels; expected a square.", code="unsupported-graph")
    channels = shape[1] if layout == "nchw" else shape[3]
    assert channels is not None
    return channels, layout, sides[0] or sides[1]


def _wrap(model: Any, images: Preprocessing, layout: str) -> None:
    """Put normalisation in front of a graph, and unit length behind it."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    old_input = next(value for value in graph.input if value.name not in constants)
    old_output = graph.output[0]
    kind = old_input.type.tensor_type.elem_type
    scale = {"mean": images.mean, "std": images.std}
    for key, values in scale.items():
        array = (255 * np.asarray(values)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, f"{OWN}{key}"))
    before = [
        helper.make_node("Cast", [INPUT], [f"{OWN}float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", [f"{OWN}float", f"{OWN}mean"], [f"{OWN}centred"]),
        helper.make_node("Div", [f"{OWN}centred", f"{OWN}std"], [f"{OWN}scaled"]),
        helper.make_node("Transpose", [f"{OWN}scaled"], [f"{OWN}images"], perm=LAYOUTS[layout]),
        helper.make_node("Cast", [f"{OWN}images"], [f"{OWN}input"], to=kind),
    ]
    after = [
        helper.make_node("Cast", [f"{OWN}output"], [f"{OWN}rows"], to=TensorProto.FLOAT),
        helper.make_node("LpNormalization", [f"{OWN}rows"], [OUTPUT], axis=1, p=2),
    ]
    for node in graph.node:
        node.input[:] = [f"{OWN}input" if value == old_input.name else value for value in node.input]
        node.output[:] = [f"{OWN}output" if value == old_output.name else value for value in node.output]
        node.input[:] = [f"{OWN}output" if value == old_output.name else value for value in node.input]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", *images.shape]))
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", None]))


def _dim(model: Any, images: Preprocessing, path: Path) -> int:
    """Return the length of the embedding, and write it into the graph's output."""
    import onnx

    with TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        onnx.save(model, file)
        try:
            run = runner(open_session(file, "cpu"), file, OUTPUT)
            rows = run({INPUT: np.zeros((1, *images.shape), np.uint8)})
        except ModelFolderError as error:
            if error.code == "unsafe-file":
                raise
            reason = str(error).splitlines()[0]
            raise UsageError(f"{path} does not take {images.crop} pixels: {reason}", code="unsupported-graph") from None
    if rows.ndim != 2:
        raise UsageError(
            f"{path} gives {list(rows.shape)} for one image; expected one vector, [n, d]. Pool it in the graph.",
            code="unsupported-graph",
        )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = rows.shape[1]
    return int(rows.shape[1])


def _check_batches(run: Any, card: Card, path: Path) -> None:
    """Check that images of a batch do not influence one another, as in graphs that fix the size of a batch."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, *card.preprocessing.shape), np.uint8)
    try:
        whole = run(pixels)
    except Exception as error:
        raise UsageError(
            f"{path} does not take three images at once: {str(error).splitlines()[0]} Export it with a dynamic batch.",
            code="unsupported-graph",
        ) from None
    if not np.allclose(whole, np.concatenate([run(pixels[i : i + 1]) for i in range(3)]), atol=1e-3):
        raise UsageError(f"{path} gives other vectors for images alone than in a batch.", code="unsupported-graph")
