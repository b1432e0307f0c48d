"""Good images while poisoned ones are sent beside them: all are found, and not much later."""

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
"""What poison may do to good queries: one that a bomb shares the cores with takes twice as long, and a bomb that has a
core to itself is let another in beside after a quarter of a second (serving.cores).
"""
TURNS = 4
"""A machine that others use, too, may be slower for some seconds, whichever of the two is measured then."""


def check(found: dict[str, Any]) -> None:
    """`found`: what `poisoned` returns, of enough seconds for its medians to mean something."""
    alone, beside = found["alone_ms"], found["beside_ms"]
    assert beside["p50"] <= SLOWDOWN * alone["p50"], f"good queries beside poison: {beside} ms; alone: {alone} ms"
    assert beside["max"] <= SLOWEST_MS, f"a good query beside poison took {beside['max']} ms"


def poisoned(service: Service, seconds: float, size: int = 2_000_000) -> dict[str, Any]:
    """Latencies in ms of good queries, one after the other: alone, and while a second client sends one bomb after the
    other; so many seconds each, in turns. Every good query must be answered as ever.
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
