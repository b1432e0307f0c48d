"""What is searched for each loss, in the conventions of Reality: bounds after its supplement, widened where a published
best value lies outside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from training.recipes.settings import PAPER_DATASETS
from zoo.errors import UsageError, nearest

CONVENTIONS = {
    "same": lambda value: value,
    "root": math.sqrt,
    "radians": math.radians,
    "twice": lambda value: 2 * value,
}
"""From Reality's value to ours: its ProxyNCA scales squared distances, its angles are degrees, its regulariser of
SoftTriple is a mean over pairs, ours half of it."""


@dataclass(frozen=True)
class Parameter:
    """A setting and its bounds; log: drawn evenly in its logarithm. convention: a key of CONVENTIONS."""

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    convention: str = "same"

    def setting(self, value: float) -> str:
        """The `key=value` of a value in Reality's convention."""
        ours = CONVENTIONS[self.convention](value)
        return f"{self.key}={int(ours) if self.whole else repr(float(ours))}"


@dataclass(frozen=True)
class Space:
    """A loss's parameters. small: the method whose recipe is searched on small data sets, with `settings`; the papers'
    data sets have a recipe of their own. per_class: samples a class of a batch of 32 (1 with proxies)."""

    name: str
    small: str
    parameters: tuple[Parameter, ...]
    settings: tuple[str, ...] = ()
    per_class: int = 4

    def recipe(self, dataset: str) -> str:
        """The name of the recipe that is searched on a data set."""
        papers = dataset in PAPER_DATASETS
        return f"reality-{self.name}-ibn-{dataset}" if papers else f"{self.small}-conv4-{dataset}"

    def fixed(self, dataset: str) -> list[str]:
        """The settings of that recipe that are not searched."""
        if dataset in PAPER_DATASETS:
            return []
        batch = ["batch.size=32", f"batch.per_class={self.per_class}"]
        return [*self.settings, *batch, "schedule.name=constant", "schedule.average=0"]

    def searched(self, values: Mapping[str, float]) -> list[str]:
        """The settings of a trial: key -> value in Reality's convention."""
        return [parameter.setting(values[parameter.key]) for parameter in self.parameters]


def _of_loss(name: str, low: float, high: float, log: bool = False, convention: str = "same") -> Parameter:
    return Parameter(f"objective.loss_args.{name}", low, high, log, convention=convention)


ALL_PAIRS = "objective.miner=none"
ACTIVE = "objective.loss_args.active_only=true"
BY_TRIPLETS = "objective.loss_args.by_triplets=true"
PROXY_LR = Parameter("optimizer.loss_lr", 1e-6, 1.0, log=True)
MS = (_of_loss("alpha", 0.001, 100), _of_loss("beta", 0.01, 200), _of_loss("base", 0, 1))
MARGIN = (_of_loss("margin", -0.2, 2), _of_loss("beta", -0.2, 2), PROXY_LR)
PAIRS = ("positive_margin", "negative_margin")

SPACES = {
    space.name: space
    for space in (
        Space("contrastive", "contrastive", tuple(_of_loss(m, -0.2, 2) for m in PAIRS), (ALL_PAIRS, ACTIVE)),
        Space("triplet", "triplet-r", (_of_loss("margin", -0.2, 2),), (ALL_PAIRS, ACTIVE)),
        Space("ntxent", "ntxent", (_of_loss("temperature", 1e-4, 100, log=True),)),
        Space(
            "proxynca",
            "proxynca",
            (_of_loss("scale", 0.01, 100, convention="root"), PROXY_LR),
            ("objective.loss_args.positive_in_denominator=true",),
            per_class=1,
        ),
        Space("margin", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS, "objective.loss_args.per_class=false")),
        Space("margin-class", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS)),
        Space("softmax", "softmax", (_of_loss("temperature", 1e-2, 100, log=True), PROXY_LR), per_class=1),
        Space("cosface", "cosface", (_of_loss("margin", 0, 1), _of_loss("scale", 0.01, 250), PROXY_LR), per_class=1),
        Space(
            "arcface",
            "arcface",
            (_of_loss("margin", 0, 90, convention="radians"), _of_loss("scale", 0.01, 250), PROXY_LR),
            per_class=1,
        ),
        Space("fastap", "fastap", (Parameter("objective.loss_args.bins", 2, 100, whole=True),)),
        Space(
            "snr", "snr-contrastive", (*(_of_loss(m, 0, 2) for m in PAIRS), _of_loss("nu", 0, 1)), (ALL_PAIRS, ACTIVE)
        ),
        Space("ms", "ms", MS, (ALL_PAIRS, "objective.loss_args.kept_only=false")),
        Space("ms-miner", "ms", (*MS, Parameter("objective.miner_args.epsilon", 0, 1))),
        Space(
            "softtriple",
            "softtriple",
            (
                *(_of_loss("scale", 0.01, 100), _of_loss("gamma", 1e-4, 100), _of_loss("delta", 0, 1), PROXY_LR),
                _of_loss("tau", 0, 1, convention="twice"),
            ),
            per_class=1,
        ),
    )
}
"""By Reality's losses."""


def space_of(name: str) -> Space:
    """The space of that loss. Raises `UsageError` with the nearest names."""
    if name not in SPACES:
        raise UsageError(f"there is no search for {name!r}.{nearest(name, SPACES)} Known: {', '.join(SPACES)}.")
    return SPACES[name]
