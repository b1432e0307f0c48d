"""Extraction of a trunk's features: of every image of a data set and of random views of each, into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.api import provenance
from training.augment import augment, draw_changes
from training.cached.feature_folder import FeatureLabels, FeatureOrigin, TrunkModel, Views, writing_features
from training.data import golden_images
from training.execution import Execution
from zoo.console import Progress
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode_in_threads
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import DatasetError, ImageError, UnreadableImagesError
from zoo.models.folder import check_files
from zoo.models.network import feature_count, load_network
from zoo.models.torch_runtime import in_faster_format
from zoo.models.trunk_graph import open_trunk_graph


def extract(
    model: TrunkModel,
    dataset: Dataset,
    out: Path,
    views: Views,
    dtype: str = "float16",
    execution: Execution | None = None,
    batch_size: int = 64,
    progress: bool = False,
) -> None:
    """Write the features of every image of a data set to a folder for `training.cached.feature_folder.read_features`.

    The plain features are of the images exactly as the loaded model sees them.

    Args:
        model: The model whose trunk is used.
        dataset: The images.
        out: The folder.
        views: The random views of each image.
        dtype: float16 or float32.
        execution: The device (default: the CPU).
        batch_size: Images per forward pass.
        progress: Show a progress bar.

    Raises:
        DatasetError: If an image cannot be read; the message names the first.
        ModelFolderError: If the model is damaged.
        UsageError: If the dtype is unknown or does not hold the features.
    """
    check_files(model.folder, model.card)
    execution = execution or Execution(torch.device("cpu"))
    trunk = load_network(model.card, model.folder).trunk
    run = _runner(model, trunk, execution.device, len(dataset) * (1 + views.count))
    labels = FeatureLabels(dataset.labels, dataset.classes, dataset.sources, _golden(dataset))
    shape = views.count, feature_count(trunk)
    with (
        writing_features(out, _origin(model, dataset, views), labels, shape, dtype) as (plain, viewed),
        Progress(f"features and {views.count} views" if views.count else "features", len(dataset), progress) as bar,
        execution.forked_generators(),
        torch.inference_mode(),
    ):
        torch.manual_seed(views.seed)
        done = 0
        for batch in _batches(dataset, model.card.preprocessing, views, batch_size):
            rows = slice(done, done + len(batch.pixels))
            # Rounding to float16 may give infinity, which is refused at the end.
            with np.errstate(over="ignore"):
                images = _to_floats(batch.pixels, execution)
                plain[rows] = run(_normalise(images, model.card.preprocessing))
                for number in range(views.count):
                    view = _view(batch, views, model.card.preprocessing, execution)
                    viewed[number, rows] = run(view)
            done = rows.stop
            bar.update(len(batch.pixels))


def _runner(model: TrunkModel, trunk: nn.Module, device: torch.device, images: int) -> Callable[[Tensor], np.ndarray]:
    """Return a function from normalised images on the device to features, by ONNX Runtime where that is faster."""
    if device.type == "cpu" and (graph := open_trunk_graph(model.folder, model.card, images)) is not None:
        return lambda batch: graph(batch.numpy())
    forward = in_faster_format(trunk.to(device), device)
    return lambda batch: forward(batch).float().cpu().numpy()


def _golden(dataset: Dataset) -> list[np.ndarray]:
    try:
        return golden_images(dataset, np.arange(len(dataset)))
    except ImageError as error:
        raise DatasetError(
            f"{dataset.name} holds an image that cannot be read: {error} Mend or remove it.", code="unreadable-image"
        ) from None


def _origin(model: TrunkModel, dataset: Dataset, views: Views) -> FeatureOrigin:
    return FeatureOrigin(
        model=model.reference,
        fingerprint=model.card.fingerprint,
        dataset=dataset.name,
        split=dataset.split,
        preprocessing=json.loads(json.dumps(model.card.preprocessing.to_json())),
        augmentation=views.to_json(),
        seed=views.seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version for name, version in provenance()["versions"].items() if version},
        own_name=dataset.own_name,
    )


@dataclass(frozen=True)
class _Batch:
    """pixels: uint8 [b, crop, crop, c]; squares: uint8 [b, side, side, c]; aspects: float32 [b]."""

    pixels: np.ndarray
    squares: np.ndarray
    aspects: np.ndarray


def _batches(dataset: Dataset, preprocessing: Preprocessing, views: Views, size: int) -> Iterator[_Batch]:
    squares = Squares(replace(preprocessing, resize=views.side, crop=views.side), views.fit == "whole")

    def decode(image: ImageLike) -> tuple[np.ndarray, np.ndarray, float]:
        pixels = to_pixels(image, preprocessing)
        return (pixels, *squares.decode(image)) if views.count else (pixels, pixels, 1.0)

    images = zip(dataset.sources, decode_in_threads(decode, dataset.images), strict=True)
    while chunk := list(islice(images, size)):
        decoded = []
        for source, image in chunk:
            if isinstance(image, ImageError):
                raise UnreadableImagesError({source: image}, dataset.name, "")
            decoded.append(image)
        pixels, decoded_squares, aspects = zip(*decoded, strict=True)
        yield _Batch(np.stack(pixels), np.stack(decoded_squares), np.array(aspects, np.float32))


def _view(batch: _Batch, views: Views, preprocessing: Preprocessing, execution: Execution) -> Tensor:
    """Return a random view of each image, normalised, as in a training batch."""
    aspects = torch.from_numpy(batch.aspects) if views.fit == "whole" else torch.ones(len(batch.aspects))
    turns = torch.zeros(len(aspects), device=execution.device)
    shown = preprocessing.crop / preprocessing.resize
    changes = draw_changes(turns, aspects.to(execution.device), views.augmentation, shown, preprocessing.squeeze)
    images = _to_floats(batch.squares, execution)
    return _normalise(augment(images, changes, views.augmentation, preprocessing.crop), preprocessing)


def _to_floats(pixels: np.ndarray, execution: Execution) -> Tensor:
    return torch.from_numpy(pixels).to(execution.device).permute(0, 3, 1, 2).float() / 255


def _normalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    statistics = preprocessing.mean, preprocessing.std
    mean, std = (torch.tensor(values, device=images.device).reshape(1, -1, 1, 1) for values in statistics)
    return (images - mean) / std
