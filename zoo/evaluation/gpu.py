"""The GPU that measuring uses where torch is loaded anyway and sees one, and how float32 rows get there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

ON_GPU = 2**10
"""From how many rows on a GPU is worth what it takes to send them."""

_SENT = 2**24
"""How many numbers are sent at a time."""

_ONE = threading.Lock()
"""Who changes the precision of products, which is the whole process's."""

T = TypeVar("T")


def device() -> str | None:
    """The device of torch to compute on, where torch is loaded already and sees a GPU."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else None


def where_it_fits(make: Callable[[str], T]) -> T | None:
    """What `make` makes on the GPU; None where there is none, or one on which there is no room for it."""
    place = device()
    if place is None:
        return None
    import torch

    try:
        return make(place)
    except torch.OutOfMemoryError:
        return None


def chunks_that_fit(
    total: int, size: int, compute: Callable[[slice], T], instead: Callable[[slice], T] | None = None
) -> Iterator[tuple[slice, T]]:
    """Yield consecutive chunks of `total` rows with their results; chunks that do not fit into memory are halved.

    Args:
        total: The number of rows.
        size: The number of rows of the first chunks.
        compute: Computes a chunk; it may raise `torch.OutOfMemoryError`.
        instead: Makes the result of a single row that does not fit.

    Raises:
        torch.OutOfMemoryError: A single row does not fit, and `instead` is None.
    """
    import torch

    start = 0
    while start < total:
        rows = slice(start, min(start + size, total))
        try:
            result = compute(rows)
        except torch.OutOfMemoryError:
            if size > 1:
                size //= 2
                continue
            if instead is None:
                raise
            result = instead(rows)
        yield rows, result
        start = rows.stop


def sent(rows: np.ndarray, place: str) -> Tensor:
    """The rows on the device, piece by piece: they may be a memory-mapped file that cannot be written."""
    import torch

    there = torch.empty(rows.shape, dtype=torch.float32, device=place)
    step = max(1, _SENT // rows.shape[1])
    for start in range(0, len(rows), step):
        there[start : start + step] = torch.from_numpy(np.array(rows[start : start + step]))
    return there


@contextmanager
def full_precision() -> Iterator[Any]:
    """TF32, which some programs switch on, keeps ten bits of a number: bounds on rounding would not hold."""
    import torch

    products = torch.backends.cuda.matmul
    with _ONE:
        if not hasattr(products, "fp32_precision"):  # torch below 2.9; what sets it there cannot be read of a newer one
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
        else:
            before, products.fp32_precision = products.fp32_precision, "ieee"
        try:
            yield
        finally:
            if hasattr(products, "fp32_precision"):
                products.fp32_precision = before
            else:
                torch.set_float32_matmul_precision(before)


def width_of(k: int) -> int:
    """Return how many candidates a shortlist holds for k neighbours: twice as many, and some more."""
    return 2 * k + 32
