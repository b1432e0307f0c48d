"""Classes of own images that a model learnt, recognised by their images, or by name where no images are recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from zoo.data.content import DIGEST, digests_of_classes
from zoo.data.dataset import Dataset
from zoo.files import read_object
from zoo.models.card import TRAINING_DATA

RECIPE_FILE = "recipe.json"

CLASS_IMAGES = "class_images"
"""Entry of recipe.json: learnt class -> `zoo.data.content.telling_digests`; older folders and heads that were trained
on a file of features lack it."""


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

    def notes(self, model: str) -> Iterator[str]:
        """Yield what a reader of the model's scores on these classes should know."""
        if self.by_images:
            yield (
                f"{model} learnt from images of {len(self.by_images)} of these classes "
                f"({first_names(self.by_images)}): the scores flatter it"
            )
        if self.by_name:
            yield (
                f"{model} learnt from classes of the same name as {len(self.by_name)} of these "
                f"({first_names(self.by_name)}), by name, as it does not record their images; if they are the same, "
                "the scores flatter it"
            )
        if self.namesakes:
            yield (
                f"{model} learnt from classes of the same name as {len(self.namesakes)} of these "
                f"({first_names(self.namesakes)}), but from other images; they count as classes that it has not learnt"
            )


@dataclass(frozen=True)
class LearntClasses:
    """Own classes that a model learnt.

    Attributes:
        names: Their names.
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
    names = {name for values, key in sources if isinstance(values, dict) for name in name_list(values.get(key))}
    recorded = recipe.get(CLASS_IMAGES)
    texts = recorded if isinstance(recorded, dict) else {}
    digests = {name: frozenset(texts[name].split()) for name in names if isinstance(texts.get(name), str)}
    return LearntClasses(frozenset(names), {name: values for name, values in digests.items() if values})


def name_list(value: Any) -> tuple[str, ...]:
    """Return a JSON value that is a list of names; () for any other."""
    return tuple(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else ()


def first_names(names: Iterable[str], most: int = 5) -> str:
    """Return the first of some names, for a sentence."""
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
