"""What is said of a query that a hanging primary kept waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from serving.following import gate
from serving.following.follower import Follower
from serving.following.gate import Gate


class Hanging:
    """Its look does not come back before it is let; until then it thinks that all is here, as it was a moment ago."""

    is_fresh = True

    def __init__(self) -> None:
        self.let = threading.Event()

    def look(self) -> None:
        self.let.wait(20)

    def behind(self) -> None:
        return None


def test_a_query_that_waited_in_vain_is_behind_by_the_time_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "PATIENCE", 0.2)
    hanging = Hanging()

    async def asked() -> list[float | None]:
        one = Gate(cast(Follower, hanging))
        try:
            return [await one.passed(), await one.passed()]
        finally:
            hanging.let.set()

    first, second = asyncio.run(asked())
    assert first is not None
    assert first >= 0.2
    assert second is not None
