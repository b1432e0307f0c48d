"""The fastest form of a computation is measured in turns, in no more time than the choice is worth."""

from __future__ import annotations

import time

from zoo.models.torch_runtime import fastest


def test_short_forms_are_measured_in_few_rounds() -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        time.sleep(0.003)

    assert fastest({"slow": slow, "quick": lambda: calls.append("quick")}) == "quick"
    assert calls == ["slow", "quick"] * (1 + 15)


def test_long_forms_are_measured_twice() -> None:
    calls: list[str] = []
    fastest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0)
    assert calls == ["a", "b"] * (1 + 2)
