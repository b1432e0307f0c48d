"""Extract features of a trunk; a recipe on them.

Heads on the cached features of a trunk that stays as it is: `zoo features`, `zoo train NAME --features FILE`.

Which random views of images are cached: a recipe's, those of the recipe that made a model, or the usual ones.

The features of a model's trunk, of every image of a data set and of random views of each, written to a file.

A recipe's method and heads on cached features: what of it holds, and what the features decide.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from training.api import provenance
from training.augment import augment, draw_changes
from training.data import golden_images
from training.feature_file import FeatureLabels, FeatureOrigin, Features, writing_features
from training.recipe import Augmentation, Backbone, Data, EnsembleRecipe, Recipe
from training.trainer import Execution
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode_in_threads, unreadable_error
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import DatasetError, ImageError, RecipeError, UsageError
from zoo.models.card import Card
from zoo.models.folder import check_files
from zoo.models.network import feature_count, load_network

USUAL_AUGMENTATION = Augmentation(flip=0.5, crop="resized", area=(0.25, 1.0), oversample=1)
"""Milder than what a trunk learns by (areas from 0.08): a trunk that stays as it is cannot get used to it."""


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
            raise UsageError(f"--views is 0 or more, not {self.count}.")

    def to_json(self) -> dict[str, object]:
        return {**json.loads(json.dumps(asdict(self.augmentation))), "side": self.side, "fit": self.fit}


def views_of_recipe(recipe: Recipe | EnsembleRecipe, count: int, seed: int) -> Views:
    """Views by a recipe's augmentation. Raises `UsageError` for an ensemble."""
    if isinstance(recipe, EnsembleRecipe):
        raise UsageError(f"{recipe.name} is an ensemble; name one of the recipes of its members.")
    return Views(count, recipe.augmentation, recipe.data.side, recipe.data.fit, seed)


def views_of_model(folder: Path, how: Preprocessing, count: int, seed: int) -> Views:
    """Views by the recipe in a model folder; by `USUAL` where it has none that this version can read."""
    try:
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["recipe"]
        augmentation = augmentation_of(recipe["augmentation"])
        side = int(recipe["data"]["side"])
        fit = recipe["data"].get("fit", Data.fit)  # the first versions did not write it
        return Views(count, augmentation, side, fit, seed)
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return Views(count, USUAL_AUGMENTATION, how.resize, "whole", seed)


def augmentation_of(values: dict[str, Any]) -> Augmentation:
    """An augmentation from its JSON. Raises `ValueError` for one of another version, `RecipeError` for a bad value."""
    known = {field.name for field in fields(Augmentation)}
    if not values.keys() <= known:
        raise ValueError("an augmentation of another version")
    made: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Augmentation(**made)


@dataclass(frozen=True)
class TrunkModel:
    """A model whose trunk is used: its folder, its card, and the name or path by which it was asked for."""

    folder: Path
    card: Card
    reference: str


def extract(
    model: TrunkModel,
    dataset: Dataset,
    out: Path,
    views: Views,
    dtype: str = "float16",
    place: Execution | None = None,
    batch_size: int = 64,
    progress: bool = False,
) -> None:
    """Write the features of every image of the data set to `out`, a file for `training.feature_file.read_features`.

    The plain features are of the images exactly as the loaded model sees them. Raises `DatasetError` naming the first
    image that cannot be read, and what `zoo.models.load.check_files` and `writing_features` raise.
    """
    check_files(model.folder, model.card)
    place = place or Execution(torch.device("cpu"))
    trunk = load_network(model.card, model.folder).trunk.to(place.device)
    subject = FeatureLabels(dataset.labels, dataset.classes, dataset.sources, _golden(dataset))
    shape = views.count, feature_count(trunk)
    with (
        writing_features(out, _about(model, dataset, views), subject, shape, dtype) as (plain, changed),
        tqdm(total=len(dataset), desc="features", unit="image", disable=not progress, mininterval=_interval()) as bar,
        place.forked_generators(),
        torch.inference_mode(),
    ):
        torch.manual_seed(views.seed)
        done = 0
        for batch in _batches(dataset, model.card.preprocessing, views, batch_size):
            rows = slice(done, done + len(batch.pixels))
            # Rounding to float16 may give infinity, which is refused at the end.
            with np.errstate(over="ignore"):
                plain[rows] = _through(trunk, batch.pixels, model.card.preprocessing, place)
                for number in range(views.count):
                    seen = _view(batch, views, model.card.preprocessing, place)
                    changed[number, rows] = trunk(seen).float().cpu().numpy()
            done = rows.stop
            bar.update(len(batch.pixels))


def _golden(dataset: Dataset) -> list[np.ndarray]:
    try:
        return golden_images(dataset, np.arange(len(dataset)))
    except ImageError as error:
        raise DatasetError(f"{dataset.name} holds an image that cannot be read: {error} Mend or remove it.") from None


@dataclass(frozen=True)
class _Batch:
    """pixels: uint8 [b, crop, crop, c]; squares: uint8 [b, side, side, c]; aspects: float32 [b]."""

    pixels: np.ndarray
    squares: np.ndarray
    aspects: np.ndarray


def _batches(dataset: Dataset, how: Preprocessing, views: Views, size: int) -> Iterator[_Batch]:
    squares = Squares(replace(how, resize=views.side, crop=views.side), views.fit == "whole")

    def decode(image: ImageLike) -> tuple[np.ndarray, np.ndarray, float]:
        pixels = to_pixels(image, how)
        return (pixels, *squares.decode(image)) if views.count else (pixels, pixels, 1.0)

    found = zip(dataset.sources, decode_in_threads(decode, dataset.images), strict=True)
    while chunk := list(islice(found, size)):
        decoded = []
        for source, one in chunk:
            if isinstance(one, ImageError):
                raise unreadable_error(source, dataset.name, one, or_else="")
            decoded.append(one)
        pixels, seen, aspects = zip(*decoded, strict=True)
        yield _Batch(np.stack(pixels), np.stack(seen), np.array(aspects, np.float32))


def _through(trunk: nn.Module, pixels: np.ndarray, how: Preprocessing, place: Execution) -> np.ndarray:
    images = torch.from_numpy(pixels).to(place.device).permute(0, 3, 1, 2).float() / 255
    features: np.ndarray = trunk(_normalised(images, how)).float().cpu().numpy()
    return features


def _view(batch: _Batch, views: Views, how: Preprocessing, place: Execution) -> Tensor:
    """A random view of each image, normalised, as a training batch has it."""
    aspects = torch.from_numpy(batch.aspects) if views.fit == "whole" else torch.ones(len(batch.aspects))
    turns = torch.zeros(len(aspects), device=place.device)
    changes = draw_changes(turns, aspects.to(place.device), views.augmentation, how.crop / how.resize)
    images = torch.from_numpy(batch.squares).to(place.device).permute(0, 3, 1, 2).float() / 255
    return _normalised(augment(images, changes, views.augmentation, how.crop), how)


def _normalised(images: Tensor, how: Preprocessing) -> Tensor:
    mean, std = (torch.tensor(values, device=images.device).reshape(1, -1, 1, 1) for values in (how.mean, how.std))
    return (images - mean) / std


def _about(model: TrunkModel, dataset: Dataset, views: Views) -> FeatureOrigin:
    made = provenance()
    return FeatureOrigin(
        model=model.reference,
        fingerprint=model.card.fingerprint,
        dataset=dataset.name,
        split=dataset.split,
        preprocessing=json.loads(json.dumps(asdict(model.card.preprocessing))),
        augmentation=views.to_json(),
        seed=views.seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: found for name, found in made["versions"].items() if found},
    )


def _interval() -> float:
    """A log file is spared the many lines that on a terminal are one."""
    return 0.1 if sys.stderr.isatty() else 10


FIXED_BY_FEATURES = ("backbone", "preprocessing", "augmentation", "precision")
"""Groups of settings that went into the features, or that have no trunk to apply to."""


def recipe_on_features(
    recipe: Recipe | EnsembleRecipe,
    features: Features,
    card: Card,
    model: str,
    settings: Iterable[str] = (),
    name: str | None = None,
) -> Recipe:
    """The recipe with the features in the place of images and the model's trunk in the place of its own.

    model: where the trunk is found, a name or folder. settings: those that the recipe was changed by; the ones that
    features cannot follow are refused. name: of the new model; by default "<method>-on-<model>".

    Raises `RecipeError` for an ensemble, for a recipe without heads, of which nothing would be left to learn, and for
    settings as above; `UsageError` where the features are another model's.
    """
    features.check_model(card)
    if isinstance(recipe, EnsembleRecipe):
        raise RecipeError(f"{recipe.name} is an ensemble; train its members' recipes on the features one by one.")
    if not recipe.heads:
        raise RecipeError(
            f"{recipe.name} has no heads: nothing of it learns on cached features. Give it one, as in "
            """--set 'heads=[{"name": "embedding", "dim": 128}]'."""
        )
    _check_settings(settings)
    about = features.about
    how = dict(about.augmentation)
    side, fit = how.pop("side"), how.pop("fit")
    file = str(features.path.resolve())
    return replace(
        recipe,
        name=name or f"{recipe.method}-on-{card.name}",
        data=Data(about.dataset, 1, recipe.data.validation, side, fit, features=file),
        backbone=Backbone(card.backbone, card.architecture, card.architecture_args, model),
        preprocessing=card.preprocessing,
        augmentation=augmentation_of(how),
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
                f"{key} changes nothing on cached features: trunk, images and augmentation are those of the file. "
                "Make other features with `zoo features`, or train without --features."
            )
