"""Untrusted ONNX graphs: check a file, without the `onnx` package, before ONNX Runtime opens it.

A graph holds all of its weights, has no inner graphs and so no loops, and uses the operators that ONNX Runtime itself
brings.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from zoo.errors import ModelFolderError
from zoo.files import open_file

_INNER = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 10: "tensor"},
    "tensor": {},
}
"""Messages of onnx.proto that are looked into: field number -> kind of the message in it."""

_REFUSED = {
    "model": {20: "instructions for training", 25: "functions"},
    "graph": {15: "sparse weights"},
    "attribute": {6: "inner graphs", 11: "inner graphs", 22: "sparse weights", 23: "sparse weights"},
}
"""Parts that no graph of ours has: loops live in inner graphs; functions and sparse weights grow without a bound."""

_EXTERNAL = (13, 14)
"""Fields of TensorProto that refer to other files: external_data and data_location."""

_OPERATOR, _DOMAIN = 4, 7
"""Fields of NodeProto."""

_DOMAINS = (b"", b"ai.onnx", b"com.microsoft")
"""Domains of operators: the standard's, and ONNX Runtime's own."""

_OPERATORS = {
    b"EPContext": "runs a program, which a provider compiled, from a file that it names",
    b"NonZero": "takes memory outside ONNX Runtime's pool",
    b"Unique": "takes memory outside ONNX Runtime's pool",
}
"""Operators that no embedding needs, and why they are refused."""

_DATA_TYPE, _STRING = 2, 8
"""Field of TensorProto, and the type whose values take memory outside ONNX Runtime's pool."""

_ATTRIBUTE_NAME, _INTEGER = 1, 3
"""Fields of AttributeProto."""

_MAX_BYTES, _MAX_FIELDS = 2**31, 2_000_000
"""Largest graph: protobuf reads no more bytes; a node has about ten fields, which are read in a microsecond each."""

_LONGEST = 10
"""Largest number of bytes of a varint in protobuf."""

_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types: varints; fields with a length (messages, bytes, texts); type -> number of bytes for the others."""


def check_graph(path: Path) -> None:
    """Check that a graph holds all of its weights, which the card's SHA-256 covers, and does only plain arithmetic.

    Reads the protobuf without the `onnx` package and without the weights.

    Raises:
        ModelFolderError: `unsafe-file` for inner graphs, functions, sparse weights and foreign operators, or
            `unreadable-file` for a file that is missing or not a graph.
    """
    again = "Download the model folder again, or make the graph again (zoo export, zoo text-tower)."
    try:
        with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if len(data) > _MAX_BYTES:
                raise IndexError
            _Walk(data).check(0, len(data), "model")
    except (OSError, LookupError, ValueError):  # ValueError: mmap of an empty file
        raise ModelFolderError(f"{path} cannot be read as an ONNX graph. {again}", code="unreadable-file") from None
    except _ExternalData:
        raise ModelFolderError(
            f"{path} has weights in another file (external data), for which the card cannot vouch; expected all of "
            f"them in the graph. {again}",
            code="unsafe-file",
        ) from None
    except _UnsafeGraphError as error:
        raise ModelFolderError(
            f"{path} has {error}; expected a graph of standard operators alone. {again} Functions and inner graphs of "
            "a graph of your own may vanish with onnx.inliner or onnxsim.",
            code="unsafe-file",
        ) from None


class _ExternalData(Exception):  # noqa: N818
    """A tensor has its data in another file."""


class _UnsafeGraphError(Exception):
    """A graph has a part that is refused; the message names it."""


class _Walk:
    """A walk through the messages of a graph, which checks them."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.fields = data, 0

    def check(self, at: int, end: int, kind: str) -> None:
        """Check the message in the bytes from `at` to `end`."""
        name, makes_texts = b"", False
        while at < end:
            self.fields += 1
            if self.fields > _MAX_FIELDS:
                raise _UnsafeGraphError(f"more than {_MAX_FIELDS:,} fields")
            number, wire, at, size = _read_header(self.data, at)
            if number == 0 or at + size > end:  # no field of protobuf has the number 0
                raise IndexError
            self._check_field(at, at + size, kind, number, wire)
            if kind == "attribute" and (number, wire) == (_ATTRIBUTE_NAME, _LENGTH):
                name = self.data[at : at + size]
            elif kind == "attribute" and (number, wire) == (_INTEGER, _VARINT):
                makes_texts = _read_varint(self.data, at)[0] == _STRING
            at += size
        if (name == b"to" and makes_texts) or name in (b"value_string", b"value_strings"):
            raise _UnsafeGraphError("texts")

    def _check_field(self, at: int, end: int, kind: str, number: int, wire: int) -> None:
        """Check a field of a message, and the message in it."""
        if kind == "tensor" and number in _EXTERNAL and (end - at if wire == _LENGTH else any(self.data[at:end])):
            raise _ExternalData
        if kind == "tensor" and number == _DATA_TYPE and _read_varint(self.data, at)[0] == _STRING:
            raise _UnsafeGraphError("texts")
        if wire != _LENGTH:
            return
        if number in _REFUSED.get(kind, ()):
            raise _UnsafeGraphError(_REFUSED[kind][number])
        if kind == "node" and number in (_OPERATOR, _DOMAIN):
            _check_operator(self.data[at:end], number)
        if number in _INNER[kind]:
            self.check(at, end, _INNER[kind][number])


def _check_operator(name: bytes, field: int) -> None:
    if name in _OPERATORS if field == _OPERATOR else name not in _DOMAINS:
        what = "the operator" if field == _OPERATOR else "operators of the domain"
        raise _UnsafeGraphError(f"{what} {name[:40].decode(errors='replace')!r}")


def _read_header(data: mmap.mmap, at: int) -> tuple[int, int, int, int]:
    """Return number, wire type, offset of the content and size of the content of the field at an offset."""
    key, at = _read_varint(data, at)
    wire = key & 7
    if wire == _LENGTH:
        size, at = _read_varint(data, at)
    else:
        size = _read_varint(data, at)[1] - at if wire == _VARINT else _FIXED[wire]
    return (key & 0xFFFFFFFF) >> 3, wire, at, size


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset after it."""
    if (first := data[at]) < 128:  # most varints
        return first, at + 1
    value = 0
    for number in range(_LONGEST):
        byte = data[at + number]
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, at + number + 1
    raise IndexError
