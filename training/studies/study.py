"""Studies as frozen values: arms to compare, measures, claims and trends; and the recipes of an arm on a data set."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from string import Template

from training.overrides import has_public_weights, override, resolve
from training.recipe import EnsembleRecipe, Recipe, without_remarks
from training.recipes.common import PAPER_DATASETS, PHOTO_DATASETS, SMALL_DATASETS, backbone, preprocessing
from training.recipes.published_code import SUFFIX, resolve_as_published
from zoo.errors import RecipeError, UsageError, nearest

STUDY_NAME = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")
RECALL = re.compile(r"recall_at_([1-9]\d*)")
RETRIEVAL = ("precision_at_1", "r_precision", "map_at_r")
CATEGORICAL_FACTORS, NUMERIC_FACTORS = ("ink", "background", "inverted", "pattern", "face"), ("angle", "scale")
"""The factors of glyphs."""

METRIC_GROUPS = {
    "ranking": ("mrr", "map", "map_at_1000", "map_by_class", "map_at_r_query_counted", "map_at_1000_query_counted"),
    "clustering": ("nmi", "nmi_random", "ami", "f1_clusters", "f1_neighbours"),
    "structure": (
        *("intra_class_distance", "inter_class_distance", "intra_inter_ratio", "intra_class_cosine_distance"),
        *("inter_class_cosine_distance", "intra_inter_cosine_ratio", "spectral_decay", "spectral_decay_drop_1"),
        *("spectral_decay_by_class", "alignment", "uniformity"),
    ),
    "factors": tuple(f"factor_{name}" for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)),
}
"""Metrics by group: factors of `training.studies.measure`, others of `zoo.evaluation`. Retrieval is always measured."""

GAP = "gap"
"""In the place of a split: the value on test classes less that on training classes (Sharing, table 5)."""

EMBEDDING, FEATURES, RANDOM_HEAD = "embedding", "features", "random head"
"""Views of a network in addition to its heads by name: all heads, the pooled features, an untrained head."""

REDUCED_FEATURES = re.compile(r"features reduced to ([1-9]\d*)")
"""View of the features along this many principal components of the measured split, or along all if there are fewer."""

SELECTIONS = ("last", "validation")
"""How the measured epoch is selected: the last one of a run on all training classes, or the best one on held-out
training classes, as in Reality. Test data select nothing."""

VALIDATION_SHARE = 0.1
"""Share of the training classes that is held out, unless the recipe has its own."""

SUBSTITUTES = {"folder": "cifar100", "inshop": "sop", "cub2010": "cub", "cars-half": "cars"}
"""Data sets on which the recipes of another data set are used. In-Shop, like SOP, has products of many classes with few
images each; a folder may contain anything, and gets the cheapest recipes for photographs. The birds of 2010 and the
half of the cars are split as the larger editions, whose recipes a search uses on them; studies use their own."""

PHOTO_SETTINGS = ("head_end=trained", "schedule.steps=60")
"""Settings of studies on photographs: the heads that the papers train are measured, after 300 steps."""

SMALL_BACKBONES = {
    "conv4": (),
    "resnet18": ("backbone.name=r18", "backbone.architecture=resnet18"),
    "mobilenet": ("backbone.name=mobilenet", "backbone.architecture=mobilenetv3_small_050"),
}
"""Settings by label for recipes of small data sets, whose own backbone is conv4. All start from random weights."""

SMALL_TWINS = (
    "Small twins of the paper's backbones, all from random weights: conv4, ResNet-18, MobileNetV3 of half width."
)


@dataclass(frozen=True)
class Measure:
    """A metric on a split.

    Attributes:
        metric: a metric of `zoo.evaluation` or of `training.studies.measure`.
        split: Train, test, or `GAP`, test less train.
        view: The measured part of the network, see `training.studies.measure.embed_views`. Arms without a head of this
            name are not measured by it.

    Raises:
        RecipeError: If the metric or the split is unknown.
    """

    metric: str
    split: str = "test"
    view: str = EMBEDDING

    def __post_init__(self) -> None:
        metrics = [*RETRIEVAL, *(metric for group in METRIC_GROUPS.values() for metric in group)]
        if self.recall_at is None and self.metric not in metrics:
            raise RecipeError(
                f"studies know no metric {self.metric!r}.{nearest(self.metric, [*metrics, 'recall_at_1'])}",
                code="unknown-name",
            )
        if self.split not in ("train", "test", GAP):
            raise RecipeError(f"a study measures on train, test or {GAP}, not on {self.split!r}.", code="unknown-name")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are measured."""
        return ("train", "test") if self.split == GAP else (self.split,)

    def on(self, split: str) -> Measure:
        """Return the measure on one split."""
        return dataclasses.replace(self, split=split)

    @property
    def groups(self) -> tuple[str, ...]:
        """The group that has the metric; none for retrieval."""
        return tuple(group for group, metrics in METRIC_GROUPS.items() if self.metric in metrics)

    @property
    def recall_at(self) -> int | None:
        """The K of recall_at_K; None for other metrics."""
        match = RECALL.fullmatch(self.metric)
        return None if match is None else int(match[1])

    def __str__(self) -> str:
        view = "" if self.view == EMBEDDING else f" of {self.view}"
        return f"{self.split} {self.metric}{view}"


R1 = Measure("recall_at_1")
TRAIN_R1 = Measure("recall_at_1", "train")
R1_GAP = Measure("recall_at_1", GAP)
P1 = Measure("precision_at_1")
MAP_AT_R = Measure("map_at_r")
DECAY = Measure("spectral_decay", "train")
DRAWN_DECAY = Measure("spectral_decay_drop_1", "train")
"""The spectral decay that Revisiting prints: its figure 9 leaves out the largest singular value."""


@dataclass(frozen=True)
class Arm:
    """A recipe with settings that a study compares with others.

    Published numbers of an arm are found by its recipe's name, or by the names of the study and the arm
    (`zoo.models.published`).

    Attributes:
        label: Its name in the study.
        recipe: a recipe's name, with $dataset and $backbone.
        settings: Changes as `zoo train --set` takes them, with $dataset, $backbone, $dim (of the recipe's embedding)
            and $batch (96 on small data sets, which may have only 50 classes; 112 on others).
        x: Its place on the study's axis.
        backbone: The $backbone on the data sets of the papers; on small ones it is conv4, on photographs lite0.
        copies: The number of models with different seeds whose embeddings are joined.
        own: Whether the recipe is the user's choice, which only gets the data set of the study.
    """

    label: str
    recipe: str
    settings: tuple[str, ...] = ()
    x: float | None = None
    backbone: str = "r50"
    copies: int = 1
    own: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim that one arm has more of a measure than another.

    Attributes:
        text: The claim in words.
        better: The arm that has more.
        than: The arm that has less; by default the baseline.
        measure: The measure.
        lower: Whether `better` has less instead.
        within: Instead, the largest difference between both.
        printed: What the paper prints of it, in words: first the value of `than`, then that of `better`.
    """

    text: str
    better: str
    than: str | None = None
    measure: Measure = R1
    lower: bool = False
    within: float | None = None
    printed: str = ""


@dataclass(frozen=True)
class Trend:
    """A claim that arms further along the study's axis have more of a measure (or less, `lower`)."""

    text: str
    measure: Measure = R1
    lower: bool = False


@dataclass(frozen=True)
class Study:
    """Arms that are trained with the same seeds and compared with a baseline.

    Attributes:
        name: PAPER/NAME.
        title: The subject.
        source: Section, table or figure of a paper.
        arms: The arms.
        measures: Everything that is measured.
        claims: Claims about pairs of arms.
        baseline: The arm that others are compared with; by default the first.
        seeds: The default number of seeds.
        x: The meaning of the arms' x.
        trends: Claims about the arms along x.
        correlate: Whether the measures are correlated over all runs.
        spectrum: Whether the singular values of the measured splits are kept.
        curves: Whether R@1 of the training images, and of each head on held-out classes, is measured by epoch.
        datasets: The only data sets that the study can be run on; empty for any that has the recipes.
        elsewhere: Why there are no others, and which study is run there.
        note: Facts that a reader of the results must know.
        selections: How measured epochs are selected by default, members of `SELECTIONS`.
        as_published: Whether the arms have the settings of the authors' published code.
        normalised: Measures that the report sums up by setting, each divided by its maximum over the settings of an
            objective (`training.studies.normalised`).
        own_arms: The arms as the user wrote them, of a study of the user (`training.studies.own`).
        command: The command that knows the study.

    Raises:
        RecipeError: If the study contradicts itself.
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
    curves: bool = False
    datasets: tuple[str, ...] = ()
    elsewhere: str = ""
    note: str = ""
    selections: tuple[str, ...] = ("last",)
    as_published: bool = False
    normalised: tuple[Measure, ...] = ()
    own_arms: tuple[str, ...] = ()
    command: str = "zoo benchmark"

    def __post_init__(self) -> None:
        if not STUDY_NAME.fullmatch(self.name):
            raise RecipeError(
                f"the name of a study is PAPER/NAME, in lower-case letters, digits and '-', not {self.name!r}.",
                code="invalid-value",
            )
        labels = self.labels
        if not labels or len({slug(label) for label in labels}) < len(labels):
            raise RecipeError(
                f"the study {self.name} needs arms with different names; it has {', '.join(labels) or 'none'}.",
                code="invalid-value",
            )
        for measure in [*(claim.measure for claim in self.claims), *(trend.measure for trend in self.trends)]:
            if measure not in self.measures:
                raise RecipeError(
                    f"the study {self.name} has a claim about {measure}, which it does not measure.",
                    code="no-results",
                )
        if not set(self.normalised) <= set(self.measures):
            raise RecipeError(f"the study {self.name} sums up measures that it does not measure.", code="no-results")
        pairs = [(claim.better, claim.than or labels[0]) for claim in self.claims]
        for label in (self.reference, *(label for pair in pairs for label in pair)):
            if label not in labels:
                raise RecipeError(
                    f"the study {self.name} has no arm {label!r}.{nearest(label, labels)}", code="unknown-name"
                )

    @property
    def paper_name(self) -> str:
        """The name of the study without the mark of the published code, by which published scores refer to it."""
        return self.name.removesuffix(SUFFIX)

    @property
    def labels(self) -> list[str]:
        """The labels of the arms."""
        return [arm.label for arm in self.arms]

    @property
    def reference(self) -> str:
        """The label of the arm that others are compared with."""
        return self.baseline or self.labels[0]

    def groups(self, split: str) -> tuple[str, ...]:
        """Return the groups of metrics to measure on a split."""
        return tuple(dict.fromkeys(group for m in self.measures if split in m.splits for group in m.groups))

    def recalls(self, split: str) -> tuple[int, ...]:
        """Return every K of recall_at_K to measure on a split."""
        return tuple(dict.fromkeys(m.recall_at for m in self.measures if split in m.splits and m.recall_at is not None))

    @property
    def views(self) -> list[tuple[str, str]]:
        """The pairs of split and view to measure."""
        return list(dict.fromkeys((split, measure.view) for measure in self.measures for split in measure.splits))


def combine_studies(name: str, title: str, source: str, studies: Iterable[Study]) -> Study:
    """Return one study of all arms, measures and claims of several; arms of one label must be the same arm.

    Args:
        name: The name of the new study, PAPER/NAME.
        title: Its subject.
        source: Section, table or figure of a paper.
        studies: The studies to combine.

    Raises:
        RecipeError: If the combined study contradicts itself.
    """
    studies = list(studies)
    arms = tuple(dict.fromkeys(arm for study in studies for arm in study.arms))
    measures = tuple(dict.fromkeys(measure for study in studies for measure in study.measures))
    claims = tuple(
        dataclasses.replace(claim, than=claim.than or study.reference) for study in studies for claim in study.claims
    )
    note = " ".join(dict.fromkeys(study.note for study in studies if study.note))
    bound = next((study for study in studies if study.datasets), None)
    datasets, elsewhere = (bound.datasets, bound.elsewhere) if bound else ((), "")
    return Study(name, title, source, arms, measures, claims, datasets=datasets, elsewhere=elsewhere, note=note)


def study_as_published(study: Study) -> Study:
    """Return a study whose arms have the settings of the authors' published code, under a name of its own."""
    note = (
        "Every arm whose authors published code is trained as that code trains, where it departs from the paper; other "
        "arms keep their recipes (docs/papers.md, section 'As published')."
    )
    return dataclasses.replace(
        study, name=f"{study.name}{SUFFIX}", note=f"{note} {study.note}".rstrip(), as_published=True
    )


def lacks_view(heads: Iterable[str], view: str) -> bool:
    """Return whether a view is a head, and none of these."""
    whole = view in (EMBEDDING, FEATURES, RANDOM_HEAD) or REDUCED_FEATURES.fullmatch(view)
    return not whole and view not in heads


def slug(label: str) -> str:
    """Return the label as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def recipe_dataset(dataset: str) -> str:
    """Return the data set whose recipes are used on a data set."""
    return SUBSTITUTES.get(dataset, dataset)


def supports(study: Study, dataset: str) -> bool:
    """Return whether the study can be run on the data set."""
    return not study.datasets or bool({dataset, recipe_owner(dataset)} & set(study.datasets))


def recipe_owner(dataset: str) -> str:
    """Return the data set whose recipes are used in studies on a data set."""
    return dataset if dataset in PHOTO_DATASETS else recipe_dataset(dataset)


def resolve_recipes(
    study: Study,
    arm: Arm,
    dataset: str,
    seed: int,
    selection: str = "last",
    settings: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    trial: tuple[str, ...] = (),
) -> tuple[Recipe, ...]:
    """Return the recipes of a run: one, or those of an ensemble's members.

    A process resolves them once for each arm, data set, seed, selection, settings, weights and trial, and remembers
    them.

    Args:
        study: The study; the recipes do not depend on its measures and texts.
        arm: Its arm.
        dataset: The data set; if it has no recipes of its own, those of its substitute are used.
        seed: The seed of the run. Members of an ensemble have successive seeds, as with `zoo train --seed`.
        selection: How the measured epoch is selected, a member of `SELECTIONS`.
        settings: Changes that follow those of the arm.
        weights: BACKBONE=DIR: the weights that recipes with this backbone, by its short name, start from.
        trial: The settings of a trial. They change the resolved recipes, so that an arm may set as a whole the
            arguments that they change one of.

    Raises:
        UsageError: If the study cannot be run on the data set.
        RecipeError: If there is no such recipe, or it does not take the settings.
    """
    if not supports(study, dataset):
        message = f"the study {study.name} can be run on {', '.join(study.datasets)}, not on {dataset}."
        raise UsageError(f"{message} {study.elsewhere}".rstrip(), code="not-available")
    return _seeded_recipes(
        arm, dataset, seed, selection, tuple(settings), tuple(weights), study.as_published, tuple(trial)
    )


def recipe_name(recipe: str, dataset: str, backbone: str) -> str:
    """Return the name of an arm's recipe on a data set, with $dataset and $backbone replaced."""
    return _substitute(recipe, _placeholders(dataset, backbone))


def changed_settings(arm: Arm, dataset: str) -> list[str]:
    """Return the settings and the number of copies by which an arm differs from the recipe of its name.

    Settings that repeat what the recipe says, or a default, do not count.
    """
    own, named = (
        [
            without_remarks(member.record)
            for member in _resolve_members(dataclasses.replace(arm, settings=settings), dataset, (), ())
        ]
        for settings in (arm.settings, ())
    )
    copies = [f"{arm.copies} copies"] if arm.copies > 1 else []
    return [*(arm.settings if own != named else ()), *copies]


def foreign_weights(recipes: Iterable[Recipe]) -> list[str]:
    """Return the weights, as a setting, that recipes start from in the place of their architecture's public ones."""
    named = [recipe for recipe in recipes if isinstance(recipe.backbone.pretrained, str)]
    other = [recipe.backbone.pretrained for recipe in named if not has_public_weights(recipe)]
    return [f"backbone.pretrained={place}" for place in dict.fromkeys(other)]


def backbone_settings(short: str, dim: int) -> tuple[str, ...]:
    """Return the settings that replace a recipe's backbone and preprocessing by those of a backbone of the papers.

    Args:
        short: The short name of the backbone, such as r50.
        dim: The dimension of the embedding.
    """
    trunk, shown = backbone(short), preprocessing(short)
    return (
        f"backbone.name={short}",
        f"backbone.architecture={trunk.architecture}",
        embedding_head(dim),
        f"preprocessing.mean={list(shown.mean)}",
        f"preprocessing.std={list(shown.std)}",
    )


def embedding_head(dim: int) -> str:
    """Return the setting of a single head of dim numbers."""
    return f'heads=[{{"name": "embedding", "dim": {dim}}}]'


@cache
def _seeded_recipes(
    arm: Arm,
    dataset: str,
    seed: int,
    selection: str,
    settings: tuple[str, ...],
    weights: tuple[str, ...],
    as_published: bool,
    trial: tuple[str, ...],
) -> tuple[Recipe, ...]:
    """Return the recipes of `resolve_recipes`, from its memory of the process after the first call."""
    own = _resolve_members(arm, dataset, settings, weights, as_published)
    members = arm.copies * (tuple(override(member, trial) for member in own) if trial else own)
    return tuple(
        dataclasses.replace(_with_validation(member, selection), seed=seed * len(members) + i)
        for i, member in enumerate(members)
    )


@cache
def _resolve_members(
    arm: Arm,
    dataset: str,
    settings: tuple[str, ...],
    weights: tuple[str, ...],
    as_published: bool = False,
) -> tuple[Recipe, ...]:
    """Return the recipes with an arm's own settings and those of the whole study."""
    make = resolve_as_published if as_published else resolve
    if arm.own:
        name, changes = arm.recipe, [f"data.dataset={dataset}", *arm.settings, *settings]
    else:
        name = recipe_name(arm.recipe, dataset, arm.backbone)
        changes = [*_paper_settings(arm, name, dataset), *settings]
    resolved = make(name, changes)
    start = dict(setting.split("=", 1) for setting in weights).get(resolved.backbone.name)
    if start is not None:
        resolved = make(name, [*changes, f"backbone.pretrained={start}"])
    return resolved.members if isinstance(resolved, EnsembleRecipe) else (resolved,)


def _paper_settings(arm: Arm, name: str, dataset: str) -> list[str]:
    """Return the settings that fit an arm's recipe to a data set, and the arm's own with their placeholders filled."""
    owner = recipe_owner(dataset)
    words = _placeholders(dataset, arm.backbone)
    words |= {**_sizes(resolve(name)), "batch": 96 if owner in SMALL_DATASETS else 112}
    images = [*PHOTO_SETTINGS] if owner in PHOTO_DATASETS else []
    images += [] if owner == dataset else [f"data.dataset={dataset}"]
    return [*images, *(_substitute(setting, words) for setting in arm.settings)]


def _sizes(recipe: Recipe | EnsembleRecipe) -> dict[str, object]:
    """Return the values of $dim, $half and $epochs."""
    first = recipe.members[0] if isinstance(recipe, EnsembleRecipe) else recipe
    # Unless the recipe has a number of steps, an iteration of Sharing has a step for each of its two tasks.
    double = first.objective.method == "sharing" and not first.schedule.steps
    return {"dim": recipe.dim, "half": recipe.dim // 2, "epochs": first.schedule.epochs * (2 if double else 1)}


def _with_validation(recipe: Recipe, selection: str) -> Recipe:
    """Return the recipe with held-out classes if they select the epoch, otherwise without."""
    share = 0.0 if selection == "last" else recipe.data.validation or VALIDATION_SHARE
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, validation=share))


def _placeholders(dataset: str, backbone: str) -> dict[str, object]:
    owner = recipe_owner(dataset)
    if owner in PHOTO_DATASETS:
        return {"dataset": owner, "backbone": "lite0"}
    return {"dataset": owner, "backbone": backbone if owner in PAPER_DATASETS else "conv4"}


def _substitute(text: str, words: Mapping[str, object]) -> str:
    try:
        return Template(text).substitute(words)
    except (KeyError, ValueError) as error:
        raise RecipeError(
            f"{text!r} of an arm has an unknown placeholder ({error}); known are ${', $'.join(words)}.",
            code="unknown-name",
        ) from None
