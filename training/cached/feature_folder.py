"""Cached features of a frozen trunk: their folder, the random views in it, and recipes whose heads learn on them.

The folder holds `plain.npy` [n, f] and `views.npy` [v, n, f], float16 or float32, `labels.npy` int64 [n], some images
`golden_<i>.npy` for a golden check, and `record.json`: the model, the data, the classes' names and the images' sources.
Reading maps the arrays into memory, so they may be larger than that. Loads no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from training.recipe import Augmentation, Backbone, Data, EnsembleRecipe, Recipe
from zoo.data.dataset import DataIdentity, identify
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError, command
from zoo.files import atomic_folder, read_object
from zoo.models.card import Card

USUAL_AUGMENTATION = Augmentation(flip=0.5, crop="resized", area=(0.25, 1.0), oversample=1)
"""Milder than the augmentation that trunks learn with (areas from 0.08), because a frozen trunk cannot adapt to it."""

FIXED_BY_FEATURES = ("backbone", "preprocessing", "augmentation", "precision")
"""Groups of settings that the features already contain, or that apply to a trunk only."""

KIND, SCHEMA = "dml-zoo features", 1
RECORD = "record.json"
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
        path: The folder.
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

    @property
    def identity(self) -> DataIdentity:
        """Return that of all images with features; their sizes are not known."""
        classes = [self.classes[label] for label in self.labels.tolist()]
        return identify(self.about.own_name or self.about.dataset, self.sources, classes)

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
    """The images of a feature folder: labels int64 [n], names of classes, sources [n], and golden images."""

    labels: np.ndarray
    classes: Sequence[str]
    sources: Sequence[str]
    golden: Sequence[np.ndarray]


@contextmanager
def writing_features(
    path: Path, about: FeatureOrigin, images: FeatureLabels, shape: tuple[int, int], dtype: str = "float16"
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield memory-mapped arrays plain [n, f] and views [v, n, f] to fill; the folder is written whole or not at all.

    Args:
        path: The folder.
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
    names = {"classes": list(images.classes), "sources": list(images.sources), "golden": len(images.golden)}
    record = {"kind": KIND, "schema": SCHEMA, "about": asdict(about), **names}
    with atomic_folder(path) as temporary:
        (temporary / RECORD).write_text(json.dumps(record), encoding="utf-8")
        np.save(temporary / "labels.npy", images.labels.astype(np.int64))
        for i, image in enumerate(images.golden):
            np.save(temporary / f"golden_{i}.npy", image)
        plain = _create_array(temporary / "plain.npy", (n, dim), dtype)
        views = _create_array(temporary / "views.npy", (count, n, dim), dtype)
        yield plain, views
        for array in (plain, *views):
            _check_finite(array, dtype)
        plain.flush()
        views.flush()


def _create_array(file: Path, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """Create a file of an array and map it. A full disk gives an error here, not a signal when a page is written."""
    array = open_memmap(file, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):  # macOS and Windows have no such call
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array


def check_out(path: Path, replace: bool = False) -> None:
    """Check that features can be written to a path: that nothing else is there.

    Args:
        path: The path.
        replace: Other features may be there.

    Raises:
        UsageError: If the path is a file, or a folder that is not empty (code "already-exists").
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if read_object(path / RECORD).get("kind") != KIND:
        message = f"{path} exists and does not hold features. Features are a folder: name a new one."
        raise UsageError(message, code="already-exists")
    if not replace:
        raise UsageError(f"{path} holds features already; name a new folder, or give --replace.", code="already-exists")


def read_features(path: str | Path) -> Features:
    """Return the features in a folder, memory-mapped.

    Raises:
        UsageError: If the folder does not exist, is damaged, does not hold features or has another schema.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UsageError(
            f"there is no folder {path}. Make it with: {command('features', 'MODEL', 'DIR', '-o', path)}",
            code="not-found",
        )
    try:
        record = _read_record(path)
        features = Features(
            path,
            FeatureOrigin(**record["about"]),
            _map_array(path, "plain"),
            _map_array(path, "views"),
            np.array(_map_array(path, "labels")),
            tuple(record["classes"]),
            record["sources"],
            [np.array(_map_array(path, f"golden_{i}")) for i in range(record["golden"])],
        )
        _check_arrays(features)
        return features
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not as `zoo features` writes folders ({error}). Make it again.", code="damaged-file"
        ) from None


def _read_record(path: Path) -> dict[str, Any]:
    """Return a folder's record, whose sources may be more than `zoo.files.read_json` reads."""
    file = path / RECORD
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise UsageError(
            f"{path} does not hold features. Make some with: zoo features MODEL DIR -o OUT", code="damaged-file"
        )
    if record.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} has schema {record.get('schema')}; this version of dml-zoo reads schema {SCHEMA} alone. Make it "
            "again, or install the version that wrote it.",
            code="other-schema",
        )
    return record


def _map_array(path: Path, name: str) -> np.memmap:
    return open_memmap(path / f"{name}.npy", "r")


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
        data = recipe["data"]
        return Views(count, _augmentation_of(recipe["augmentation"]), int(data["side"]), data["fit"], seed)
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return Views(count, USUAL_AUGMENTATION, preprocessing.resize, "whole", seed)


def _augmentation_of(values: Mapping[str, Any]) -> Augmentation:
    """Return the augmentation of its JSON values.

    Raises:
        TypeError: If a value has an unknown name.
        RecipeError: If a value is out of range.
    """
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
    return replace(
        recipe,
        name=name or f"{recipe.method}-on-{card.name}",
        data=Data(origin.dataset, 1, recipe.data.validation, side, fit, features=str(features.path.resolve())),
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
                f"{key} has no effect on cached features: trunk, images and augmentation are those of the folder. "
                "Make other features with `zoo features`, or train without --features.",
                code="option-without-effect",
            )
