"""Several workers at one listening socket.

Each is a process of its own with its own index, which catches up with the store before it answers; they share nothing
but the socket, the gallery and the folder of counts that /metrics adds up. One that dies is started again, and one that
hangs is killed.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serving.configuration import Configuration, core_share
from serving.pulse import Pulse
from serving.turns import Counts, last_calls
from zoo import errors
from zoo.errors import GalleryError
from zoo.paths import thread_count

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVED = 30.0
"""Seconds after which a worker that dies has not died of its start."""
KILLED_AFTER = 5.0
"""Seconds past the time to drain after which a worker is ended."""


@dataclass
class Worker:
    """A place for a process; `failures`: how often in a row it died young, `due`: when it is started again."""

    number: int
    pulse: Pulse
    process: subprocess.Popen[str] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = field(default=0.0)


def supervise(
    listening: socket.socket, configuration: Configuration, scratch: Path, ready: Callable[[str], None]
) -> None:
    """Keep the workers at the socket until SystemExit is raised, by a signal; then let them finish.

    scratch: a folder for sockets. `ready` is told what is served once the first of them answers. Raises `GalleryError`
    where that one cannot.
    """
    places = [Worker(number, Pulse(scratch / f"pulse-{number}")) for number in range(1, configuration.workers + 1)]
    counts = Counts(scratch / "connections", len(places))
    try:
        _start(places[0], listening, counts)
        what = _first_word(places[0])
        for place in places[1:]:
            _start(place, listening, counts)
        for place in places[1:]:
            _first_word(place)
        ready(what)
        while True:
            time.sleep(0.1)
            for place in places:
                _look_after(place, listening, counts, configuration.hang_seconds)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # they are on their way, and are waited for
        for place in places:
            place.pulse.close()
        _drain(listening, [place.process for place in places if place.process], configuration.drain_seconds)


def environment(workers: int, counts: str) -> dict[str, str]:
    """What workers find besides the present environment: a share of the cores, and the folder of their counts.

    A process that was allowed fewer threads than its share keeps to that.
    """
    share = min(thread_count(), core_share(workers))
    return {"OMP_NUM_THREADS": str(share), "PROMETHEUS_MULTIPROC_DIR": counts}


def _start(place: Worker, listening: socket.socket, counts: Counts) -> None:
    numbers = [listening.fileno(), place.pulse.listening.fileno()]
    words = [*map(str, numbers), str(place.number), str(counts.path)]
    place.started = time.monotonic()
    place.pulse.begin(place.started)
    place.process = subprocess.Popen(
        [sys.executable, "-m", "serving.worker", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=numbers,
        text=True,
    )


def _first_word(place: Worker) -> str:
    """Wait until a worker answers. Raises the error that it ended with."""
    assert place.process
    assert place.process.stdout
    line = place.process.stdout.readline()
    try:
        said = json.loads(line)
    except ValueError:
        said = {"error": f"worker {place.number} ended with {place.process.wait()}; the log above says why."}
    if "ready" in said:
        place.pulse.begin(time.monotonic(), answers=True)
        return str(said["ready"])
    kind = getattr(errors, said.get("kind", ""), GalleryError)
    raise kind(said["error"])


def _look_after(place: Worker, listening: socket.socket, counts: Counts, hang_seconds: float) -> None:
    now = time.monotonic()
    if place.process is None:
        if now >= place.due:
            _start(place, listening, counts)
        return
    status = place.process.poll()
    if status is None:
        if place.pulse.hangs(now, hang_seconds):
            logger.warning(
                "worker %d (%d) has not answered for %.1f s and is killed.",
                place.number,
                place.process.pid,
                place.pulse.silent,
            )
            place.process.kill()
            place.pulse.begin(now)
        return
    place.failures = 1 if now - place.started > LIVED else place.failures + 1
    pause = min(FIRST_PAUSE * 2.0 ** (place.failures - 1), LONGEST_PAUSE)
    pid, why = place.process.pid, _last_word(place.process)
    logger.warning("worker %d (%d) ended with %d%s; again in %.1f s.", place.number, pid, status, why, pause)
    _forget(pid)
    counts.away(place.number)
    place.process, place.due = None, now + pause


def _last_word(process: subprocess.Popen[str]) -> str:
    """Why it ended, where it says so; its pipes are closed."""
    said = process.communicate()[0]
    try:
        return ": " + str(json.loads(said.splitlines()[-1])["error"]) if said else ""
    except (ValueError, KeyError):
        return ""


def _forget(pid: int) -> None:
    """What a dead worker has under way is nothing; what it counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)


def _drain(listening: socket.socket, processes: list[subprocess.Popen[str]], seconds: float) -> None:
    for process in processes:
        process.terminate()
    # Workers accept until the socket is shut. Who comes after this is refused and may go elsewhere; who waits there yet
    # would be reset with what it had sent. Closing would not do: the socket is theirs as well.
    for _ in last_calls(listening):
        time.sleep(0.0002)
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    ends = time.monotonic() + seconds + KILLED_AFTER
    for process in processes:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning("worker %d did not end in time and is killed.", process.pid)
            process.kill()
        process.communicate()
