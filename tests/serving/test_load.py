"""The short form of `make proof PART=load`."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.proof import load
from tests.proof.machine import Machine, Pace


@pytest.mark.slow
def test_a_service_under_load_and_under_too_much(gallery_folder: Path, tmp_path: Path) -> None:
    # Less than the 80 % of the long form: other tests take their share of the machine meanwhile.
    report = load.run(tmp_path, 3, 0.4, 0.5, share=0.4, gallery=gallery_folder)
    assert report["steady"]["statuses"]["200"] > 10
    assert report["steady"]["statuses"]["201"] > 0
    assert report["steady"]["p50_ms"] <= report["steady"]["p99_ms"]
    assert report["recovered_s"] < 30
    assert json.loads((tmp_path / "load.json").read_text()) == report
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_the_slope_of_memory() -> None:
    rng = np.random.default_rng(0)
    growing = [(second, 100 + second / 60 * 3 + rng.normal(0, 0.5)) for second in range(600)]
    slope, error = load.slope(growing) or (0, 0)
    assert slope == pytest.approx(3, abs=3 * error)
    assert 0 < error < 0.05
    assert load.slope(growing[:3]) is None


def test_what_others_take_of_the_machine() -> None:
    """A process that is not named counts; one that is named does not, nor its children, nor this process."""
    before = children_seconds()
    spinning = [subprocess.Popen(["sh", "-c", '"$0" -c "while True: pass" & wait', sys.executable]) for _ in range(2)]
    try:
        started = time.perf_counter()
        known, alone = Machine([one.pid for one in spinning]), Machine([])
        assert known.taken() == 0, "half a second is too short to tell"
        while time.perf_counter() < started + 1:
            pass
        both, others = alone.taken(), known.taken()
        seconds = time.perf_counter() - started
    finally:
        for one in spinning:
            psutil.Process(one.pid).children()[0].kill()  # then the shell waits for it, so that its time counts
            one.wait()
    spun = (children_seconds() - before) / seconds / (os.cpu_count() or 1)  # as much as a busy machine let them
    assert both - others == pytest.approx(spun, abs=0.1)
    assert others <= 1


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_how_slow_the_cores_are() -> None:
    """Means of what was seen between two moments, and of the slowest second of them."""
    pace = Pace(os.sched_getaffinity(0))
    pace._seen = [(10.0, 1.0), (10.5, 3.0), (11.0, 6.0), (12.5, 4.0), (14.0, 100.0)]
    assert pace.slowness(10, 13) == 3.5
    assert pace.slowest(10, 13) == 6
    assert np.isnan(pace.slowness(13, 14))
    with Pace(os.sched_getaffinity(0)) as seen:
        begun = time.perf_counter()
        time.sleep(0.5)
    assert 0 < seen.slowness(begun, begun + 1) <= seen.slowest(begun, begun + 1) < 1
