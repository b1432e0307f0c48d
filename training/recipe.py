"""What a recipe is: one frozen, typed value from which a run follows completely."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.cards import Head, Preprocessing
from zoo.errors import RecipeError, nearest


@dataclass(frozen=True)
class Data:
    """Which images, and which of the training classes are held out for validation.

    dataset: a name in `zoo.datasets`.
    turns: 1, or 4 where the quarter turns of a class's images are further classes (Omniglot's custom since
        Santoro et al. 2016, Meta-learning with memory-augmented neural networks, section 4.1).
    validation: the share of training classes that is held out to select the epoch; 0 trains on all and keeps the last.
    side: training images are kept as squares of this many pixels, from which augmentation samples.
    """

    dataset: str
    turns: int = 1
    validation: float = 0.1
    side: int = 64


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image; 0 (or 1 for a factor) leaves a property alone.

    rotate: degrees, uniform in +-. scale, aspect: largest factor, log-uniform in both directions.
    shear, translate: uniform in +-, in units of half the image. elastic: standard deviation of a smooth random
    displacement, in units of half the image, given on a grid of `elastic_grid` points a side.
    thicken: the largest share by which strokes grow (dark ones for `background` 1, bright ones for 0).
    flip: probability of a mirror image. contrast, brightness: uniform in +-, on the scale 0..1. background: what
    lies outside, 0..1. oversample: pixels are averaged from this many a side, against aliasing.
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


@dataclass(frozen=True)
class Backbone:
    """A timm architecture (or one of `zoo.architectures`) with its arguments; `name` is short, as in model names."""

    name: str
    architecture: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """A method, its loss and, where that takes mined tuples, a miner: names of the tables, with arguments."""

    loss: str
    miner: str | None = None
    loss_args: Mapping[str, Any] = field(default_factory=dict)
    miner_args: Mapping[str, Any] = field(default_factory=dict)
    method: str = "plain"


@dataclass(frozen=True)
class Batch:
    """How a batch is drawn: `size` images by `sampler`, `per_class` of each class (but by spc-r, which looks at none).

    args: further arguments of the sampler, as `together` of spc.
    """

    size: int = 112
    sampler: str = "spc"
    per_class: int = 2
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer:
    """adamw, adam, sgd or rmsprop with `lr`; the loss's own parameters learn at `loss_lr` without weight decay."""

    name: str = "adam"
    lr: float = 1e-5
    weight_decay: float = 4e-4
    loss_lr: float = 5e-4


@dataclass(frozen=True)
class Schedule:
    """`epochs` of `steps` batches (0: as many as the training images fill), lr constant or one cycle.

    average: decay of the exponential moving average of the weights that is evaluated and kept; 0: no average.
    """

    epochs: int
    steps: int = 0
    name: str = "constant"
    warmup: float = 0.15
    average: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """All that decides a run. `method` is the short form in model names; `precision` is fp32 or bf16 (autocast)."""

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

    @property
    def dim(self) -> int:
        return sum(head.dim for head in self.heads)

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ for recipes that differ in anything."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:8]


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with `key=value` settings applied, as in `optimizer.lr=1e-5`.

    A value is read as JSON where its field is not text. Raises `RecipeError` for an unknown key, naming the
    nearest, and for a value of another kind than the field's.
    """
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise RecipeError(f"{setting!r} is no setting; write key=value, as in optimizer.lr=1e-5.")
        recipe = _set(recipe, key.strip().split("."), value.strip(), key.strip())
    return recipe


def _set(value: Any, path: list[str], text: str, key: str) -> Any:
    head, *rest = path
    if isinstance(value, Mapping):
        return {**value, head: _parse(text, Any, key)}
    if not dataclasses.is_dataclass(value):
        raise RecipeError(f"{key}: {head!r} is looked for in a plain value.")
    hints = typing.get_type_hints(type(value))
    if head not in hints:
        known = [k.removeprefix(".") for k in _keys(value)]
        raise RecipeError(f"there is no setting {key!r}.{nearest(head, hints) or nearest(key, known)}")
    if rest:
        new = _set(getattr(value, head), rest, text, key)
    elif dataclasses.is_dataclass(hints[head]):
        inner = ", ".join(f"{key}.{name}" for name in typing.get_type_hints(hints[head]))
        raise RecipeError(f"{key} is a group; set one of {inner}.")
    else:
        new = _parse(text, hints[head], key)
    return dataclasses.replace(value, **{head: new})  # type: ignore[type-var]


def _keys(value: Any, prefix: str = "") -> list[str]:
    if not dataclasses.is_dataclass(value):
        return [prefix]
    names = typing.get_type_hints(type(value))
    return [key for name in names for key in _keys(getattr(value, name), f"{prefix}.{name}")]


def _parse(text: str, hint: Any, key: str) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text in ("none", "null") and type(None) in allowed:
        return None
    if str in allowed:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text  # free-form arguments may hold words
    if hint is Any:
        return value
    if float in allowed and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if int in allowed and isinstance(value, int) and not isinstance(value, bool):
        return value
    return _parse_composite(value, hint, key, text)


def _parse_composite(value: Any, hint: Any, key: str, text: str) -> Any:
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        inner = typing.get_args(hint)[0]
        if inner is Head and all(isinstance(v, dict) and v.keys() == {"name", "dim"} for v in value):
            return tuple(Head(**v) for v in value)
        if inner is not Head and all(isinstance(v, inner) or (inner is float and isinstance(v, int)) for v in value):
            return tuple(value)
    if typing.get_origin(hint) is not None and issubclass(typing.get_origin(hint), Mapping) and isinstance(value, dict):
        return value
    name = getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)
    raise RecipeError(f"{key} must be {name}, not {text!r}.")
