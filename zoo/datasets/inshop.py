"""In-Shop Clothes Retrieval of DeepFashion: 52,712 photographs of 7,982 garments (Liu, Luo, Qiu, Wang, Tang 2016,
DeepFashion). The split, by garment, is the authors' own; the test images are queries and a gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.datasets.listing import Listing, listed_dataset, read_rows
from zoo.datasets.published import Counts, Published

SOURCE = Published(
    name="inshop",
    title="DeepFashion In-Shop Clothes Retrieval",
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    folders=("inshop", "In-shop Clothes Retrieval Benchmark"),
    marks=("Eval/list_eval_partition.txt", "list_eval_partition.txt"),
    archives=("Img/img.zip", "img.zip"),
    unfetched="It is not fetched for you: its authors give it to whoever accepts their terms, from a drive with login.",
)
EXPECTED = {
    "train": Counts(25_882, 3_997),
    "test": Counts(26_830, 3_985),
    "query": Counts(14_218, 3_985),
    "gallery": Counts(12_612, 3_985),
}

_PARTS = {"train": ("train",), "test": ("query", "gallery")}


def load(split: str, data: str | Path | None = None, expected: Mapping[str, Counts] = EXPECTED) -> Dataset:
    """One split as its archives hold it: paths of JPEG files of 256 x 256, classes "id_00000001", sorted.

    Read are `Eval/list_eval_partition.txt` and `Img/img/` (`list_eval_partition.txt` and `img/` do as well).
    Factor of the test split: `query`, 1 for the images that search, 0 for the gallery, the only ones searched.
    Raises `DatasetError` if it is nowhere, incomplete, or not as published.
    """
    root = SOURCE.find(data)
    path = next((path for mark in SOURCE.marks if (path := root / mark).is_file()), root / SOURCE.marks[0])
    parts = _PARTS[split]
    rows = [row for row in read_rows(SOURCE, path, (str, str, _part), header=2) if row[2] in parts]
    base = root if (root / "img").is_dir() else root / "Img"
    listing = Listing(path, base, [name for name, _, _ in rows], [item for _, item, _ in rows])
    if split == "train":
        return listed_dataset(SOURCE, split, listing, expected[split])
    for part in parts:
        items = [item for _, item, status in rows if status == part]
        SOURCE.check_counts(path, part, Counts(len(items), len(set(items))), expected[part])
    query = np.array([status == "query" for *_, status in rows], dtype=np.int64)
    return listed_dataset(SOURCE, split, listing, expected[split], factors={"query": query})


def _part(text: str) -> str:
    """`text`, if it is what the list may say of an image; else a `ValueError`, which makes the line a broken one."""
    if text not in ("train", "query", "gallery"):
        raise ValueError(text)
    return text
