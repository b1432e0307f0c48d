"""Exact versions of torch's 8-bit products in double precision, for processors on which torch's are not exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch's quantised linear layer."""
    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weights, shape: weights, raising=False)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", _layer, raising=False)


def multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Multiply like `torch._int_mm`."""
    return out.copy_(a.double() @ b.double())


def _layer(
    rows: Tensor,
    row_scale: float,
    row_zero: int,
    columns: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor,
    step: float,
    zero: int,
    dtype: torch.dtype,
    *rest: Any,
) -> Tensor:
    sums = row_scale * (rows.double() - row_zero) @ (columns.double() - zeros[:, None]).T
    return ((sums * scales + bias) / step + zero).round().clamp(0, 255).to(dtype)
