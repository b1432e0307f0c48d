"""A flat index of vectors as a file that FAISS reads, written row after row, so that they need not fit into memory.

The bytes are those that FAISS itself writes: little-endian numbers, then the rows as they are. How many rows there are
stands before them, and is filled in at the end.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import faiss
import numpy as np

_INDEX = struct.Struct("<4siqqqBi")
_SIZE = struct.Struct("<Q")
_UNUSED = 1 << 20
"""What stands in two places that FAISS has given up."""


class FlatFile:
    """Writes an `IndexFlatIP` of vectors of `dim` numbers; with `named`, an `IndexIDMap` around it. A context.

    A file that was not closed well says that it holds nothing.
    """

    def __init__(self, path: Path, dim: int, named: bool = False) -> None:
        self._file: BinaryIO = path.open("wb")
        self._dim, self._named, self._ids = dim, named, [np.empty(0, np.int64)]
        self._file.write(self._head(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._finish()

    def add(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Append float32 [n, dim] with their ids, int64 [n]."""
        self._ids.append(ids)
        self._file.write(np.ascontiguousarray(vectors, "<f4").data)

    def ids(self) -> np.ndarray:
        """The ids of all rows so far, int64 [n]."""
        return np.concatenate(self._ids)

    def _finish(self) -> None:
        ids = self.ids()
        if self._named:
            self._file.write(_SIZE.pack(len(ids)) + ids.astype("<i8").tobytes())
        self._file.seek(0)
        self._file.write(self._head(len(ids)))

    def _head(self, count: int) -> bytes:
        names = [b"IxMp", b"IxFI"] if self._named else [b"IxFI"]
        numbers = self._dim, count, _UNUSED, _UNUSED, True, faiss.METRIC_INNER_PRODUCT
        return b"".join(_INDEX.pack(name, *numbers) for name in names) + _SIZE.pack(count * self._dim)
