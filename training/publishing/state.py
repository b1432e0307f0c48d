"""What has been done of a plan: one JSON file, written after every step, from which an interrupted run goes on."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.publishing.rows import Row, Step
from zoo import paths
from zoo.errors import UsageError
from zoo.files import write_json

FILE, LOCK = "state.json", "lock"


class State:
    """Row -> step -> its command, the recipes' digests, status ("done" or "failed"), seconds, date and message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, dict[str, Any]] = {}
        path = folder / FILE
        if path.is_file():
            try:
                self.rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path} cannot be read; delete it to begin anew.") from None

    def is_done(self, row: Row, step: Step) -> bool:
        """Whether this very command ended well, for the recipe as it is, and what it made is still there."""
        found = self.rows.get(row.name, {}).get(step.name, {})
        there = (paths.local_models() / row.name / "card.json").is_file()
        same = found.get("command") == list(step.command) and found.get("recipes") == _digests(row)
        return there and same and found.get("status") == "done"

    def record(self, row: Row, step: Step, facts: Mapping[str, Any]) -> None:
        """Note the outcome of a step. Later steps of the row, which rest on it, are to be made again."""
        steps = [each.name for each in row.steps]
        kept = self.rows.get(row.name, {})
        before = {name: kept[name] for name in steps[: steps.index(step.name)] if name in kept}
        self.rows[row.name] = {**before, step.name: {"command": list(step.command), "recipes": _digests(row), **facts}}
        write_json(self.folder / FILE, {"rows": self.rows})


def _digests(row: Row) -> list[str]:
    return [recipe.digest for recipe in row.recipes]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One process at a time works in the folder. Raises `UsageError` where another does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process publishes from {folder} already. Wait for it, or name another --out."
            ) from None
        yield
