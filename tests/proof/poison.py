"""Good queries while another client sends bombs: all are answered, and not much later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.proof import bombs
from tests.proof.fuzz import check_refused
from tests.proof.service import Service
from tests.serving import toys

SLOWDOWN, SLOWEST_MS = 3.0, 2000.0
"""Limits for good queries during bombs: ratio of the medians, and the longest time.

A query that shares the cores with a bomb takes twice as long; a query that waits for a bomb's core gets one after a
quarter of a second.
"""
TURNS = 4
"""Rounds that alternate: a shared machine may be slower for some seconds, in either measurement."""


def check(found: dict[str, Any]) -> None:
    """Check the result of `poisoned`, of enough seconds for meaningful medians."""
    alone, beside = found["alone_ms"], found["beside_ms"]
    assert beside["p50"] <= SLOWDOWN * alone["p50"], f"good queries beside poison: {beside} ms; alone: {alone} ms"
    assert beside["max"] <= SLOWEST_MS, f"a good query beside poison took {beside['max']} ms"


def poisoned(service: Service, seconds: float, size: int = 2_000_000) -> dict[str, Any]:
    """Measure good queries for `seconds` each, alone and while a second client sends bombs; the two alternate.

    Every good query must get its usual answer. Latencies are in ms.
    """
    alone, beside, poison = list[float](), list[float](), 0
    for _ in range(TURNS):
        alone += _good(service, seconds / TURNS)
        with _poisoner(service, size) as sent:
            beside += _good(service, seconds / TURNS)
        poison += sent[0]
    service.check_alive()
    return {"alone_ms": _told(alone), "beside_ms": _told(beside), "good": len(alone) + len(beside), "poisoned": poison}


def _good(service: Service, seconds: float) -> list[float]:
    times: list[float] = []
    with service.client() as client:
        wanted = client.post("/search", content=toys.query(1)).json()["results"]
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            begun = time.perf_counter()
            answer = client.post("/search", content=toys.query(1))
            times.append(time.perf_counter() - begun)
            assert answer.json()["results"] == wanted
    return times


@contextmanager
def _poisoner(service: Service, size: int) -> Iterator[list[int]]:
    poison, stop, sent, faults = list(bombs.filling(size).values()), threading.Event(), [0], []

    def pour() -> None:
        try:
            with service.client() as client:
                while not stop.is_set():
                    answer = client.post("/search", content=poison[sent[0] % len(poison)])
                    sent[0] += 1
                    if answer.status_code != 200:
                        check_refused(answer)
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()
    if faults:
        raise faults[0]


def _told(times: list[float]) -> dict[str, float]:
    return {
        name: round(1000 * float(np.percentile(times, q)), 1) for name, q in (("p50", 50), ("p99", 99), ("max", 100))
    }
