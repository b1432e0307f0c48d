"""The precisions that models are exported in."""

from __future__ import annotations

from zoo.errors import UsageError, nearest
from zoo.models.onnx_runtime import FILES


def check_precision(precision: str) -> None:
    """Raise `UsageError` for a precision that no graph comes in."""
    if precision not in FILES:
        raise UsageError(f"models are exported in {', '.join(FILES)}, not {precision!r}.{nearest(precision, FILES)}")
