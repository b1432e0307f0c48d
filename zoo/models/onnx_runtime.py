"""Run a model folder with ONNX Runtime.

Whether an ONNX graph holds all of its weights itself, without reading them and without the `onnx` package.

Run a model folder with ONNX Runtime, without torch.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from zoo import paths
from zoo.errors import ModelFolderError, UsageError, VariantNotFoundError, check_text, missing, nearest
from zoo.models.card import Card

_INNER = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""The messages of onnx.proto that hold tensors: field number -> what lies in it."""

_EXTERNAL = (13, 14)
"""The fields of TensorProto that lead out of the file: external_data and data_location."""

_KEY = b"location"
"""The key of external_data that names the file. A node in which these bytes are not found needs no closer look."""

_LONGEST = 10
"""Bytes of a varint, as protobuf reads them."""

_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types; what has a length are messages, bytes and texts, and others have as many bytes."""


def check_self_contained(path: Path) -> None:
    """Raise `ModelFolderError` for a graph that has weights in another file: the card's SHA-256 says nothing of them.

    Also for what is no graph at all; what is not there is for others to say.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            outside = _has_external_data(data, 0, len(data), "model")
    except OSError:
        return
    except (LookupError, RecursionError, ValueError):  # mmap's own for an empty file
        raise ModelFolderError(
            f"{path} cannot be read as an ONNX graph. Get the model folder anew, or make the graph again (zoo export, "
            "zoo text-tower)."
        ) from None
    if outside:
        raise ModelFolderError(
            f"{path} has weights in another file (external data), for which the card cannot vouch; expected all of "
            "them in the graph. Get the model folder anew, or make the graph again (zoo export, zoo text-tower)."
        )


def _has_external_data(data: mmap.mmap, at: int, end: int, kind: str) -> bool:
    """Whether a message, which lies from `at` to `end`, holds a tensor that lies elsewhere."""
    inner = _INNER[kind]
    while at < end:
        field, wire, at, size = _read_header(data, at)
        if kind == "tensor" and field in _EXTERNAL and (size if wire == _LENGTH else any(data[at : at + size])):
            return True
        if wire != _LENGTH:
            at += size
            continue
        if at + size > end:
            raise IndexError
        # Nodes are many and small: to look for the bytes takes a tenth of the time that their fields take.
        found = field in inner and (inner[field] != "node" or data.find(_KEY, at, at + size) >= 0)
        if found and _has_external_data(data, at, at + size, inner[field]):
            return True
        at += size
    return False


def _read_header(data: mmap.mmap, at: int) -> tuple[int, int, int, int]:
    """Of the field at a place its number and wire type, where its content begins, and how many bytes that has."""
    key, at = _read_varint(data, at)
    wire = key & 7
    if wire == _LENGTH:
        size, at = _read_varint(data, at)
    else:
        size = _read_varint(data, at)[1] - at if wire == _VARINT else _FIXED[wire]
    return (key & 0xFFFFFFFF) >> 3, wire, at, size


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The varint at a place, and the place after it."""
    if (first := data[at]) < 128:  # as most are
        return first, at + 1
    value = 0
    for number in range(_LONGEST):
        byte = data[at + number]
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, at + number + 1
    raise IndexError


GRAPH_FILES = {"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "int8": "onnx/model_int8.onnx"}
RESIZING_FILES = {precision: file.replace(".onnx", "_resize.onnx") for precision, file in GRAPH_FILES.items()}
"""The graphs that resize: their input is `IMAGES`, uint8 [n, h, w, c] of any size, upright, in the card's mode."""

VARIANT_FILES = GRAPH_FILES | {f"{precision}-resize": file for precision, file in RESIZING_FILES.items()}
"""Both kinds, by the names that they have in onnx/parity.json."""

IMAGES, INPUT, OUTPUT = "images", "pixels", "embeddings"
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

FINGERPRINT, PRECISION = "dml-zoo.fingerprint", "dml-zoo.precision"
"""Metadata of a graph: `Card.fingerprint` of the model that it was exported from, and its precision."""


def open_graph(
    path: Path, card: Card, device: str | None = None, precision: str | None = None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], and the device it runs on.

    device: cpu, cuda, cuda:N or tensorrt. precision: that it has to be of, any by default. The function may be called
    from several threads at once. Raises `ModelFolderError` where the graph is of another model or precision or its
    signature is not the card's, and `UsageError` for a device that this ONNX Runtime cannot use.
    """
    where = device or "cpu"
    return _open(path, card, where, precision, INPUT, list(card.preprocessing.shape)), where


def open_resizing_graph(
    path: Path, card: Card, device: str | None = None, precision: str | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from images uint8 [n, h, w, c] of any one size to embeddings, of a graph that resizes.

    The images are upright and have the channels of the card's mode. Raises what `open_file` raises.
    """
    return _open(path, card, device or "cpu", precision, IMAGES, None)


def _open(
    path: Path, card: Card, device: str, precision: str | None, name: str, shape: list[int] | None
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from the input `name` to embeddings, of a graph that is the card's. shape: see `_check_signature`."""
    session = open_session(path, device)
    _check_origin(session, card, path, precision)
    _check_signature(session, card, name, shape)

    def run(given: np.ndarray) -> np.ndarray:
        out: np.ndarray = session.run([OUTPUT], {name: given})[0]
        return out

    return run


def check_precision(precision: str) -> None:
    """Check the name of a precision.

    Raises:
        UsageError: ONNX graphs do not come in it.
    """
    check_text("precision", precision)
    if precision not in GRAPH_FILES:
        hint = nearest(precision, GRAPH_FILES)
        raise UsageError(
            f"ONNX models come in {', '.join(GRAPH_FILES)}, not {precision!r}.{hint}", code="unknown-precision"
        )


def graph_file(folder: Path, card: Card, precision: str) -> str:
    """The graph's name in the folder. Raises `VariantNotFoundError` where there is none of that precision."""
    check_precision(precision)
    path = folder / GRAPH_FILES[precision]
    if not path.is_file():
        there = [name for name, file in GRAPH_FILES.items() if (folder / file).is_file()]
        raise VariantNotFoundError(
            f"{card.name} has no {precision} ONNX variant ({path} is missing); it has {', '.join(there) or 'none'}. "
            f"Make it with: zoo export {card.name} --precision {precision}"
        )
    return GRAPH_FILES[precision]


def open_session(path: Path, device: str):  # type: ignore[no-untyped-def]  # onnxruntime has no types
    """An ONNX Runtime session of a graph. Raises `ModelFolderError` and `UsageError` as `open_file` does."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise missing("onnxruntime", "cpu") from None
    providers = providers_of(device, ort.get_available_providers())
    wanted = providers[0][0]
    if wanted != PROVIDERS["cpu"]:
        # CUDA's and cuDNN's, from where pip puts them and the system's loader does not look. What is missing it prints.
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = paths.thread_count()
    # Threads that wait for work by spinning take the cores from those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if _int8_overflows():
        options.add_session_config_entry("session.x64quantprecision", "1")
    check_self_contained(path)
    try:
        session = ort.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime raises a family of its own
        raise ModelFolderError(f"{path} cannot be loaded by ONNX Runtime: {error}") from None
    if wanted not in session.get_providers():
        # ONNX Runtime goes on without a provider whose libraries it does not find.
        raise UsageError(f"{wanted} could not be started: {_gpu_problem()}. Or use device cpu.")
    return session


def _gpu_problem() -> str:
    """Why a provider for a GPU does not start."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1)"
    return (
        "a library that it needs is missing, or the driver is too old for it, as ONNX Runtime says above; "
        "pip install 'onnxruntime-gpu[cuda,cudnn]' brings those of CUDA"
    )


def providers_of(device: str, available: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """ONNX Runtime's providers for a device, with their options, best first.

    TensorRT leaves what it cannot run to CUDA, and CUDA to the CPU. Raises `UsageError` for a device of another name
    and for one that the installed ONNX Runtime has no provider for.
    """
    check_text("device", device)
    kind, colon, number = device.partition(":")
    if kind not in PROVIDERS or (colon and (kind == "cpu" or not number.isdecimal())):
        raise UsageError(f"device {device!r} is not one of cpu, cuda, cuda:N, tensorrt.{nearest(kind, PROVIDERS)}")
    if PROVIDERS[kind] not in available:
        raise UsageError(f"this onnxruntime has no {PROVIDERS[kind]}; install 'dml-zoo[gpu]' or use device cpu.")
    chain = {"cpu": ("cpu",), "cuda": ("cuda", "cpu"), "tensorrt": ("tensorrt", "cuda", "cpu")}[kind]
    options = {"device_id": int(number)} if number else {}
    found = [PROVIDERS[name] for name in chain if PROVIDERS[name] in available]
    return [(name, {} if name == PROVIDERS["cpu"] else options) for name in found]


@cache
def _int8_overflows() -> bool:
    """Whether int8 products would overflow here: x86 without VNNI adds pairs of them in 16 bits.

    ONNX Runtime then takes unsigned weights if asked to, which is exact but slower ("Quantize ONNX models", U8S8).
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    known = paths.cpu_flags()
    return known is None or not any("vnni" in flag for flag in known)


def _check_origin(session: Any, card: Card, path: Path, precision: str | None) -> None:
    """Graphs of older exports do not say which model they are of, nor in which precision."""
    said = session.get_modelmeta().custom_metadata_map
    if said.get(FINGERPRINT) not in (None, card.fingerprint):
        raise ModelFolderError(
            f"{path} is the ONNX graph of another model than {card.name}: of other weights, architecture or "
            f"preprocessing. Make it anew with: zoo export {card.name}"
        )
    if precision is not None and said.get(PRECISION) not in (None, precision):
        raise ModelFolderError(
            f"{path} is an ONNX graph in {said[PRECISION]}, its name says {precision}. Make it anew with: "
            f"zoo export {card.name} --precision {precision}"
        )


def check_batch_axis(session: Any, graph: str) -> None:
    """Raise `ModelFolderError` unless the graph takes and gives any number of rows. graph: what it is called."""
    for each in (*session.get_inputs(), *session.get_outputs()):
        if each.shape and isinstance(each.shape[0], int):
            raise ModelFolderError(
                f"{graph} is for batches of {each.shape[0]} alone, as the first axis of {each.name!r} says; expected "
                "any number. Get the model folder anew, or make the graph again (zoo export, zoo text-tower)."
            )


def _check_signature(session: Any, card: Card, name: str, shape: list[int] | None) -> None:
    """shape: of one image that goes in; None where it may have any height and width."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    check_batch_axis(session, f"the ONNX graph of {card.name}")
    sizes = [list(i.shape)[1:] if shape else len(i.shape) for i in inputs]
    got = (
        [(i.name, i.type, size) for i, size in zip(inputs, sizes, strict=True)],
        [(o.name, o.type, list(o.shape)[1:]) for o in outputs],
    )
    want = [(name, "tensor(uint8)", shape or 4)], [(OUTPUT, "tensor(float)", [card.dim])]
    if got != want:
        raise ModelFolderError(f"the ONNX graph of {card.name} takes and gives {got}, its card says {want}.")
