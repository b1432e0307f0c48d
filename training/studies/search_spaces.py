"""Search spaces of the losses: settings and their bounds, in the conventions of Reality.

Bounds are those of the supplement of Reality, widened where a published best value is outside them. Those of the group
loss are in Group, appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training.recipes.common import PAPER_DATASETS
from zoo.errors import unknown

CONVENTIONS = {"same": 1, "twice": 2}
"""Ours as a multiple of Reality's value: its regulariser of SoftTriple is a mean over pairs, twice ours."""


@dataclass(frozen=True)
class Parameter:
    """A setting that is searched.

    Attributes:
        key: The setting, as in KEY=VALUE.
        low: The lower bound.
        high: The upper bound.
        log: Whether values are drawn uniformly in their logarithm.
        whole: Whether values are whole numbers.
        convention: The conversion from Reality's value, a key of `CONVENTIONS`.
    """

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    convention: str = "same"

    def setting(self, value: float) -> str:
        """Return the KEY=VALUE of a value in Reality's convention."""
        ours = CONVENTIONS[self.convention] * value
        return f"{self.key}={int(ours) if self.whole else repr(float(ours))}"


@dataclass(frozen=True)
class Space:
    """The search space of a loss.

    Attributes:
        name: The name of the loss, that of Reality if it has the loss.
        small: The method whose recipe is searched on small data sets; those of the papers have recipes of their own.
        parameters: The settings that are searched.
        settings: Fixed settings on small data sets.
        per_class: Samples per class in a batch of 32 on small data sets (1 with proxies).
        papers: Method and backbone of the recipe on the papers' data sets; by default Reality's of this loss.
    """

    name: str
    small: str
    parameters: tuple[Parameter, ...]
    settings: tuple[str, ...] = ()
    per_class: int = 4
    papers: str = ""

    def recipe(self, dataset: str) -> str:
        """Return the name of the recipe that is searched on a data set."""
        papers = self.papers or f"reality-{self.name}-ibn"
        return f"{papers if dataset in PAPER_DATASETS else f'{self.small}-conv4'}-{dataset}"

    def fixed(self, dataset: str) -> list[str]:
        """Return the settings of that recipe that are not searched."""
        if dataset in PAPER_DATASETS:
            return []
        batch = ["batch.size=32", f"batch.per_class={self.per_class}"]
        return [*self.settings, *batch, "schedule.name=constant", "schedule.average=0"]

    def searched(self, values: Mapping[str, float]) -> list[str]:
        """Return the settings of a trial, by its values in Reality's convention."""
        return [parameter.setting(values[parameter.key]) for parameter in self.parameters]

    def lower_bounds(self) -> dict[str, float]:
        """Return the lowest value of each parameter."""
        return {parameter.key: parameter.low for parameter in self.parameters}


def _loss_parameter(name: str, low: float, high: float, log: bool = False, convention: str = "same") -> Parameter:
    return Parameter(f"objective.loss_args.{name}", low, high, log, convention=convention)


ALL_PAIRS = "objective.miner=none"
ACTIVE = "objective.loss_args.active_only=true"
BY_TRIPLETS = "objective.loss_args.by_triplets=true"
ALL_ANCHORS = "objective.loss_args.kept_only=false"
PROXY_LR = Parameter("optimizer.loss_lr", 1e-6, 1.0, log=True)
MS = (_loss_parameter("alpha", 0.001, 100), _loss_parameter("beta", 0.01, 200), _loss_parameter("base", 0, 1))
MARGIN = (_loss_parameter("margin", -0.2, 2), _loss_parameter("beta", -0.2, 2), PROXY_LR)
PAIRS = ("pos_margin", "neg_margin")

SPACES = {
    space.name: space
    for space in (
        Space("contrastive", "contrastive", tuple(_loss_parameter(m, -0.2, 2) for m in PAIRS), (ALL_PAIRS, ACTIVE)),
        Space("triplet", "triplet-r", (_loss_parameter("margin", -0.2, 2),), (ALL_PAIRS, ACTIVE)),
        Space("ntxent", "ntxent", (_loss_parameter("temperature", 1e-4, 100, log=True),)),
        Space(
            "proxynca",
            "proxynca",
            (_loss_parameter("softmax_scale", 0.01, 100), PROXY_LR),
            ("objective.loss_args.positive_in_denominator=true",),
            per_class=1,
        ),
        Space("margin", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS, "objective.loss_args.per_class=false")),
        Space("margin-class", "margin", MARGIN, (ALL_PAIRS, BY_TRIPLETS)),
        Space("softmax", "softmax", (_loss_parameter("temperature", 1e-2, 100, log=True), PROXY_LR), per_class=1),
        Space(
            "cosface",
            "cosface",
            (_loss_parameter("margin", 0, 1), _loss_parameter("scale", 0.01, 250), PROXY_LR),
            per_class=1,
        ),
        Space(
            "arcface",
            "arcface",
            (_loss_parameter("margin", 0, 90), _loss_parameter("scale", 0.01, 250), PROXY_LR),
            per_class=1,
        ),
        Space("fastap", "fastap", (Parameter("objective.loss_args.num_bins", 2, 100, whole=True),)),
        Space(
            "snr",
            "snr-contrastive",
            (*(_loss_parameter(m, 0, 2) for m in PAIRS), _loss_parameter("nu", 0, 1)),
            (ALL_PAIRS, ACTIVE),
        ),
        Space("ms", "ms", MS, (ALL_PAIRS, ALL_ANCHORS)),
        Space("ms-miner", "ms", (*MS, Parameter("objective.miner_args.epsilon", 0, 1)), (ALL_ANCHORS,)),
        Space(
            "softtriple",
            "softtriple",
            (
                *(
                    _loss_parameter("la", 0.01, 100),
                    _loss_parameter("gamma", 1e-4, 100),
                    _loss_parameter("margin", 0, 1),
                    PROXY_LR,
                ),
                _loss_parameter("tau", 0, 1, convention="twice"),
            ),
            per_class=1,
        ),
        Space(
            "group",
            "group",
            (
                Parameter("optimizer.lr", 1e-5, 0.1, log=True),
                Parameter("optimizer.weight_decay", 1e-16, 0.1, log=True),
            ),
            papers="group-d161",
        ),
    )
}
"""The spaces by the name of the loss. That of group is of DenseNet-161, which Group tunes in appendix D."""


def find_space(name: str) -> Space:
    """Return the space of a loss.

    Raises:
        UsageError: If the loss is unknown; with the nearest names.
    """
    if name not in SPACES:
        raise unknown("search for", name, SPACES)
    return SPACES[name]
