"""Spellings of labels: classes whose names differ by spaces, letter case or Unicode form alone."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from zoo.console import count, note_once
from zoo.data.dataset import Dataset

NAMED = 3
"""Groups of spellings that a note names."""


def spellings(classes: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of two or more names that differ by spaces, letter case or Unicode form alone."""
    groups = defaultdict(list)
    for name in classes:
        groups[_plain(name)].append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def merge_spellings(dataset: Dataset) -> Dataset:
    """Return a data set in which such names are one class, named by the spelling that most of its images have."""
    counts = dict(zip(dataset.classes, np.bincount(dataset.labels, minlength=len(dataset.classes)), strict=True))
    chosen = {name: max(group, key=lambda each: counts[each]) for group in spellings(counts) for name in group}
    names = [chosen.get(name, name) for name in dataset.classes]
    classes, codes = np.unique(names, return_inverse=True)
    return replace(dataset, labels=codes[dataset.labels].astype(np.int64), classes=tuple(map(str, classes)))


def note_spellings(dataset: Dataset, merge: str) -> None:
    """Say on stderr, once for a data set, which classes may be one; `merge` is the command that merges them."""
    if groups := spellings(dataset.classes):
        named = "; ".join(" and ".join(map(repr, group)) for group in groups[:NAMED])
        more = f"; and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
        what = "differs from another" if len(groups) == 1 else "differ from others"
        note_once(
            f"{dataset.title}: {count(len(groups), 'class')} {what} by spaces, letter case or Unicode form alone: "
            f"{named}{more}. They count as different classes. To merge them: {merge}"
        )


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
