"""Runs that another study has finished already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training.studies.plan import Run
from training.studies.results import holds
from training.studies.results_file import Result, Results
from training.studies.same_images import RunSchedule, images_of
from training.studies.single import claimed
from training.studies.study import Study
from zoo.errors import UsageError


def offered(study: Study, others: Iterable[Path]) -> set[tuple[str, ...]]:
    """The recipes' digests of the runs that `adopt` can take over for the study. Raises `UsageError` as that does."""
    return {tuple(r["recipes"]) for other in others for r in _finished(other).values() if serves(study, r)}


def adopt(schedule: RunSchedule, runs: Iterable[Run], other: Path) -> int:
    """Take over results from the study in the folder `other`, for runs that have none, and return how many.

    A result serves a run of exactly the same recipes, seed and selection included, where it holds all that this study
    measures. It keeps its date, versions and hardware, and says where it is from. Raises `UsageError` where `other` has
    no finished run, and `TrainingError` where a result comes from other images than the finished runs of this study.
    """
    known = {tuple(result["recipes"]): (name, result) for name, result in _finished(other).items()}
    taken = 0
    for run in runs:
        name, result = known.get(tuple(run.digests), (None, None))
        if name is None or result is None or run.finished or not serves(schedule.plan.study, result):
            continue
        with claimed(run.folder) as ours:
            if ours and not run.finished:
                schedule.check_images(run, images_of(run, result))
                run.finish({**result, "arm": run.arm.label, "from": f"{other}: {name}"})
                taken += 1
    return taken


def _finished(other: Path) -> Mapping[str, Result]:
    """Return the results in a study's folder by the runs' names."""
    results = Results(other)
    if not results:
        raise UsageError(f"{other} holds no finished runs of a study.", code="no-finished-runs")
    return results


def serves(study: Study, result: Mapping[str, Any]) -> bool:
    """Whether a result holds all that the study measures."""
    spectra = all("spectrum" in each for each in result["evaluations"])
    return all(holds(result, measure) for measure in study.measures) and (spectra or not study.spectrum)
