"""The features of a model's trunk, of every image of a data set and of random views of each, written to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from training.augmentation import augment, draw_changes
from training.data import golden_images
from training.frozen.views import Views
from training.output import provenance
from training.run import Place
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode_in_threads, unreadable
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import DatasetError, ImageError
from zoo.features import About, Subject, writing_features
from zoo.models.card import Card
from zoo.models.folder import check_files
from zoo.models.network import feature_count, load_network


@dataclass(frozen=True)
class Model:
    """A model whose trunk is used: its folder, its card, and the name or path by which it was asked for."""

    folder: Path
    card: Card
    reference: str


def extract(
    model: Model,
    dataset: Dataset,
    out: Path,
    views: Views,
    dtype: str = "float16",
    place: Place | None = None,
    batch_size: int = 64,
    progress: bool = False,
) -> None:
    """Write the features of every image of the data set to `out`, a file for `zoo.features.read_features`.

    The plain features are of the images exactly as the loaded model sees them. Raises `DatasetError` naming the first
    image that cannot be read, and what `zoo.models.load.check_files` and `writing_features` raise.
    """
    check_files(model.folder, model.card)
    place = place or Place(torch.device("cpu"))
    trunk = load_network(model.card, model.folder).trunk.to(place.device)
    subject = Subject(dataset.labels, dataset.classes, dataset.sources, _golden(dataset))
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
                raise unreadable(source, dataset.name, one, or_else="")
            decoded.append(one)
        pixels, seen, aspects = zip(*decoded, strict=True)
        yield _Batch(np.stack(pixels), np.stack(seen), np.array(aspects, np.float32))


def _through(trunk: nn.Module, pixels: np.ndarray, how: Preprocessing, place: Place) -> np.ndarray:
    images = torch.from_numpy(pixels).to(place.device).permute(0, 3, 1, 2).float() / 255
    features: np.ndarray = trunk(_normalised(images, how)).float().cpu().numpy()
    return features


def _view(batch: _Batch, views: Views, how: Preprocessing, place: Place) -> Tensor:
    """A random view of each image, normalised, as a training batch has it."""
    aspects = torch.from_numpy(batch.aspects) if views.fit == "whole" else torch.ones(len(batch.aspects))
    turns = torch.zeros(len(aspects), device=place.device)
    changes = draw_changes(turns, aspects.to(place.device), views.augmentation, how.crop / how.resize)
    images = torch.from_numpy(batch.squares).to(place.device).permute(0, 3, 1, 2).float() / 255
    return _normalised(augment(images, changes, views.augmentation, how.crop), how)


def _normalised(images: Tensor, how: Preprocessing) -> Tensor:
    mean, std = (torch.tensor(values, device=images.device).reshape(1, -1, 1, 1) for values in (how.mean, how.std))
    return (images - mean) / std


def _about(model: Model, dataset: Dataset, views: Views) -> About:
    made = provenance()
    return About(
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
