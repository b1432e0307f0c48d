"""Stanford Online Products: 120,053 pictures of 22,634 things for sale (Oh Song, Xiang, Jegelka, Savarese 2016,
Deep Metric Learning via Lifted Structured Feature Embedding). The split, by class, is the authors' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.datasets.listing import Listing, listed_dataset, read_rows
from zoo.datasets.published import Counts, Published

SOURCE = Published(
    name="sop",
    title="Stanford Online Products",
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    folders=("Stanford_Online_Products",),
    marks=("Ebay_train.txt", "Ebay_test.txt"),
    archives=("Stanford_Online_Products.zip",),
    unfetched="It is not fetched for you: its pictures are sellers' own, and its authors gave no licence for them.",
)
EXPECTED = {"train": Counts(59_551, 11_318), "test": Counts(60_502, 11_316)}


def load(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = EXPECTED) -> Dataset:
    """One split of the folder `Stanford_Online_Products` as its archive holds it: paths of JPEG files of many sizes.

    Read are `Ebay_train.txt` or `Ebay_test.txt`, and the folders `bicycle_final` to `toaster_final`. Classes are named
    "bicycle/00001". Factor: `super_class`, the published number of the kind of thing (1 to 12).
    Raises `DatasetError` if it is nowhere, incomplete, or not as published.
    """
    root = SOURCE.find(data)
    path = root / f"Ebay_{split}.txt"
    rows = read_rows(SOURCE, path, (int, int, int, str), header=1)
    listing = Listing(path, root, [name for *_, name in rows], [label for _, label, _, _ in rows])
    titles = {label: f"{name.partition('/')[0].removesuffix('_final')}/{label:05d}" for _, label, _, name in rows}
    factors = {"super_class": np.array([kind for _, _, kind, _ in rows], dtype=np.int64)}
    return listed_dataset(SOURCE, split, listing, expected[split], titles, factors)
