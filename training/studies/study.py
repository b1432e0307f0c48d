"""What a study is: a frozen value that says which recipes are compared, on what, and what is claimed of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from zoo.errors import RecipeError, nearest

NAME = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")
RECALL = re.compile(r"recall_at_([1-9]\d*)")
RETRIEVAL = ("precision_at_1", "r_precision", "map_at_r")
CATEGORIES, MEASURED = ("ink", "background", "inverted", "pattern", "face"), ("angle", "scale")
"""The factors of glyphs: kinds, and what has a size."""

GROUPS = {
    "ranking": ("mrr", "map", "map_at_1000", "map_at_r_query_counted", "map_at_1000_query_counted"),
    "clustering": ("nmi", "nmi_random", "ami", "f1_clusters", "f1_neighbours"),
    "structure": (
        *("intra_class_distance", "inter_class_distance", "intra_inter_ratio", "intra_class_cosine_distance"),
        *("inter_class_cosine_distance", "intra_inter_cosine_ratio", "spectral_decay", "spectral_decay_drop_1"),
        *("spectral_decay_by_class", "alignment", "uniformity"),
    ),
    "factors": tuple(f"factor_{name}" for name in (*CATEGORIES, *MEASURED)),
}
"""Which group has a metric: of `zoo.evaluation`, where those of retrieval are in all, or of `training.studies.factors`.
"""

EMBEDDING, FEATURES, RANDOM_HEAD = "embedding", "features", "random head"
"""What of a network is measured, beside the heads by their names: all, its pooled features, or what a head that has
learnt nothing makes of them."""

REDUCED = re.compile(r"features reduced to ([1-9]\d*)")
"""Features along so many principal components of the split that is measured, or as many as there are."""


@dataclass(frozen=True)
class Measure:
    """A metric of `zoo.evaluation` on a split. view: of what part of the network; see `training.studies.views`."""

    metric: str
    split: str = "test"
    view: str = EMBEDDING

    def __post_init__(self) -> None:
        known = [*RETRIEVAL, *(metric for group in GROUPS.values() for metric in group)]
        if self.recall_at is None and self.metric not in known:
            raise RecipeError(f"studies know no metric {self.metric!r}.{nearest(self.metric, [*known, 'recall_at_1'])}")
        if self.split not in ("train", "test"):
            raise RecipeError(f"a study measures on train or test, not on {self.split!r}.")

    @property
    def groups(self) -> tuple[str, ...]:
        """The group to ask for, beside retrieval."""
        return tuple(group for group, metrics in GROUPS.items() if self.metric in metrics)

    @property
    def recall_at(self) -> int | None:
        """The K of recall_at_K; None for other metrics."""
        found = RECALL.fullmatch(self.metric)
        return None if found is None else int(found[1])

    def __str__(self) -> str:
        view = "" if self.view == EMBEDDING else f" of {self.view}"
        return f"{self.split} {self.metric}{view}"


R1 = Measure("recall_at_1")
P1 = Measure("precision_at_1")
MAP_AT_R = Measure("map_at_r")
DECAY = Measure("spectral_decay", "train")


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a recipe's name and settings as `zoo train --set` takes them.

    Both may hold $dataset, $backbone, and settings $dim, $half (of the recipe's embedding) and $batch (112 on the data
    sets of the papers; 96 on small ones, whose classes may be 50). $backbone is conv4 on small data sets and
    `backbone` on those of the papers. x: its place on the study's axis.
    copies: so many models of different seeds, their embeddings joined. A published number is found by the recipe's name
    or, where it names the study and the arm (`zoo.models.published`), by these.
    """

    label: str
    recipe: str
    settings: tuple[str, ...] = ()
    x: float | None = None
    backbone: str = "r50"
    copies: int = 1


@dataclass(frozen=True)
class Claim:
    """That the arm `better` has more (or less, `lower`) of a measure than the arm `than`; by default the baseline.

    within: instead, that both differ by at most so much.
    """

    text: str
    better: str
    than: str | None = None
    measure: Measure = R1
    lower: bool = False
    within: float | None = None


@dataclass(frozen=True)
class Trend:
    """That arms further along the study's axis have more of a measure (or less, `lower`)."""

    text: str
    measure: Measure = R1
    lower: bool = False


@dataclass(frozen=True)
class Study:
    """Arms that are trained with the same seeds and compared with the first one, or the one called `baseline`.

    source: where in which paper. x: what the arms' x is. trends: what is claimed of the arms along it.
    correlate: also the correlations of the measures over all runs. spectrum: also the singular values of the measured
    splits. datasets: the only ones that the study can be run on; none: any that has the recipes. elsewhere: why on no
    others, and what is run there. selections: how epochs are selected unless the user says how, as `Plan` has it.
    note: what a reader of the result must know.
    """

    name: str
    title: str
    source: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...] = (R1, MAP_AT_R)
    claims: tuple[Claim, ...] = ()
    baseline: str = ""
    seeds: int = 5
    x: str = ""
    trends: tuple[Trend, ...] = ()
    correlate: bool = False
    spectrum: bool = False
    datasets: tuple[str, ...] = ()
    elsewhere: str = ""
    note: str = ""
    selections: tuple[str, ...] = ("last",)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise RecipeError(
                f"a study is called paper/what, in lower-case letters, digits and '-', not {self.name!r}."
            )
        labels = self.labels
        if not labels or len({slug(label) for label in labels}) < len(labels):
            raise RecipeError(f"the study {self.name} needs arms of different names; it has {', '.join(labels)}.")
        named = [self.baseline or labels[0]]
        for claim in self.claims:
            named += [claim.better, claim.than or labels[0]]
        for measure in [*(claim.measure for claim in self.claims), *(trend.measure for trend in self.trends)]:
            if measure not in self.measures:
                raise RecipeError(f"the study {self.name} claims something of {measure}, which it does not measure.")
        for label in named:
            if label not in labels:
                raise RecipeError(f"the study {self.name} has no arm {label!r}.{nearest(label, labels)}")

    @property
    def labels(self) -> list[str]:
        return [arm.label for arm in self.arms]

    @property
    def reference(self) -> str:
        """The label of the arm that others are compared with."""
        return self.baseline or self.labels[0]

    def groups(self, split: str) -> tuple[str, ...]:
        """The groups of metrics to ask for on a split."""
        return tuple(dict.fromkeys(group for m in self.measures if m.split == split for group in m.groups))

    def recalls(self, split: str) -> tuple[int, ...]:
        """Every K of recall_at_K that is asked for on a split."""
        return tuple(dict.fromkeys(m.recall_at for m in self.measures if m.split == split and m.recall_at is not None))

    @property
    def views(self) -> list[tuple[str, str]]:
        """The pairs of split and view that are measured."""
        return list(dict.fromkeys((measure.split, measure.view) for measure in self.measures))


def slug(label: str) -> str:
    """The label as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def combined(name: str, title: str, source: str, studies: Iterable[Study]) -> Study:
    """One study of all arms, measures and claims of several; arms of one label must be the same arm."""
    studies = list(studies)
    arms = tuple(dict.fromkeys(arm for study in studies for arm in study.arms))
    measures = tuple(dict.fromkeys(measure for study in studies for measure in study.measures))
    claims = [_explicit(claim, study) for study in studies for claim in study.claims]
    note = " ".join(dict.fromkeys(study.note for study in studies if study.note))
    bound = next((study for study in studies if study.datasets), None)
    datasets, elsewhere = (bound.datasets, bound.elsewhere) if bound else ((), "")
    return Study(name, title, source, arms, measures, tuple(claims), datasets=datasets, elsewhere=elsewhere, note=note)


def _explicit(claim: Claim, study: Study) -> Claim:
    than = claim.than or study.reference
    return Claim(claim.text, claim.better, than, claim.measure, claim.lower, claim.within)
