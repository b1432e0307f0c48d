"""All runs of a study, one after another; several processes may share a study's folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from training.studies.plan import Plan, Run
from training.studies.results import value_of
from training.studies.single import Workplace, claimed, perform
from zoo.errors import ZooError


@dataclass(frozen=True)
class Tally:
    """What became of the runs. before: finished earlier; elsewhere: held, or finished meanwhile, by other processes."""

    done: list[Run] = field(default_factory=list)
    before: list[Run] = field(default_factory=list)
    elsewhere: list[Run] = field(default_factory=list)
    failed: list[tuple[Run, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        counts = {name: len(getattr(self, name)) for name in ("done", "before", "elsewhere")}
        return {**counts, "failed": [{"run": run.title, "message": message} for run, message in self.failed]}


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_all(plan: Plan, runs: Sequence[Run], work: Workplace, say: Callable[[str], None] = tell) -> Tally:
    """Perform every run that is not finished and that no other process holds. One that fails stops no other."""
    tally = Tally()
    tally.before.extend(run for run in runs if run.finished)
    waiting = [run for run in runs if not run.finished]
    seconds: list[float] = []
    for number, run in enumerate(waiting):
        with claimed(run.folder) as ours:
            if not ours or run.finished:
                tally.elsewhere.append(run)
                continue
            started = time.perf_counter()
            try:
                result = perform(run, plan, work)
            except ZooError as error:
                tally.failed.append((run, str(error)))
                say(f"{run.title}: failed: {error}")
                continue
        tally.done.append(run)
        seconds.append(time.perf_counter() - started)
        left = sum(not other.finished for other in waiting[number + 1 :])
        say(_line(run, result, plan, len(runs) - left, len(runs), left * sum(seconds) / len(seconds), seconds[-1]))
    return tally


def _line(
    run: Run, result: dict[str, object], plan: Plan, number: int, total: int, remaining: float, seconds: float
) -> str:
    first = plan.study.measures[0]
    eta = f"; about {_duration(remaining)} to go" if remaining else ""
    return f"[{number}/{total}] {run.title}: {first} {value_of(result, first):.4f} in {_duration(seconds)}{eta}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
