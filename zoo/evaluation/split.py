"""Which classes of a person's own pictures a model learnt and which were held out, found again in the folder of them.

`zoo finetune` and `zoo distill` part a folder or a table by class; both write how into recipe.json (`split`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data import load_dataset
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.folder import sources_sha256
from zoo.errors import DatasetError
from zoo.files import read_object
from zoo.models.card import Card

RECIPE_FILE = "recipe.json"


@dataclass(frozen=True)
class SplitRecord:
    """What recipe.json says. train, test: names of classes, none in both. images: how many there were of all of them.
    images_sha256: `digest_of` their sources, train's first. seen: classes of test that the model or teacher that it was
    made from had learnt."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    images: int
    images_sha256: str
    seen: tuple[str, ...] = ()

    def classes(self, split: str) -> tuple[str, ...]:
        return self.train if split == "train" else self.test


@dataclass(frozen=True)
class EvaluationSplit:
    """What a model is to be measured on. same: whether the images are those of the record; None where none was used.
    notes: what whoever reads the scores should know, in words."""

    dataset: Dataset
    same: bool | None = None
    notes: tuple[str, ...] = ()


def find_split(folder: Path, card: Card, name: str, split: str, data: str | Path | None = None) -> EvaluationSplit:
    """The split of the data set `name` that the model in `folder` is measured on.

    Where it was made of a folder of pictures and `data` is a folder (or table) that is not parted and holds the classes
    that its record names for the split, these are; else what `zoo.data.load_dataset` gives, whose errors are raised.
    """
    record = read_split_record(folder) if name == card.dataset == FOLDER and split in SPLITS else None
    if record is None:
        return _whole_split(load_dataset(name, split, data), split)
    names = record.classes(split)
    if data is None:
        raise DatasetError(
            f"{card.name} was made of a folder of pictures, and its {RECIPE_FILE} does not say where that lies: name it, or "
            f"its table, with --data DIR, in Python data='DIR'. The {len(names)} classes that "
            f"{_which(card.name, split)} ({_some(names)}) are measured."
        )
    whole = load_dataset(name, split, data)
    missing = sorted(set(names) - set(whole.classes))
    if whole.split != WHOLE or missing:
        return EvaluationSplit(whole, notes=tuple(_otherwise(card.name, record, whole, split, missing)))
    same = _is_same(whole, record)
    # As it was measured then: each picture beside all others, whatever a table says of queries.
    part = replace(subset(whole, _in_classes(whole, names), split), factors={})
    return EvaluationSplit(part, same, tuple(_as_recorded(card.name, record, whole, split, same)))


def read_split_record(folder: Path) -> SplitRecord | None:
    """The record of the model in `folder`; None where there is none of classes, or it cannot be read."""
    recipe = read_object(folder / RECIPE_FILE)
    split = recipe.get("split")
    # Where images were held out, or folders train and test were given, their classes may be the same.
    if not isinstance(split, dict) or split.get("by", "class") != "class":
        return None
    train, test = (_names(split.get(f"{each}_classes")) for each in SPLITS)
    counts = [split.get(f"{each}_images") for each in SPLITS]
    digest = split.get("images_sha256")
    if not train or not test or set(train) & set(test) or not isinstance(digest, str):
        return None
    images = sum(count for count in counts if isinstance(count, int))
    return SplitRecord(train, test, images, digest, _names(recipe.get("seen_by_base", recipe.get("seen_by_teacher"))))


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else ()


def _in_classes(dataset: Dataset, names: Sequence[str]) -> np.ndarray:
    """bool [n]: whether an image is of one of these classes."""
    return np.isin(dataset.classes, names)[dataset.labels]


def _is_same(whole: Dataset, record: SplitRecord) -> bool:
    """Whether the folder's images of the record's classes are those that it was made of, which could all be read."""
    rows = [row for names in (record.train, record.test) for row in np.flatnonzero(_in_classes(whole, names)).tolist()]
    if sources_sha256(whole.sources[row] for row in rows) == record.images_sha256:
        return True
    if len(rows) <= record.images:
        return False
    unreadable = unreadable_images(subset(whole, _in_classes(whole, [*record.train, *record.test])))
    sources = (whole.sources[row] for row in rows)
    return sources_sha256(source for source in sources if source not in unreadable) == record.images_sha256


def _whole_split(dataset: Dataset, split: str) -> EvaluationSplit:
    # "test" is what is asked for where nobody asks; whoever says "train" expects another answer.
    unparted = split == "train" and dataset.split == WHOLE
    return EvaluationSplit(
        dataset, notes=("the folder is not parted into train and test, so it is taken whole",) * unparted
    )


def _as_recorded(name: str, record: SplitRecord, whole: Dataset, split: str, same: bool) -> Iterator[str]:
    yield (
        f"measured on the {len(record.classes(split))} classes that {_which(name, split)}, as its {RECIPE_FILE} says, of the "
        f"{len(whole.classes)} in the folder"
    )
    if not same:
        yield "the images are not all those of then: some were added, removed or renamed, or cannot be read any more"
    if split == "test" and record.seen:
        yield (
            f"{len(record.seen)} of these classes the model that {name} was made from had learnt "
            f"({_some(record.seen)}): the scores flatter it"
        )


def _otherwise(name: str, record: SplitRecord, whole: Dataset, split: str, missing: Sequence[str]) -> Iterator[str]:
    if whole.split == WHOLE:
        yield (
            f"the folder lacks {len(missing)} of the {len(record.classes(split))} classes that {_which(name, split)} "
            f"({_some(missing)}), so it is taken whole"
        )
    learnt = sorted(set(whole.classes) & set(record.train))
    if split == "test" and learnt:
        yield f"{name} learnt from classes of the same name as {len(learnt)} of these ({_some(learnt)})"


def _which(name: str, split: str) -> str:
    return f"{name} learnt from" if split == "train" else f"were held out when {name} was made"


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
