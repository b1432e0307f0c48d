"""Whether an ONNX graph holds all of its weights itself, without reading them and without the `onnx` package."""

from __future__ import annotations

import mmap
from pathlib import Path

from zoo.errors import ModelFolderError

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


def check_weights(path: Path) -> None:
    """Raise `ModelFolderError` for a graph that has weights in another file: the card's SHA-256 says nothing of them.

    Also for what is no graph at all; what is not there is for others to say.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            outside = _leads_out(data, 0, len(data), "model")
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


def _leads_out(data: mmap.mmap, at: int, end: int, kind: str) -> bool:
    """Whether a message, which lies from `at` to `end`, holds a tensor that lies elsewhere."""
    inner = _INNER[kind]
    while at < end:
        field, wire, at, size = _header(data, at)
        if kind == "tensor" and field in _EXTERNAL and (size if wire == _LENGTH else any(data[at : at + size])):
            return True
        if wire != _LENGTH:
            at += size
            continue
        if at + size > end:
            raise IndexError
        # Nodes are many and small: to look for the bytes takes a tenth of the time that their fields take.
        found = field in inner and (inner[field] != "node" or data.find(_KEY, at, at + size) >= 0)
        if found and _leads_out(data, at, at + size, inner[field]):
            return True
        at += size
    return False


def _header(data: mmap.mmap, at: int) -> tuple[int, int, int, int]:
    """Of the field at a place its number and wire type, where its content begins, and how many bytes that has."""
    key, at = _number(data, at)
    wire = key & 7
    if wire == _LENGTH:
        size, at = _number(data, at)
    else:
        size = _number(data, at)[1] - at if wire == _VARINT else _FIXED[wire]
    return (key & 0xFFFFFFFF) >> 3, wire, at, size


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
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
