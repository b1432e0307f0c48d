"""Study, Arm, Claim, Trend; registry and aliases.

What a study is: a frozen value that says which recipes are compared, on what, and what is claimed of them.

Data sets that have no recipes of their own: whose recipes, and so whose studies, serve them.

An arm on a data set: the recipes that are trained for it.

Settings that put another backbone in the place of a recipe's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from string import Template

from training.overrides import resolve, with_explicit_defaults
from training.recipe import EnsembleRecipe, Recipe
from training.recipes.common import PAPER_DATASETS, backbone, preprocessing
from zoo.errors import RecipeError, UsageError, nearest

STUDY_NAME = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")
RECALL = re.compile(r"recall_at_([1-9]\d*)")
RETRIEVAL = ("precision_at_1", "r_precision", "map_at_r")
CATEGORICAL_FACTORS, NUMERIC_FACTORS = ("ink", "background", "inverted", "pattern", "face"), ("angle", "scale")
"""The factors of glyphs: kinds, and what has a size."""

METRIC_GROUPS = {
    "ranking": ("mrr", "map", "map_at_1000", "map_at_r_query_counted", "map_at_1000_query_counted"),
    "clustering": ("nmi", "nmi_random", "ami", "f1_clusters", "f1_neighbours"),
    "structure": (
        *("intra_class_distance", "inter_class_distance", "intra_inter_ratio", "intra_class_cosine_distance"),
        *("inter_class_cosine_distance", "intra_inter_cosine_ratio", "spectral_decay", "spectral_decay_drop_1"),
        *("spectral_decay_by_class", "alignment", "uniformity"),
    ),
    "factors": tuple(f"factor_{name}" for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)),
}
"""Which group has a metric: of `zoo.evaluation`, where those of retrieval are in all, or of `training.studies.runner`.
"""

EMBEDDING, FEATURES, RANDOM_HEAD = "embedding", "features", "random head"
"""What of a network is measured, beside the heads by their names: all, its pooled features, or what a head that has
learnt nothing makes of them."""

REDUCED_FEATURES = re.compile(r"features reduced to ([1-9]\d*)")
"""Features along so many principal components of the split that is measured, or as many as there are."""


@dataclass(frozen=True)
class Measure:
    """A metric of `zoo.evaluation` on a split. view: of what part of the network; see `training.studies.runner`."""

    metric: str
    split: str = "test"
    view: str = EMBEDDING

    def __post_init__(self) -> None:
        known = [*RETRIEVAL, *(metric for group in METRIC_GROUPS.values() for metric in group)]
        if self.recall_at is None and self.metric not in known:
            raise RecipeError(f"studies know no metric {self.metric!r}.{nearest(self.metric, [*known, 'recall_at_1'])}")
        if self.split not in ("train", "test"):
            raise RecipeError(f"a study measures on train or test, not on {self.split!r}.")

    @property
    def groups(self) -> tuple[str, ...]:
        """The group to ask for, beside retrieval."""
        return tuple(group for group, metrics in METRIC_GROUPS.items() if self.metric in metrics)

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
        if not STUDY_NAME.fullmatch(self.name):
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


def combine_studies(name: str, title: str, source: str, studies: Iterable[Study]) -> Study:
    """One study of all arms, measures and claims of several; arms of one label must be the same arm."""
    studies = list(studies)
    arms = tuple(dict.fromkeys(arm for study in studies for arm in study.arms))
    measures = tuple(dict.fromkeys(measure for study in studies for measure in study.measures))
    claims = [_explicit_claim(claim, study) for study in studies for claim in study.claims]
    note = " ".join(dict.fromkeys(study.note for study in studies if study.note))
    bound = next((study for study in studies if study.datasets), None)
    datasets, elsewhere = (bound.datasets, bound.elsewhere) if bound else ((), "")
    return Study(name, title, source, arms, measures, tuple(claims), datasets=datasets, elsewhere=elsewhere, note=note)


def _explicit_claim(claim: Claim, study: Study) -> Claim:
    than = claim.than or study.reference
    return Claim(claim.text, claim.better, than, claim.measure, claim.lower, claim.within)


SUBSTITUTES = {"folder": "cifar100", "inshop": "sop"}
"""By data set. In-Shop is products of many classes with few images each, as SOP is; a folder may be anything, so it has
the recipes of small photographs, which take the least."""


def recipe_dataset(dataset: str) -> str:
    """The data set whose recipes are used."""
    return SUBSTITUTES.get(dataset, dataset)


def supports(study: Study, dataset: str) -> bool:
    """Whether the study can be run on the data set."""
    return not study.datasets or bool({dataset, recipe_dataset(dataset)} & set(study.datasets))


SELECTIONS = ("last", "validation")
"""Which epoch is measured: the last of a run on all training classes, as the papers train; or the one that does best on
training classes held out. Test data select nothing."""

VALIDATION_SHARE = 0.1


def resolve_recipes(
    study: Study, arm: Arm, dataset: str, seed: int, selection: str = "last", settings: tuple[str, ...] = ()
) -> tuple[Recipe, ...]:
    """The arm's recipe, or those of an ensemble's members, on a data set; `settings` come last.

    A data set without recipes of its own has those of its stand-in. Raises `RecipeError` where there is no such recipe
    or it does not take the settings, and `UsageError` for a data set that is not the study's.
    """
    if not supports(study, dataset):
        known = f"the study {study.name} can be run on {', '.join(study.datasets)}, not on {dataset}."
        raise UsageError(f"{known} {study.elsewhere}".rstrip())
    return _seeded_recipes(arm, dataset, seed, selection, tuple(settings))


@cache
def _seeded_recipes(arm: Arm, dataset: str, seed: int, selection: str, settings: tuple[str, ...]) -> tuple[Recipe, ...]:
    """Return the recipes of a run; they are values that are built once."""
    members = arm.copies * _resolve_members(arm.recipe, arm.settings, arm.backbone, dataset, settings)
    # The seeds of an ensemble's members follow one another, as `zoo train --seed` has them.
    return tuple(
        dataclasses.replace(_with_validation(member, selection), seed=seed * len(members) + i)
        for i, member in enumerate(members)
    )


def changed_settings(arm: Arm, dataset: str) -> list[str]:
    """What makes the arm's model another than that of its recipe's name: its settings, unless they only say what the
    recipe or a default says already, and its copies."""
    own, named = (
        [with_explicit_defaults(member) for member in _resolve_members(arm.recipe, settings, arm.backbone, dataset, ())]
        for settings in (arm.settings, ())
    )
    copies = [f"{arm.copies} copies"] if arm.copies > 1 else []
    return [*(arm.settings if own != named else ()), *copies]


@cache
def _resolve_members(
    recipe: str, own: tuple[str, ...], backbone: str, dataset: str, settings: tuple[str, ...]
) -> tuple[Recipe, ...]:
    """The recipes with both kinds of settings, whatever their seed; kept, for reading settings takes its time."""
    words, name = _placeholders(dataset, backbone), recipe_name(recipe, dataset, backbone)
    dim, owner = resolve(name).dim, recipe_dataset(dataset)
    words |= {"dim": dim, "half": dim // 2, "batch": 112 if owner in PAPER_DATASETS else 96}
    read = [] if owner == dataset else [f"data.dataset={dataset}"]
    made = resolve(name, [*(_substitute(setting, words) for setting in own), *read, *settings])
    return made.members if isinstance(made, EnsembleRecipe) else (made,)


def recipe_name(recipe: str, dataset: str, backbone: str) -> str:
    """An arm's recipe on a data set, $dataset and $backbone replaced."""
    return _substitute(recipe, _placeholders(dataset, backbone))


def _placeholders(dataset: str, backbone: str) -> dict[str, object]:
    owner = recipe_dataset(dataset)
    return {"dataset": owner, "backbone": backbone if owner in PAPER_DATASETS else "conv4"}


def _with_validation(recipe: Recipe, selection: str) -> Recipe:
    """The recipe with classes held out, or with none."""
    share = 0.0 if selection == "last" else recipe.data.validation or VALIDATION_SHARE
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, validation=share))


def _substitute(text: str, words: Mapping[str, object]) -> str:
    try:
        return Template(text).substitute(words)
    except (KeyError, ValueError) as error:
        raise RecipeError(f"an arm's {text!r} holds {error}; known are ${', $'.join(words)}.") from None


SMALL_BACKBONES = {
    "conv4": (),
    "resnet18": ("backbone.name=r18", "backbone.architecture=resnet18"),
    "mobilenet": ("backbone.name=mobilenet", "backbone.architecture=mobilenetv3_small_050"),
}
"""By label, for recipes of small data sets: conv4 is their own. All start from random weights."""

SMALL_TWINS = (
    "Small twins of the paper's backbones, all from random weights: conv4, ResNet-18, MobileNetV3 of half width."
)


def backbone_settings(short: str, dim: int) -> tuple[str, ...]:
    """A backbone of the papers, with its preprocessing, in the place of another one's; an embedding of dim numbers."""
    chosen, shown = backbone(short), preprocessing(short)
    heads = (f"backbone.name={short}", f"backbone.architecture={chosen.architecture}", embedding_head(dim))
    return (*heads, f"preprocessing.mean={list(shown.mean)}", f"preprocessing.std={list(shown.std)}")


def embedding_head(dim: int) -> str:
    """A single head of dim numbers."""
    return f'heads=[{{"name": "embedding", "dim": {dim}}}]'
