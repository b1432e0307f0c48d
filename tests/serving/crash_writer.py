"""A process that forks writers which work on a gallery until they are killed.

    python -m tests.serving.crash_writer GALLERY NOTES

For each line on stdin, a number, it forks a writer of that seed and prints its pid; once the writer has gone it prints
"gone". What a writer begins and what was acknowledged to it stands in the file NOTES, a JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery import Gallery, Item
from serving.gallery.binding import model_text
from serving.gallery.gallery import STORE
from serving.gallery.rebuilding import Outcome, Rebuild
from serving.gallery.shadow import Made
from serving.gallery.store import Store
from tests.serving.test_store import DIM, new_item
from zoo.cards import Card, Preprocessing

CARDS = tuple(
    Card(name, "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": digit * 64})
    for name, digit in (("toy", "0"), ("other", "1"))
)


class Notes:
    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, word: str, **facts: Any) -> None:
        os.write(self.descriptor, (json.dumps({"word": word, **facts}) + "\n").encode())


def embedded_by(card: Card, number: int) -> np.ndarray:
    """The embedding of item `number` by the model of that card: another one for each of `CARDS`."""
    return np.roll(new_item(number).embedding, CARDS.index(card))


def rebuild(path: Path, notes: Notes, rng: np.random.Generator) -> None:
    """Begin, or go on, to give the gallery the other model; now and then to the end."""
    with Gallery.open(path) as gallery:
        card = gallery.card
    other = CARDS[1 - CARDS.index(card)]

    def make(batches: Iterable[Sequence[Item]]) -> Iterator[Outcome]:
        for batch in batches:
            numbers = [int(one.source.removesuffix(".png")) for one in batch]
            rows = [embedded_by(other, number).tobytes() for number in numbers]
            yield [Made(one.id, row) for one, row in zip(batch, rows, strict=True)], []

    notes.write("rebuilding", to=other.name)
    with Store(path / STORE).closing() as store:
        if rng.random() < 0.2:
            store.shadow.discard()
        token = store.shadow.begin(model_text(card, "toy"), model_text(other, "toy"), other.fingerprint, other.dim)
        run = Rebuild(path, store, token, make, batch_size=20)
        run.fill()
        with Gallery.open(path, other=True) as shadow:
            shadow.compact()
        notes.write("swapping", to=other.name)
        run.swap()
    notes.write("rebuilt", to=other.name)


def work(path: Path, notes: Notes, seed: int) -> None:
    """Add, remove, compact and rebuild at random, for ever."""
    rng = np.random.default_rng(seed)
    gallery, step = Gallery.open(path), 0
    while True:
        step += 1
        match rng.choice(["add", "remove", "compact", "rebuild"], p=[0.5, 0.3, 0.1, 0.1]):
            case "rebuild":
                rebuild(path, notes, rng)
                gallery.close()
                gallery = Gallery.open(path)
            case "add":
                first, count = 10**6 * seed + 100 * step, int(rng.integers(1, 30))
                items = [
                    new_item(number, label=f"{seed}-{step}", embedding=embedded_by(gallery.card, number))
                    for number in range(first, first + count)
                ]
                notes.write("adding", batch=f"{seed}-{step}", count=count)
                notes.write("added", batch=f"{seed}-{step}", ids=gallery.add(items).ids)
            case "remove":
                ids = [item.id for item in gallery.sample(int(rng.integers(1, 30)))]
                notes.write("removing", ids=ids)
                notes.write("removed", ids=ids, count=gallery.remove(ids))
            case "compact":
                notes.write("compacting")
                gallery.compact()
                notes.write("compacted")


def main(path: Path, notes: Path) -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            work(path, Notes(notes), int(line))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
