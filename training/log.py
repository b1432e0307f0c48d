"""The training log: one JSON object a line, one line an epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.files import write_bytes


class Log:
    """Appends records to a JSON-lines file. `keep`: how many of the lines that are there belong to the run."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines()[:keep] if path.exists() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        # A kill between log and checkpoint leaves a line of an epoch that will be trained again: drop it.
        write_bytes(path, "".join(line + "\n" for line in lines).encode())

    def write(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
