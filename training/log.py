"""The training log: one JSON object a line, one line an epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.errors import TrainingError
from zoo.files import write_bytes


class Log:
    """Appends records to a JSON-lines file. `keep`: the last epoch whose line belongs to the run that goes on.

    writes: False leaves the file to another process and keeps the records in memory alone.
    """

    def __init__(self, path: Path, keep: int = 0, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() and keep else []
        # A kill between log and checkpoint leaves a line, maybe half of one, of an epoch that will be trained again.
        records: list[dict[str, Any]] = [json.loads(line) for line in lines[:keep]]
        self.records = [record for record in records if record["epoch"] <= keep]
        if writes:
            write_bytes(path, "".join(json.dumps(record) + "\n" for record in self.records).encode())

    def write(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if not self.writes:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TrainingError(
                f"the line of epoch {record['epoch']} cannot be written to {self.path} ({error}). A checkpoint "
                "that was written before is kept: make room and give the same command to go on."
            ) from None
