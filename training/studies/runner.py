"""All runs of a study, one after another; several processes may share a study's folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.memory_allocation import keep_freed_memory
from training.studies.plan import Plan, Run, check_images
from training.studies.results import value_of
from training.studies.reuse import adopt, offered
from training.studies.same_images import RunSchedule
from training.studies.single import Workplace, claimed, perform, workplace
from zoo.errors import ZooError
from zoo.models.torch_runtime import choose_device


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


def ready(
    schedules: Sequence[RunSchedule],
    root: str | Path | None = None,
    device: str | None = None,
    only: Sequence[str] = (),
    others: Sequence[Path] = (),
) -> list[Workplace]:
    """Return a workplace for each schedule; schedules that read the same data share one.

    Args:
        schedules: the studies to run.
        root: the folder of the data set (default: the plan's).
        device: cpu, cuda or cuda:N (default: cuda where available).
        only: labels of the arms to run (default: all).
        others: folders of studies whose finished runs will be taken over.

    Raises:
        DatasetError: if runs are left to do and their images are unavailable; before any folder is made.
        UsageError: if an arm is unknown, the images are a folder that is not named, or one of `others` has no results.
    """
    keep_freed_memory()
    chosen_device = choose_device(device)
    works: dict[str | Path | None, Workplace] = {}
    for schedule in schedules:
        data = root or schedule.plan.data
        if data not in works:
            works[data] = workplace(chosen_device, data)
        known = offered(schedule.plan.study, others)
        left = [run for run in schedule.chosen(only) if not run.finished and tuple(run.digests) not in known]
        if left:
            check_images(left[0].recipes[0], data)
        works[data].check(recipe for run in left for recipe in run.recipes)
    return [works[root or schedule.plan.data] for schedule in schedules]


def carry_out(
    schedule: RunSchedule,
    work: Workplace,
    only: Sequence[str] = (),
    others: Sequence[Path] = (),
    say: Callable[[str], None] = tell,
) -> Tally:
    """Take over finished runs of other studies, then perform the runs that are left.

    Args:
        schedule: the study, begun (`RunSchedule.begin`).
        work: where to train and measure.
        only: labels of the arms to run (default: all).
        others: folders of studies whose finished runs are taken over.
        say: receives one line per study taken over and per run.

    Returns:
        What became of each run.

    Raises:
        UsageError: if an arm is unknown or one of `others` has no finished runs.
        TrainingError: if a run that is taken over comes from other images than those of this study.
    """
    runs = schedule.chosen(only)
    for other in others:
        say(f"{adopt(schedule, runs, other)} finished runs taken over from {other}.")
    return run_all(schedule, runs, work, say)


def run_all(schedule: RunSchedule, runs: Sequence[Run], work: Workplace, say: Callable[[str], None] = tell) -> Tally:
    """Perform every run that is not finished and that no other process holds. A failure stops no other run."""
    tally = Tally()
    finished = set(schedule.results)
    tally.before.extend(run for run in runs if run.name in finished)
    waiting = [run for run in runs if run.name not in finished]
    seconds: list[float] = []
    for number, run in enumerate(waiting):
        with claimed(run.folder) as ours:
            if not ours or run.finished:
                tally.elsewhere.append(run)
                continue
            started = time.perf_counter()
            try:
                result = perform(run, schedule, work)
            except ZooError as error:
                tally.failed.append((run, str(error)))
                say(f"{run.title}: failed: {error}")
                continue
        tally.done.append(run)
        seconds.append(time.perf_counter() - started)
        finished = set(schedule.results)
        left = sum(other.name not in finished for other in waiting[number + 1 :])
        say(
            _line(
                run, result, schedule.plan, len(runs) - left, len(runs), left * sum(seconds) / len(seconds), seconds[-1]
            )
        )
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
