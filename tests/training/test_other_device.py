"""Training, embedding and exact search on a GPU keep nothing on the CPU; see `on_other_device`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.training.on_other_device import CASES


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return case -> error, from a process of its own, because torch loads a device only once."""
    out = tmp_path_factory.mktemp("there") / "errors.json"
    command = [sys.executable, "-m", "tests.training.on_other_device", str(out), *CASES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=600)
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.mark.slow  # whole runs by all losses, miners and tasks
@pytest.mark.parametrize("case", CASES)
def test_everything_is_on_the_device(case: str, errors: dict[str, str]) -> None:
    assert errors[case] == ""
