"""Settings and fixtures of all tests."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# Tests compute little at a time: a second thread would mostly wait, on a busy machine for long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis must not limit the time of an example: on a busy machine any may take long.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# Some tests import ONNX Runtime before `zoo`, which sets the same variable.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Tests send requests only to the loopback, without TLS: reading the machine's certificates for every client of httpx
# would take longer than most requests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Use one process more than there are cores, because tests wait for servers a third of the time."""
    number = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", "")
    return int(number) if number.isdecimal() else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude imported objects from garbage collection: they stay, and each search among them takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Extension modules report unreleased objects at the interpreter's exit. Not earlier: pytest collects garbage five times
# before that, which takes over a second if all imported objects count.
atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def zoo_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield new folders. `mktemp` would list all earlier ones for each of several thousand tests."""
    parent = tmp_path_factory.mktemp("zoo-homes")
    return (parent / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_zoo(zoo_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty local zoo and keep it from asking the Hub."""
    home = next(zoo_homes)
    home.mkdir()
    monkeypatch.setenv("ZOO_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    return home


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of the real data: `ZOO_DATA`, else `../shared/data` beside the checkout."""
    root = Path(os.environ.get("ZOO_DATA") or ROOT.parent / "shared" / "data")
    if not (root / "images_background_small1.zip").is_file():
        pytest.skip(f"the Omniglot zip files are not in {root}; set ZOO_DATA")
    return root
