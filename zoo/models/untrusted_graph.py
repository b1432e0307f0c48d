"""Untrusted ONNX graphs: check a file, without the `onnx` package, before ONNX Runtime opens it.

A graph holds all of its weights, has no inner graphs and so no loops, and uses the operators that ONNX Runtime itself
brings. ONNX Runtime computes the constant parts of a graph while it loads it, beyond any bound of memory or time; this
module tells the graphs whose constants are as small as their weights, so that the others are computed within bounds.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import ModelFolderError

_INNER = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "weights", 11: "input"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 10: "tensor"},
    "weights": {},
    "tensor": {},
    "input": {2: "type"},
    "type": {1: "tensor type"},
    "tensor type": {2: "shape"},
    "shape": {1: "axis"},
    "axis": {},
}
"""Messages of onnx.proto that are looked into: field number -> kind of the message in it."""

_REFUSED = {
    "model": {20: "instructions for training", 25: "functions"},
    "graph": {15: "sparse weights"},
    "attribute": {6: "inner graphs", 11: "inner graphs", 22: "sparse weights", 23: "sparse weights"},
}
"""Parts that no graph of ours has: loops live in inner graphs; functions and sparse weights grow without a bound."""

_EXTERNAL = {"weights": (13, 14), "tensor": (13, 14)}
"""Fields of TensorProto that refer to other files: external_data and data_location."""

_OPERATOR, _DOMAIN = 4, 7
"""Fields of NodeProto."""

_DIMS, _NAME = 1, 8
"""Fields of TensorProto."""

_KEPT = {
    "node": (1, 2, _OPERATOR, 5, _DOMAIN),
    "attribute": (1, 3),
    "weights": (_DIMS, _NAME),
    "input": (1, 2),
    "type": (1,),
    "tensor type": (2,),
    "shape": (1,),
    "axis": (1,),
}
"""Fields whose values tell the constant parts of a graph: names, operators, whole numbers and sizes."""

_KEEPS_SHAPE = {b"Cast", b"DequantizeLinear", b"Identity"}
_BROADCASTS = {b"Add", b"Div", b"Mul", b"Sub"}
_KEEPS_SIZE = {b"Concat", b"Constant", b"Flatten", b"Reshape", b"Shape", b"Squeeze", b"Transpose", b"Unsqueeze"}
"""Operators whose output has as many numbers as their inputs, in another shape; `Shape` has only a few."""

_FOLDED_SHARE = 4
"""Largest number of constants that are computed from the weights, for each byte of a graph."""

_DOMAINS = (b"", b"ai.onnx", b"com.microsoft")
"""Domains of operators: the standard's, and ONNX Runtime's own."""

_COMPILED = b"EPContext"
"""Operator of ONNX Runtime that runs a program, which a provider compiled, from a file that it names."""

_MAX_BYTES, _MAX_FIELDS = 2**31, 2_000_000
"""Largest graph: protobuf reads no more bytes; a node has about ten fields, which are read in a microsecond each."""

_LONGEST = 10
"""Largest number of bytes of a varint in protobuf."""

_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types: varints; fields with a length (messages, bytes, texts); type -> number of bytes for the others."""


def check_graph(path: Path) -> bool:
    """Check that a graph holds all of its weights, which the card's SHA-256 covers, and does only plain arithmetic.

    Reads the protobuf without the `onnx` package and without the weights. A missing file passes.

    Returns:
        Whether ONNX Runtime may compute the graph's constant parts when it loads it: they are as small as the weights.

    Raises:
        ModelFolderError: `unsafe-file` for inner graphs, functions, sparse weights and foreign operators, or
            `unreadable-file` for a file that is not a graph.
    """
    again = "Download the model folder again, or make the graph again (zoo export, zoo text-tower)."
    walk = _Walk()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if len(data) > _MAX_BYTES:
                raise IndexError
            walk.check(data, 0, len(data), "model")
            return walk.has_small_constants(_FOLDED_SHARE * len(data))
    except OSError:
        return True
    except (LookupError, ValueError):  # ValueError: mmap of an empty file
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


class _Node(NamedTuple):
    """A node of the graph. size: in bytes. integers: the values of its attributes that are integers, by their names."""

    size: int
    operator: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    integers: dict[bytes, list[int]]

    def measures_free_axis(self, sized: Mapping[bytes, list[bool]]) -> bool:
        """Return whether a `Shape` reads an axis of the graph's input whose size is that of a batch."""
        axes = sized.get(b"".join(self.inputs), [])
        start, end = (_signed(self.integers.get(name, [])) for name in (b"start", b"end"))
        return not all(axes[slice(start, end)])

    def is_plain(self, shapes: Sequence[tuple[int, ...] | None]) -> bool:
        """Return whether the output is as small as inputs of these shapes, of which None is unknown."""
        if self.operator in _BROADCASTS:
            return None not in shapes
        return self.operator in _KEEPS_SIZE or (self.operator in _KEEPS_SHAPE and len(shapes) > 0)

    def shape(self, shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
        """Return the shape of the output of a plain node; None if only the number of its numbers is known."""
        if self.operator in _BROADCASTS:
            return tuple(map(max, zip_longest(*(reversed(shape or ()) for shape in shapes), fillvalue=1)))[::-1]
        return shapes[0] if self.operator in _KEEPS_SHAPE else None


class _Walk:
    """A walk through the messages of a graph, which checks them and keeps what its constant parts depend on.

    Attributes:
        nodes: The nodes, in their order.
        weights: Name -> shape of the weights.
        sized: Name of an input of the graph -> whether the size of each axis is fixed.
    """

    def __init__(self) -> None:
        self.fields = 0
        self.nodes: list[_Node] = []
        self.weights: dict[bytes, tuple[int, ...]] = {}
        self.sized: dict[bytes, list[bool]] = {}

    def check(self, data: mmap.mmap, at: int, end: int, kind: str) -> dict[int, Any]:
        """Check the message in the bytes from `at` to `end`; return the fields of it that matter here."""
        fields: dict[int, Any] = {number: [] for number in _KEPT.get(kind, ())}
        begin = at
        while at < end:
            self._count()
            number, wire, at, size = _read_header(data, at)
            if number == 0 or at + size > end:  # no field of protobuf has the number 0
                raise IndexError
            if number in _EXTERNAL.get(kind, ()) and (size if wire == _LENGTH else any(data[at : at + size])):
                raise _ExternalData
            if wire == _LENGTH and number in _REFUSED.get(kind, ()):
                raise _UnsafeGraphError(_REFUSED[kind][number])
            values = self._values(data, at, at + size, wire, kind, number)
            if number in fields:
                fields[number] += values
            at += size
        self._keep(kind, fields, end - begin)
        return fields

    def _values(self, data: mmap.mmap, at: int, end: int, wire: int, kind: str, number: int) -> list[Any]:
        """Return the values of a field, and check the messages in it."""
        if wire == _LENGTH and number in _INNER[kind]:
            return [self.check(data, at, end, _INNER[kind][number])]
        if number not in _KEPT.get(kind, ()):
            return []
        if wire == _VARINT or (kind, number) == ("weights", _DIMS):
            return self._read_varints(data, at, end)
        return [data[at:end]]

    def _keep(self, kind: str, fields: dict[int, Any], size: int) -> None:
        """Keep the facts of a message, and check its operator."""
        if kind == "node":
            for number in (_OPERATOR, _DOMAIN):
                for name in fields[number]:
                    _check_operator(name, number)
            attributes = {b"".join(attribute[1]): attribute[3] for attribute in fields[5]}
            self.nodes.append(_Node(size, b"".join(fields[_OPERATOR][-1:]), fields[1], fields[2], attributes))
        elif kind == "weights":
            name = b"".join(fields[_NAME][-1:])
            if name in self.weights:
                raise IndexError
            self.weights[name] = tuple(fields[_DIMS])
        elif kind == "input":
            shapes = [shape for kinds in fields[2] for tensor in kinds[1] for shape in tensor[2]]
            self.sized[b"".join(fields[1][-1:])] = [bool(dim[1]) for shape in shapes for dim in shape[1]]

    def _count(self) -> None:
        self.fields += 1
        if self.fields > _MAX_FIELDS:
            raise _UnsafeGraphError(f"more than {_MAX_FIELDS:,} fields")

    def _read_varints(self, data: mmap.mmap, at: int, end: int) -> list[int]:
        values = []
        while at < end:
            self._count()
            value, at = _read_varint(data, at)
            values.append(value)
        return values

    def has_small_constants(self, most: int) -> bool:
        """Return whether the nodes that depend on weights alone have at most this many numbers, as far as is known.

        What other operators than the plain ones make of constants may be of any size, and so may nodes in an order in
        which a constant is used before it is made.
        """
        shapes: dict[bytes, tuple[int, ...] | None] = {b"": (), **self.weights}
        sizes = {name: math.prod(shape) for name, shape in self.weights.items()}
        sized = dict(self.sized)
        ahead = {name for node in self.nodes for name in node.outputs} - {b""}
        total = 0
        for node in self.nodes:
            if not ahead.isdisjoint(node.inputs):
                return False
            ahead.difference_update(node.outputs)
            is_measured = node.operator == b"Shape" and not node.measures_free_axis(sized)
            if not is_measured and not all(name in shapes for name in node.inputs):
                if node.operator in _KEEPS_SHAPE and node.inputs[0] in sized:
                    sized |= dict.fromkeys(node.outputs, sized[node.inputs[0]])
                continue
            inputs = [shapes.get(name) for name in node.inputs]
            if not node.is_plain(inputs):
                return False
            shape = node.shape(inputs)
            size = node.size + sum(sizes.get(name, 0) for name in node.inputs) if shape is None else math.prod(shape)
            total += size
            if total > most:
                return False
            shapes |= dict.fromkeys(node.outputs, shape)
            sizes |= dict.fromkeys(node.outputs, size)
        return True


def _check_operator(name: bytes, field: int) -> None:
    if name == _COMPILED if field == _OPERATOR else name not in _DOMAINS:
        what = "the operator" if field == _OPERATOR else "operators of the domain"
        raise _UnsafeGraphError(f"{what} {name[:40].decode(errors='replace')!r}")


def _signed(values: Sequence[int]) -> int | None:
    """Return the last of some int64 that were read as unsigned ones; None of no values."""
    return None if not values else values[-1] - (values[-1] >> 63 << 64)


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
