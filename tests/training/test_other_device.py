"""Nothing of a run, of embedding or of exact search stays on the CPU where it is to be on a GPU: tests.other_device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.other_device import here
from tests.training.on_other_device import RECIPES_BY_CASE, WITHOUT_TRAINING

pytestmark = pytest.mark.skipif(not here(), reason="this torch has no backends in Python")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By case what went wrong; in a process of its own, as a device of torch is for good."""
    out = tmp_path_factory.mktemp("there") / "said.json"
    command = [sys.executable, "-m", "tests.training.on_other_device", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=300)
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("case", [*RECIPES_BY_CASE, *WITHOUT_TRAINING])
def test_everything_is_on_the_device(case: str, said: dict[str, str]) -> None:
    assert said[case] == ""
