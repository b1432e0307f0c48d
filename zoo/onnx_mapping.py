"""An ONNX graph whose weights stay where they lie in its file, so that ONNX Runtime maps them instead of copying.

Read as a file, a graph is parsed with all of its weights, which are then copied once more: of ResNet-50's 94 MB that
takes a tenth of a second and 92 MiB at the start. ONNX has weights in other files ("external data"); here the other
file is the graph's own.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

from zoo.onnx_weights import LENGTH, header_at

LARGE = 4096
"""Bytes of a weight from which on it is worth pointing at."""

_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA = 7, 5, 9, 13
"""Fields of onnx.proto: of the model, of the graph, and two of a tensor."""

_IS_EXTERNAL = bytes([14 << 3, 1])
"""The tensor's field data_location, EXTERNAL."""

Rewrite = Callable[[mmap.mmap, int, int], bytes]


def pointing(path: Path) -> bytes:
    """The graph without its large weights, each of which says where in `path` it lies.

    The file is whole: `zoo.onnx_weights.check_weights` has read it.
    """

    def tensor(data: mmap.mmap, at: int, end: int) -> bytes:
        return _tensor(data, at, end, path.name)

    def graph(data: mmap.mmap, at: int, end: int) -> bytes:
        return b"".join(_rewritten(data, at, end, _INITIALIZER, tensor))

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return b"".join(_rewritten(data, 0, len(data), _GRAPH, graph))


def _rewritten(data: mmap.mmap, at: int, end: int, chosen: int, rewrite: Rewrite) -> Iterator[bytes]:
    """The fields of a message, those of the number `chosen` with another content."""
    for number, wire, start, content, after in _fields(data, at, end):
        if (number, wire) == (chosen, LENGTH):
            yield _field(number, rewrite(data, content, after))
        else:
            yield data[start:after]


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each field of a message its number and wire type, and where it, its content and what follows it begin."""
    while at < end:
        number, wire, content, size = header_at(data, at)
        yield number, wire, at, content, content + size
        at = content + size


def _tensor(data: mmap.mmap, at: int, end: int, file: str) -> bytes:
    fields = list(_fields(data, at, end))
    raw = next(((content, after) for number, _, _, content, after in fields if number == _RAW_DATA), (0, 0))
    if raw[1] - raw[0] < LARGE:
        return data[at:end]
    kept = [data[start:after] for number, _, start, _, after in fields if number != _RAW_DATA]
    where = {"location": file, "offset": str(raw[0]), "length": str(raw[1] - raw[0])}
    return b"".join([*kept, *(_entry(key, value) for key, value in where.items()), _IS_EXTERNAL])


def _entry(key: str, value: str) -> bytes:
    return _field(_EXTERNAL_DATA, _field(1, key.encode()) + _field(2, value.encode()))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | LENGTH) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
