"""How a model's scores went while it was trained, from the log.jsonl of its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "log.jsonl"


def recall_by_epoch(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Each logged recall at 1 by its key: (epoch, fraction) in the file's order. Empty without a log or such keys.

    A line that is no record of an epoch is passed over: the page shows what is there.
    """
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return recalls_of(record for line in lines if (record := _record(line)) is not None)


def recalls_of(records: Iterable[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """The same from records of epochs that are at hand."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for key, value in record.items():
            if key.endswith("recall_at_1") and type(value) in (int, float) and math.isfinite(value):
                curves.setdefault(key, []).append((record["epoch"], float(value)))
    return curves


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and type(record.get("epoch")) is int else None
