"""CUB-200-2011, Cars196, Stanford Online Products and In-Shop Clothes Retrieval, in the layouts of their archives.

CUB and Cars are split by class (Oh Song et al. 2016, Deep Metric Learning via Lifted Structured Feature Embedding): the
first half of the classes trains, the other half tests; their authors' own splits, within classes, are not used. The
splits of SOP and In-Shop are their authors' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.official import Counts, Listing, OfficialDataset, folder_titles, listed_dataset, read_rows

CUB_SOURCE = OfficialDataset(
    name="cub",
    title="CUB-200-2011",
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    folders=("CUB_200_2011",),
    marks=("images.txt",),
    archives=("CUB_200_2011.tgz",),
    unfetched="It is not fetched for you: its photographs are others' own, for research that is not commercial alone.",
)
CUB_EXPECTED = {"train": Counts(5_864, 100), "test": Counts(5_924, 100)}


def load_cub(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = CUB_EXPECTED) -> Dataset:
    """Return a split of CUB-200-2011: photographs of 200 kinds of birds (Wah et al. 2011, CNS-TR-2011-001).

    Images are paths of JPEG files of about 500 x 375 pixels; classes are named as their folders
    ("001.Black_footed_Albatross"). The layout is `images.txt`, `image_class_labels.txt` and `images/`.

    Args:
        split: "train" or "test".
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Published counts of each split.

    Raises:
        DatasetError: If the data set is missing, incomplete or not as published.
    """
    root = CUB_SOURCE.find(data)
    path = root / "images.txt"
    images = read_rows(CUB_SOURCE, path, (int, str))
    labels = read_rows(CUB_SOURCE, root / "image_class_labels.txt", (int, int))
    if sorted(number for number, _ in images) != sorted(number for number, _ in labels):
        raise CUB_SOURCE.damaged("damaged-file", f"{path} and image_class_labels.txt do not number the same images.")
    class_of = dict(labels)
    training_classes = expected["train"].classes
    rows = [(name, class_of[number]) for number, name in images]
    rows = [(name, label) for name, label in rows if (label <= training_classes) == (split == "train")]
    listing = Listing(path, root / "images", [name for name, _ in rows], [label for _, label in rows])
    return listed_dataset(CUB_SOURCE, split, listing, expected[split], folder_titles(CUB_SOURCE, listing))


CARS_SOURCE = OfficialDataset(
    name="cars",
    title="Cars196",
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (or, where that is gone, a mirror of the same files)",
    folders=("cars196", "stanford_cars"),
    marks=("cars_annos.mat", "car_ims", "devkit/cars_train_annos.mat"),
    archives=("car_ims.tgz", "car_devkit.tgz", "cars_train.tgz", "cars_test.tgz"),
    unfetched="It is not fetched for you: its authors no longer offer the files, and gave no licence to pass them on.",
)
CARS_EXPECTED = {"train": Counts(8_054, 98), "test": Counts(8_131, 98)}


@dataclass(frozen=True)
class _Annotations:
    """Annotations of all images: names relative to the root, class numbers from 1, and the names of the classes."""

    path: Path
    names: list[str]
    numbers: list[int]
    classes: list[str]


def load_cars(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = CARS_EXPECTED) -> Dataset:
    """Return a split of Cars196: 16,185 photographs of 196 models of cars (Krause et al. 2013).

    Images are paths of JPEG files of many sizes; classes are named as published ("AM General Hummer SUV 2000"). The
    layout is either `cars_annos.mat` and `car_ims/`, or `devkit/`, `cars_train/` and `cars_test/`. The devkit holds
    `cars_meta.mat`, `cars_train_annos.mat` and `cars_test_annos_withlabels.mat`, which may also be beside it.

    Args:
        split: "train" or "test".
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Published counts of each split.

    Raises:
        DatasetError: If the data set is missing, incomplete or not as published.
        MissingDependencyError: If SciPy is not installed.
    """
    root = CARS_SOURCE.find(data)
    two_folders = (root / "devkit").is_dir() and not (root / "car_ims").is_dir()
    cars = _read_two_folders(root) if two_folders else _read_one_folder(root)
    if wrong := sorted({number for number in cars.numbers if not 1 <= number <= len(cars.classes)}):
        raise CARS_SOURCE.damaged(
            "damaged-file", f"{cars.path} has class {wrong[0]}, but names {len(cars.classes)} classes."
        )
    training_classes = expected["train"].classes
    rows = [i for i, number in enumerate(cars.numbers) if (number <= training_classes) == (split == "train")]
    listing = Listing(cars.path, root, [cars.names[i] for i in rows], [cars.numbers[i] for i in rows])
    return listed_dataset(CARS_SOURCE, split, listing, expected[split], dict(enumerate(cars.classes, 1)))


def _read_one_folder(root: Path) -> _Annotations:
    path = root / "cars_annos.mat"
    return _Annotations(path, *_read_annotations(path, "relative_im_path"), _read_class_names(path))


def _read_two_folders(root: Path) -> _Annotations:
    devkit = root / "devkit"
    # The labels of the test images were published later, in a separate file.
    file = "cars_test_annos_withlabels.mat"
    test_annotations = root / file if (root / file).is_file() else devkit / file
    names, numbers = _read_annotations(devkit / "cars_train_annos.mat", "fname")
    test_names, test_numbers = _read_annotations(test_annotations, "fname")
    files = [f"cars_train/{name}" for name in names] + [f"cars_test/{name}" for name in test_names]
    return _Annotations(devkit, files, numbers + test_numbers, _read_class_names(devkit / "cars_meta.mat"))


def _read_annotations(path: Path, name: str) -> tuple[list[str], list[int]]:
    """Return the field `name` and the class of each entry of a MAT file's `annotations`."""
    entries = _read_variable(path, "annotations")
    try:
        return [str(value) for value in entries[name]], [int(value) for value in entries["class"]]
    except (IndexError, ValueError, TypeError):
        raise CARS_SOURCE.damaged(
            "unreadable-file", f"the annotations in {path} do not have a {name} and a class for each image."
        ) from None


def _read_class_names(path: Path) -> list[str]:
    return [str(name) for name in _read_variable(path, "class_names")]


def _read_variable(path: Path, variable: str) -> np.ndarray:
    """Return a variable of a MAT file, at least 1-D; a struct array is indexed by field."""
    from scipy.io import loadmat

    if not path.is_file():
        raise CARS_SOURCE.damaged("missing-file", f"{path} is missing.", path)
    try:
        value: Any = loadmat(path, squeeze_me=True, variable_names=[variable])[variable]
    except Exception as error:  # SciPy's reader raises nearly anything on damaged data
        raise CARS_SOURCE.damaged(
            "unreadable-file", f"{path} cannot be read for its {variable}: {error or type(error).__name__}."
        ) from None
    return np.atleast_1d(value)


SOP_SOURCE = OfficialDataset(
    name="sop",
    title="Stanford Online Products",
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    folders=("Stanford_Online_Products",),
    marks=("Ebay_train.txt", "Ebay_test.txt"),
    archives=("Stanford_Online_Products.zip",),
    unfetched="It is not fetched for you: its pictures are sellers' own, and its authors gave no licence for them.",
)
SOP_EXPECTED = {"train": Counts(59_551, 11_318), "test": Counts(60_502, 11_316)}


def load_sop(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = SOP_EXPECTED) -> Dataset:
    """Return a split of Stanford Online Products: 120,053 pictures of 22,634 products (Oh Song et al. 2016).

    Images are paths of JPEG files of many sizes; classes are named "bicycle/00001". The layout is `Ebay_train.txt`,
    `Ebay_test.txt` and the folders `bicycle_final` to `toaster_final`. The factor `super_class` is the published number
    of the kind of product (1 to 12).

    Args:
        split: "train" or "test".
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Published counts of each split.

    Raises:
        DatasetError: If the data set is missing, incomplete or not as published.
    """
    root = SOP_SOURCE.find(data)
    path = root / f"Ebay_{split}.txt"
    rows = read_rows(SOP_SOURCE, path, (int, int, int, str), header=1)
    listing = Listing(path, root, [name for *_, name in rows], [label for _, label, _, _ in rows])
    titles = {label: f"{name.partition('/')[0].removesuffix('_final')}/{label:05d}" for _, label, _, name in rows}
    factors = {"super_class": np.array([kind for _, _, kind, _ in rows], dtype=np.int64)}
    return listed_dataset(SOP_SOURCE, split, listing, expected[split], titles, factors)


INSHOP_SOURCE = OfficialDataset(
    name="inshop",
    title="DeepFashion In-Shop Clothes Retrieval",
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    folders=("inshop", "In-shop Clothes Retrieval Benchmark"),
    marks=("Eval/list_eval_partition.txt", "list_eval_partition.txt"),
    archives=("Img/img.zip", "img.zip"),
    unfetched="It is not fetched for you: its authors give it to whoever accepts their terms, from a drive with login.",
)
INSHOP_EXPECTED = {
    "train": Counts(25_882, 3_997),
    "test": Counts(26_830, 3_985),
    "query": Counts(14_218, 3_985),
    "gallery": Counts(12_612, 3_985),
}

_PARTS = {"train": ("train",), "test": ("query", "gallery")}


def load_inshop(
    split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = INSHOP_EXPECTED
) -> Dataset:
    """Return a split of In-Shop Clothes Retrieval: 52,712 photographs of 7,982 garments (Liu et al. 2016, DeepFashion).

    Images are paths of JPEG files of 256 x 256 pixels; classes are named "id_00000001" and sorted. The layout is
    `Eval/list_eval_partition.txt` and `Img/img/`, or `list_eval_partition.txt` and `img/`. The test split has the
    factor `query`: 1 for queries, 0 for the gallery that they search.

    Args:
        split: "train" or "test".
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Published counts of each split, of the queries and of the gallery.

    Raises:
        DatasetError: If the data set is missing, incomplete or not as published.
    """
    root = INSHOP_SOURCE.find(data)
    path = next(
        (path for mark in INSHOP_SOURCE.marks if (path := root / mark).is_file()), root / INSHOP_SOURCE.marks[0]
    )
    parts = _PARTS[split]
    rows = [row for row in read_rows(INSHOP_SOURCE, path, (str, str, _parse_part), header=2) if row[2] in parts]
    base = root if (root / "img").is_dir() else root / "Img"
    listing = Listing(path, base, [name for name, _, _ in rows], [item for _, item, _ in rows])
    if split == "train":
        return listed_dataset(INSHOP_SOURCE, split, listing, expected[split])
    for part in parts:
        items = [item for _, item, status in rows if status == part]
        if (counts := Counts(len(items), len(set(items)))) != expected[part]:
            reason = f"{path} lists {counts} for {part}; expected {expected[part]}."
            raise INSHOP_SOURCE.damaged("damaged-file", reason)
    query = np.array([status == "query" for *_, status in rows], dtype=np.int64)
    return listed_dataset(INSHOP_SOURCE, split, listing, expected[split], factors={"query": query})


def _parse_part(text: str) -> str:
    """Return the part of an image; raise `ValueError`, which marks the line as broken, for an unknown one."""
    if text not in ("train", "query", "gallery"):
        raise ValueError(text)
    return text
