"""What it changes to choose the epoch on classes held out, beside the last epoch of training on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.studies.arms import SELECTIONS
from training.studies.plan import Plan
from training.studies.results import Values
from training.studies.statistics import FAILS, HOLDS, UNDECIDED, Summary, paired, verdict
from training.studies.study import Claim, Measure

HIGHER, LOWER = "higher", "lower"
_WORDS = {HOLDS: HIGHER, FAILS: LOWER, UNDECIDED: UNDECIDED}

RULE = (
    "Validation-selected minus last epoch, paired by seed; higher or lower where the 95 % interval lies beside 0 and "
    "is no wider, end to end, than the difference."
)


@dataclass(frozen=True)
class Moved:
    """One arm by one measure: validation-selected minus last epoch, and whether that is higher, lower or undecided."""

    arm: str
    measure: Measure
    difference: Summary
    verdict: str


def moved(plan: Plan, values: Mapping[str, Mapping[Measure, Values]]) -> list[Moved]:
    """Of every arm that has runs of both selections. values: selection -> measure -> the value of each run."""
    last, validation = SELECTIONS
    if not {last, validation} <= values.keys():
        return []
    found = []
    for measure, by_arm in values[validation].items():
        for arm in plan.study.arms:
            difference = paired(by_arm.get(arm.label, {}), values[last].get(measure, {}).get(arm.label, {}))
            if difference is not None:
                said = _WORDS[verdict(Claim("", arm.label, measure=measure), difference)]
                found.append(Moved(arm.label, measure, difference, said))
    return found


def unlike(results: Sequence[Mapping[str, Any]]) -> str:
    """A sentence where runs of the two selections were made with other code or on other machines; else nothing."""
    told = []
    for name, key in (("commits", "commit"), ("hardware", "hardware")):
        sides = {side: {str(one.get(key)) for one in results if one["selection"] == side} for side in SELECTIONS}
        if all(sides.values()) and len(set(map(frozenset, sides.values()))) > 1:
            told.append(name)
    if not told:
        return ""
    return f"The two were made with other {' and '.join(told)}, which may be part of the difference."
