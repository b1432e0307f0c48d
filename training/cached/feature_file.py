"""Cached features of a frozen trunk: the file, the random views in it, and recipes whose heads learn on them.

One safetensors file: `plain` [n, f] and `views` [v, n, f], float16 or float32, `labels` int64 [n], `names` (JSON as
bytes: the classes' names and the images' sources) and some undecoded images for a golden check; the metadata name the
model and the data. Reading maps the file into memory, so it may be larger than that. Loads no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from training.recipe import Augmentation, Backbone, Data, EnsembleRecipe, Recipe
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError, command
from zoo.files import atomic_path
from zoo.models.card import Card

USUAL_AUGMENTATION = Augmentation(flip=0.5, crop="resized", area=(0.25, 1.0), oversample=1)
"""Milder than the augmentation that trunks learn with (areas from 0.08), because a frozen trunk cannot adapt to it."""

FIXED_BY_FEATURES = ("backbone", "preprocessing", "augmentation", "precision")
"""Groups of settings that the features already contain, or that apply to a trunk only."""


KIND, SCHEMA = "dml-zoo features", 1
DTYPES: dict[str, np.dtype] = {
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
FLOATS = ("float16", "float32")


@dataclass(frozen=True)
class FeatureOrigin:
    """The model, data and augmentation that made the features.

    Attributes:
        model: The model's name or folder.
        fingerprint: The fingerprint of its card.
        dataset: The data set.
        split: The split of the data set.
        preprocessing: The preprocessing as JSON values.
        augmentation: The augmentation of the views as JSON values.
        seed: The seed of the views.
        date: ISO 8601, UTC.
        versions: Versions of libraries.
        own_name: Of a user's folder or table: its own name, else "".
    """

    model: str
    fingerprint: str
    dataset: str
    split: str
    preprocessing: Mapping[str, Any]
    augmentation: Mapping[str, Any]
    seed: int
    date: str
    versions: Mapping[str, str]
    own_name: str = ""


@dataclass(frozen=True)
class Features:
    """Cached features, memory-mapped.

    Attributes:
        path: The file.
        about: Their origin.
        plain: Pooled features [n, f] of the images as tests see them, float16 or float32.
        views: [v, n, f], of random views of each image.
        labels: int64 [n], indices into `classes`.
        classes: The names of the classes.
        sources: The names of the images.
        golden: A few images, uint8 [H, W, 3].
    """

    path: Path
    about: FeatureOrigin
    plain: np.ndarray
    views: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    sources: Sequence[str]
    golden: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.labels)

    def check_model(self, card: Card) -> None:
        """Check that the card's model made these features.

        Raises:
            UsageError: If another model, or other weights, made them.
        """
        if card.fingerprint != self.about.fingerprint:
            raise UsageError(
                f"{self.path} holds features of {self.about.model} (fingerprint {self.about.fingerprint[:12]}), not of "
                f"{card.name} (fingerprint {card.fingerprint[:12]}): its weights or preprocessing differ. Make the "
                f"features again: {command('features', card.name, 'DIR', '-o', self.path)}",
                code="other-model",
            )


class FeatureLabels(NamedTuple):
    """The images of a feature file: labels int64 [n], names of classes, sources [n], and golden images."""

    labels: np.ndarray
    classes: Sequence[str]
    sources: Sequence[str]
    golden: Sequence[np.ndarray]


@contextmanager
def writing_features(
    path: Path, about: FeatureOrigin, images: FeatureLabels, shape: tuple[int, int], dtype: str = "float16"
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield memory-mapped arrays plain [n, f] and views [v, n, f] to fill; the file is written whole or not at all.

    Args:
        path: The file.
        about: The origin of the features.
        images: The labels and names of the images.
        shape: (v, f).
        dtype: float16 or float32.

    Raises:
        UsageError: If the dtype is unknown, or does not hold the values.
    """
    if dtype not in FLOATS:
        raise UsageError(f"features are stored as {' or '.join(FLOATS)}, not {dtype!r}.", code="invalid-value")
    (count, dim), n = shape, len(images.labels)
    names = json.dumps({"classes": list(images.classes), "sources": list(images.sources)}).encode()
    small: dict[str, np.ndarray] = {"labels": images.labels.astype(np.int64), "names": np.frombuffer(names, np.uint8)}
    small |= {f"golden_{i}": image for i, image in enumerate(images.golden)}
    large = {"plain": (n, dim), "views": (count, n, dim)}
    header, spans = _layout({name: (a.dtype, a.shape) for name, a in small.items()}, large, np.dtype(dtype), about)
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            file.write(header)
            # A full disk gives an error here instead of a signal when a page is written.
            os.posix_fallocate(file.fileno(), 0, max(span.end for span in spans.values()))
        for name, array in small.items():
            _map(temporary, spans[name], "r+")[...] = array
        plain, views = (_map(temporary, spans[name], "r+") for name in large)
        yield plain, views
        for array in (plain, *views):
            _check_finite(array, dtype)
        for array in (plain, views):
            if isinstance(array, np.memmap):
                array.flush()


def read_features(path: str | Path) -> Features:
    """Return the features in a file, memory-mapped.

    Raises:
        UsageError: If the file does not exist, is damaged, is not a feature file or has another schema.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(
            f"there is no file {path}. Make it with: {command('features', 'MODEL', 'DIR', '-o', path)}",
            code="not-found",
        )
    about = _about(path)
    try:
        arrays = {name: _map(path, span, "r") for name, span in _read_spans(path).items()}
        names = json.loads(arrays["names"].tobytes())
        golden = [np.array(arrays[f"golden_{i}"]) for i in range(sum(name.startswith("golden_") for name in arrays))]
        features = Features(
            path,
            about,
            arrays["plain"],
            arrays["views"],
            np.array(arrays["labels"]),
            tuple(names["classes"]),
            names["sources"],
            golden,
        )
        _check_arrays(features)
        return features
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not as `zoo features` writes files ({error}). Make it again.", code="damaged-file"
        ) from None


def _check_arrays(features: Features) -> None:
    """Raise `ValueError` unless all arrays are of the same images and every label is a class."""
    labels, plain, views = features.labels, features.plain, features.views
    if labels.ndim != 1 or labels.dtype != np.int64 or not len(labels):
        raise ValueError(f"labels are {labels.dtype} {list(labels.shape)}")
    if plain.ndim != 2 or views.ndim != 3 or plain.shape != views.shape[1:] or len(plain) != len(labels):
        raise ValueError(f"plain {list(plain.shape)}, views {list(views.shape)}, {len(labels)} labels")
    if {plain.dtype.name, views.dtype.name} - {*FLOATS}:
        raise ValueError(f"plain is {plain.dtype}, views {views.dtype}")
    if not isinstance(features.sources, list) or len(features.sources) != len(labels):
        raise ValueError(f"{len(features.sources)} sources, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= len(features.classes):
        raise ValueError(f"labels from {labels.min()} to {labels.max()}, {len(features.classes)} classes")


class _Span(NamedTuple):
    """The position of an array in the file, in bytes from its beginning."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _layout(
    small: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    large: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    about: FeatureOrigin,
) -> tuple[bytes, dict[str, _Span]]:
    """Return the file's header and the spans of its arrays; the widest numbers come first, so that all are aligned."""
    arrays = dict(small) | {name: (dtype, shape) for name, shape in large.items()}
    tree: dict[str, Any] = {
        "__metadata__": {"kind": KIND, "schema": str(SCHEMA), "about": json.dumps(dataclasses.asdict(about))}
    }
    position = 0
    for name, (kind, shape) in sorted(arrays.items(), key=lambda item: -item[1][0].itemsize):
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        tree[name] = {"dtype": CODES[kind], "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(tree).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, _from_header(tree, 8 + len(text))


def _read_spans(path: Path) -> dict[str, _Span]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return _from_header(json.loads(file.read(length)), 8 + length)


def _from_header(tree: Mapping[str, Any], start: int) -> dict[str, _Span]:
    return {
        name: _Span(DTYPES[entry["dtype"]], tuple(entry["shape"]), *(start + o for o in entry["data_offsets"]))
        for name, entry in tree.items()
        if name != "__metadata__"
    }


def _map(path: Path, span: _Span, mode: Any) -> np.ndarray:
    if span.begin == span.end:  # an empty array cannot be mapped
        return np.empty(span.shape, span.dtype)
    return np.memmap(path, span.dtype, mode, span.begin, span.shape)


def _about(path: Path) -> FeatureOrigin:
    try:
        # safetensors checks the header against the file's length.
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except Exception as error:  # safetensors' own type
        raise UsageError(
            f"{path} cannot be read as safetensors: {error}. Make it again.", code="unreadable-file"
        ) from None
    if metadata.get("kind") != KIND:
        raise UsageError(
            f"{path} does not hold features. Make some with: zoo features MODEL DIR -o FILE", code="damaged-file"
        )
    if metadata.get("schema") != str(SCHEMA):
        raise UsageError(
            f"{path} has schema {metadata.get('schema')}; this version of dml-zoo reads schema {SCHEMA} alone. Make it "
            "again, or install the version that wrote it.",
            code="other-schema",
        )
    try:
        return FeatureOrigin(**json.loads(metadata["about"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} lacks the record of its origin ({error}). Make it again.", code="damaged-file"
        ) from None


def _check_finite(array: np.ndarray, dtype: str) -> None:
    """Check a part of the rows at a time: a large file would not fit into memory."""
    for start in range(0, len(array), 4096):
        if not np.isfinite(array[start : start + 4096]).all():
            more = " They may exceed the range of float16; store them as float32." if dtype == "float16" else ""
            raise UsageError(f"the model gives features that are not finite.{more}", code="not-finite")


@dataclass(frozen=True)
class TrunkModel:
    """A model whose trunk is used: its folder, its card, and the name or path by which it is found."""

    folder: Path
    card: Card
    reference: str


@dataclass(frozen=True)
class Views:
    """`count` random views of each image by an augmentation, from squares as `training.recipe.Data` describes them."""

    count: int
    augmentation: Augmentation
    side: int
    fit: str = "whole"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"--views must be 0 or more, not {self.count}.", code="invalid-value")

    def to_json(self) -> dict[str, object]:
        """Return the augmentation and the squares as JSON values."""
        return {**json.loads(json.dumps(asdict(self.augmentation))), "side": self.side, "fit": self.fit}


def views_of_recipe(recipe: Recipe | EnsembleRecipe, count: int, seed: int) -> Views:
    """Return views by a recipe's augmentation.

    Raises:
        UsageError: If the recipe is an ensemble.
    """
    if isinstance(recipe, EnsembleRecipe):
        raise UsageError(f"{recipe.name} is an ensemble; name a recipe of one of its members.", code="not-available")
    return Views(count, recipe.augmentation, recipe.data.side, recipe.data.fit, seed)


def views_of_model(folder: Path, preprocessing: Preprocessing, count: int, seed: int) -> Views:
    """Return views by the recipe in a model folder, or by `USUAL_AUGMENTATION` without a recipe that can be read.

    Args:
        folder: The model folder.
        preprocessing: The model's preprocessing; without a recipe, its resized side is that of the squares.
        count: The number of views of each image.
        seed: The seed of the views.
    """
    try:
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["recipe"]
        augmentation = _augmentation_of(recipe["augmentation"])
        side = int(recipe["data"]["side"])
        fit = recipe["data"].get("fit", Data.fit)  # the first versions did not write it
        return Views(count, augmentation, side, fit, seed)
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return Views(count, USUAL_AUGMENTATION, preprocessing.resize, "whole", seed)


def _augmentation_of(values: dict[str, Any]) -> Augmentation:
    """Return the augmentation of its JSON values.

    Raises:
        ValueError: If another version wrote it.
        RecipeError: If a value is out of range.
    """
    field_names = {field.name for field in fields(Augmentation)}
    if not values.keys() <= field_names:
        raise ValueError("an augmentation of another version")
    arguments: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Augmentation(**arguments)


def recipe_on_features(
    recipe: Recipe | EnsembleRecipe,
    features: Features,
    card: Card,
    model: str,
    settings: Iterable[str] = (),
    name: str | None = None,
) -> Recipe:
    """Return the recipe with cached features instead of images, and with the trunk that made them.

    Args:
        recipe: The recipe.
        features: The cached features.
        card: The card of the model whose trunk made them.
        model: The name or folder of that model.
        settings: The settings that changed the recipe; those that have no effect on features are refused.
        name: The name of the new model (default: "<method>-on-<model>").

    Raises:
        RecipeError: If the recipe is an ensemble or has no heads, or a setting has no effect.
        UsageError: If another model made the features.
    """
    features.check_model(card)
    if isinstance(recipe, EnsembleRecipe):
        raise RecipeError(
            f"{recipe.name} is an ensemble; train its members' recipes on the features one by one.",
            code="not-available",
        )
    if not recipe.heads:
        raise RecipeError(
            f"{recipe.name} has no heads, and without them nothing learns on cached features. Give it one, as in "
            """--set 'heads=[{"name": "embedding", "dim": 128}]'.""",
            code="conflicting-settings",
        )
    _check_settings(settings)
    origin = features.about
    augmentation = dict(origin.augmentation)
    side, fit = augmentation.pop("side"), augmentation.pop("fit")
    file = str(features.path.resolve())
    return replace(
        recipe,
        name=name or f"{recipe.method}-on-{card.name}",
        data=Data(origin.dataset, 1, recipe.data.validation, side, fit, features=file),
        backbone=Backbone(card.backbone, card.architecture, card.architecture_args, model, tune=recipe.backbone.tune),
        preprocessing=card.preprocessing,
        augmentation=_augmentation_of(augmentation),
        batch=replace(recipe.batch, chunk=0),
        precision="fp32",
        sources=tuple(dict.fromkeys((*card.sources, *recipe.sources))),
    )


def _check_settings(settings: Iterable[str]) -> None:
    for setting in settings:
        key = setting.partition("=")[0].strip()
        group = key.partition(".")[0]
        if group in FIXED_BY_FEATURES or (group == "data" and key != "data.validation") or key == "batch.chunk":
            raise RecipeError(
                f"{key} has no effect on cached features: trunk, images and augmentation are those of the file. "
                "Make other features with `zoo features`, or train without --features.",
                code="option-without-effect",
            )
