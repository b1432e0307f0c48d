"""What a recipe is: one frozen, typed value from which a run follows completely."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError
from zoo.models.card import MODEL_NAME, Card, Head, heads_problem

SCHEDULES = ("constant", "one-cycle", "multi-step")
PRECISIONS = ("fp32", "bf16")
FITS = ("square", "whole")
CROPS = ("none", "window", "squeezed", "resized")
NORMS = ("none", "statistics", "all")
LATER_SETTINGS = (("data", "features", ""),)
"""Settings that came when there were studies already: part, key, and the value that stands for what was before."""


def _check(holds: object, key: str, value: object, expected: str) -> None:
    if not holds:
        raise RecipeError(f"{key} must be {expected}, not {value!r}.")


@dataclass(frozen=True)
class Data:
    """Which images, and which of the training classes are held out for validation.

    dataset: a name in `zoo.data`.
    turns: 1, or 4 where the quarter turns of a class's images are further classes (Omniglot's custom since
        Santoro et al. 2016, Meta-learning with memory-augmented neural networks, section 4.1).
    validation: the share of training classes that is held out to select the epoch; 0 trains on all and keeps the last.
    side: training images are kept as squares of this many pixels, from which augmentation samples.
    fit: "square" keeps the centre square of an image; "whole" all of it, its sides squeezed to equal length, from which
        crops are taken in the image's own proportions.
    skip_unreadable: leave images out that cannot be decoded, and count them, instead of stopping at the first.
    features: a file of `zoo features`, which stands in for the images and for a trunk that stays as it is: only what
        comes after the trunk learns. "": images.
    """

    dataset: str
    turns: int = 1
    validation: float = 0.1
    side: int = 64
    fit: str = "square"
    skip_unreadable: bool = False
    features: str = ""

    def __post_init__(self) -> None:
        _check(self.turns in (1, 4), "data.turns", self.turns, "1 or 4")
        _check(0 <= self.validation < 1, "data.validation", self.validation, "a share from 0 to below 1")
        _check(self.side >= 1, "data.side", self.side, "a number of pixels")
        _check(self.fit in FITS, "data.fit", self.fit, " or ".join(FITS))


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image; 0 (or 1 for a factor) leaves a property alone.

    rotate: degrees, uniform in +-. scale, aspect: largest factor, log-uniform in both directions.
    shear, translate: uniform in +-, in units of half the image. elastic: standard deviation of a smooth random
    displacement, in units of half the image, given on a grid of `elastic_grid` points a side.
    thicken: the largest share by which strokes grow (dark ones for `background` 1, bright ones for 0).
    flip: probability of a mirror image. contrast, brightness: uniform in +-, on the scale 0..1. background: what
    lies outside, 0..1. oversample: pixels are averaged from this many a side, against aliasing.
    crop: "none", the central window that tests see too; "window", a random square of `window` times the image's short
    side; "squeezed", the same of the image squeezed to a square; "resized", a random part of `area` (smallest and
    largest share of the image) whose sides' ratio is log-uniform between 1 / `ratio` and `ratio`, resized to the square
    (Szegedy et al. 2015, Going Deeper with Convolutions, s. 6).
    """

    rotate: float = 0.0
    scale: float = 1.0
    aspect: float = 1.0
    shear: float = 0.0
    translate: float = 0.0
    elastic: float = 0.0
    elastic_grid: int = 5
    thicken: float = 0.0
    flip: float = 0.0
    contrast: float = 0.0
    brightness: float = 0.0
    background: float = 0.5
    oversample: int = 2
    crop: str = "none"
    window: float = 0.875
    area: tuple[float, ...] = (0.08, 1.0)
    ratio: float = 4 / 3

    def __post_init__(self) -> None:
        _check(self.crop in CROPS, "augmentation.crop", self.crop, ", ".join(CROPS))
        _check(0 < self.window <= 1, "augmentation.window", self.window, "above 0 and at most 1")
        _check(
            len(self.area) == 2 and 0 < self.area[0] <= self.area[1] <= 1,
            "augmentation.area",
            self.area,
            "the smallest and the largest share of the image",
        )
        for name in ("scale", "aspect", "ratio"):
            _check(1 <= getattr(self, name) < math.inf, f"augmentation.{name}", getattr(self, name), "a factor from 1")
        for name in ("rotate", "shear", "translate", "elastic", "thicken", "contrast", "brightness"):
            value = getattr(self, name)
            _check(0 <= value < math.inf, f"augmentation.{name}", value, "0 or more")
        for name in ("flip", "background"):
            _check(0 <= getattr(self, name) <= 1, f"augmentation.{name}", getattr(self, name), "from 0 to 1")
        _check(self.elastic_grid >= 2, "augmentation.elastic_grid", self.elastic_grid, "2 or more")
        _check(1 <= self.oversample <= 8, "augmentation.oversample", self.oversample, "from 1 to 8")


@dataclass(frozen=True)
class Backbone:
    """A timm architecture (or one of `zoo.models.backbones`) with its arguments; `name` is short, as in model names.

    pretrained: true for timm's weights from the Hub; or a model's name or folder, a safetensors file or org/name on
    the Hub.
    freeze_norm: "all" keeps running statistics and affine parameters of batch norm as they are (Revisiting),
    "statistics" only the statistics (its published code), "none" trains both.
    """

    name: str
    architecture: str
    args: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool | str = False
    freeze_norm: str = "none"

    def __post_init__(self) -> None:
        _check(self.freeze_norm in NORMS, "backbone.freeze_norm", self.freeze_norm, ", ".join(NORMS))


@dataclass(frozen=True)
class Objective:
    """A method, its loss unless it has its own, and, where that takes mined tuples, a miner: names of the tables."""

    loss: str | None
    miner: str | None = None
    loss_args: Mapping[str, Any] = field(default_factory=dict)
    miner_args: Mapping[str, Any] = field(default_factory=dict)
    method: str = "plain"
    method_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """How a batch is drawn: `size` images by `sampler`, `per_class` of each class (but by spc-r, which looks at none).

    args: further arguments of the sampler, as `together` of spc. chunk: images that pass through the trunk at a time,
    their activations computed again in the backward pass, so that large batches fit; 0: all at once. Batch norm must be
    frozen or absent for chunks to change nothing but memory and time.
    """

    size: int = 112
    sampler: str = "spc"
    per_class: int = 2
    args: Mapping[str, Any] = field(default_factory=dict)
    chunk: int = 0

    def __post_init__(self) -> None:
        _check(self.chunk >= 0, "batch.chunk", self.chunk, "0 or more")
        _check(self.size >= 1, "batch.size", self.size, "1 or more")
        _check(self.per_class >= 1, "batch.per_class", self.per_class, "1 or more")


@dataclass(frozen=True)
class Optimizer:
    """adamw, adam, radam, sgd or rmsprop with `lr`; the loss's own parameters learn at `loss_lr` without weight decay.

    momentum: of sgd and rmsprop. accumulate: batches whose gradients are averaged before each update; every batch is
    still mined by itself.
    """

    name: str = "adam"
    lr: float = 1e-5
    weight_decay: float = 4e-4
    loss_lr: float = 5e-4
    momentum: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        _check(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "from 0 to below 1")
        if self.momentum and self.name not in ("sgd", "rmsprop"):
            raise RecipeError(f"optimizer.momentum is for sgd and rmsprop; {self.name} has none.")
        _check(self.accumulate >= 1, "optimizer.accumulate", self.accumulate, "1 or more")
        for name in ("lr", "weight_decay", "loss_lr"):
            _check(0 <= getattr(self, name) < math.inf, f"optimizer.{name}", getattr(self, name), "0 or more")


@dataclass(frozen=True)
class Schedule:
    """`epochs` of `steps` batches (0: as many as the training images fill), lr constant, one cycle or in steps.

    multi-step: the rate is multiplied by `gamma` after each of the epochs `milestones`. warmup: share of one cycle.
    average: decay of the exponential moving average of the weights that is evaluated and kept; 0: no average.
    """

    epochs: int
    steps: int = 0
    name: str = "constant"
    warmup: float = 0.15
    average: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if self.milestones and self.name != "multi-step":
            raise RecipeError(f"schedule.milestones are for schedule.name=multi-step, not for {self.name}.")
        _check(0 < self.gamma <= 1, "schedule.gamma", self.gamma, "above 0 and at most 1")
        _check(min(self.milestones, default=1) >= 1, "schedule.milestones", self.milestones, "epochs from 1")
        _check(self.epochs >= 0, "schedule.epochs", self.epochs, "0 or more")
        _check(self.steps >= 0, "schedule.steps", self.steps, "0 or more")
        _check(self.name in SCHEDULES, "schedule.name", self.name, " or ".join(SCHEDULES))
        _check(0 <= self.warmup < 1, "schedule.warmup", self.warmup, "a share from 0 to below 1")
        _check(0 <= self.average < 1, "schedule.average", self.average, "from 0 to below 1")


@dataclass(frozen=True)
class Recipe:
    """All that decides a run. `method` is the short form in model names.

    precision: fp32, or bf16: matrix products in bfloat16 on a device that has them, and fp32 on one that would only
    imitate them, more slowly.
    """

    name: str
    method: str
    data: Data
    backbone: Backbone
    heads: tuple[Head, ...]
    preprocessing: Preprocessing
    objective: Objective
    schedule: Schedule
    augmentation: Augmentation = Augmentation()
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    precision: str = "fp32"
    seed: int = 0
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(MODEL_NAME.fullmatch(self.name), "name", self.name, "lower-case letters, digits, '.', '_' and '-'")
        _check(self.precision in PRECISIONS, "precision", self.precision, " or ".join(PRECISIONS))
        _check(self.seed >= 0, "seed", self.seed, "0 or more")
        paired = self.batch.per_class > 1 or self.batch.sampler == "spc-r"
        # Inter-class triplets take their positives from other classes, a memory has those of earlier batches.
        mined = self.objective.miner not in (None, "inter-class") and self.objective.method != "cross-batch-memory"
        _check(paired or not mined, "batch.per_class", 1, "2 or more, of which a miner makes positives")
        if why := heads_problem(self.heads):
            raise RecipeError(f"heads: {why}")

    @property
    def dim(self) -> int:
        return sum(head.dim for head in self.heads)

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @cached_property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ for recipes that differ in anything.

        A setting that came later counts once it is used: a recipe's runs are known again by later versions.
        """
        facts = self.to_json()
        for part, key, before in LATER_SETTINGS:
            if facts[part][key] == before:
                del facts[part][key]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class EnsembleRecipe:
    """Models that are trained each by its recipe and whose embeddings are joined: one model folder of that name."""

    name: str
    method: str
    members: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        _check(MODEL_NAME.fullmatch(self.name), "name", self.name, "lower-case letters, digits, '.', '_' and '-'")
        _check(len(self.members) >= 2, "members", [member.name for member in self.members], "two or more")

    @property
    def dim(self) -> int:
        return sum(member.dim for member in self.members)

    @property
    def data(self) -> Data:
        return self.members[0].data

    @property
    def backbone(self) -> Backbone:
        return self.members[0].backbone

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))


def same_recipe(a: Any, b: Any, name: str = "") -> bool:
    """Return whether two recorded recipes, or two of their settings, say the same.

    A field that only one of them has counts as equal, because older versions did not write it; free arguments (`args`,
    `loss_args`) must have the same fields.
    """
    if isinstance(a, dict) and isinstance(b, dict) and not name.endswith("args"):
        return all(same_recipe(a[key], b[key], key) for key in a.keys() & b.keys())
    return bool(a == b)


def check_same_dim(transfer: str, dim: int, teacher: Card, others: Iterable[str]) -> None:
    """Check the dimension of a student whose loss compares its embedding with the teacher's, number by number.

    Args:
        transfer: The name of the loss.
        dim: The student's dimension.
        teacher: The teacher's card.
        others: The losses that allow other dimensions, for the message.

    Raises:
        RecipeError: If the dimensions differ.
    """
    if dim != teacher.dim:
        raise RecipeError(
            f"the transfer {transfer!r} needs the teacher's dimension: the student has {dim}, the teacher "
            f"{teacher.name} {teacher.dim}. Change the student's, or take {' or '.join(others)}.",
            code="transfer-dim",
        )
