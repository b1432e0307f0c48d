"""Parity with torch; cost in R@1 and MAP@R.

Proof that an exported graph gives the torch model's embeddings.

What a precision costs in retrieval: the same queries with fp32 and with the variant, class by class.

The images that exports are calibrated on and compared on, through the one preprocessing path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from zoo.data import DATASETS, load_dataset
from zoo.data.dataset import FOLDER, WHOLE, Dataset
from zoo.data.folder import has_splits, list_unlabelled
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.data.table import is_table
from zoo.errors import ExportError, ImageError, UsageError, ZooError, nearest, none_readable_message
from zoo.evaluation.remeasure import measure_retrieval, precision_cost
from zoo.evaluation.retrieval import PerQuery
from zoo.evaluation.split import find_split, read_split_record
from zoo.models.card import Card
from zoo.models.golden import read_golden
from zoo.models.load import Embedder
from zoo.models.results import EXPORT_FLOORS
from zoo.paths import expand

EmbedPixels = Callable[[np.ndarray], np.ndarray]

BATCHES = (1, 2, 7, 32)
NORM_ERROR = 1e-5


@dataclass(frozen=True)
class Parity:
    """How near a graph's embeddings are to torch's, over `images` images in batches of several sizes.

    centred_cosine: the mean cosine after torch's mean embedding is taken from both, which shows differences between
    images even where all embeddings lie close together. details: what was kept in float and how int8 was calibrated.
    cost: what the precision costs in retrieval, where it was measured. forced: it is there though under its floor.
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
        return self.min_cosine >= self.floor and self.max_norm_error < NORM_ERROR

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def measure_parity(expected: np.ndarray, run: EmbedPixels, pixels: np.ndarray, variant: str) -> Parity:
    """Compare `run` with torch's embeddings `expected` [n, dim] of the pixels, in batches of four sizes."""
    torch = expected.astype(np.float64)
    gots = [_in_batches(run, pixels, size) for size in BATCHES]
    cosines = np.stack([_cosines(got, torch) for got in gots])
    return Parity(
        variant=variant,
        images=len(pixels),
        # NaN is below every floor.
        min_cosine=float(np.nan_to_num(cosines, nan=-1.0).min()),
        mean_cosine=float(np.nan_to_num(cosines, nan=-1.0).mean()),
        centred_cosine=float(np.nan_to_num(_cosines(gots[-1] - torch.mean(0), torch - torch.mean(0)), nan=-1.0).mean()),
        max_difference=float(np.nan_to_num(np.abs(np.stack(gots) - torch), nan=2.0).max()),
        max_norm_error=float(np.nan_to_num(np.abs(np.linalg.norm(np.stack(gots), axis=2) - 1), nan=1.0).max()),
        floor=EXPORT_FLOORS[variant],
        date=datetime.now(UTC).date().isoformat(),
        versions={name: version(name) for name in ("torch", "onnx", "onnxruntime")},
    )


def _in_batches(run: EmbedPixels, pixels: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([run(pixels[i : i + size]) for i in range(0, len(pixels), size)]).astype(np.float64)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows; NaN where one is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: np.ndarray = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result


UNPARTED = (
    "the folder does not say which classes are for testing (folders train and test, or a table's column split, would)"
)


@dataclass(frozen=True)
class ReferenceRetrieval:
    """The fp32 graph's retrieval on the test split that a model is measured on. unreadable: how many of a folder's
    images were left out. notes: what whoever reads the costs should know, in words."""

    dataset: Dataset
    measured: PerQuery
    unreadable: int = 0
    notes: tuple[str, ...] = ()

    def cost(self, folder: Path, card: Card, run: EmbedPixels, precision: str) -> dict[str, Any]:
        """What `zoo.evaluation.remeasure.precision_cost` gives of the variant, and how many images were left out."""
        variant = _retrieval(self.dataset, _embedder(folder, card, run, precision))
        cost = precision_cost(self.dataset, self.measured, variant, precision)
        return {**cost, "unreadable": self.unreadable} if self.unreadable else cost


def reference_retrieval(
    folder: Path, card: Card, run: EmbedPixels, data: Path | None = None
) -> ReferenceRetrieval | str:
    """fp32's retrieval on the test classes of the card's data set; or, in words, why it cannot be measured.

    Of a folder that is not parted these are the classes that the model's recipe.json says were held out.
    """
    if card.dataset not in DATASETS:
        return f"{card.dataset!r} is no data set that is known here"
    if card.dataset == FOLDER and data is None:
        return "the model was trained on a folder of images; name one with a subfolder a class: --data DIR"
    unreadable: dict[str, ImageError] = {}
    try:
        found = find_split(folder, card, card.dataset, "test", data)
        if found.dataset.split == WHOLE:
            return "; ".join((*found.notes, UNPARTED))
        measured = _retrieval(found.dataset, _embedder(folder, card, run, "fp32"), unreadable)
    except ZooError as error:
        return str(error)
    if len(np.unique(measured.classes)) < 2:
        return "there is a single class to test on"
    left_out = (f"left out: {error}" for error in unreadable.values())
    return ReferenceRetrieval(found.dataset, measured, len(unreadable), (*found.notes, *left_out))


def _retrieval(
    dataset: Dataset, model: Embedder, unreadable: MutableMapping[str, ImageError] | None = None
) -> PerQuery:
    return measure_retrieval(dataset, model, sys.stderr.isatty(), unreadable)


def _embedder(folder: Path, card: Card, run: EmbedPixels, precision: str) -> Embedder:
    return Embedder(card, folder, "onnx", precision, "cpu", run)


CALIBRATION_COUNT = 128
HELD_OUT_COUNT = 61
NOISE_COUNT = 60


@dataclass(frozen=True)
class CalibrationImages:
    """Pixels uint8 [n, h, w, c]: training images to calibrate on, and others that calibration never saw."""

    source: str
    calibration: np.ndarray
    held_out: np.ndarray


def golden_pixels(folder: Path, card: Card) -> np.ndarray:
    """The model folder's golden images as pixels."""
    return np.stack([to_pixels(image, card.preprocessing) for image in read_golden(folder)[0]])


def noise_images(how: Preprocessing) -> np.ndarray:
    """Noise from flat to full contrast, so that no range of values goes unseen."""
    draw = np.random.default_rng(0)
    contrast = np.linspace(0.05, 1, NOISE_COUNT).reshape(-1, 1, 1, 1)
    return (127.5 + 127.5 * contrast * draw.uniform(-1, 1, (NOISE_COUNT, *how.shape))).astype(np.uint8)


def pattern_images(how: Preprocessing) -> list[np.ndarray]:
    """Coarse patterns with some grain, larger and smaller than the crop, wide and tall: uint8 [h, w, channels]."""
    draw = np.random.default_rng(0)
    side = how.crop
    sizes = [(side, side), (2 * side + 1, 3 * side - 2), (3 * side, 2 * side + 5), (2 * side // 3 + 1, side)]
    made = []
    for height, width in sizes:
        coarse = Image.fromarray(draw.integers(0, 256, (4, 5, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))[..., : how.channels]
        made.append(np.clip(smooth + draw.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8))
    return made


def draw_calibration_images(
    card: Card,
    source: str | None = None,
    data: Path | None = None,
    count: int = CALIBRATION_COUNT,
    folder: Path | None = None,
) -> CalibrationImages:
    """`count` training images and some held out, drawn at random.

    source: a data set's name (its train split calibrates, its test split is held out), or a folder or table of images,
    of which a part is held out; by default the data set that the model was trained on. data: where that data set lies.
    Labels play no part; of a folder or table, what cannot be read is passed over. folder: the model's, whose
    recipe.json may say which classes of `data` it learnt from: these calibrate, as costs are measured on the others.

    Raises `ExportError` where there are no such images, `UsageError` for a source that is none, `DatasetError` where
    there is no such folder.
    """
    name = source or card.dataset
    if name == FOLDER and data is not None and not has_splits(data):
        return _parted(card, data, _learnt(folder, card, data) or list_unlabelled(data), count)
    if name in DATASETS and not (name == FOLDER and data is None):
        train, test = _split(card, name, "train", data), _split(card, name, "test", data)
        return CalibrationImages(
            f"{name}, train split",
            _pixels(train, card.preprocessing, count, 0, skip=name == FOLDER),
            _pixels(test, card.preprocessing, HELD_OUT_COUNT, 1, skip=name == FOLDER),
        )
    if source is None or not (expand(source).is_dir() or is_table(source)):
        raise ExportError(_no_images(card)) if source is None else UsageError(_no_source(source))
    return _parted(card, Path(source), list_unlabelled(source), count)


def _learnt(folder: Path | None, card: Card, data: Path) -> Sequence[ImageLike]:
    """The images of the classes that the model learnt from; none where that is not known, or they are not all here."""
    try:
        if folder is None or read_split_record(folder) is None:
            return []
        found = find_split(folder, card, FOLDER, "train", data).dataset
    except ZooError:  # classes are not told apart here, and need not be
        return []
    return found.images if found.split != WHOLE else []


def _parted(card: Card, source: Path, found: Sequence[ImageLike], count: int) -> CalibrationImages:
    """A part of a folder's or table's images to calibrate on, and another that is held out."""
    drawn = np.random.default_rng(0).permutation(len(found))
    if len(drawn) < 2:
        raise ExportError(f"{source} holds {len(drawn)} images; at least two are needed, a hundred are enough.")
    held = min(HELD_OUT_COUNT, len(drawn) // 3 or 1)
    calibration, held_out = [found[i] for i in drawn[held:]], [found[i] for i in drawn[:held]]
    return CalibrationImages(
        f"{'table' if is_table(source) else 'folder'} {expand(source).name}",
        _pixels(calibration, card.preprocessing, count, 0, skip=True),
        _pixels(held_out, card.preprocessing, held, 1, skip=True),
    )


def _split(card: Card, name: str, split: str, data: Path | None) -> Sequence[ImageLike]:
    try:
        return _loaded(name, split, data)
    except ZooError as error:
        raise ExportError(
            f"int8 is calibrated on training images, and {name} cannot be had: {error} Or name other images: "
            f"zoo export {card.name} --precision int8 --calibration DATASET, DIR or TABLE.csv"
        ) from None


@lru_cache(maxsize=2)
def _loaded(name: str, split: str, data: Path | None) -> Sequence[ImageLike]:
    """Reading a data set takes seconds, and whoever exports many models asks for the same one each time."""
    return load_dataset(name, split, data).images


def _pixels(images: Sequence[ImageLike], how: Preprocessing, count: int, seed: int, skip: bool = False) -> np.ndarray:
    """Up to `count` images, drawn at random. skip: of images that cannot be read another takes the place."""
    made: list[np.ndarray] = []
    first: ImageError | None = None
    for i in np.random.default_rng(seed).permutation(len(images)):
        try:
            made.append(to_pixels(images[int(i)], how))
        except ImageError as error:
            if not skip:
                raise
            first = first or error
        if len(made) == count:
            break
    if not made:
        raise ExportError(none_readable_message(len(images), first))
    return np.stack(made)


_NAMES = [name for name in DATASETS if name != FOLDER]
_KNOWN = f"one of {', '.join(_NAMES)}, or a folder or table of images"


def _no_source(source: str) -> str:
    return f"--calibration is {_KNOWN}, not {source!r}.{nearest(source, _NAMES)}"


def _no_images(card: Card) -> str:
    if card.dataset == "folder":
        return (
            f"int8 is calibrated on training images, and {card.name} was trained on those of a folder. Name it: "
            f"zoo export {card.name} --precision int8 --calibration DIR. With --data DIR instead, a folder with a "
            "subfolder a class, what int8 costs in retrieval is measured on it as well."
        )
    return (
        f"int8 is calibrated on training images, and {card.name} does not say which: its data set is {card.dataset!r}. "
        f"Name some: --calibration with {_KNOWN}."
    )
