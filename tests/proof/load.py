"""Load test of a service: first 80 % of its peak for long, then three times its peak, then no load.

    python -m tests.proof.load --out load/                    15 minutes at 80 % of the peak that is measured first
    python -m tests.proof.load --minutes 0.5 --out load/      a try

Nine of ten requests search by an image of 1024 x 768; the tenth adds one or removes one that was added. Requests are
sent at their due times, even if earlier ones are not answered yet, and a latency counts from the due time: a slow
answer cannot hide those that wait behind it.

The service has one half of the cores and the clients have the other, so that three times the load does not slow the
service by the work of the clients. Both may share the machine with other programs. The peak is therefore
measured before every round of 20 seconds and after the last one. A round does not count as 80 % of the peak if the peak
fell meanwhile, if other programs had more than a tenth of the machine in one second, or if the service's cores were so
slow for a second that the load was their peak. Refusals in such a round are reported, and do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.proof.line import Line, request
from tests.proof.load_picture import draw
from tests.proof.machine import Machine, Pace
from tests.proof.service import Service, service, toy_gallery
from tests.proof.traffic import OVERLOAD, Answers, Mix, photographs

SHARE, CLIENTS = 0.8, 8
ROUND = 20.0
"""Seconds from one measurement of the peak to the next."""
KEPT = 0.9
"""Part of the peak before a round that must remain after it, else the round does not count."""
MOST_TAKEN = 0.1
"""Largest part of the machine's time that other programs may have in a second, else the round does not count."""
MOST_REFUSED = 0.001
"""Largest part of the requests at that share that may be refused: on a busy core some wait for long by chance."""
MOST_GROWTH = 64
"""Limit of the growth during the steady load, MiB: caches fill."""
MOST_LINES = 256
"""Largest number of open connections; a request that waits for one has the wait in its latency."""


async def _once(line: Line, mix: Mix, answers: Answers, due: float, begun: float) -> None:
    text, adds = mix.next()
    try:
        status, body = await line.ask(text)
    except OSError:
        status, body = 0, b""
    answers.note(due - begun, time.perf_counter() - due, status)
    if adds and status in (200, 201):
        mix.take(body)


async def peak(url: str, mix: Mix, seconds: float, clients: int = CLIENTS) -> Answers:
    """Send requests with `clients` that each wait for their last answer."""
    answers, begun = Answers(), time.perf_counter()

    async def one() -> None:
        async with Line(url) as line:
            while time.perf_counter() < begun + seconds:
                await _once(line, mix, answers, time.perf_counter(), begun)

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers


async def at_rate(
    served: Service, mix: Mix, seconds: float, rate: float, before: Answers | None = None, since: float = 0.0
) -> Answers:
    """Send `rate` requests per second at their due times, and note the service's memory every second.

    `before` holds the first `since` seconds of the phase, which this call continues.
    """
    answers, begun = before or Answers(), time.perf_counter() - since
    idle, lines = asyncio.LifoQueue[Line](), [Line(served.url) for _ in range(MOST_LINES)]
    machine = Machine([served.pid])
    for line in lines:
        idle.put_nowait(line)

    async def one(due: float) -> None:
        line = await idle.get()
        try:
            await _once(line, mix, answers, due, begun)
        finally:
            idle.put_nowait(line)

    async with asyncio.TaskGroup() as group:
        for due in _schedule(begun + since, seconds, rate):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due))
            if not answers.memory or due - begun >= answers.memory[-1][0] + 1:
                answers.memory.append((due - begun, served.memory()))
                answers.taken.append((due - begun, machine.taken()))
    for line in lines:
        await line.__aexit__()
    return answers


def _schedule(begun: float, seconds: float, rate: float) -> Iterator[float]:
    """Yield the due times of requests: random, like those of many independent people."""
    rng, due = np.random.default_rng(int(1e6 * begun)), begun
    while due < begun + seconds:
        yield due
        due += rng.exponential(1 / rate)


async def recovery(url: str, quick: float, patience: float = 30.0) -> float:
    """Return the seconds until a search takes at most `quick` seconds again."""
    begun, text = time.perf_counter(), request("/search?k=10", photographs(1)[0])
    async with Line(url) as line:
        while time.perf_counter() < begun + patience:
            asked = time.perf_counter()
            status, _ = await line.ask(text)
            if status == 200 and time.perf_counter() - asked <= quick:
                return time.perf_counter() - begun
            await asyncio.sleep(0.02)
    return float("inf")


def slope(samples: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the slope in MiB per minute by least squares, and its standard error; None for fewer than four samples.

    The first fifth, in which caches fill, is left out.
    """
    late = np.array(samples[len(samples) // 5 :])
    if len(late) < 4:
        return None
    x, y = late[:, 0] / 60, late[:, 1]
    design = np.stack([x - x.mean(), np.ones_like(x)], axis=1)
    solved = np.linalg.lstsq(design, y, rcond=None)[0]
    rest = y - design @ solved
    error = np.sqrt(rest @ rest / (len(x) - 2) / (design[:, 0] @ design[:, 0]))
    return float(solved[0]), float(error)


def _rounds_of(moments: list[float], rounds: int, seconds: float) -> np.ndarray:
    """Return the round of each moment of a phase of `seconds`, int [n]."""
    return np.minimum(np.array(moments) * rounds // seconds, rounds - 1).astype(int)


@dataclass
class Measured:
    """Answers of the phases, and their report."""

    steady: Answers
    overload: Answers
    report: dict[str, Any]


async def measure(
    served: Service, seconds: float, peak_seconds: float, overload_seconds: float, share: float, cores: set[int]
) -> Measured:
    """Run all three phases, and watch the speed of `cores`, the service's, meanwhile."""
    mix, steady, peaks, speeds = Mix(), Answers(), [], []

    async def highest() -> float:
        peaks.append(len((await peak(served.url, mix, peak_seconds)).good()) / peak_seconds)
        return peaks[-1]

    async def one_round(number: int, rounds: int, pace: Pace) -> None:
        begun = time.perf_counter()
        rate = share * await highest()
        between = time.perf_counter()
        await at_rate(served, mix, seconds / rounds, rate, steady, number * seconds / rounds)
        speeds.append(pace.slowness(begun, between) / pace.slowest(between, time.perf_counter()))

    await peak(served.url, mix, peak_seconds)  # warm
    rounds = max(1, round(seconds / ROUND))
    with Pace(cores) as pace:
        for number in range(rounds):
            await one_round(number, rounds, pace)
    overloading = asyncio.create_task(at_rate(served, mix, overload_seconds, OVERLOAD * await highest()))
    await asyncio.sleep(overload_seconds)
    # The recovery begins when the last request is due, and so includes the answers that are still to come.
    back = await recovery(served.url, (steady.percentile(99) or 0.0) / 1000)
    over = await overloading
    await asyncio.to_thread(served.check_alive)
    growth, of_round = slope(steady.memory), _rounds_of(steady.due, rounds, seconds)
    taken = np.zeros(rounds)
    np.maximum.at(
        taken, _rounds_of([at for at, _ in steady.taken], rounds, seconds), [part for _, part in steady.taken]
    )
    kept = (np.array(peaks[1:]) >= KEPT * np.array(peaks[:-1])) & (taken <= MOST_TAKEN) & (np.array(speeds) >= share)
    report = {
        "peak_per_second": round(float(np.mean(peaks)), 1),
        "peaks_per_second": [round(one, 1) for one in peaks],
        "most_taken_by_others": [round(float(part), 3) for part in taken],
        "slowest_second_to_peak": [round(speed, 3) for speed in speeds],
        "rounds": rounds,
        "rounds_at_that_share": int(kept.sum()),
        "statuses_at_that_share": steady.statuses(kept[of_round]),
        "share": share,
        "steady": steady.told(seconds),
        "memory_mib": [round(steady.memory[0][1]), round(steady.memory[-1][1])],
        "memory_slope_mib_per_minute": growth and [round(number, 3) for number in growth],
        "overload": over.told(overload_seconds),
        "overload_goodput_of_peak": round(len(over.good()) / max(over.lasted(), overload_seconds) / peaks[-1], 2),
        "recovered_s": round(back, 2),
    }
    return Measured(steady, over, report)


def run(
    folder: Path,
    seconds: float,
    peak_seconds: float = 4.0,
    overload_seconds: float = 30.0,
    share: float = SHARE,
    gallery: Path | None = None,
) -> dict[str, Any]:
    """Serve a gallery (by default one of toy pictures), measure, and write load.json and load.png to the folder.

    Then raise `AssertionError` if an answer was neither good nor a refusal for too much work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = gallery or toy_gallery(Path(scratch))
        cores = os.sched_getaffinity(0)
        halves = _halves(cores)
        with _on(halves[0]), service(made, Path(scratch)) as served, _on(halves[1]):
            what = _served(served.url)
            measured = asyncio.run(measure(served, seconds, peak_seconds, overload_seconds, share, halves[0]))
    measured.report = {"served": what, **measured.report}
    (folder / "load.json").write_text(json.dumps(measured.report, indent=2) + "\n", encoding="utf-8")
    draw(folder / "load.png", measured.report, measured.steady, measured.overload)
    for name, phase in (("steady", measured.steady), ("overload", measured.overload)):
        assert not set(phase.status) - {200, 201, 429}, f"{name}: {measured.report[name]}"
    return measured.report


def _halves(cores: set[int]) -> tuple[set[int], set[int]]:
    """Return the cores of the service and those of the clients: all for both if there is only one."""
    ordered = sorted(cores)
    half = len(ordered) // 2
    return (set(ordered[:half]), set(ordered[half:])) if half else (cores, cores)


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _served(url: str) -> dict[str, Any]:
    stats, model = (httpx.get(f"{url}/{path}").json() for path in ("stats", "model"))
    return {"items": stats["items"], "model": model["name"], "workers": stats["service"]["workers"]}


def check(report: dict[str, Any]) -> None:
    """Check the targets of the full length; raise `AssertionError`."""
    assert report["rounds_at_that_share"] >= report["rounds"] / 3, "the machine was too unsteady to tell"
    at_share = report["statuses_at_that_share"]
    assert set(at_share) <= {"200", "201", "429"}, f"errors under steady load: {at_share}"
    assert at_share.get("429", 0) <= MOST_REFUSED * sum(at_share.values()), f"refusals under steady load: {at_share}"
    growth, error = report["memory_slope_mib_per_minute"]
    first, last = report["memory_mib"]
    assert last - first < MOST_GROWTH, f"memory went from {first} to {last} MiB"
    assert growth - 3 * error < 0.5, f"memory grows by {growth} ± {error} MiB a minute"
    assert "429" in report["overload"]["statuses"], "three times the peak was not refused"
    assert report["overload_goodput_of_peak"] > 0.5, "the service collapses under overload"
    assert report["recovered_s"] < 1, f"recovery took {report['recovered_s']} s"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="duration at 80 %% of the peak (default 15)")
    parser.add_argument("--gallery", type=Path, help="the gallery to serve (default: one of toy pictures)")
    parser.add_argument("--out", type=Path, required=True, help="folder for load.json and load.png")
    args = parser.parse_args(words)
    report = run(args.out, 60 * args.minutes, gallery=args.gallery)
    print(json.dumps(report, indent=2))
    check(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
