"""All settings of the service, in one table: an environment variable, its default, what it means.

`zoo serve` has a flag for each but the keys, which other users of a machine could read there, and for which it takes
--keys-file; the variable is how the flag reaches the service, and how `bentoml serve` and a container are configured.
Beside the table there are ZOO_SERVE_HOSTS, ZOO_SERVE_READ_KEYS and ZOO_SERVE_WRITE_KEYS; these keys hold for
all collections, and those of ZOO_SERVE_READ_KEYS_OLD_CARS and its like for the collection old-cars alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from serving.galleries import GALLERY, MODEL, from_environment
from zoo.errors import UsageError, nearest

if TYPE_CHECKING:
    from zoo.data.images import Limits


PREFIX = "ZOO_SERVE_"
HOSTS = "ZOO_SERVE_HOSTS"
"""The environment variable with the names, apart from loopback's, that the service answers to; commas between them."""
READ_KEYS, WRITE_KEYS = "ZOO_SERVE_READ_KEYS", "ZOO_SERVE_WRITE_KEYS"
"""Environment variables; each holds one key or several, commas between them, so that keys can be changed one by one."""
KEYS = (READ_KEYS, WRITE_KEYS)
DEVICE, PRECISION = "ZOO_DEVICE", "ZOO_PRECISION"
"""Environment variables: what the models run on, and which of their ONNX variants embeds."""
OTHERS = (DEVICE, PRECISION, GALLERY, MODEL)
"""Settings that have no SERVE in their names."""


def key_variables(name: str) -> list[str]:
    """Those that hold the keys of the collection `name` alone, in the order of `KEYS`, which hold for all."""
    ending = name.upper().replace("-", "_")
    return [f"{variable}_{ending}" for variable in KEYS]


@dataclass(frozen=True)
class Share:
    """Of one worker. `cores`: how many images it decodes and embeds at once."""

    concurrency: int
    rate: float
    burst: int
    cores: int


def core_share(workers: int) -> int:
    """How many of the cores that the service may use each of its workers has; at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def _number(default: float, low: float, help_text: str, high: float = math.inf) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "help": help_text})


@dataclass(frozen=True)
class Configuration:
    """Whole numbers where the default is one; `rate` 0 switches the limit off.

    `concurrency`, `rate` and `burst` hold for the service as a whole: each of its workers takes its `share`.
    """

    workers: int = _number(1, 1, "processes; they share cores, concurrency, rate and burst equally", 256)
    max_bytes: int = _number(20 * 2**20, 1024, "bytes of one image")
    max_pixels: int = _number(24_000_000, 1, "pixels of one image")
    max_k: int = _number(1000, 1, "results of one search")
    max_images: int = _number(32, 1, "images of one request")
    max_body: int = _number(32 * 2**20, 1024, "bytes of one request; a form may have 64 KiB more")
    concurrency: int = _number(128, 1, "requests that are processed at once; more get 429")
    queue_seconds: float = _number(
        0.75, 0.01, "seconds that an image may wait for a core; longer waits, behind more than 8 images, get 429"
    )
    rate: float = _number(
        0.0, 0, "requests per second of one client (known by its valid key, otherwise by its address); 0: no limit"
    )
    burst: int = _number(20, 1, "requests of one client at once after a pause, if there is a rate")
    body_seconds: float = _number(30.0, 0.1, "seconds within which a whole request must arrive")
    answer_seconds: float = _number(
        60.0, 0.1, "seconds after which an unanswered request gets 504; POST /evaluate may take longer"
    )
    hang_seconds: float = _number(
        30.0, 0.1, "seconds without an answer to /livez after which one of several workers is killed and started again"
    )
    drain_seconds: float = _number(10.0, 0, "seconds to finish open requests after a stop signal; the others get 503")
    log_requests: int = _number(0, 0, "1: one line of JSON per request on stderr")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Configuration:
        """Raises `UsageError` for a variable that there is not, and for a value that is none."""
        names = {PREFIX + one.name.upper(): one for one in fields(cls)}
        own = [key for place in from_environment(environment) if place.name for key in key_variables(place.name)]
        known = [*names, HOSTS, *KEYS, *own]
        for name in environment:
            if name.startswith(PREFIX) and name not in known:
                other = name.replace(PREFIX, "ZOO_", 1)
                near = f" Did you mean {other!r}?" if other in OTHERS else nearest(name, known)
                raise UsageError(f"there is no setting {name}.{near} All of them: zoo serve --help")
        given = {one.name: _value(name, environment[name], one) for name, one in names.items() if name in environment}
        return cls(**given)

    def share(self) -> Share:
        """What each of the workers takes on, so that together they keep to the limits."""
        return Share(
            max(1, self.concurrency // self.workers),
            self.rate / self.workers,
            max(1, self.burst // self.workers),
            core_share(self.workers),
        )

    @property
    def limits(self) -> Limits:
        from zoo.data.images import Limits

        return Limits(self.max_bytes, self.max_pixels)


def _value(name: str, text: str, one: Any) -> Any:
    kind = type(one.default)
    try:
        value: float = kind(text)
    except ValueError:
        value = math.nan
    low, high = one.metadata["low"], one.metadata["high"]
    if not (low <= value <= high and value < math.inf):
        what = "a whole number" if kind is int else "a number"
        bounds = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise UsageError(f"{name} is {text!r}; expected {what} {bounds}.")
    return value
