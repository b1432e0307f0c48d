"""What the service says of itself at /openapi.json, held against what it does, by schemathesis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.proof.service import KEY, Service

UNSAID = "positive_data_acceptance"
"""Left out: a schema cannot say which bytes are an image, or that a text is JSON."""


def holds(service: Service, folder: Path, examples: int, phases: str = "coverage,fuzzing") -> dict[str, Any]:
    """No 5xx, and every answer of a status, type and shape that the specification names, to right and wrong requests.

    examples: so many requests of each operation. folder: where schemathesis keeps its files.
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
