"""Trials of the learning rate: each arm's rate is chosen on held-out training classes before the runs of a study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.studies.study import slug
from zoo.errors import UsageError
from zoo.render import Table

TRIALS_FILE, TRIALS_FOLDER = "trials.jsonl", "trials"
TRIAL_SEED = 0
TRIAL_METRIC = "map_at_r"
"""Metric of the measured heads on the held-out training classes by which a rate is chosen."""

TRIAL_RULE = (
    "Each arm was trained with every rate on seed 0, with training classes held out. The rate with the highest MAP@R "
    "on these classes is that of all runs of the arm. It is measured after the last epoch or, if all runs are selected "
    "by validation, after the best one. Trials read no test classes."
)


@dataclass(frozen=True)
class TrialScore:
    """The outcome of the trial of one arm with one learning rate.

    Attributes:
        arm: The arm's label.
        rate: The learning rate, optimizer.lr.
        score: `TRIAL_METRIC` on held-out training classes, mean over the members of an ensemble; None if training
            diverged.
    """

    arm: str
    rate: float
    score: float | None


def check_rates(rates: Sequence[float]) -> None:
    """Check the learning rates of trials; none is allowed.

    Raises:
        UsageError: If there is only one rate, one is repeated, or one is not a positive number.
    """
    if len(rates) == 1 or len(set(rates)) < len(rates):
        raise UsageError(
            "trials compare at least two different learning rates: --trial-rates 1e-4 --trial-rates 3e-4. For one rate "
            f"give --set optimizer.lr={rates[0]:g}.",
            code="invalid-value",
        )
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"a learning rate is a positive number, not {rate:g}.", code="invalid-value")


def scores_by_rate(arm: str, trials: Iterable[TrialScore]) -> dict[float, float | None]:
    """Return the scores of an arm's finished trials by learning rate."""
    return {trial.rate: trial.score for trial in trials if trial.arm == arm}


def choose_rate(arm: str, rates: Sequence[float], trials: Iterable[TrialScore]) -> float | None:
    """Return the rate with the highest score in an arm's trials; of equal ones the first.

    Args:
        arm: The arm's label.
        rates: The rates to compare.
        trials: The finished trials of all arms.

    Returns:
        None while a trial of the arm is missing, and if all of them diverged.
    """
    scores = scores_by_rate(arm, trials)
    measured = {rate: score for rate in rates if (score := scores.get(rate)) is not None}
    if not measured or not set(rates) <= scores.keys():
        return None
    return max(measured, key=measured.__getitem__)


def merge_trials(*groups: Iterable[TrialScore]) -> tuple[TrialScore, ...]:
    """Return the trials of several sources, each arm and rate once, in the order of the sources."""
    merged = {(trial.arm, trial.rate): trial for trials in groups for trial in trials}
    return tuple(merged.values())


def read_trials(records: Iterable[Mapping[str, Any]]) -> tuple[TrialScore, ...]:
    """Return the outcomes in records of `TRIALS_FILE` or plan.json."""
    return tuple(TrialScore(record["arm"], float(record["rate"]), record["score"]) for record in records)


def trial_name(arm: str, rate: float) -> str:
    """Return the name of a trial, which is also its folder in that of all trials."""
    return f"{slug(arm)}/lr-{rate:g}"


def trial_folder(folder: Path, arm: str, rate: float) -> Path:
    """Return the folder of a trial's checkpoints and failure in the folder of a study."""
    return folder / TRIALS_FOLDER / trial_name(arm, rate)


def trial_title(arm: str, rate: float) -> str:
    """Return a trial's name for people."""
    return f"{arm}, trial of learning rate {rate:g}"


def trial_table(arms: Iterable[str], rates: Sequence[float], trials: Sequence[TrialScore]) -> Table:
    """Return a table of the scores by arm and rate, with the chosen rates."""
    rows = []
    for arm in arms:
        scores = scores_by_rate(arm, trials)
        chosen = choose_rate(arm, rates, trials)
        cells = [_score_text(scores[rate]) if rate in scores else "" for rate in rates]
        rows.append([arm, *cells, "" if chosen is None else f"{chosen:g}"])
    return Table(("arm", *(f"MAP@R at {rate:g}" for rate in rates), "chosen rate"), rows)


def _score_text(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.4f}"
