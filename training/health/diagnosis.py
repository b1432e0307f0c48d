"""Diagnosis of a run: its records, and the findings where an indicator left its healthy range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

SETTLED_STEPS, SETTLED_EPOCHS, LEARNT_STEPS = 40, 3, 1000
"""The numbers of steps and epochs after which a state counts that a run stays in, and after which it should have learnt
something."""
HIGHEST_UPDATE, RISKY_UPDATE, GROWTH = 0.15, 0.05, 10.0
"""A step that changes the weights by the first share is too large; by the second, if the embeddings' length has grown
by this factor since the start."""
HARDEST, NARROW, COLLAPSED = 0.995, 0.02, 0.002
"""The share of negatives beyond the mined one, and of positives before it, that only hard mining reaches, and two
spreads of embeddings. In many dimensions distance-weighted sampling reaches that of the negatives, too."""
ALL_ACTIVE, NONE_ACTIVE = 0.999, 0.005
FAR, OWN = 0.8, 0.9
"""The mean distance by which tuples miss a margin that cannot be met, and the share of images that are nearest to their
own class vector though none meets the margin."""
SEPARATED, UNSEPARATED = 0.9, 0.6
FEWEST_CLASSES, FEWEST_IMAGES = 5, 150
"""The least numbers of held-out classes and images that tell wrong labels from right ones of similar classes."""
RADIAL = 0.1
"""The share of a gradient along the embeddings from which their length matters to a loss."""
DEAD = 0.4
SLOW_UPDATE = 1e-4
WIDEST_INPUT, NARROWEST_INPUT = 8.0, 0.02


@dataclass(frozen=True)
class Finding:
    """An indicator outside its healthy range.

    Attributes:
        code: Its name.
        epoch: The first epoch that shows it.
        happened: What happened, with the numbers.
        cause: The usual cause.
        setting: Which setting to try.
    """

    code: str
    epoch: int
    happened: str
    cause: str
    setting: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def text(self) -> str:
        """Return the finding as one paragraph."""
        return f"epoch {self.epoch}, {self.code}: {self.happened} {self.cause} {self.setting}"


class Maturity(IntEnum):
    """Length of a run by what it can show; a rule needs one of these.

    STEP: what one step shows, in a run of any length.
    STATE: a state in which the run stays after half of its schedule, three epochs and 40 steps on the classes.
    LEARNING: what a run has learnt that tells its training classes apart, or has had 1,000 such steps. A shorter run
    may only have begun to learn.
    """

    STEP, STATE, LEARNING = range(3)


@dataclass(frozen=True)
class History:
    """The records of a run up to an epoch.

    Attributes:
        records: One record per epoch.
        recipe: The recipe as JSON values; {} if it is not known.
        divergence: The indicators of an epoch that ended with an infinite loss, and its message; {} without one.
    """

    records: Sequence[Mapping[str, Any]]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    divergence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> Mapping[str, Any]:
        """The indicators of the first step, and the scores of the trunk before it."""
        started: Mapping[str, Any] = self.records[0].get("start", {}) if self.records else {}
        return started or self.divergence.get("start", {})

    @property
    def measured(self) -> list[Mapping[str, Any]]:
        """The indicators of each epoch that has some."""
        return [record["indicators"] for record in self.records if record.get("indicators")]

    @property
    def tail(self) -> list[Mapping[str, Any]]:
        """The indicators of the last third of the epochs, at least two."""
        return self.measured[-max(2, math.ceil(len(self.measured) / 3)) :]

    @property
    def epoch(self) -> int:
        """The last epoch."""
        return int(self.divergence.get("epoch", 0) or (self.records[-1]["epoch"] if self.records else 0))

    @property
    def maturity(self) -> Maturity:
        """The length that the run has reached, by what it can show."""
        steps = sum(max(record.get("tasks", {"": record.get("steps", 0)}).values()) for record in self.records)
        if self.epoch < max(SETTLED_EPOCHS, self.setting("schedule.epochs", self.epoch) / 2) or steps < SETTLED_STEPS:
            return Maturity.STEP
        averaged = 1 / (1 - self.setting("schedule.average", 0.0))  # held-out scores lag by this many steps
        separated = (_mean(self.tail, "separation") or 0) >= SEPARATED and steps >= averaged
        return Maturity.LEARNING if separated or steps >= LEARNT_STEPS else Maturity.STATE

    @property
    def judged(self) -> bool:
        """True if the run is known to learn, or long enough to know that it does not."""
        return self.maturity is Maturity.LEARNING or self.gains()

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a setting of the recipe, as "optimizer.lr"."""
        value: Any = self.recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    def best_recall(self) -> float | None:
        """Return the best R@1 on the held-out classes; None without validation."""
        return max(_values(self.records, "validation_recall_at_1"), default=None)

    def gains(self) -> bool:
        """Return whether R@1 on the held-out classes in the last third of epochs is above the trunk's at the start.

        False without validation. The best of many epochs may be above it by chance.
        """
        last, trunk = self.last_recall(), self.start.get("trunk_recall_at_1")
        return last is not None and trunk is not None and last > trunk + self.doubt(trunk)

    def last_recall(self) -> float | None:
        """Return the mean R@1 on the held-out classes in the last third of epochs; None without validation."""
        recalls = _values(self.records, "validation_recall_at_1")
        last = recalls[-math.ceil(len(recalls) / 3) :]
        return sum(last) / len(last) if last else None

    def few_classes(self) -> bool:
        """Return whether R@1 is of fewer than `FEWEST_CLASSES` held-out classes, or of more of very unequal sizes."""
        return bool(self.start.get("held_out_chance", 0) > 1 / FEWEST_CLASSES)

    def few_held_out(self) -> bool:
        """Return whether too few classes or images are held out to tell wrong labels; False without any."""
        return self.few_classes() or self.start.get("held_out_images", FEWEST_IMAGES) < FEWEST_IMAGES

    def doubt(self, recall: float) -> float:
        """Return two standard errors of a recall on the held-out images."""
        images = self.start.get("held_out_images") or 1
        return 2 * math.sqrt(max(recall * (1 - recall), 0.01) / images)


Explanation = tuple[str, str, str]
"""What happened, the cause and the setting."""


@dataclass(frozen=True)
class HealthRule:
    """A finding's rule: the maturity that it needs, and a function that returns None if it does not apply."""

    maturity: Maturity
    explain: Callable[[History], Explanation | None]

    def __call__(self, history: History) -> Explanation | None:
        return self.explain(history) if history.maturity >= self.maturity else None


def diagnose(history: History) -> list[Finding]:
    """Return the findings of a run: facts, and the most specific cause, or without one the symptoms.

    A rule is applied to the records up to each epoch, so that a finding names the first epoch that shows it; it counts
    if it still holds at the end.
    """
    first_cause = list(_apply(CAUSES, history))[:1]
    return [*_apply(FACTS, history), *(first_cause or _apply(SYMPTOMS, history))]


def _apply(rules: Mapping[str, HealthRule], history: History) -> Iterator[Finding]:
    for code, rule in rules.items():
        if (found := rule(history)) is not None:
            yield Finding(code, _first_epoch(rule, history), *found)


def _first_epoch(rule: HealthRule, history: History) -> int:
    """Return the epoch from which the rule has held without a break."""
    first = history.epoch
    for end in range(len(history.records), 0, -1):
        earlier = dataclasses.replace(history, records=history.records[:end], divergence={})
        if rule(earlier) is None:
            break
        first = earlier.epoch
    return first


def _values(measured: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [values[name] for values in measured if isinstance(values.get(name), int | float)]


def _mean(measured: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _values(measured, name)
    return sum(values) / len(values) if values else None


def _counts_terms(measured: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `active` counts terms of the loss, not samples with a gradient."""
    return any("tuples" in values for values in measured)


def _one_class(history: History) -> Explanation | None:
    measured = [*history.measured, history.start]
    if not history.start or set(_values(measured, "classes")) != {1}:
        return None
    return (
        "All images of a batch are of one class, so that nothing is pushed apart.",
        "A loss needs pairs of two classes.",
        "Lower batch.per_class (2 to 4), or raise batch.size to at least twice that.",
    )


def _input_scale(history: History) -> Explanation | None:
    values = history.start.get("input") or {}
    mean, std = values.get("mean"), values.get("std")
    if mean is None or std is None or (NARROWEST_INPUT <= std <= WIDEST_INPUT and abs(mean) <= WIDEST_INPUT):
        return None
    return (
        f"The pixels that the network gets have mean {mean:.3g} and standard deviation {std:.3g}; about 0 and 1 are "
        "usual.",
        "The pixels are not normalised, as with preprocessing.std in units of 255 instead of 1.",
        "Set preprocessing.mean and preprocessing.std to those that the trunk's weights were trained with, for pixels "
        "from 0 to 1.",
    )


def _raw_rows(history: History) -> Explanation | None:
    measured = [*history.measured, history.start]
    radial = _mean(measured, "radial_gradient")
    if radial is None or radial < RADIAL or not _mean(measured, "raw"):
        return None
    return (
        f"The margin is compared with distances of embeddings that are not normalised: {radial:.0%} of the gradient "
        "changes their length.",
        "A margin is made for embeddings of length 1; without it the network can meet the margin by longer embeddings.",
        "Normalise the embeddings before the loss: in a loss of your own, leave `normalize_embeddings` True.",
    )


def _peak_update(history: History) -> float:
    peaks = [
        math.inf if value is None else value  # which JSON lacks
        for values in [history.start, *history.measured]
        for part, value in (values.get("update") or {}).items()
        if part != "loss"
    ]
    return max(peaks, default=0.0)


def _learns(history: History) -> bool:
    """Return whether a run that went on tells classes apart, and better than its trunk if enough are held out."""
    separated = (_mean(history.tail, "separation") or 0) >= SEPARATED and not history.divergence
    return separated and ("trunk_recall_at_1" not in history.start or history.few_classes() or history.gains())


def _growth(history: History) -> float:
    """Return the largest factor by which the length of a head's embeddings has grown since the start."""
    first = history.start.get("norm") or {}
    return max(
        (
            value / first[name]
            for values in history.measured
            for name, value in (values.get("norm") or {}).items()
            if value and first.get(name)
        ),
        default=1.0,
    )


def _high_rate(history: History) -> Explanation | None:
    peak, growth = _peak_update(history), _growth(history)
    if (peak < HIGHEST_UPDATE and (peak < RISKY_UPDATE or growth < GROWTH)) or _learns(history):
        return None
    ended = f" The loss became infinite in epoch {history.epoch}." if history.divergence else ""
    grown = f", and embeddings have become {growth:.3g} times as long" if growth >= GROWTH else ""
    rate = history.setting("optimizer.lr")
    size = f"by up to {peak:.0%} of their length" if math.isfinite(peak) else "to infinite numbers"
    return (
        f"One step of the optimiser changed the weights {size}{grown}.{ended} Healthy steps change them by less than "
        "5 %.",
        "The learning rate is too high.",
        f"Lower optimizer.lr{f' from {rate:g} to {rate / 10:g}' if rate else ' to a tenth'}; a warm-up "
        "(schedule.name=one-cycle) helps, too.",
    )


def _diverged(history: History) -> Explanation | None:
    if not history.divergence:
        return None
    happened = f"The run ended in epoch {history.epoch}: {history.divergence.get('message', 'the loss is infinite')}"
    if history.divergence.get("input_finite") is False:
        return (
            happened,
            "The batch itself has values that are not finite: images or features are damaged.",
            "Look at the images that the message names, and leave them out.",
        )
    return (
        happened,
        "Steps were too large, or numbers overflowed.",
        "Lower optimizer.lr to a tenth, and try precision=fp32 if it is bf16.",
    )


def _hard_mining(history: History) -> Explanation | None:
    last, first = history.measured[-2:], history.start.get("spread")
    hardness, spreads, active = (_values(last, name) for name in ("hard_negatives", "spread", "active"))
    positives = _values(last, "hard_positives")  # absent if a class has two images in a batch
    least = HARDEST if positives else ALL_ACTIVE
    if len(hardness) < 2 or min(hardness) < least or not first or min(active, default=0.0) < 0.95:
        return None
    if min(positives, default=1.0) < HARDEST:
        return None
    if max(spreads, default=1.0) > min(NARROW, first / 4):
        return None
    return (
        f"The embeddings have collapsed (spread {spreads[-1]:.2g}, {first:.2g} at the start) while every tuple had the "
        f"nearest negative of its batch, and {active[-1]:.0%} of the tuples stayed above zero.",
        "Hard mining alone pulls everything to one point: the hardest negatives are often outliers or wrong labels.",
        "Set objective.miner to semihard or distance-weighted, or begin with one of them.",
    )


def _large_margin(history: History) -> Explanation | None:
    tail = history.tail
    violation, own = _mean(tail, "violation"), _mean(tail, "own_proxy")
    if not _counts_terms(tail) or min(_values(tail, "active"), default=0.0) < ALL_ACTIVE:
        return None
    if (violation or 0) >= FAR:
        shown = f"The tuples miss the margin by {violation:.2g} on average, and all of them do"
    elif (own or 0) >= OWN:
        shown = f"No image meets the margin, although {own:.0%} of them are nearest to their own class vector"
    else:
        return None
    margin = history.setting("objective.loss_args.margin")
    return (
        f"{shown}, to the end of the run.",
        "The margin is larger than the unit sphere allows (the largest distance is 2, random directions are 1.41 "
        "apart), so that tuples which are right are pushed on.",
        f"Lower objective.loss_args.margin{f' from {margin:g}' if isinstance(margin, int | float) else ''} (0.1 to 0.5 "
        "are usual; about 1 for the neg_margin of the contrastive loss, and 30 degrees for ArcFace).",
    )


def _wrong_labels(history: History) -> Explanation | None:
    """Wrong labels leave R@1 at chance for every network; with right ones even an untrained trunk's is better."""
    chance, trunk = history.start.get("held_out_chance"), history.start.get("trunk_recall_at_1")
    recalls, last = _values(history.records, "validation_recall_at_1"), history.last_recall()
    if last is None or trunk is None or chance is None or history.few_held_out():
        return None
    mean, doubt = sum([trunk, *recalls]) / (1 + len(recalls)), history.doubt(chance)
    # Two images that are nearest to each other count twice; and of many recalls, chance would choose a good one.
    if max(trunk, mean, last) > chance + 1.5 * doubt or max(recalls) > chance + 2 * doubt:
        return None
    return (
        f"R@1 on held-out classes is {max(recalls):.3f} at best, {trunk:.3f} with the trunk before training, and "
        f"{mean:.3f} on average, by chance {chance:.3f}: no network sees that images of one class are alike.",
        "The labels do not belong to the images: a table whose rows were sorted or shuffled on their own, or a folder "
        "that is not sorted by class.",
        "Look at some images of one class. If the labels are right, train longer (schedule.epochs) or start from "
        "pretrained weights.",
    )


def _collapse(history: History) -> Explanation | None:
    last, first = history.measured[-2:], history.start.get("spread")
    spreads, separation = _values(last, "spread"), _mean(last, "separation")
    if len(spreads) < 2 or not first or max(spreads) > min(COLLAPSED, first / 4):
        return None
    if separation is not None and separation >= 0.75:
        return None
    return (
        f"All embeddings are almost equal: spread {spreads[-1]:.2g}, {first:.2g} at the start.",
        "The loss is met, or no longer falls, when everything is at one point: too strong a pull, or too hard tuples.",
        "Lower optimizer.lr, take an easier miner (objective.miner=distance-weighted), or a loss with class vectors.",
    )


def _no_tuples(history: History) -> Explanation | None:
    last = history.measured[-2:]
    active, separation = _values(last, "active"), _mean(last, "separation")
    if len(active) < 2 or max(active) > NONE_ACTIVE or not _counts_terms(last) or (separation or 0) >= SEPARATED:
        return None
    return (
        f"{active[-1]:.1%} of the tuples are above zero, so that the loss has no gradient, though "
        f"{1 - (separation or 0.5):.0%} of the pairs are in the wrong order.",
        "The margin is too small or the miner takes tuples that are too easy.",
        "Raise objective.loss_args.margin, or set objective.miner to distance-weighted or semihard.",
    )


def _dead_proxies(history: History) -> Explanation | None:
    dead = _mean(history.tail, "dead_proxies")
    if dead is None or dead < DEAD:
        return None
    rate = history.setting("optimizer.loss_lr")
    known = "" if rate is None else f"; optimizer.loss_lr is {rate:g}"
    return (
        f"{dead:.0%} of the class vectors are as far from the images of their class as from others, or farther.",
        f"The class vectors learn too slowly or too fast{known}.",
        "Raise optimizer.loss_lr (10 to 100 times optimizer.lr for pretrained trunks); if it is above 0.1, lower it.",
    )


def _slow_rate(history: History) -> Explanation | None:
    peak = _peak_update(history)
    if (
        not history.measured
        or peak >= SLOW_UPDATE
        or (_mean(history.tail, "separation") or 1) >= 0.75
        or history.gains()
    ):
        return None
    rate = history.setting("optimizer.lr")
    return (
        f"One step of the optimiser changed the weights by at most {peak:.1g} of their length, and nothing is learnt.",
        "The learning rate is too low, or no part of the network learns.",
        f"Raise optimizer.lr{f' from {rate:g}' if rate else ''}, and check backbone.tune.",
    )


def _worse_than_start(history: History) -> Explanation | None:
    best, trunk = history.best_recall(), history.start.get("trunk_recall_at_1")
    if best is None or trunk is None or history.few_classes() or best >= trunk - history.doubt(trunk):
        return None
    return (
        f"R@1 on held-out classes is {best:.3f} at best, and {trunk:.3f} with the trunk before training.",
        "Training has damaged features that were good, or the head is too small for them.",
        "Lower optimizer.lr, train less of the trunk (backbone.tune=head, norm or last), or set head_start=pca.",
    )


def _nothing_learnt(history: History) -> Explanation | None:
    separation = _mean(history.tail, "separation")
    if separation is None or separation >= UNSEPARATED or history.gains():
        return None
    return (
        f"Images of one class are nearer than images of two classes in {separation:.0%} of the cases of a batch, by "
        "chance 50 %.",
        "The rate does not suit, the trunk starts from random weights, or the labels do not belong to the images.",
        "Look at some images of one class, try optimizer.lr three times larger and smaller, or start from pretrained "
        "weights.",
    )


FACTS: dict[str, HealthRule] = {
    "input-not-normalised": HealthRule(Maturity.STEP, _input_scale),
    "embeddings-not-normalised": HealthRule(Maturity.STEP, _raw_rows),
}
"""What is reported beside the cause."""
CAUSES: dict[str, HealthRule] = {
    "one-class-batch": HealthRule(Maturity.STEP, _one_class),
    "rate-too-high": HealthRule(Maturity.STEP, _high_rate),
    "diverged": HealthRule(Maturity.STEP, _diverged),
    "hard-mining": HealthRule(Maturity.STATE, _hard_mining),
    "margin-too-large": HealthRule(Maturity.STATE, _large_margin),
    "wrong-labels": HealthRule(Maturity.STATE, _wrong_labels),
    "rate-too-low": HealthRule(Maturity.STATE, _slow_rate),
}
"""Causes, the most specific one first; it explains the rest."""
SYMPTOMS: dict[str, HealthRule] = {
    "no-active-tuples": HealthRule(Maturity.STATE, _no_tuples),
    "collapsed": HealthRule(Maturity.LEARNING, _collapse),
    "dead-proxies": HealthRule(Maturity.LEARNING, _dead_proxies),
    "worse-than-start": HealthRule(Maturity.LEARNING, _worse_than_start),
    "nothing-learnt": HealthRule(Maturity.LEARNING, _nothing_learnt),
}
"""What is reported if no cause is known."""
