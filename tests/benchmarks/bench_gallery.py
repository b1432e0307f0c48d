"""A gallery as it grows: catching up with changes, opening, and the kinds of index side by side.

    python tests/benchmarks/bench_gallery.py [--rows 10000 100000] [--dim 128] [--recall 0.99] [--open 100000]
    python tests/benchmarks/bench_gallery.py --rows 1000000 --changes 0 --open 1000000

The first part times a reader that catches up with 10,000 changes of another process (5,000 items in, 5,000 out; asked
is less than 100 ms). The second opens a gallery in a fresh process and searches once (asked of a million vectors: less
than 2 s). The third builds every kind over the same vectors, finds its fastest setting that holds the recall, and
prints build time, bytes a vector in files (the exact vectors, which every kind has beside it, apart), recall and
latency.

Vectors are made: classes around centres, with a spectrum that falls as that of trained embeddings does. Vectors without
any structure are harder than anything that a model gives.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import faiss
import numpy as np

from serving.gallery import Gallery, NewItem, Thumbnail
from serving.gallery.index import Frozen
from serving.gallery.kinds import KINDS, build
from serving.gallery.measuring import measure_kind, sample_of
from zoo.cards import Card, Preprocessing

BATCH = 10_000
PICTURE = Thumbnail(bytes(2000), "image/png")


def vectors(n: int, dim: int, per_class: int = 50) -> np.ndarray:
    """Unit rows float32 [n, dim]."""
    rng = np.random.default_rng(0)
    scale = (1 + np.arange(dim, dtype=np.float32)) ** -0.5
    centres = rng.standard_normal((max(1, n // per_class), dim), np.float32) * scale
    out = np.empty((n, dim), np.float32)
    for start in range(0, n, BATCH):
        block = out[start : start + BATCH]
        block[:] = 0.5 * rng.standard_normal(block.shape, np.float32) * scale
        block += centres[rng.integers(len(centres), size=len(block))]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return out


def new_items(rows: np.ndarray, first: int = 0) -> Iterator[list[NewItem]]:
    for start in range(0, len(rows), BATCH):
        numbers = range(first + start, first + min(start + BATCH, len(rows)))
        yield [
            NewItem(f"{number}.png", rows[number - first], PICTURE, f"{number:064x}", f"class {number % 1000}")
            for number in numbers
        ]


def filled(path: Path, rows: np.ndarray) -> Gallery:
    files = {"model.safetensors": "0" * 64}
    card = Card("made", "none", "none", "none", "none", rows.shape[1], Preprocessing(8, 8), files=files)
    gallery = Gallery.create(path, card, "made")
    for items in new_items(rows):
        gallery.add(items)
    return gallery


def catch_up(dim: int, changes: int, repeats: int = 5) -> None:
    rows = vectors(20_000 + repeats * changes, dim)
    times, busy = [], []
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder) / "g", rows[:20_000]) as writer:
        writer.compact()
        with Gallery.open(Path(folder) / "g") as reader:
            reader.search(rows[:1], 10)
            for turn in range(repeats):
                first = 20_000 + turn * changes
                for items in new_items(rows[first : first + changes // 2], first):
                    ids = writer.add(items).ids
                writer.remove(range(ids[0] - changes // 2, ids[0]))
                start, before = time.perf_counter(), time.process_time()
                reader.search(rows[:1], 10)
                times.append(time.perf_counter() - start)
                busy.append(time.process_time() - before)
            waited = reader.index_stats().waiting
    print(f"catching up with {changes:,} changes and a search: best {1000 * min(times):.1f} ms, ", end="")
    print(f"processor {1000 * min(busy):.1f} ms of {repeats} (side index up to {waited:,})")


OPENED = """
import json, sys, time
import numpy as np
from serving.gallery import Gallery

query = np.zeros((1, int(sys.argv[2])), np.float32)
query[0, 0] = 1
def memory(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(key))
before, start = memory("RssAnon"), time.perf_counter()
gallery = Gallery.open(sys.argv[1])
opened = time.perf_counter()
gallery.search(query, 10)
print(json.dumps([opened - start, time.perf_counter() - opened, memory("RssAnon") - before]))
"""


def open_large(n: int, dim: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder) / "g", time.perf_counter()
        with filled(path, vectors(n, dim)) as gallery:
            wrote = time.perf_counter()
            gallery.compact()
        print(f"{n:,} x {dim}: written in {wrote - start:.1f} s, compacted in {time.perf_counter() - wrote:.1f} s")
        words = [sys.executable, "-c", OPENED, str(path), str(dim)]
        for _ in range(3):
            outcome = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            opened, searched, memory = json.loads(outcome)
            print(f"  opened in {1000 * opened:.1f} ms, first search {1000 * searched:.1f} ms, ", end="")
            print(f"{memory} MiB of private memory (the vectors are mapped)")


def kinds(n: int, dim: int, recall: float, names: Sequence[str]) -> None:
    rows = vectors(n, dim)
    exact, sample = Frozen(build(KINDS["flat"], rows), np.arange(n)), sample_of(np.arange(n), rows, 10)
    assert sample
    print(f"{n:,} x {dim}, recall of the 10 nearest at least {recall}; exact vectors take {4 * dim} bytes each")
    print(f"{'kind':<11}{'effort':>7}{'shortlist':>10}{'build s':>9}{'bytes':>7}{'recall':>8}{'ms':>8}{'x flat':>8}")
    flat = None
    for name in names:
        found = measure_kind(name, exact, rows, sample, recall)
        if found is None:
            print(f"{name:<11}{'no setting holds the recall':>40}")
            continue
        frozen, one = found
        flat = flat or one.milliseconds
        size = 0 if frozen.approximate is None else _bytes(frozen.approximate) / n
        print(
            f"{name:<11}{one.setting.effort:>7}{one.setting.shortlist:>10}{one.seconds:>9.1f}{size:>7.0f}"
            f"{one.recall:>8.4f}{one.milliseconds:>8.3f}{flat / one.milliseconds:>8.1f}",
            flush=True,
        )


def _bytes(index: faiss.Index) -> int:
    with tempfile.NamedTemporaryFile() as file:
        faiss.write_index(index, file.name)
        return Path(file.name).stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--changes", type=int, default=10_000, help="0 leaves this part out")
    parser.add_argument("--open", type=int, default=100_000, help="vectors; 0 leaves this part out")
    args = parser.parse_args()
    if args.changes:
        catch_up(args.dim, args.changes)
    for n in args.rows:
        kinds(n, args.dim, args.recall, ["flat", *(name for name in args.kinds if name != "flat")])
    if args.open:
        open_large(args.open, args.dim)


if __name__ == "__main__":
    main()
