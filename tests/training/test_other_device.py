"""Training, embedding and exact search on a GPU keep nothing on the CPU; see `on_other_device`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.training.on_other_device import CASES, QUICK

REST = [case for case in CASES if case not in QUICK]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return errors_of(QUICK, tmp_path_factory.mktemp("there") / "errors.json")


@pytest.fixture(scope="module")
def errors_of_the_rest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return errors_of(REST, tmp_path_factory.mktemp("there") / "errors.json")


def errors_of(cases: Sequence[str], out: Path) -> dict[str, str]:
    """Return case -> error, from a process of its own, because torch loads a device only once."""
    command = [sys.executable, "-m", "tests.training.on_other_device", str(out), *cases]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=300)
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("case", QUICK)
def test_everything_is_on_the_device(case: str, errors: dict[str, str]) -> None:
    assert errors[case] == ""


@pytest.mark.slow  # whole runs by losses, miners and tasks of which one step, or another task, is tried above
@pytest.mark.parametrize("case", REST)
def test_everything_is_on_the_device_in_other_runs(case: str, errors_of_the_rest: dict[str, str]) -> None:
    assert errors_of_the_rest[case] == ""
