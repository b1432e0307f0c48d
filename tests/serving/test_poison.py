"""Short form of the proof about good queries beside poisoned ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof import poison


def found(p50: float, slowest: float) -> dict[str, Any]:
    return {"alone_ms": {"p50": 10.0, "max": 30.0}, "beside_ms": {"p50": p50, "max": slowest}}


def test_a_little_slower_is_no_fault() -> None:
    poison.check(found(29.0, 1900.0))


@pytest.mark.parametrize(("p50", "slowest", "said"), [(31.0, 100.0, "beside poison"), (12.0, 2100.0, "took 2100")])
def test_much_slower_is_said(p50: float, slowest: float, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        poison.check(found(p50, slowest))
