"""Proof that a graph gives torch's embeddings, the images that calibrate int8, and the cost in retrieval.

The images for both come through the one preprocessing path: a model's golden images, noise, patterns, and training
images that calibrate int8 or are held out from that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from zoo.data import DATASETS, folder_for, load_dataset
from zoo.data.dataset import FOLDER, WHOLE, Dataset, without
from zoo.data.folder import has_splits, list_unlabelled
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.data.table import is_table
from zoo.errors import ExportError, ImageError, ZooError, none_readable_message, unknown
from zoo.evaluation.remeasure import measure_retrieval, precision_cost
from zoo.evaluation.retrieval import PerQuery
from zoo.evaluation.split import LEAST_TO_SPLIT, find_held_out
from zoo.models.card import Card
from zoo.models.load import Embedder
from zoo.models.results import EXPORT_FLOORS
from zoo.paths import expand

EmbedPixels = Callable[[np.ndarray], np.ndarray]
"""A function from pixels uint8 [n, h, w, c] to unit embeddings [n, dim]."""

BATCHES = (1, 2, 7, 32)
NORM_ERROR = 1e-5

CALIBRATION_COUNT = 128
HELD_OUT_COUNT = 61
NOISE_COUNT = 60


@dataclass(frozen=True)
class Parity:
    """The difference between a graph's embeddings and torch's, over batches of several sizes.

    Attributes:
        variant: The precision.
        images: The number of compared images.
        min_cosine, mean_cosine: Of the pairs of embeddings.
        centred_cosine: The mean cosine after torch's mean embedding is subtracted from both. It shows differences
            between images even where all embeddings are close together.
        max_difference: The largest difference of a number.
        max_norm_error: The largest difference of a length from one.
        floor: The smallest `min_cosine` that is allowed.
        date: Of the measurement.
        versions: Of the libraries.
        details: What stayed in float, and how int8 was calibrated.
        cost: The cost in retrieval, None where it was not measured.
        forced: The graph was written although it misses its floor.
    """

    variant: str
    images: int
    min_cosine: float
    mean_cosine: float
    centred_cosine: float
    max_difference: float
    max_norm_error: float
    floor: float
    date: str
    versions: dict[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] | None = None
    forced: bool = False

    @property
    def holds(self) -> bool:
        """True if the graph is as near to torch as its precision must be."""
        return self.min_cosine >= self.floor and self.max_norm_error < NORM_ERROR

    def to_json(self) -> dict[str, Any]:
        """Return the entry in onnx/parity.json."""
        return {**asdict(self), "holds": self.holds}


def measure_parity(expected: np.ndarray, run: EmbedPixels, pixels: np.ndarray, variant: str) -> Parity:
    """Compare a graph with torch in batches of four sizes.

    Args:
        expected: torch's embeddings, [n, dim].
        run: The graph.
        pixels: The images, uint8 [n, h, w, c].
        variant: The graph's precision.
    """
    torch = expected.astype(np.float64)
    results = [_in_batches(run, pixels, size) for size in BATCHES]
    # NaN is below every floor.
    cosines = np.nan_to_num(np.stack([_cosines(rows, torch) for rows in results]), nan=-1.0)
    centred = np.nan_to_num(_cosines(results[-1] - torch.mean(0), torch - torch.mean(0)), nan=-1.0)
    norms = np.linalg.norm(np.stack(results), axis=2)
    return Parity(
        variant=variant,
        images=len(pixels),
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        centred_cosine=float(centred.mean()),
        max_difference=float(np.nan_to_num(np.abs(np.stack(results) - torch), nan=2.0).max()),
        max_norm_error=float(np.nan_to_num(np.abs(norms - 1), nan=1.0).max()),
        floor=EXPORT_FLOORS[variant],
        date=datetime.now(UTC).date().isoformat(),
        versions={name: version(name) for name in ("torch", "onnx", "onnxruntime")},
    )


def _in_batches(run: EmbedPixels, pixels: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([run(pixels[i : i + size]) for i in range(0, len(pixels), size)]).astype(np.float64)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows; NaN where one is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: np.ndarray = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result


# Cost in retrieval


@dataclass(frozen=True)
class ReferenceRetrieval:
    """The fp32 graph's retrieval on a test split, with which other precisions are compared.

    Attributes:
        dataset: The readable images of the test split.
        measured: fp32's result per query.
        unreadable: The number of images of a folder that were left out.
        notes: Remarks for readers of the costs.
    """

    dataset: Dataset
    measured: PerQuery
    unreadable: int = 0
    notes: tuple[str, ...] = ()

    def cost(self, folder: Path, card: Card, run: EmbedPixels, precision: str) -> dict[str, Any]:
        """Measure what a precision costs in retrieval; see `zoo.evaluation.remeasure.precision_cost`.

        Args:
            folder: The model folder.
            card: Its card.
            run: The graph in that precision.
            precision: Its name.
        """
        variant = _measure(self.dataset, folder, card, run, precision)
        cost = precision_cost(self.dataset, self.measured, variant, precision)
        return {**cost, "unreadable": self.unreadable} if self.unreadable else cost


def reference_retrieval(folder: Path, card: Card, run: EmbedPixels, data: Path | None = None) -> ReferenceRetrieval:
    """Measure fp32's retrieval on the test classes of the model's data set.

    For a folder of images without splits these are the classes that the model's recipe.json holds out, else a part that
    is drawn. A model that
    names no known data set, such as a public backbone, is measured on the folder `data`.

    Args:
        folder: The model folder.
        card: Its card.
        run: The fp32 graph.
        data: The folder of the data sets, or the folder of images.

    Raises:
        ExportError: If the card's data set has no test classes here.
        ZooError: If the data set cannot be read or measured.
    """
    name = card.dataset if card.dataset in DATASETS else FOLDER
    if name == FOLDER and data is None:
        origin = "was trained on a folder of images" if card.dataset == FOLDER else "names no data set of the zoo"
        message = f"the model {origin}; name a folder with one subfolder per class: --data DIR"
        raise ExportError(message, code="too-few-samples")
    unreadable: dict[str, ImageError] = {}
    split = find_held_out(folder, card, name, "test", folder_for(name, data))
    if split.dataset.split == WHOLE:
        message = (
            f"the folder has fewer than {LEAST_TO_SPLIT} classes and does not say which are for testing (folders train "
            "and test, or a table's column split, would)"
        )
        raise ExportError("; ".join((*split.notes, message)), code="too-few-samples")
    measured = _measure(split.dataset, folder, card, run, "fp32", unreadable)
    if len(np.unique(measured.classes)) < 2:
        raise ExportError("the test split has a single class", code="too-few-samples")
    left_out = (f"left out: {error}" for error in unreadable.values())
    return ReferenceRetrieval(without(split.dataset, unreadable), measured, len(unreadable), (*split.notes, *left_out))


def _measure(
    dataset: Dataset,
    folder: Path,
    card: Card,
    run: EmbedPixels,
    precision: str,
    unreadable: dict[str, ImageError] | None = None,
) -> PerQuery:
    model = Embedder(card, folder, "onnx", precision, "cpu", run)
    return measure_retrieval(dataset, model, sys.stderr.isatty(), unreadable)


# Images


@dataclass(frozen=True)
class CalibrationImages:
    """Images for int8, as pixels uint8 [n, h, w, c].

    Attributes:
        source: The name of the data set, folder or table.
        calibration: Training images.
        held_out: Images that calibration does not see.
    """

    source: str
    calibration: np.ndarray
    held_out: np.ndarray


def noise_images(preprocessing: Preprocessing) -> np.ndarray:
    """Draw noise from flat to full contrast, so that every range of values occurs."""
    draw = np.random.default_rng(0)
    contrast = np.linspace(0.05, 1, NOISE_COUNT).reshape(-1, 1, 1, 1)
    return (127.5 + 127.5 * contrast * draw.uniform(-1, 1, (NOISE_COUNT, *preprocessing.shape))).astype(np.uint8)


def pattern_images(preprocessing: Preprocessing) -> list[np.ndarray]:
    """Draw coarse patterns with some grain, larger and smaller than the crop, wide and tall: uint8 [h, w, channels]."""
    draw = np.random.default_rng(0)
    side = preprocessing.crop
    images = []
    for height, width in (
        (side, side),
        (2 * side + 1, 3 * side - 2),
        (3 * side, 2 * side + 5),
        (2 * side // 3 + 1, side),
    ):
        coarse = Image.fromarray(draw.integers(0, 256, (4, 5, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))[..., : preprocessing.channels]
        images.append(np.clip(smooth + draw.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8))
    return images


def draw_calibration_images(
    card: Card,
    source: str | None = None,
    data: Path | None = None,
    count: int = CALIBRATION_COUNT,
    folder: Path | None = None,
) -> CalibrationImages:
    """Draw training images at random, and some that are held out. Labels do not matter.

    Args:
        card: The model's card.
        source: A data set's name (its train split calibrates, its test split is held out), or a folder or table of
            images, of which a part is held out; by default the data set that the model was trained on.
        data: The folder that has that data set.
        count: The number of images that calibrate.
        folder: The model folder. If its recipe.json says which classes of the folder or table the model was trained
            on, these calibrate, because costs are measured on the others.

    Raises:
        ExportError: If there are no such images.
        UsageError: If the source is neither a data set, a folder nor a table.
        DatasetError: If there is no such folder.
    """
    name = source or card.dataset
    if name == FOLDER and data is not None and not has_splits(data):
        return _draw_parts(card, data, _trained_on(folder, card, data) or list_unlabelled(data), count)
    if name in DATASETS and not (name == FOLDER and data is None):
        train, test = _load_split(card, name, "train", data), _load_split(card, name, "test", data)
        return CalibrationImages(
            f"{name}, train split",
            _draw_pixels(train, card.preprocessing, count, 0, skip=name == FOLDER),
            _draw_pixels(test, card.preprocessing, HELD_OUT_COUNT, 1, skip=name == FOLDER),
        )
    if source is None:
        raise _needs_images(card, f"{card.name} does not say where they are (its data set is {card.dataset!r}).")
    if not _is_own_images(source):
        raise unknown("calibration data set, folder or table", source, _data_set_names())
    return _draw_parts(card, Path(source), _trained_on(folder, card, Path(source)) or list_unlabelled(source), count)


def images_folder(card: Card, source: str | None) -> Path | None:
    """Return the folder or table that calibrates int8, if costs are measured on it too; else None.

    They are if the model was trained on a folder or names no data set: its held-out classes are then in `source`.
    """
    if source is None or (card.dataset in DATASETS and card.dataset != FOLDER) or not _is_own_images(source):
        return None
    return Path(source)


def _is_own_images(source: str) -> bool:
    return source not in DATASETS and (expand(source).is_dir() or is_table(source))


def _trained_on(folder: Path | None, card: Card, data: Path) -> Sequence[ImageLike]:
    """Return the images of the classes that recipe.json records, or of the split train; none if there is neither."""
    if folder is None:
        return []
    try:
        dataset = find_held_out(folder, card, FOLDER, "train", data).dataset
    except ZooError:  # `data` has no classes, and calibration needs none
        return []
    return dataset.images if dataset.split != WHOLE else []


def _draw_parts(card: Card, source: Path, images: Sequence[ImageLike], count: int) -> CalibrationImages:
    """Draw a part of a folder's or table's images to calibrate on, and another that is held out."""
    order = np.random.default_rng(0).permutation(len(images))
    if len(order) < 2:
        message = f"{source} holds {len(order)} images; at least two are needed, a hundred are enough."
        raise ExportError(message, code="too-few-samples")
    held = min(HELD_OUT_COUNT, len(order) // 3 or 1)
    calibration, held_out = [images[i] for i in order[held:]], [images[i] for i in order[:held]]
    return CalibrationImages(
        f"{'table' if is_table(source) else 'folder'} {expand(source).name}",
        _draw_pixels(calibration, card.preprocessing, count, 0, skip=True),
        _draw_pixels(held_out, card.preprocessing, held, 1, skip=True),
    )


def _load_split(card: Card, name: str, split: str, data: Path | None) -> Sequence[ImageLike]:
    try:
        return _load_images(name, split, data)
    except ZooError as error:
        raise _needs_images(card, f"{name} is not available: {error}") from None


def _needs_images(card: Card, why: str) -> ExportError:
    return ExportError(
        f"int8 is calibrated on training images, and {why} Name one of {', '.join(_data_set_names())}, or a folder or "
        f"table of images: zoo export {card.name} --precision int8 --calibration DIR",
        code="too-few-samples",
    )


@lru_cache(maxsize=2)
def _load_images(name: str, split: str, data: Path | None) -> Sequence[ImageLike]:
    """Load a data set's images. It takes seconds, and exports of many models need the same ones."""
    return load_dataset(name, split, folder_for(name, data)).images


def _draw_pixels(
    images: Sequence[ImageLike], preprocessing: Preprocessing, count: int, seed: int, skip: bool = False
) -> np.ndarray:
    """Draw up to `count` images at random. skip: replace an unreadable image by another one."""
    pixels: list[np.ndarray] = []
    first: ImageError | None = None
    for i in np.random.default_rng(seed).permutation(len(images)):
        try:
            pixels.append(to_pixels(images[int(i)], preprocessing))
        except ImageError as error:
            if not skip:
                raise
            first = first or error
        if len(pixels) == count:
            break
    if not pixels:
        raise ExportError(none_readable_message(len(images), first), code="no-images")
    return np.stack(pixels)


def _data_set_names() -> list[str]:
    return [name for name in DATASETS if name != FOLDER]
