"""CUB-200-2011: photographs of 200 kinds of birds (Wah, Branson, Welinder, Perona, Belongie 2011, CNS-TR-2011-001).

Split by class, as metric learning does (Oh Song et al. 2016, Lifted Structured Feature Embedding): the
first 100 classes train, the other 100 test. The authors' own split, within classes, isn't used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zoo.datasets.dataset import Dataset
from zoo.datasets.listing import Listing, listed_dataset, read_rows
from zoo.datasets.published import Counts, Published

SOURCE = Published(
    name="cub",
    title="CUB-200-2011",
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    folders=("CUB_200_2011",),
    marks=("images.txt",),
    archives=("CUB_200_2011.tgz",),
    unfetched="It is not fetched for you: its photographs are others' own, for research that is not commercial alone.",
)
EXPECTED = {"train": Counts(5_864, 100), "test": Counts(5_924, 100)}


def load(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = EXPECTED) -> Dataset:
    """One split of the folder `CUB_200_2011` as its archive holds it: paths of JPEG files of about 500 x 375.

    Read are `images.txt`, `image_class_labels.txt` and `images/`. Classes are named as the folders
    ("001.Black_footed_Albatross"); those numbered up to the count of training classes are for training.
    Raises `DatasetError` if it is nowhere, incomplete, or not as published.
    """
    root = SOURCE.find(data)
    path = root / "images.txt"
    images = read_rows(SOURCE, path, (int, str))
    labels = read_rows(SOURCE, root / "image_class_labels.txt", (int, int))
    if sorted(number for number, _ in images) != sorted(number for number, _ in labels):
        raise SOURCE.spoilt(f"{path} and image_class_labels.txt do not number the same images.")
    class_of = dict(labels)
    trains = expected["train"].classes
    chosen = [(name, class_of[number]) for number, name in images if (class_of[number] <= trains) == (split == "train")]
    listing = Listing(path, root / "images", [name for name, _ in chosen], [label for _, label in chosen])
    return listed_dataset(SOURCE, split, listing, expected[split], _titles(listing))


def _titles(listing: Listing) -> dict[int, str]:
    """Class number -> the folder that its images lie in."""
    titles: dict[int, str] = {}
    for name, label in zip(listing.names, listing.classes, strict=True):
        folder = name.rpartition("/")[0]
        if titles.setdefault(label, folder) != folder:
            raise SOURCE.spoilt(f"{listing.path}: class {label} has images in both {titles[label]} and {folder}.")
    return titles
