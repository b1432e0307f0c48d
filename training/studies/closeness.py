"""Whether tuned losses are close: differences between the test scores of every two, over reruns of the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from training.studies.claims import CLOSE
from training.studies.crossval import METRICS
from training.studies.statistics import FAILS, HOLDS, UNDECIDED, Summary, paired, verdict
from training.studies.study import Claim

KINDS = ("separated", "concatenated")

Rerun = Mapping[str, Any]
"""What a rerun wrote."""


@dataclass(frozen=True)
class Difference:
    """Of two losses by a metric of a kind: the first's minus the second's, and whether both lie within `CLOSE`."""

    kind: str
    metric: str
    loss: str
    other: str
    difference: Summary | None
    verdict: str


def differences(reruns: Mapping[str, Sequence[Rerun]]) -> list[Difference]:
    """Between every two losses, by the reruns of each.

    Reruns of one number have one seed whatever the loss, so that networks start alike and differences are paired.
    """
    pairs = list(combinations([loss for loss, runs in reruns.items() if runs], 2))
    return [_difference(kind, metric, pair, reruns) for metric in METRICS for kind in KINDS for pair in pairs]


def compared(report: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Between every two losses of a search's report that were tested."""
    return differences({row["loss"]: row["tests"] for row in report})


def _difference(kind: str, metric: str, pair: tuple[str, str], reruns: Mapping[str, Sequence[Rerun]]) -> Difference:
    ours, others = ({int(run["seed"]): float(run[kind][metric]) for run in reruns[loss]} for loss in pair)
    found = paired(ours, others)
    claim = Claim(f"{pair[0]} lies within {CLOSE} of {pair[1]}", *pair, within=CLOSE)
    return Difference(kind, metric, *pair, found, verdict(claim, found))


def closeness(found: Sequence[Difference]) -> str:
    """Of several: holds where each does, does not where any does not, else undecided."""
    verdicts = {each.verdict for each in found}
    return FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED


def by_kind(found: Sequence[Difference]) -> dict[tuple[str, str], list[Difference]]:
    """By metric and kind, as they come."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for each in found:
        groups.setdefault((each.metric, each.kind), []).append(each)
    return groups
