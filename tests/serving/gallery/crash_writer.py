"""A process that forks writers, which work on a gallery until they are killed.

    python -m tests.serving.gallery.crash_writer GALLERY NOTES

For each line of seeds on stdin, it forks one writer per seed and prints their pids; after their end it prints the
signals that ended them. A writer records what it begins and what was acknowledged in the file NOTES, one JSON object
per line. Two writers disturb each other as two processes do: one gives the gallery another model while the other one
adds items, or begins a rebuild during the other's.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery import VectorGallery
from serving.gallery.gallery import STORE
from serving.gallery.rebuild import Outcome, Rebuild, ShownImage
from serving.gallery.staging import StagedEmbedding
from serving.gallery.store import Store
from serving.gallery.types import model_json
from tests.serving.gallery.test_store import DIM, new_item
from zoo.data.preprocessing import Preprocessing
from zoo.errors import GalleryError, ItemNotFoundError, ModelChangedError
from zoo.models.card import Card

CARDS = tuple(
    Card(name, "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": digit * 64})
    for name, digit in (("toy", "0"), ("other", "1"))
)
KEYS = 6
"""Number of keys of each writer."""

SAID = "said"
"""Key of the metadata that writers change."""


class Notes:
    def __init__(self, path: Path, seed: int) -> None:
        self.descriptor, self.seed = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), seed

    def write(self, word: str, **facts: Any) -> None:
        os.write(self.descriptor, (json.dumps({"writer": self.seed, "word": word, **facts}) + "\n").encode())


def embedded_by(card: Card, number: int) -> np.ndarray:
    """Return the embedding of item `number` by one of `CARDS`; they differ."""
    return np.roll(new_item(number).embedding, CARDS.index(card))


def rebuild(path: Path, notes: Notes, rng: np.random.Generator) -> None:
    """Start or continue a rebuild with the other model, and swap the models."""
    with VectorGallery.open(path) as gallery:
        card = gallery.card
    other = CARDS[1 - CARDS.index(card)]

    def make(batches: Iterable[Sequence[ShownImage]]) -> Iterator[Outcome]:
        for batch in batches:
            numbers = [int(image.items[0].source.removesuffix(".png")) for image in batch]
            rows = [embedded_by(other, number).tobytes() for number in numbers]
            yield [StagedEmbedding(image.id, row) for image, row in zip(batch, rows, strict=True)], []

    notes.write("rebuilding", to=other.name)
    with closing(Store(path / STORE)) as store:
        if rng.random() < 0.2:
            store.staging.discard()
        token = store.staging.begin(model_json(card, "toy"), model_json(other, "toy"), other.fingerprint, other.dim)
        run = Rebuild(store, store.staging, token, make, batch_size=60)
        run.fill()
        compact_other(path)
        notes.write("swapping", to=other.name)
        run.swap()
    notes.write("rebuilt", to=other.name)


def compact_other(path: Path) -> None:
    try:
        with VectorGallery.open(path, other=True) as shadow:
            shadow.index.compact()
    except GalleryError as error:
        if error.code != "no-other-model":
            raise
        raise ModelChangedError("the other writer has emptied the slot") from error


def work(path: Path, notes: Notes, rng: np.random.Generator) -> None:
    """Add, replace, remove, compact and rebuild at random without end; open the gallery again with another model."""
    steps = itertools.count(1)
    while True:
        try:
            with VectorGallery.open(path) as gallery:
                for step in steps:
                    take(gallery, notes, rng, step)
        except ModelChangedError:
            notes.write("displaced")


def take(gallery: VectorGallery, notes: Notes, rng: np.random.Generator, step: int) -> None:
    words = ["add", "remove", "compact", "rebuild", "describe", "put"]
    match rng.choice(words, p=[0.25, 0.15, 0.1, 0.15, 0.2, 0.15]):
        case "rebuild":
            rebuild(Path(gallery.address), notes, rng)
            gallery.store.check_current()
        case "add":
            first, count, batch = 10**6 * notes.seed + 100 * step, int(rng.integers(1, 30)), f"{notes.seed}-{step}"
            items = [
                new_item(number, label=batch, embedding=embedded_by(gallery.card, number))
                for number in range(first, first + count)
            ]
            notes.write("adding", batch=batch, count=count)
            notes.write("added", batch=batch, ids=gallery.add(items).ids)
        case "remove":
            ids = [item.id for item in gallery.store.sample(int(rng.integers(1, 30))) if item.key is None]
            notes.write("removing", ids=ids)
            notes.write("removed", ids=ids, count=gallery.remove(ids))
        case "compact":
            notes.write("compacting")
            gallery.index.compact()
            notes.write("compacted")
        case "put":
            put(gallery, notes, rng, 10**6 * notes.seed + 100 * step)
        case "describe":
            for item in gallery.store.sample(1):
                if item.key is None:  # a put replaces the metadata of the others
                    say(gallery, notes, item.id, f"{notes.seed}-{step}")


def put(gallery: VectorGallery, notes: Notes, rng: np.random.Generator, first: int) -> None:
    """Create or replace some of the keyed items of this writer, and of those before it; their label is the key."""
    numbers = sorted(rng.choice(KEYS, int(rng.integers(1, KEYS)), replace=False).tolist())
    images = {f"{notes.seed % 2}/{number}": first + 50 + number for number in numbers}
    items = [
        new_item(number, label=key, embedding=embedded_by(gallery.card, number), key=key)
        for key, number in images.items()
    ]
    notes.write("putting", images=images)
    results = gallery.put(items)
    notes.write("put", images=images, replaced=sum(one.status == "replaced" for one in results))


def say(gallery: VectorGallery, notes: Notes, item: int, text: str) -> None:
    """Change the metadata of an item; the other writer may have removed it."""
    notes.write("saying", item=item, text=text)
    try:
        gallery.store.describe(item, metadata={SAID: text})
    except ItemNotFoundError:
        notes.write("unsaid")
    else:
        notes.write("said", item=item, text=text)


def fork(path: Path, notes: Path, seed: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work(path, Notes(notes, seed), np.random.default_rng(seed))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main(path: Path, notes: Path) -> None:
    for line in sys.stdin:
        children = [fork(path, notes, int(seed)) for seed in line.split()]
        print(*children, flush=True)
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
