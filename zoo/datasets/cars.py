"""Cars196, the Stanford Cars: 16,185 photographs of 196 models (Krause, Stark, Deng, Fei-Fei 2013, 3D Object
Representations for Fine-Grained Categorization).

Split by class, as metric learning does (Oh Song et al. 2016, Lifted Structured Feature Embedding): the
first 98 classes train, the other 98 test. The authors' own split, within classes, isn't used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.datasets.listing import Listing, listed_dataset
from zoo.datasets.published import Counts, Published
from zoo.errors import missing

SOURCE = Published(
    name="cars",
    title="Cars196",
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (or, where that is gone, a mirror of the same files)",
    folders=("cars196", "stanford_cars"),
    marks=("cars_annos.mat", "car_ims", "devkit/cars_train_annos.mat"),
    archives=("car_ims.tgz", "car_devkit.tgz", "cars_train.tgz", "cars_test.tgz"),
    unfetched="It is not fetched for you: its authors no longer offer the files, and gave no licence to pass them on.",
)
EXPECTED = {"train": Counts(8_054, 98), "test": Counts(8_131, 98)}


@dataclass(frozen=True)
class _Annotations:
    """What is known of all images: names relative to the root, class numbers from 1, and the classes' names."""

    path: Path
    names: list[str]
    numbers: list[int]
    classes: list[str]


def load(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = EXPECTED) -> Dataset:
    """One split, as paths of JPEG files of many sizes; classes as published ("AM General Hummer SUV 2000").

    Read are either `cars_annos.mat` and `car_ims/`, or `devkit/`, `cars_train/` and `cars_test/`, the devkit with
    `cars_meta.mat`, `cars_train_annos.mat` and `cars_test_annos_withlabels.mat` (which may also lie beside it).
    Raises `DatasetError` if it is nowhere, incomplete, or not as published, and `MissingDependencyError` without SciPy.
    """
    root = SOURCE.find(data)
    in_two = (root / "devkit").is_dir() and not (root / "car_ims").is_dir()
    known = _in_two_folders(root) if in_two else _in_one_folder(root)
    if wrong := sorted({number for number in known.numbers if not 1 <= number <= len(known.classes)}):
        raise SOURCE.spoilt(f"{known.path} has class {wrong[0]}, but names {len(known.classes)} classes.")
    trains = expected["train"].classes
    chosen = [i for i, number in enumerate(known.numbers) if (number <= trains) == (split == "train")]
    listing = Listing(known.path, root, [known.names[i] for i in chosen], [known.numbers[i] for i in chosen])
    return listed_dataset(SOURCE, split, listing, expected[split], dict(enumerate(known.classes, 1)))


def _in_one_folder(root: Path) -> _Annotations:
    path = root / "cars_annos.mat"
    return _Annotations(path, *_images(path, "relative_im_path"), _class_names(path))


def _in_two_folders(root: Path) -> _Annotations:
    devkit = root / "devkit"
    # The labels of the test images were published later, as a file of their own.
    late = "cars_test_annos_withlabels.mat"
    tested = root / late if (root / late).is_file() else devkit / late
    names, numbers = _images(devkit / "cars_train_annos.mat", "fname")
    test_names, test_numbers = _images(tested, "fname")
    files = [f"cars_train/{name}" for name in names] + [f"cars_test/{name}" for name in test_names]
    return _Annotations(devkit, files, numbers + test_numbers, _class_names(devkit / "cars_meta.mat"))


def _images(path: Path, name: str) -> tuple[list[str], list[int]]:
    """The field `name` and the class of each entry of a MAT file's `annotations`."""
    entries = _read(path, "annotations")
    try:
        return [str(value) for value in entries[name]], [int(value) for value in entries["class"]]
    except (IndexError, ValueError, TypeError):
        raise SOURCE.spoilt(f"the annotations in {path} do not have a {name} and a class for each image.") from None


def _class_names(path: Path) -> list[str]:
    return [str(name) for name in _read(path, "class_names")]


def _read(path: Path, variable: str) -> np.ndarray:
    """A variable of a MAT file, at least 1-D; a struct array has one field a column."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise missing("SciPy", "cars") from None
    if not path.is_file():
        raise SOURCE.spoilt(f"{path} is missing.", path)
    try:
        found: Any = loadmat(path, squeeze_me=True, variable_names=[variable])[variable]
    except Exception as error:  # SciPy's reader raises nearly anything on damaged data
        raise SOURCE.spoilt(f"{path} cannot be read for its {variable}: {error or type(error).__name__}.") from None
    return np.atleast_1d(found)
