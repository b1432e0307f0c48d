"""Specification at /openapi.json, compared with the behaviour of the service by schemathesis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.proof.service import KEY, Service

UNSAID = "positive_data_acceptance"
"""Check that is left out: a schema cannot say which bytes are an image, or that a text is JSON."""


def holds(service: Service, folder: Path, examples: int, phases: str = "coverage,fuzzing") -> dict[str, Any]:
    """Check that no answer is 5xx, and that each has a status, type and shape that the specification names.

    Args:
        service: The service; it gets valid and invalid requests.
        folder: The folder for schemathesis's files.
        examples: The number of requests per operation.
        phases: The phases of schemathesis.
    """
    report = folder / "schemathesis.json"
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {KEY}", "--max-examples", str(examples), "--phases", phases),
        *("--exclude-checks", UNSAID, "--continue-on-failure", "--no-color", "--seed", "1", "--warnings", "off"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    service.check_alive()
    told = json.loads(report.read_text(encoding="utf-8"))
    assert told["complete"]
    cases = told["test_cases"]
    return {"operations": told["operations"]["tested"], "cases": cases["generated"], "failures": cases["with_failures"]}
