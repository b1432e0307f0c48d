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
from zoo.cards import read_card
from zoo.errors import CardError, UsageError
from zoo.files import sha256_of, write_json

FILE, LOCK = "state.json", "lock"


class State:
    """Row -> step -> its command, the recipes' digests, the model that was in the folder when it ended, status ("done"
    or "failed"), seconds, date and message."""

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
        """Whether this very command ended well, for the recipe as it is, and the model it was about is still there."""
        model = _model(row)
        return self._ended_well(row, step) and model is not None and self._found(row, step).get("model") == model

    def is_other(self, row: Row, step: Step) -> bool:
        """Whether the step is to be made again for no other reason than that the folder holds another model now."""
        return self._ended_well(row, step) and _model(row) not in (None, self._found(row, step).get("model"))

    def record(self, row: Row, step: Step, facts: Mapping[str, Any]) -> None:
        """Note the outcome of a step. Later steps of the row, which rest on it, are to be made again.

        A step that can be left out and failed has changed nothing that they rest on: they stay as they are.
        """
        stays = facts["status"] == "failed" and not step.needed
        kept = self.rows.get(row.name, {})
        noted = {"command": list(step.command), "recipes": _digests(row), "model": _model(row), **facts}
        steps = [each.name for each in row.steps]
        place = steps.index(step.name)
        found = {name: kept[name] for name in steps if name in kept and (stays or steps.index(name) < place)}
        found[step.name] = noted
        self.rows[row.name] = {name: found[name] for name in steps if name in found}
        write_json(self.folder / FILE, {"rows": self.rows})

    def _found(self, row: Row, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = self.rows.get(row.name, {}).get(step.name, {})
        return found

    def _ended_well(self, row: Row, step: Step) -> bool:
        found = self._found(row, step)
        same = found.get("command") == list(step.command) and found.get("recipes") == _digests(row)
        return same and found.get("status") == "done"


def _digests(row: Row) -> list[str]:
    return [recipe.digest for recipe in row.recipes]


def _model(row: Row) -> dict[str, str] | None:
    """Which model is in the row's folder, and which training made it; None where there is none that can be read."""
    folder = paths.local_models() / row.name
    try:
        return {"fingerprint": read_card(folder).fingerprint, "recipe": sha256_of(folder / "recipe.json")}
    except (CardError, OSError):
        return None


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
