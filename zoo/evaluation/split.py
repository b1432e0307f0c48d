"""Split of an own image folder: the classes that a model has learnt and those that were held out.

`zoo finetune` and `zoo distill` split a folder or a table by class and record the split in recipe.json; `find_split`
selects these classes again in the folder of the images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from zoo.data import DATASETS, load_dataset
from zoo.data.content import CLASS_IMAGES, DIGEST, digests_of_classes
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.folder import sources_sha256, split_classes
from zoo.errors import DatasetError, command
from zoo.files import read_object
from zoo.models.baselines import WHITENING
from zoo.models.card import TRAINING_DATA, Card

RECIPE_FILE = "recipe.json"

LEAST_TO_SPLIT = 8
"""Classes from which some are held out. Two of seven or fewer would say little, and be missed elsewhere."""


@dataclass(frozen=True)
class SplitRecord:
    """Split by class that recipe.json records.

    Attributes:
        train: The names of the classes for training.
        test: The names of the held-out classes; none is in `train`.
        images: The number of images of all these classes.
        images_sha256: `sources_sha256` of the images, those for training first.
        seen_classes: The classes of `test` that the base model or the teacher was trained or whitened on.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    images: int
    images_sha256: str
    seen_classes: tuple[str, ...] = ()

    def classes(self, split: str) -> tuple[str, ...]:
        return self.train if split == "train" else self.test


@dataclass(frozen=True)
class EvaluationSplit:
    """Data set on which a model is measured.

    Attributes:
        dataset: The data set.
        notes: Sentences that a reader of the scores should know.
    """

    dataset: Dataset
    notes: tuple[str, ...] = ()


def find_split(folder: Path, card: Card, name: str, split: str, data: str | Path | None = None) -> EvaluationSplit:
    """Return the split of a data set on which a model is measured.

    If the model was made from a folder of images, and `data` is a folder (or table) without separate folders train and
    test that holds the recorded classes, it is these classes. Otherwise it is the result of `zoo.data.load_dataset`.

    Args:
        folder: The model folder.
        card: The model's card.
        name: The name of the data set.
        split: "train", "test" or "all".
        data: The folder of the data set.

    Raises:
        DatasetError: `data` is missing for a model that was made from a folder, or as `zoo.data.load_dataset`.
    """
    record = read_split_record(folder) if name == FOLDER and split in SPLITS else None
    if record is None:
        return _whole_split(folder, card.name, load_dataset(name, split, data), split)
    names = record.classes(split)
    if data is None:
        raise DatasetError(
            f"{card.name} was made from a folder of images, and its {RECIPE_FILE} does not say where: name the folder, "
            f"or its table, with --data DIR, in Python data='DIR'. The {len(names)} classes that "
            f"{_role(card.name, split)} ({first_names(names)}) are measured.",
            code="missing-value",
        )
    whole = load_dataset(name, split, data)
    missing = sorted(set(names) - set(whole.classes))
    if whole.split != WHOLE or missing:
        notes = [*_notes_without_record(card.name, record, whole, split, missing)]
        if split == "test":
            notes += learnt_classes(folder).among_classes(whole).notes(card.name)
        return EvaluationSplit(whole, tuple(notes))
    same = _has_same_images(whole, record)
    learnt = read_learnt_classes(folder)
    other = not same and bool(learnt.digests) and not learnt.among_classes(whole).by_images
    # As it was measured at first: each image searches all others, even if the table marks queries.
    part = replace(subset(whole, _in_classes(whole, names), split), factors={})
    return EvaluationSplit(part, tuple(_notes_by_record(card.name, record, whole, split, same, other)))


def find_held_out(folder: Path, card: Card, name: str, split: str, data: str | Path | None = None) -> EvaluationSplit:
    """Return the split on which a change of a model's precision is measured, or on whose other part it is fitted.

    It is that of `find_split`. In a folder without parts, of which the model's recipe.json holds out no classes, a
    share of the classes is drawn. Arguments and errors are those of `find_split`.
    """
    found = find_split(folder, card, name, split, data)
    whole = found.dataset
    undecided = whole.split == WHOLE != split and read_split_record(folder) is None
    if not undecided or len(whole.classes) < LEAST_TO_SPLIT:
        return found
    parts = split_classes(whole)
    part = replace(parts.train if split == "train" else parts.test, factors={})
    note = f"{len(parts.test.classes)} of the {len(whole.classes)} classes in the folder were drawn to measure on"
    return EvaluationSplit(part, (*found.notes, note))


def default_dataset(folder: Path, card: Card) -> str:
    """Return the data set on which a model is measured by default: "folder" if it was made from one, else the card's.

    They differ for a finetune that kept its base: the network learnt from the card's data set. A model that learnt
    nothing by its recipe is measured on the recipe's.
    """
    if read_split_record(folder) is not None:
        return FOLDER
    recipe = read_object(folder / RECIPE_FILE).get("recipe")
    data = recipe.get("data") if isinstance(recipe, dict) else None
    named = data.get("dataset") if isinstance(data, dict) else None
    return named if card.dataset not in DATASETS and named in DATASETS else card.dataset


def dataset_to_measure(folder: Path, card: Card, data: str | Path | None = None) -> str:
    """Return the data set of a measurement that names none.

    It is `default_dataset`, and "folder" for `data` if the weights come from a data set that this package lacks.

    Raises:
        DatasetError: `not-available` without `data`, for such weights.
    """
    name = default_dataset(folder, card)
    if name in DATASETS:
        return name
    if data is not None:
        return FOLDER
    raise DatasetError(
        f"{card.name} learnt from {name!r}, a data set that this package lacks. Measure it on your own images, one "
        f"subfolder per class: {command('evaluate', card.name, '--data', 'DIR')}, in Python data='DIR'.",
        code="not-available",
    )


def read_split_record(folder: Path) -> SplitRecord | None:
    """Return the split that the recipe.json of a model folder records; None if it is not by class or not readable."""
    recipe = read_object(folder / RECIPE_FILE)
    split = recipe.get("split")
    # Splits by image and given folders train and test may have the same classes on both sides.
    if not isinstance(split, dict) or split.get("by", "class") != "class":
        return None
    train, test = (_name_list(split.get(f"{part}_classes")) for part in SPLITS)
    counts = [split.get(f"{part}_images") for part in SPLITS]
    digest = split.get("images_sha256")
    if not train or not test or set(train) & set(test) or not isinstance(digest, str):
        return None
    images = sum(count for count in counts if isinstance(count, int))
    return SplitRecord(
        train, test, images, digest, _name_list(recipe.get("seen_by_base", recipe.get("seen_by_teacher")))
    )


def _in_classes(dataset: Dataset, names: Sequence[str]) -> np.ndarray:
    """Return a mask of the images of these classes, bool [n]."""
    return np.isin(dataset.classes, names)[dataset.labels]


def _has_same_images(whole: Dataset, record: SplitRecord) -> bool:
    """Return True if the readable images of the record's classes are the images of the record."""
    rows = [row for names in (record.train, record.test) for row in np.flatnonzero(_in_classes(whole, names)).tolist()]
    if sources_sha256(whole.sources[row] for row in rows) == record.images_sha256:
        return True
    if len(rows) <= record.images:
        return False
    unreadable = unreadable_images(subset(whole, _in_classes(whole, [*record.train, *record.test])))
    sources = (whole.sources[row] for row in rows)
    return sources_sha256(source for source in sources if source not in unreadable) == record.images_sha256


def learnt_classes(folder: Path) -> LearntClasses:
    """Return the own classes that a model learnt, and those of its test classes that its base or teacher learnt.

    The latter are known by name alone.
    """
    record = read_split_record(folder)
    seen = LearntClasses(frozenset(record.seen_classes if record else ()))
    return LearntClasses.joined([read_learnt_classes(folder), seen])


def _whole_split(folder: Path, name: str, dataset: Dataset, split: str) -> EvaluationSplit:
    notes = []
    # "test" is the default, so only an explicit "train" deserves a note.
    if split == "train" and dataset.split == WHOLE:
        notes.append("the folder is not split into train and test, so all of it is used")
    if dataset.name == FOLDER and dataset.split != "train":
        notes += read_learnt_classes(folder).among_classes(dataset).notes(name)
    notes += read_whitened_classes(folder).among_classes(dataset).notes(name, "was whitened on")
    return EvaluationSplit(dataset, tuple(notes))


def _notes_by_record(
    name: str, record: SplitRecord, whole: Dataset, split: str, same: bool, other: bool
) -> Iterator[str]:
    yield (
        f"measured on the {len(record.classes(split))} classes that {_role(name, split)}, as its {RECIPE_FILE} says, "
        f"of the {len(whole.classes)} in the folder"
    )
    if other:
        yield (
            f"none of the images is one that {name} learnt from, so this may be another folder with classes of the "
            "same names: --split all measures all of it"
        )
    elif not same:
        yield "the images have changed since: some were added, removed or renamed, or cannot be read any more"
    if split == "test" and record.seen_classes:
        yield (
            f"the model that {name} was made from had seen {len(record.seen_classes)} of these classes "
            f"({first_names(record.seen_classes)}): the scores flatter {name}"
        )


def _notes_without_record(
    name: str, record: SplitRecord, whole: Dataset, split: str, missing: Sequence[str]
) -> Iterator[str]:
    if whole.split == WHOLE:
        yield (
            f"the folder lacks {len(missing)} of the {len(record.classes(split))} classes that {_role(name, split)} "
            f"({first_names(missing)}), so all of it is used"
        )


def _role(name: str, split: str) -> str:
    return f"{name} learnt from" if split == "train" else f"were held out when {name} was made"


# Learnt classes


@dataclass(frozen=True)
class LearntOverlap:
    """Classes of a data set that a model learnt, sorted.

    Attributes:
        by_images: They hold an image of a learnt class.
        by_name: They have the name of a learnt class of which no images are recorded.
        namesakes: They have the name of a learnt class, and none of its recorded images: other images of it, or another
            class.
    """

    by_images: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    namesakes: tuple[str, ...] = ()

    @property
    def learnt(self) -> tuple[str, ...]:
        """Return the classes that count as learnt."""
        return tuple(sorted({*self.by_images, *self.by_name}))

    def joined(self, other: LearntOverlap) -> LearntOverlap:
        """Return the classes that either of two models learnt; images decide before names."""
        images = {*self.by_images, *other.by_images}
        names = {*self.by_name, *other.by_name} - images
        namesakes = {*self.namesakes, *other.namesakes} - images - names
        return LearntOverlap(*(tuple(sorted(part)) for part in (images, names, namesakes)))

    def notes(self, model: str, role: str = "learnt from") -> Iterator[str]:
        """Yield what a reader of the model's scores on these classes should know.

        Args:
            model: The model's name.
            role: The use that it made of the classes' images.
        """
        if self.by_images:
            yield (
                f"{model} {role} images of {len(self.by_images)} of these classes "
                f"({first_names(self.by_images)}): the scores flatter it"
            )
        if self.by_name:
            yield (
                f"{model} {role} classes of the same name as {len(self.by_name)} of these "
                f"({first_names(self.by_name)}), by name, as it does not record their images; if they are the same, "
                "the scores flatter it"
            )
        if self.namesakes:
            yield (
                f"{model} {role} classes of the same name as {len(self.namesakes)} of these "
                f"({first_names(self.namesakes)}), but from other images; they count as classes that it has not learnt"
            )


@dataclass(frozen=True)
class LearntClasses:
    """Own classes that a model learnt, or was whitened on.

    Attributes:
        names: Their names; of a whitening none, as it used none.
        digests: Name -> digests that tell the class's images, where they are recorded.
    """

    names: frozenset[str] = frozenset()
    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Iterable[LearntClasses]) -> Self:
        """Return what several models learnt. A name that one of them lacks images of is known by name alone."""
        names: set[str] = set()
        digests: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        owners: defaultdict[str, int] = defaultdict(int)
        for part in parts:
            names |= part.names
            for name in part.names:
                owners[name] += 1
                digests[name] += [part.digests[name]] if name in part.digests else []
        known = {name: frozenset().union(*sets) for name, sets in digests.items() if len(sets) == owners[name]}
        return cls(frozenset(names), known)

    def among(self, digests: Mapping[str, Iterable[str]]) -> LearntOverlap:
        """Return those of some classes that were learnt.

        Args:
            digests: Class -> the SHA-256 of its images, or the beginning of it.
        """
        known = frozenset().union(*self.digests.values())
        images = {name for name, values in digests.items() if not known.isdisjoint(v[:DIGEST] for v in values)}
        same_name = (self.names & digests.keys()) - images
        names = same_name - self.digests.keys()
        return LearntOverlap(*(tuple(sorted(part)) for part in (images, names, same_name - names)))

    def among_classes(self, dataset: Dataset) -> LearntOverlap:
        """Return the classes of a data set that were learnt. Its files are read only if images are recorded."""
        digests = digests_of_classes(dataset) if self.digests else {}
        return self.among({name: digests.get(name, frozenset()) for name in dataset.classes})


def read_learnt_classes(folder: Path) -> LearntClasses:
    """Return the own classes that a model was trained on, as its recipe.json says; none for a base that was kept."""
    recipe = read_object(folder / RECIPE_FILE)
    if recipe.get("kept") == "base":
        return LearntClasses()
    sources = ((recipe.get(TRAINING_DATA), "class_names"), (recipe.get("split"), "train_classes"))
    names = {name for values, key in sources if isinstance(values, dict) for name in _name_list(values.get(key))}
    digests = _class_images(recipe)
    return LearntClasses(frozenset(names), {name: digests[name] for name in names & digests.keys()})


def read_whitened_classes(folder: Path) -> LearntClasses:
    """Return the classes that a model's whitening was fitted on, as its recipe.json says, known by their images alone.

    Whitening uses no names, so a class of the same name and of other images was not seen.
    """
    whitening = read_object(folder / RECIPE_FILE).get(WHITENING)
    return LearntClasses(digests=_class_images(whitening if isinstance(whitening, dict) else {}))


def _class_images(record: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the digests that tell each class in a part of recipe.json; classes without any are left out."""
    texts = record.get(CLASS_IMAGES)
    digests = {
        name: frozenset(text.split())
        for name, text in (texts.items() if isinstance(texts, dict) else ())
        if isinstance(text, str)
    }
    return {name: values for name, values in digests.items() if values}


def _name_list(value: Any) -> tuple[str, ...]:
    """Return a JSON value that is a list of names; () for any other."""
    return tuple(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else ()


def first_names(names: Iterable[str], most: int = 5) -> str:
    """Return the first of some names, for a sentence."""
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
