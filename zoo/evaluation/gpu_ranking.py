"""Ranks of all relatives on a GPU: similarities of a chunk of queries summed in double precision, and counted there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.evaluation import gpu

if TYPE_CHECKING:
    from torch import Tensor

_PRODUCTS = 2**26
"""How many similarities a chunk of queries has: three quarters of a gigabyte with what they were rounded from."""


def on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuRanks | None:
    """None where there is no GPU, or one on which the rows do not fit."""
    return gpu.where_it_fits(lambda place: GpuRanks(queries, gallery, place))


class GpuRanks:
    """Queries [q, d] and a gallery [n, d], float32, that lie on a device as a whole, in double precision."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._gallery = gpu.sent(gallery, place).double()
        self._queries = self._gallery if queries is gallery else gpu.sent(queries, place).double()

    def of(self, relatives: Callable[[int], np.ndarray], leave_one_out: bool) -> Iterator[np.ndarray]:
        """For each query the ranks, from 1, of its relatives, which are gallery rows: int64 [R], in their order."""

        def ranks_of(queries: slice) -> list[np.ndarray]:
            wanted = [relatives(query) for query in range(queries.start, queries.stop)]
            ranks = self._ranks(queries.start, _padded(wanted), leave_one_out)
            return [row[: len(rows)] for row, rows in zip(ranks, wanted, strict=True)]

        for _, ranks in gpu.chunks_that_fit(len(self._queries), max(1, _PRODUCTS // len(self._gallery)), ranks_of):
            yield from ranks

    def _ranks(self, start: int, table: np.ndarray, leave_one_out: bool) -> np.ndarray:
        """table: int64 [c, R], of the queries from `start` on; what is 0 beyond a query's relatives is counted, too."""
        import torch

        columns = torch.from_numpy(table).to(self._gallery.device)
        with torch.autocast(self._gallery.device.type, enabled=False):
            similar = (self._queries[start : start + len(table)] @ self._gallery.T).float()
        if leave_one_out:
            similar.diagonal(start).fill_(-torch.inf)
        before = torch.arange(len(self._gallery), device=similar.device)
        found = [_rank(similar, before, one).cpu().numpy() for one in columns.T]
        return np.stack(found, axis=1) if found else table


def _rank(similar: Tensor, before: Tensor, column: Tensor) -> Tensor:
    """The rank of one column [c] a row: those that are more similar, and those as similar that stand before it."""
    own = similar.gather(1, column[:, None])
    return 1 + (similar > own).sum(1) + ((similar == own) & (before < column[:, None])).sum(1)


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Lists of indices as a table, int64 [n, longest], 0 where a list has ended."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, each in enumerate(rows):
        table[place, : len(each)] = each
    return table
