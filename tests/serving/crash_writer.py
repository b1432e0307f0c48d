"""A process that forks writers which work on a gallery until they are killed.

    python -m tests.serving.crash_writer GALLERY NOTES

For each line on stdin, a number, it forks a writer of that seed and prints its pid; once the writer has gone it prints
"gone". What a writer begins and what was acknowledged to it stands in the file NOTES, a JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery import Gallery
from tests.serving.test_store import new_item


class Notes:
    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, word: str, **facts: Any) -> None:
        os.write(self.descriptor, (json.dumps({"word": word, **facts}) + "\n").encode())


def work(gallery: Gallery, notes: Notes, seed: int) -> None:
    """Add, remove and compact at random, for ever."""
    rng = np.random.default_rng(seed)
    step = 0
    while True:
        step += 1
        match rng.choice(["add", "remove", "compact"], p=[0.55, 0.35, 0.1]):
            case "add":
                first, count = 10**6 * seed + 100 * step, int(rng.integers(1, 30))
                items = [new_item(number, label=f"{seed}-{step}") for number in range(first, first + count)]
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
            work(Gallery.open(path), Notes(notes), int(line))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
