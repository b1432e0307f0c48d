"""Recipes: frozen, typed values that determine a training run completely."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from training.construction import ClassTable
from training.definitions import recipe_record, without_later
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError
from zoo.models.card import MODEL_NAME, Card, Head, heads_problem

SCHEDULES = ("constant", "one-cycle", "multi-step")
FASTEST = "auto"
PRECISIONS = ("fp32", "bf16", FASTEST)
FITS = ("square", "whole")
CROPS = ("none", "window", "squeezed", "resized")
NORMS = ("none", "statistics", "all")
TUNED = ("head", "norm", "last", "lora", "prompt", "all")
"""Parts of a model that a run can train: the heads alone, or the heads and a part of the trunk."""
OPTIMIZERS = ClassTable(
    "torch.optim",
    {
        "adam": "adam:Adam",
        "adamw": "adamw:AdamW",
        "radam": "radam:RAdam",
        "rmsprop": "rmsprop:RMSprop",
        "sgd": "sgd:SGD",
    },
)
PROMPTING = ("deep", "shallow")
EMBEDDING = "embedding"
"""The name of a single head."""
HEAD_STARTS = ("random", "pca", "lda")
HEAD_ENDS = ("trained", "pca", "lda")
REMARKS = ("sources", "departures")
"""Fields for readers: recipes that differ in them alone are the same."""


def _check(valid: object, key: str, value: object, expected: str) -> None:
    if not valid:
        raise RecipeError(f"{key} must be {expected}, not {value!r}.", code="invalid-value")


@dataclass(frozen=True)
class Data:
    """Images of a run, and the split of their classes into training and validation.

    Attributes:
        dataset: A name in `zoo.data`.
        turns: 1, or 4 where the quarter turns of a class's images are further classes (common for Omniglot since
            Santoro
            et al. 2016, Meta-learning with memory-augmented neural networks, section 4.1).
        validation: The share of training classes that is held out to select the epoch; 0 trains on all and keeps the
            last.
        side: The side in pixels of the squares that training images are kept as, from which augmentation samples.
        fit: "square" keeps the centre square of an image; "whole" all of it, squeezed to a square, from which crops are
            taken in the image's own proportions.
        skip_unreadable: Leave out and count images that cannot be decoded, instead of stopping at the first.
        features: A folder of `zoo features` that replaces the images and a frozen trunk: only what follows the trunk
            learns. "" uses images.
        views: The augmented views of each image that pass through the frozen first layers once, before the first step;
            each step draws one. 0: every step augments its images.
    """

    dataset: str
    turns: int = 1
    validation: float = 0.1
    side: int = 64
    fit: str = "square"
    skip_unreadable: bool = False
    features: str = ""
    views: int = 0

    def __post_init__(self) -> None:
        _check(self.turns in (1, 4), "data.turns", self.turns, "1 or 4")
        _check(0 <= self.validation < 1, "data.validation", self.validation, "a share from 0 to below 1")
        _check(self.views >= 0, "data.views", self.views, "0 or more")
        _check(self.side >= 1, "data.side", self.side, "a number of pixels")
        _check(self.fit in FITS, "data.fit", self.fit, " or ".join(FITS))


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image; 0 (or 1 for a factor) leaves a property unchanged.

    Attributes:
        rotate: Degrees, uniform in +-.
        scale, aspect: The largest factor, log-uniform in both directions.
        shear, translate: Uniform in +-, in units of half the image.
        elastic: The standard deviation of a smooth random displacement, in units of half the image.
        elastic_grid: The points per side of the grid of that displacement.
        thicken: The largest share by which strokes grow (dark ones for `background` 1, bright ones for 0).
        flip: The probability of a mirror image.
        contrast, brightness: Uniform in +-, on the scale 0..1.
        background: The value outside the image, 0..1.
        oversample: Pixels are averaged from this many per side, against aliasing.
        crop: "none", the central window that tests use; "window", a random square of `window` times the image's short
            side;
            "squeezed", the same of the image squeezed to a square; "resized", a random part of `area` (smallest and
            largest share of the image) whose sides' ratio is log-uniform between 1 / `ratio` and `ratio`, resized to
            the square (Szegedy et al. 2015, Going Deeper with Convolutions, section 6).
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


GIVEN_WEIGHTS = "given_weights"
"""Key in the arguments of a trunk or a head: the SHA-256 of the weights that it starts from, if it is an object of the
user. A recipe names the object's class; its weights are the object's alone."""


def _without_weights(args: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in args.items() if key != GIVEN_WEIGHTS}


@dataclass(frozen=True)
class Backbone:
    """A timm architecture (or one of `zoo.models.backbones`) with its arguments.

    Attributes:
        name: The short form in model names.
        architecture: The name of the architecture.
        args: Its arguments.
        pretrained: True for timm's weights from the Hub; or a model's name or folder, a safetensors file or org/name on
            the
            Hub.
        freeze_norm: "all" freezes running statistics and affine parameters of batch norm (Revisiting), "statistics"
            only
            the statistics (its published code), "none" trains both.
        tune: The part of the trunk that learns with the heads: "all"; "head", nothing; "norm", factors and offsets of
            its normalisation layers; "last", its last stage or block; "lora", low-rank adapters of its linear layers,
            which the model folder has merged into the weights; "prompt", tokens that join those of the image in a
            vision transformer, whose architecture in the model folder is `prompted` (Jia et al. 2022, Visual Prompt
            Tuning).
        rank: The rank of those adapters.
        prompts: The number of those tokens.
        prompting: "deep", prompts of their own for every block; "shallow", for the first block alone.
        frozen_stages: The number of first stages that do not learn; the stem counts as one. They see edges and
            textures, which need little change, and their backward pass takes most of a step's time.
    """

    name: str
    architecture: str
    args: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool | str = False
    freeze_norm: str = "none"
    tune: str = "all"
    rank: int = 8
    prompts: int = 10
    prompting: str = "deep"
    frozen_stages: int = 0

    def __post_init__(self) -> None:
        _check(self.freeze_norm in NORMS, "backbone.freeze_norm", self.freeze_norm, ", ".join(NORMS))
        _check(self.tune in TUNED, "backbone.tune", self.tune, ", ".join(TUNED))
        _check(self.rank >= 1, "backbone.rank", self.rank, "1 or more")
        _check(self.prompts >= 1, "backbone.prompts", self.prompts, "1 or more")
        _check(self.prompting in PROMPTING, "backbone.prompting", self.prompting, " or ".join(PROMPTING))
        _check(self.frozen_stages >= 0, "backbone.frozen_stages", self.frozen_stages, "0 or more")

    @property
    def network_args(self) -> dict[str, Any]:
        """The arguments that build the trunk, without `GIVEN_WEIGHTS`."""
        return {
            key: _without_weights(value) if key in ("trunk_args", "head_args") else value
            for key, value in _without_weights(self.args).items()
        }

    @property
    def given_weights(self) -> dict[str, str]:
        """The SHA-256 of the weights of "backbone" and "head", of each that the user gave as an object."""
        groups = {"backbone": {**self.args.get("trunk_args", {}), **self.args}, "head": self.args.get("head_args", {})}
        return {part: args[GIVEN_WEIGHTS] for part, args in groups.items() if GIVEN_WEIGHTS in args}


@dataclass(frozen=True)
class Objective:
    """A method, its loss unless it has its own, and a miner if that loss takes mined tuples: names of the tables."""

    loss: str | None
    miner: str | None = None
    loss_args: Mapping[str, Any] = field(default_factory=dict)
    miner_args: Mapping[str, Any] = field(default_factory=dict)
    method: str = "plain"
    method_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """The composition of a batch: `size` images by `sampler`, `per_class` of each class (ignored by spc-r).

    Attributes:
        args: Further arguments of the sampler, as `together` of spc.
        chunk: Images that pass through the trunk at a time, their activations computed again in the backward pass, so
            that
            large batches fit; 0: all at once. With frozen or no batch norm, chunks change only memory and time.
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
    """adamw, adam, radam, sgd or rmsprop with `lr`; the loss's own parameters learn at `loss_lr`.

    Attributes:
        loss_weight_decay: Weight decay of the loss's own parameters.
        momentum: That of sgd and rmsprop.
        accumulate: Batches whose gradients are averaged before each update; each batch is mined separately.
    """

    name: str = "adam"
    lr: float = 1e-5
    weight_decay: float = 4e-4
    loss_lr: float = 5e-4
    momentum: float = 0.0
    accumulate: int = 1
    loss_weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "from 0 to below 1")
        if self.momentum and self.name not in ("sgd", "rmsprop"):
            raise RecipeError(
                f"optimizer.momentum is for sgd and rmsprop; {self.name} has none.", code="option-without-effect"
            )
        _check(self.accumulate >= 1, "optimizer.accumulate", self.accumulate, "1 or more")
        for name in ("lr", "weight_decay", "loss_lr", "loss_weight_decay"):
            _check(0 <= getattr(self, name) < math.inf, f"optimizer.{name}", getattr(self, name), "0 or more")


@dataclass(frozen=True)
class Schedule:
    """`epochs` of `steps` batches at a constant, one-cycle or multi-step rate.

    Attributes:
        steps: The batches of an epoch, of all tasks of the method together, so that models with equal `steps` have as
            many updates and images. 0: as many iterations of the method as the training images fill batches; an
            iteration of a method with two tasks has more than one batch (`Method.steps`).
        validate_every: Epochs from one validation to the next; the last epoch is validated always.
        patience: End at a validation this many epochs after the best one, or more (Reality, section 3.2: "when
            validation accuracy plateaus"); 0: never.
        milestones: Epochs after which a multi-step rate is multiplied by `gamma`.
        warmup: The share of one cycle in which the rate grows.
        average: The decay of the exponential moving average of the weights that is evaluated and kept; 0: no average.
    """

    epochs: int
    steps: int = 0
    name: str = "constant"
    warmup: float = 0.15
    average: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    validate_every: int = 1
    patience: int = 0

    def __post_init__(self) -> None:
        if self.milestones and self.name != "multi-step":
            raise RecipeError(
                f"schedule.milestones are for schedule.name=multi-step, not for {self.name}.",
                code="option-without-effect",
            )
        _check(0 < self.gamma <= 1, "schedule.gamma", self.gamma, "above 0 and at most 1")
        _check(min(self.milestones, default=1) >= 1, "schedule.milestones", self.milestones, "epochs from 1")
        _check(self.validate_every >= 1, "schedule.validate_every", self.validate_every, "1 epoch or more")
        _check(self.patience >= 0, "schedule.patience", self.patience, "0 epochs or more")
        _check(self.epochs >= 0, "schedule.epochs", self.epochs, "0 or more")
        _check(self.steps >= 0, "schedule.steps", self.steps, "0 or more")
        _check(self.name in SCHEDULES, "schedule.name", self.name, " or ".join(SCHEDULES))
        _check(0 <= self.warmup < 1, "schedule.warmup", self.warmup, "a share from 0 to below 1")
        _check(0 <= self.average < 1, "schedule.average", self.average, "from 0 to below 1")


@dataclass(frozen=True)
class Recipe:
    """All settings of a run.

    Attributes:
        method: The short form in model names.
        head_start: "random", or "pca": the heads begin as the principal directions of the training images' features, so
            that they are about as good as a pretrained trunk before the first step (`zoo.models.network.start_heads`);
            "lda": the same, then whitened by the covariance within classes.
        head_end: "trained"; or all heads are replaced by one that is fitted to the trained trunk's features of the
            training images, which suits unseen classes better than a head that was fitted to the training classes:
            "pca", their principal directions; "lda", those after whitening by the covariance within classes.
        departures: Sentences for a reader: where the recipe differs from its paper, and what it takes from elsewhere
            because the paper leaves it open. They do not change a run, and recipes that differ in them are the same.
        as_published: Whether settings are those of the authors' published code where it departs from the paper
            (`training.recipes.published_code`).
        precision: fp32; bf16: matrix products in bfloat16 on a device that supports it, and fp32 on others, which would
            only emulate it, more slowly; or auto: bf16 on a GPU, and on a CPU whichever is faster at the start of the
            run, together with the memory format. The run's record has the choice.
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
    departures: tuple[str, ...] = ()
    head_start: str = "random"
    head_end: str = "trained"
    as_published: bool = False

    def __post_init__(self) -> None:
        _check(MODEL_NAME.fullmatch(self.name), "name", self.name, "lower-case letters, digits, '.', '_' and '-'")
        _check(self.head_start in HEAD_STARTS, "head_start", self.head_start, " or ".join(HEAD_STARTS))
        _check(self.head_end in HEAD_ENDS, "head_end", self.head_end, " or ".join(HEAD_ENDS))
        _check(self.precision in PRECISIONS, "precision", self.precision, " or ".join(PRECISIONS))
        _check(self.seed >= 0, "seed", self.seed, "0 or more")
        paired = self.batch.per_class > 1 or self.batch.sampler == "spc-r"
        # Inter-class triplets take their positives from other classes, a memory has those of earlier batches.
        mined = self.objective.miner not in (None, "inter-class") and self.objective.method != "cross-batch-memory"
        _check(paired or not mined, "batch.per_class", 1, "2 or more, of which a miner makes positives")
        _check(
            self.head_end == "trained" or self.heads, "head_end", self.head_end, "trained for a recipe without heads"
        )
        if why := heads_problem(self.heads):
            raise RecipeError(f"heads: {why}", code="conflicting-settings")

    @property
    def dim(self) -> int:
        return sum(head.dim for head in self.heads)

    @property
    def published_heads(self) -> tuple[Head, ...]:
        """The heads of the model, which are the trained ones, or the one that replaces them."""
        return self.heads if self.head_end == "trained" else (Head(EMBEDDING, self.dim),)

    @property
    def learns(self) -> bool:
        """Return whether the run changes the network's weights."""
        return self.schedule.epochs > 0 and self.optimizer.lr > 0

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Recipe:
        """Return the recipe that a file records (`Recipe.record`). Versions of definitions are not checked.

        Raises:
            RecipeError: `other-schema` if a field is missing, unknown or of another type; or as for any recipe.
        """
        recipe: Recipe = _read({key: value for key, value in record.items() if key != "definitions"}, cls, "recipe")
        return recipe

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return all that decides a run, as files record it: all defaults stated, and versions of definitions."""
        return json.loads(json.dumps(recipe_record(dataclasses.asdict(self))))

    @cached_property
    def digest(self) -> str:
        """Return eight hexadecimal digits that differ for different recipes."""
        return hashlib.sha256(json.dumps(without_remarks(self.record), sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class EnsembleRecipe:
    """Recipes of members that are trained separately and whose embeddings are joined into one model folder."""

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


def same_recipe(record: Any, recipe: Recipe) -> bool:
    """Return whether a file's record of a recipe, which may be missing, is that of this recipe."""
    return isinstance(record, dict) and without_remarks(record) == without_remarks(recipe.record)


def without_remarks(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return what decides a run of a recorded recipe, without the fields `names` (see `without_later`)."""
    return without_later({key: value for key, value in record.items() if key not in (*REMARKS, *names)})


def _read(value: Any, hint: Any, key: str) -> Any:
    """Return a value of a recipe from JSON. Raises `RecipeError` (`other-schema`) if it does not have the type."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        if value.keys() != hints.keys():
            names = ", ".join(sorted(value.keys() ^ hints.keys()))
            raise RecipeError(f"{key} is of another release: {names} missing or unknown.", code="other-schema")
        fields = {name: _read(value[name], inner, f"{key}.{name}") for name, inner in hints.items()}
        return typing.cast(type, hint)(**fields)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_read(item, typing.get_args(hint)[0], key) for item in value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (typing.get_origin(hint) or hint,)
    fits = type(value) in kinds or (type(value) is int and float in kinds) or (type(value) is dict and Mapping in kinds)
    if not fits:
        raise RecipeError(f"{key} is {value!r}, not a value of this type.", code="other-schema")
    return value


def check_same_dim(transfer: str, dim: int, teacher: Card, alternatives: Iterable[str]) -> None:
    """Check the dimension of a student whose loss compares its embedding with the teacher's, number by number.

    Args:
        transfer: The name of the loss.
        dim: The student's dimension.
        teacher: The teacher's card.
        alternatives: The losses that allow other dimensions, for the message.

    Raises:
        RecipeError: If the dimensions differ.
    """
    if dim != teacher.dim:
        raise RecipeError(
            f"the transfer {transfer!r} needs the teacher's dimension: the student has {dim}, the teacher "
            f"{teacher.name} {teacher.dim}. Change the student's, or take {' or '.join(alternatives)}.",
            code="conflicting-settings",
        )
