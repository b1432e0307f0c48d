"""Memory limit of an evaluation: the requirement in advance, and unit rows whose pages leave memory after each use.

Under a limit the unit rows are stored in an unnamed temporary file (`BoundedRows`). Each block is mapped, used and
released, so that the resident set of the process does not grow with the rows; the lists and tables of the search are
cut to the limit (`Budget`). `require_memory` computes the peak from the number of rows before any work and refuses
what does not fit.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import EvaluationError, UsageError
from zoo.evaluation.gpu import shortlist_width

MIB = 2**20

PAGE_CLUSTER = 2**16
"""The bytes that one access to a mapped file brings into memory: the kernel maps the pages around it as well."""

GATHERED_PAIRS = 512
"""The number of rows that are gathered from a mapped file before its pages are released: 32 MiB of clusters."""

_CHUNKS = tuple(MIB << power for power in range(6, 1, -1))
"""Sizes of lists and tables from which a budget takes the largest that fits: 64 to 4 MiB."""

_BLOCK_BYTES = 80 * MIB
"""Peak of one block of 1,024 x 1,024 products with its masks, should all of its pairs be candidates, and a gather."""

_LIST_COPIES = 10
"""Arrays of the size of a chunk's lists that exist at one time: keys, products, columns, hits, precisions, ..."""

_DENSE_COPIES = 14
"""Arrays of the size of a dense table that exist at one time, should all rows of a gallery be equal."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Budget:
    """Memory that a search may use besides the rows.

    Attributes:
        chunk: The largest size of a chunk's lists, or of a table of similarities, in bytes.
        dense: The largest size of a table of products where the lists overflow, in bytes.
        symmetric: Whether the lists of all queries fit at one time, so that each product serves its row and its column.
    """

    chunk: int
    dense: int
    symmetric: bool


class BoundedRows(np.memmap):
    """Unit rows, float32 [n, d], in an unnamed temporary file; a slice of rows belongs to the same file.

    Attributes:
        budget: The memory of a search among them; None for an array that was computed from them.
    """

    budget: Budget | None = None

    def __array_finalize__(self, source: Any) -> None:
        super().__array_finalize__(source)
        mapped = getattr(self, "_mmap", None) is not None
        self.budget = getattr(source, "budget", None) if mapped else None


@dataclass(frozen=True)
class Requirement:
    """Peak of memory of an evaluation, computed in advance.

    Attributes:
        limit: The limit, in bytes.
        process: The resident set of the process before the evaluation; it includes rows that are in memory.
        tables: Labels, classes and scores of the queries.
        groups: Group of metrics -> bytes besides these. The groups run one after the other.
        disk: Bytes of the temporary file of unit rows.
        budget: The memory of the search.
    """

    limit: int
    process: int
    tables: int
    groups: Mapping[str, int]
    disk: int
    budget: Budget

    @property
    def total(self) -> int:
        return self.process + self.tables + max(self.groups.values())

    @property
    def text(self) -> str:
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in self.groups.items())
        return (
            f"memory: at most {format_size(self.total)} of {format_size(self.limit)} (process "
            f"{format_size(self.process)}, labels and scores {format_size(self.tables)}; then one at a time: {parts}) "
            f"and {format_size(self.disk)} of unit rows in {tempfile.gettempdir()}"
        )


def parse_size(value: int | str) -> int:
    """Return a size in bytes: 2GiB, 512MiB, 1.5GB or a number of bytes.

    Raises:
        UsageError: If it is not a positive size (code "invalid-value").
    """
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match and match[2].upper() in _UNITS:
        value = int(float(match[1]) * _UNITS[match[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"memory is a size such as 2GiB or 512MiB, not {value!r}.", code="invalid-value")
    return value


def format_size(size: int) -> str:
    """Return a size in MiB, or from 1,000 MiB in GiB with one decimal, rounded up."""
    mebibytes = math.ceil(size / MIB)
    return f"{mebibytes} MiB" if mebibytes < 1000 else f"{math.ceil(size / 2**30 * 10) / 10} GiB"


def resident_bytes() -> int:
    """Return the resident set of this process (Linux), else its peak so far, in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes; 0 on Windows, which does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def require_memory(
    limit: int, rows: int, dim: int, labels: np.ndarray, groups: Sequence[str], k: Sequence[int], queries: int = 0
) -> Requirement:
    """Return the requirement of an evaluation that fits the limit.

    Args:
        limit: Bytes.
        rows: The number n of all rows.
        dim: The number d of dimensions.
        labels: [n], integers or strings.
        groups: Groups of metrics besides retrieval.
        k: Every K of recall_at_K.
        queries: The number of rows that search the others; 0 if each row searches all others.

    Raises:
        EvaluationError: If a group of metrics does not fit (code "too-large"). The message has the numbers, the groups
            that fit, and the least limit.
    """
    process, tables = resident_bytes(), _table_bytes(rows, labels, len(k))
    largest_class = int(np.unique(labels, return_counts=True)[1].max(initial=1))
    depth = max(1, *k, largest_class)
    candidates = [
        Requirement(limit, process, tables, needs, _disk_bytes(rows, dim, groups, queries), budget)
        for budget, needs in _variants(rows, dim, depth, queries or rows, groups, largest_class)
    ]
    for requirement in candidates:
        if requirement.total <= limit:
            return requirement
    raise EvaluationError(_refusal(candidates[-1], limit), code="too-large")


def bounded_rows(shape: tuple[int, int], budget: Budget) -> BoundedRows:
    """Return an empty `BoundedRows` for rows of unit length.

    Raises:
        EvaluationError: If the folder for temporary files has no room (code "disk-full").
    """
    rows = temporary_map(shape).view(BoundedRows)
    rows.budget = budget
    return rows


def temporary_map(shape: tuple[int, ...]) -> np.memmap:
    """Return a memory-mapped float32 array in an unnamed temporary file.

    Raises:
        EvaluationError: If the folder for temporary files has no room (code "disk-full").
    """
    size = 4 * math.prod(shape)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # neither macOS nor Windows
                os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk would kill the process later
            else:
                file.truncate(size)
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise EvaluationError(
            f"the folder for temporary files has no room for {size:,} bytes ({error.strerror}), the unit rows of "
            "mapped embeddings; set TMPDIR to a folder with more space.",
            code="disk-full",
        ) from None


def search_budget(rows: np.ndarray) -> Budget | None:
    """Return the budget of `BoundedRows`, and None for other rows."""
    return rows.budget if isinstance(rows, BoundedRows) else None


def release(rows: np.ndarray) -> None:
    """Let the pages of `BoundedRows` leave memory; the next access reads them again. Other rows stay."""
    if search_budget(rows) is not None:
        release_pages(rows)


def release_pages(rows: np.ndarray) -> None:
    """Let the pages of an array in a mapped file leave memory, unless its changes would be lost."""
    mapped = getattr(rows, "_mmap", None)
    if mapped is None or getattr(rows, "mode", "c") == "c" or not rows.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = rows.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, min(start + rows.nbytes, len(mapped)) - first)


def _variants(
    rows: int, dim: int, depth: int, queries: int, groups: Sequence[str], largest_class: int
) -> Iterator[tuple[Budget, dict[str, int]]]:
    """Yield budgets with the needs of each group, from the fastest to the smallest."""
    for symmetric in (True, False) if queries == rows else (False,):
        for chunk in _CHUNKS:
            budget = Budget(chunk, chunk // 8, symmetric)
            needs = {"retrieval": _search_bytes(rows, depth, budget)}
            for group in (group for group in groups if group != "retrieval"):
                needs[group] = _group_bytes(group, rows, dim, largest_class, needs["retrieval"], budget)
            yield budget, needs


def _search_bytes(rows: int, depth: int, budget: Budget) -> int:
    per_query = 8 * shortlist_width(min(depth, rows))
    lists = per_query * min(rows, 1024 if budget.symmetric else max(1, min(1024, budget.chunk // per_query)))
    dense = _DENSE_COPIES * max(4 * rows, min(budget.dense, 4 * rows * 1024))
    return _BLOCK_BYTES + budget.symmetric * per_query * rows + max(_LIST_COPIES * lists, dense)


def _group_bytes(group: str, rows: int, dim: int, largest_class: int, search: int, budget: Budget) -> int:
    """Return the peak of a group of metrics, by the arrays that its module allocates."""
    matrix = 4 * rows * dim
    match group:
        case "ranking":  # two tables of similarities, products in double precision, and the order of one row
            return 3 * max(budget.chunk, 8 * rows) + 40 * rows + 32 * MIB
        case "clustering":  # the mapped rows, and random ones of their shape; FAISS's copies of both
            return max(search, 6 * matrix + 64 * MIB)
        case "structure":  # the singular values of the rows in double precision, or the distances in one class
            return max(6 * matrix, 20 * largest_class * dim + 12 * largest_class**2) + 200 * MIB
        case "verification":  # 400,000 pairs, gathered in parts
            return 64 * MIB + min(matrix, 2 * PAGE_CLUSTER * max(1, MIB // dim))
    return 0


def _table_bytes(rows: int, labels: np.ndarray, depths: int) -> int:
    """Return the size of labels as text (sorted copies), of the hashed identity, and of the scores per query."""
    text = labels.dtype.itemsize if labels.dtype.kind == "U" else 84
    return rows * (4 * text + 120 + 32 * (12 + depths)) + 16 * MIB


def _disk_bytes(rows: int, dim: int, groups: Sequence[str], queries: int) -> int:
    copies = 2 if queries and any(group not in ("retrieval", "ranking") for group in groups) else 1
    return copies * 4 * rows * dim


def _refusal(least: Requirement, limit: int) -> str:
    base = least.process + least.tables
    heavy = {name: base + size for name, size in least.groups.items() if base + size > limit}
    needs = ", ".join(f"{name} {format_size(size)}" for name, size in heavy.items())
    fits = [name for name in least.groups if name not in heavy]
    way_out = f"Allow {format_size(least.total)}"
    if "retrieval" not in heavy:
        way_out += f", or measure only {' and '.join(fits)}"
    else:
        way_out += ", or measure fewer rows"
    return (
        f"the evaluation does not fit {format_size(limit)} of memory: {needs} would be needed, of which "
        f"{format_size(least.process)} are in use already. {way_out}."
    )
