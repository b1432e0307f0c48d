"""Which images a command measures a model on, and what is said of them on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zoo.console import note, note_left_out

if TYPE_CHECKING:
    from zoo.datasets.dataset import Dataset
    from zoo.embedder import Embedder
    from zoo.errors import ImageError

SEEN = """\
{name} was trained on a folder of images. If it was this one, it has seen these classes, and the scores say little of \
new ones: zoo train and zoo evaluate part a folder that has the folders train and test, zoo finetune any other."""


def images_for(model: Embedder, dataset: str | None, split: str = "test", data: str | None = None) -> Dataset:
    """The data set, by default the model's own; of a folder the classes that were held out, where the model's
    recipe.json says which (`zoo.held_out.split_for`). What is to be known of them is noted."""
    from zoo.datasets.dataset import WHOLE
    from zoo.held_out import split_for

    found = split_for(model.folder, model.card, dataset or model.card.dataset, split, data)
    for said in found.notes:
        note(said)
    if found.dataset.split == WHOLE and model.card.dataset == found.dataset.name:
        note(SEEN.format(name=model.card.name))
    return found.dataset


@contextmanager
def leaving_out() -> Iterator[dict[str, ImageError]]:
    """What takes the images that cannot be read. Each is noted in the end: where none is left, they say why."""
    unreadable: dict[str, ImageError] = {}
    try:
        yield unreadable
    finally:
        note_left_out(unreadable.values())
