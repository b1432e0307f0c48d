"""Trials: each arm's learning rate and the main constant of its loss are chosen on held-out training classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from training.losses import LOSSES
from training.recipe import Recipe
from training.studies.study import slug
from zoo.errors import UsageError
from zoo.render import Table

TRIALS_FILE, TRIALS_FOLDER = "trials.jsonl", "trials"
TRIAL_SEED = 0
TRIAL_METRIC = "map_at_r"
"""Metric of the measured heads on the held-out training classes by which the values of an arm are chosen."""

TRIAL_RULE = (
    "Each arm was trained with every rate on seed 0, with training classes held out. The trial with the highest MAP@R "
    "on these classes gives the values of all runs of the arm. It is measured after the last epoch or, if all runs are "
    "selected by validation, after the best one. Trials read no test classes."
)
SEARCH_RULE = (
    "Of {} trials of each arm those beyond the rates go to the untried values nearest to the best so far: rates in "
    "half decades, the main constant of the loss (or of the method) in factors of two. An arm gets more, at most twice "
    "as many, until all values next to its best are tried; where they were not enough, the table says so."
)

DECORRELATED = "decorrelated"
"""The arm of Sharing's ablation that decorrelates its heads."""

METHOD_CONSTANTS = {"diva": "alpha", "mic": "decorrelation", "sharing": "gamma"}
"""Method -> the weight of what it adds to its loss, which is its main constant where it adds anything."""


class TrialValues(NamedTuple):
    """The values of a trial: the learning rate, optimizer.lr, and the factor of the main constant."""

    rate: float
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.rate:g}" + (f" x{self.factor:g}" if self.factor != 1 else "")


@dataclass(frozen=True)
class TrialScore:
    """The outcome of the trial of one arm with one pair of values.

    Attributes:
        arm: The arm's label.
        rate: The learning rate, optimizer.lr.
        score: `TRIAL_METRIC` on held-out training classes, mean over the members of an ensemble; None if training
            diverged.
        factor: The factor of the main constant.
    """

    arm: str
    rate: float
    score: float | None
    factor: float = 1.0


@dataclass(frozen=True)
class TrialSearch:
    """The trials of an arm: each rate once, then the values nearest to the best.

    Attributes:
        rates: The learning rates that are tried with the constant of the recipe.
        budget: The number of trials; the search goes on, to twice as many at most, until all values next to the best
            are tried. No more than the number of rates: they alone are tried.
        constant: Whether the main constant is varied too.
    """

    rates: tuple[float, ...]
    budget: int = 0
    constant: bool = True

    def next_values(self, scores: Mapping[TrialValues, float | None]) -> TrialValues | None:
        """Return the values of the next trial; None at the end, and if all rates diverged.

        Args:
            scores: The scores of the finished trials.
        """
        for rate in self.rates:
            if TrialValues(rate) not in scores:
                return TrialValues(rate)
        best = best_values(scores)
        if best is None or self.budget <= len(self.rates) or len(scores) >= 2 * self.budget:
            return None
        tried = {_place(values) for values in scores}
        nearest = next(place for place in _places_around(_place(best), self.constant) if place not in tried)
        is_next = _distance(nearest, _place(best)) == 1
        return _values_at(nearest) if is_next or len(scores) < self.budget else None

    def chosen(self, scores: Mapping[TrialValues, float | None]) -> TrialValues | None:
        """Return the values with the highest score; None before the end, and if all trials diverged."""
        return best_values(scores) if self.next_values(scores) is None else None

    def is_at_edge(self, scores: Mapping[TrialValues, float | None]) -> bool:
        """Return whether a value next to the best is untried, so that it may be better still."""
        best = best_values(scores)
        if best is None or self.budget <= len(self.rates):
            return False
        tried, around = {_place(values) for values in scores}, _places_around(_place(best), self.constant)
        return any(place not in tried for place in islice(around, 4 if self.constant else 2))


Place = tuple[int, int]
"""Half decades of the rate and doublings of the constant."""


def _place(values: TrialValues) -> Place:
    return round(2 * math.log10(values.rate)), round(math.log2(values.factor))


def _values_at(place: Place) -> TrialValues:
    return TrialValues(float(f"{10 ** (place[0] / 2):.2g}"), 2.0 ** place[1])


def _distance(one: Place, other: Place) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _places_around(centre: Place, constant: bool) -> Iterator[Place]:
    """Yield all other places, the nearest ones first, higher rates before lower ones."""
    for distance in count(1):
        for rate in range(distance, -distance - 1, -1):
            rest = distance - abs(rate)
            if rest and not constant:
                continue
            for doubling in dict.fromkeys((rest, -rest)):
                yield centre[0] + rate, centre[1] + doubling


def best_values(scores: Mapping[TrialValues, float | None]) -> TrialValues | None:
    """Return the values with the highest score, of equal ones the first; None if all diverged."""
    measured = {values: score for values, score in scores.items() if score is not None}
    return max(measured, key=measured.__getitem__) if measured else None


def main_constant(recipe: Recipe) -> tuple[str, float] | None:
    """Return the key of a recipe's main constant and its value; None for a loss without one."""
    objective = recipe.record["objective"]
    method, args = objective["method"], objective["method_args"]
    name = METHOD_CONSTANTS.get(method, "")
    if (
        args.get(name) is not None
        and len(recipe.heads) > (method == "diva")
        and args.get("arm") in (None, DECORRELATED)
    ):
        return f"objective.method_args.{name}", args[name]
    loss = objective["loss"]
    name = "" if loss is None else getattr(LOSSES[loss], "main_constant", "")
    return (f"objective.loss_args.{name}", objective["loss_args"][name]) if name else None


def trial_settings(values: TrialValues, recipe: Recipe) -> tuple[str, ...]:
    """Return the settings of a trial's values for a recipe."""
    constant = main_constant(recipe)
    rate = f"optimizer.lr={values.rate!r}"
    if values.factor == 1 or constant is None:
        return (rate,)
    key, default = constant
    return rate, f"{key}={type(default)(default * values.factor)!r}"


def check_rates(rates: Sequence[float], budget: int = 0) -> None:
    """Check the learning rates and the number of trials; none of both is allowed.

    Raises:
        UsageError: If there is only one rate, one is repeated, one is not a positive number, or there are trials
            without rates.
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
    if budget and not 0 < len(rates) < budget:
        raise UsageError(
            f"--trials {budget} needs fewer --trial-rates to begin with, at least two.", code="invalid-value"
        )


def scores_by_values(arm: str, trials: Iterable[TrialScore]) -> dict[TrialValues, float | None]:
    """Return the scores of an arm's finished trials by their values."""
    return {TrialValues(trial.rate, trial.factor): trial.score for trial in trials if trial.arm == arm}


def merge_trials(*groups: Iterable[TrialScore]) -> tuple[TrialScore, ...]:
    """Return the trials of several sources, each arm and values once, in the order of the sources."""
    merged = {(trial.arm, trial.rate, trial.factor): trial for trials in groups for trial in trials}
    return tuple(merged.values())


def read_trials(records: Iterable[Mapping[str, Any]]) -> tuple[TrialScore, ...]:
    """Return the outcomes in records of `TRIALS_FILE` or plan.json; those of earlier versions vary the rate alone."""
    return tuple(
        TrialScore(record["arm"], float(record["rate"]), record["score"], float(record.get("factor", 1)))
        for record in records
    )


def trial_name(arm: str, values: TrialValues) -> str:
    """Return the name of a trial, which is also its folder in that of all trials."""
    factor = "" if values.factor == 1 else f"-x{values.factor:g}"
    return f"{slug(arm)}/lr-{values.rate:g}{factor}"


def trial_folder(folder: Path, arm: str, values: TrialValues) -> Path:
    """Return the folder of a trial's checkpoints and failure in the folder of a study."""
    return folder / TRIALS_FOLDER / trial_name(arm, values)


def trial_title(arm: str, values: TrialValues) -> str:
    """Return a trial's name for people."""
    return f"{arm}, trial of learning rate {values}"


def trial_table(searches: Mapping[str, TrialSearch], trials: Sequence[TrialScore]) -> Table:
    """Return a table of the trials of each arm and of their choice."""
    rows = []
    for arm, search in searches.items():
        scores = scores_by_values(arm, trials)
        chosen = search.chosen(scores)
        listed = "; ".join(f"{values}: {_score_text(score)}" for values, score in scores.items())
        edge = " (next to it untried)" if chosen is not None and search.is_at_edge(scores) else ""
        rows.append([arm, str(len(scores)), "" if chosen is None else f"{chosen}{edge}", listed])
    return Table(("arm", "trials", "chosen rate", "MAP@R of each rate (x: factor of the constant)"), rows, (1,))


def _score_text(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.4f}"
