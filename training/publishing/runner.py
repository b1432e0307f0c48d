"""Every row of a plan, step by step, each step a process of its own; a row that fails stops no other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from training.publishing.rows import Row, Step
from training.publishing.state import State


@dataclass
class Tally:
    """What became of the rows: published whole, published without some variants, failed; step -> message for those."""

    whole: list[str] = field(default_factory=list)
    partly: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"done": self.whole, "without_some_variants": self.partly, "failed": self.failed}


def run_all(rows: Sequence[Row], state: State, say: Callable[[str], None]) -> Tally:
    """Make every step that is not done yet; the state and the logs lie in the state's folder."""
    tally = Tally()
    for number, row in enumerate(rows, start=1):
        say(f"[{number}/{len(rows)}] {row.name}")
        lacking, whole = _run_row(row, state, say)
        if not whole:
            tally.failed[row.name] = lacking
        elif lacking:
            tally.partly[row.name] = lacking
        else:
            tally.whole.append(row.name)
    return tally


def _run_row(row: Row, state: State, say: Callable[[str], None]) -> tuple[dict[str, str], bool]:
    """The messages of steps that failed, and whether the row came to its end."""
    lacking: dict[str, str] = {}
    for step in row.steps:
        if state.is_done(row, step):
            continue
        if state.is_other(row, step):
            say(f"  {step.name}: again, for the folder {row.name} holds another model than the one this was done for")
        facts = _perform(row, step, state.folder)
        state.record(row, step, facts)
        say(f"  {step.name}: {facts['status']} in {facts['seconds']:.0f} s{_reason(facts)}")
        if facts["status"] == "failed":
            lacking[step.name] = facts["message"]
            if step.needed:
                return lacking, False
    return lacking, True


def _perform(row: Row, step: Step, folder: Path) -> dict[str, Any]:
    """Run one command; its output goes to a log of its own."""
    log = folder / "logs" / row.name / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            [sys.executable, "-m", "zoo.cli.main", *step.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    facts: dict[str, Any] = {
        "status": "failed" if done.returncode else "done",
        "seconds": round(time.perf_counter() - started, 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "log": str(log),
    }
    if done.returncode:
        facts |= {"exit": done.returncode, "message": _message(log, done.returncode)}
    return facts


def _message(log: Path, status: int) -> str:
    """The error that the command printed, or the last it said."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("zoo: error:")]
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("zoo: error: ").strip()


def _reason(facts: dict[str, Any]) -> str:
    return f": {facts['message']} (see {facts['log']})" if "message" in facts else ""
