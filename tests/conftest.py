"""What tests of several packages share."""

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

# Tests compute little at a time: a second thread would spend its time waiting, and on a busy machine very long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test asserts no time: on a busy machine any example may take long.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# Some tests import it before `zoo`, which says the same.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# All that tests ask is on loopback, without TLS: reading the machine's certificates for every client of httpx would
# take longer than most requests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: a third of the time tests wait for servers and a browser."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", "")
    return int(asked) if asked.isdecimal() else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays: looking for garbage among it takes a second here, and again and again later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Extension modules report at the interpreter's exit what was never released. pytest itself collects garbage five times
# before that, which takes over a second while all imported objects count.
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
    """The folder with the real data: `ZOO_DATA`, else `../shared/data` beside the checkout."""
    root = Path(os.environ.get("ZOO_DATA") or ROOT.parent / "shared" / "data")
    if not (root / "images_background_small1.zip").is_file():
        pytest.skip(f"the Omniglot zip files are not in {root}; set ZOO_DATA")
    return root
