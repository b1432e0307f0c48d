"""Requests of a load test, and their answers."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from tests.proof.line import request
from tests.proof.service import KEY
from tests.serving import toys

OVERLOAD = 3.0
SIDES = 1024, 768


@dataclass
class Answers:
    """Answers to the requests of one phase.

    Attributes:
        due: When each request was due.
        seconds: How long each took.
        status: The status of each; 0 for a broken connection.
        memory: The memory of the service in MiB, by the second.
        taken: The part of the machine that others had, by the second.
    """

    due: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    taken: list[tuple[float, float]] = field(default_factory=list)

    def note(self, due: float, seconds: float, status: int) -> None:
        self.due.append(due)
        self.seconds.append(seconds)
        self.status.append(status)

    def good(self) -> np.ndarray:
        """Return the seconds of the answers except refusals."""
        return np.array([took for took, status in zip(self.seconds, self.status, strict=True) if 200 <= status < 300])

    def lasted(self) -> float:
        """Return the seconds until the last answer."""
        return max(due + took for due, took in zip(self.due, self.seconds, strict=True))

    def percentile(self, q: float) -> float | None:
        """Return a percentile in ms of the answers except refusals, or None without such answers."""
        good = self.good()
        return round(1000 * float(np.percentile(good, q)), 2) if len(good) else None

    def statuses(self, chosen: np.ndarray | None = None) -> dict[str, int]:
        """Count the statuses of all answers, or of those in the mask `chosen`, bool [n]."""
        status = np.array(self.status) if chosen is None else np.array(self.status)[chosen]
        return {str(one): count for one, count in sorted(Counter(status.tolist()).items())}

    def told(self, seconds: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 1),
            "requests": len(self.status),
            "per_second": round(len(self.good()) / seconds, 1),
            "statuses": self.statuses(),
            "p50_ms": self.percentile(50),
            "p99_ms": self.percentile(99),
            "max_ms": self.percentile(100),
        }


class Mix:
    """Reads and writes of one client, nine to one; added items are removed, so that the gallery keeps its size."""

    def __init__(self) -> None:
        self.images, self.added, self.number = photographs(), deque[int](), itertools.count()
        self.reads = [request("/search?k=10", image, key=KEY) for image in self.images]

    def next(self) -> tuple[bytes, bool]:
        """Return the next request, and whether it adds an image."""
        number = next(self.number)
        if number % 10:
            return self.reads[number % len(self.reads)], False
        if number % 20 and self.added:
            return request(f"/items/{self.added.popleft()}", method="DELETE", key=KEY), False
        # Bytes after an image's end make another file of the same picture.
        image = self.images[number % len(self.images)] + f"{time.time_ns()} {number}".encode()
        return request("/items?label=load", image, key=KEY), True

    def take(self, body: bytes) -> None:
        self.added.extend(item["id"] for item in json.loads(body)["items"])


def photographs(count: int = 8) -> list[bytes]:
    """Draw JPEGs of about 150 kB with some detail."""
    rng = np.random.default_rng(0)
    images = []
    for kind in range(count):
        small = toys.picture(kind % 4, rng, 60).resize(SIDES)
        grained = np.asarray(small, np.float32) + rng.normal(0, 6, (SIDES[1], SIDES[0], 1))
        out = BytesIO()
        Image.fromarray(np.clip(grained, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        images.append(out.getvalue())
    return images
