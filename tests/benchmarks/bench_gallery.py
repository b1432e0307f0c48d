"""A gallery as it grows: catching up with changes, opening, and a comparison of the kinds of index.

    python tests/benchmarks/bench_gallery.py [--rows 10000 100000] [--dim 128] [--recall 0.99] [--open 100000]
    python tests/benchmarks/bench_gallery.py --rows 10000 100000 1000000 --held 20000 1000000 --open 1000000 \
        --json gallery.json --picture gallery.png
    OMP_NUM_THREADS=1 python tests/benchmarks/bench_gallery.py --vectors rows.npy --rows 200000 --dim 224 \
        --peers usearch hnswlib --changes 0 --open 0

The first part times a reader that catches up with 10,000 changes of another process (5,000 items added, 5,000 removed),
in galleries of --held items; the target is 100 ms. The second builds every kind over the same vectors, finds its
fastest setting that holds the recall, and prints build time, bytes per vector in files (without the exact vectors,
which every kind keeps), recall and latency; --picture draws them against the number of rows. The third opens a gallery
in a fresh process and searches once; the target is 2 s for a million vectors. Before that, another process compacts the
gallery, and its peak of private memory is printed with the size of the vectors. --json is written after every line, so
that an interrupted run keeps its figures.

Vectors are synthetic: classes around centres, with a spectrum that falls like that of trained embeddings. Vectors
without structure are harder than those of any model. The second part takes the rows of --vectors instead, cut to --dim
numbers. If it needs more rows, it makes them: points between a row and one of its neighbours, with noise of a third of
their distance. The exact rows are mapped from a file in TMPDIR, as in a gallery that was just compacted. --peers adds
indexes of other libraries in the same run, over the rows in memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np

from serving.gallery import NewItem, Thumbnail, VectorGallery
from serving.gallery.index import KINDS, FrozenIndex, Index, build_index, stored_vectors
from serving.gallery.index_files import map_index
from serving.gallery.tune import fastest_setting, sample_vectors
from tests.benchmarks.gallery_picture import draw
from tests.benchmarks.index_peers import PEERS, latency, measure_peer
from zoo.data.preprocessing import Preprocessing
from zoo.files import read_object, write_json
from zoo.models.card import Card

BATCH = 10_000
PICTURE = Thumbnail(b"\xff\xd8\xff" + bytes(2000), "image/jpeg")


def vectors(n: int, dim: int, per_class: int = 50) -> np.ndarray:
    """Draw unit rows, float32 [n, dim]."""
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


def filled(path: Path, rows: np.ndarray) -> VectorGallery:
    files = {"model.safetensors": "0" * 64}
    card = Card("made", "none", "none", "none", "none", rows.shape[1], Preprocessing(8, 8), files=files)
    gallery = VectorGallery.create(path, card, "made")
    for items in new_items(rows):
        gallery.add(items)
    return gallery


class Found:
    """Measurements, written to a file after each one, or only kept in memory (`path` None).

    Indexes that a file of the same setting has are not measured again, so that an interrupted run continues.
    """

    def __init__(self, path: Path | None, **setting: object) -> None:
        self.path = path
        self.parts: dict[str, Any] = {"setting": setting, "catching_up": [], "kinds": [], "peers": [], "opening": []}
        kept = read_object(path) if path else {}
        if kept.get("setting") == setting:
            self.parts |= {part: kept[part] for part in ("kinds", "peers")}

    def has(self, part: str, rows: int, kind: str) -> bool:
        """Return whether an index of a kind is measured."""
        return any((figures["rows"], figures["kind"]) == (rows, kind) for figures in self.parts[part])

    def add(self, part: str, **figures: object) -> None:
        self.parts[part].append(figures)
        if self.path:
            write_json(self.path, self.parts)


def catch_up(found: Found, held: int, dim: int, changes: int, repeats: int) -> None:
    half = changes // 2
    rows, times, busy, searched = vectors(held + repeats * half, dim), [], [], []
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder) / "g", rows[:held]) as writer:
        writer.index.compact()
        with VectorGallery.open(Path(folder) / "g") as reader:
            reader.search(rows[:1], 10)
            for turn in range(repeats):
                change(writer, rows, held + turn * half, half)
                start, before = time.perf_counter(), time.process_time()
                waiting = reader.index.stats().waiting
                caught_up = time.perf_counter()
                times.append(1000 * (caught_up - start))
                busy.append(1000 * (time.process_time() - before))
                reader.search(rows[:1], 10)
                searched.append(1000 * (time.perf_counter() - caught_up))
    took = {"median_ms": median(times), "worst_ms": max(times), "processor_ms": median(busy)}
    print(f"{held:,} x {dim}: caught up with {2 * half:,} changes in {took['median_ms']:.1f} ms, ", end="")
    print(f"at worst {took['worst_ms']:.1f} ms of {repeats} (processor {took['processor_ms']:.1f} ms); ", end="")
    print(f"the search after it {median(searched):.1f} ms (side index up to {waiting:,})", flush=True)
    told = {"waiting": waiting, "search_ms": median(searched), "repeats": repeats}
    found.add("catching_up", held=held, changes=2 * half, **took, **told)


def change(writer: VectorGallery, rows: np.ndarray, first: int, count: int) -> None:
    """Add `count` rows, from `first` on, and remove the same number of those that came before them."""
    for items in new_items(rows[first : first + count], first):
        ids = writer.add(items).ids
    last = ids[-1] - count
    writer.remove(range(last - count + 1, last + 1))


MEMORY = """
def memory(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(key))
"""

COMPACTED = (
    MEMORY
    + """
import sys, threading, time
from contextlib import closing
from pathlib import Path
from serving.gallery import index_files as compaction
from serving.gallery.store import Store

before, most, done = memory("RssAnon"), [0], threading.Event()
def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], memory("RssAnon"))
watching = threading.Thread(target=watch)
watching.start()
with closing(Store(Path(sys.argv[1]) / "gallery.sqlite")) as store:
    start = time.perf_counter()
    compaction.compact(Path(sys.argv[1]), store)
    seconds = time.perf_counter() - start
done.set()
watching.join()
print(seconds, max(0, most[0] - before))
"""
)

OPENED = (
    MEMORY
    + """
import json, sys, time
import numpy as np
from serving.gallery import VectorGallery

query = np.zeros((1, int(sys.argv[2])), np.float32)
query[0, 0] = 1
before, start = memory("RssAnon"), time.perf_counter()
gallery = VectorGallery.open(sys.argv[1])
opened = time.perf_counter()
gallery.search(query, 10)
print(json.dumps([opened - start, time.perf_counter() - opened, memory("RssAnon") - before]))
"""
)


def open_large(found: Found, n: int, dim: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder) / "g", time.perf_counter()
        with filled(path, vectors(n, dim)) as gallery:
            wrote = time.perf_counter()
            gallery.index.compact_in_background()  # closing the gallery stops it
        done = subprocess.run([sys.executable, "-c", COMPACTED, str(path)], check=True, capture_output=True, text=True)
        compacted, peak = map(float, done.stdout.split())
        size = 4 * n * dim / 2**20
        print(f"{n:,} x {dim}: written in {wrote - start:.1f} s, compacted in {compacted:.1f} s; ", end="")
        print(f"at most {peak:.0f} MiB of private memory for {size:.0f} MiB of vectors")
        words = [sys.executable, "-c", OPENED, str(path), str(dim)]
        runs = [subprocess.run(words, check=True, capture_output=True, text=True).stdout for _ in range(repeats)]
    opened, searched, memory = (list(column) for column in zip(*map(json.loads, runs), strict=True))
    print(f"  opened in {1000 * median(opened):.1f} ms, at worst {1000 * max(opened):.1f} ms of {repeats}; ", end="")
    print(f"first search {1000 * median(searched):.1f} ms, at worst {1000 * max(searched):.1f} ms; ", end="")
    print(f"{max(memory)} MiB of private memory (the vectors are mapped)", flush=True)
    found.add(
        "opening",
        rows=n,
        repeats=repeats,
        written_seconds=wrote - start,
        compacted_seconds=compacted,
        compaction_peak_mib=peak,
        vectors_mib=size,
        median_ms=1000 * median(opened),
        worst_ms=1000 * max(opened),
        first_search_median_ms=1000 * median(searched),
        first_search_worst_ms=1000 * max(searched),
        private_mib=max(memory),
    )


def real_vectors(file: Path, n: int, dim: int) -> faiss.Index:
    """Return a flat index of n unit rows: those of a file, in random order, and points between neighbours."""
    stored, rng = np.load(file, mmap_mode="r"), np.random.default_rng(0)
    index, real = faiss.IndexFlatIP(dim), min(n, len(stored))
    index.codes.resize(n * index.code_size)  # the rows are made in its memory
    index.ntotal = n
    out = stored_vectors(index)
    chosen = rng.permutation(len(stored))[:real]
    for start in range(0, real, BATCH):
        block = np.asarray(stored[np.sort(chosen[start : start + BATCH])][:, :dim], np.float32)
        out[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    if n > real:
        near = faiss.IndexFlatIP(min(dim, 224))
        near.add(np.ascontiguousarray(out[:BATCH, : near.d]))
        _, partners = near.search(np.ascontiguousarray(out[:real, : near.d]), 6)
    for start in range(real, n, BATCH):
        size = min(BATCH, n - start)
        own = rng.integers(real, size=size)
        partner = partners[own, rng.integers(1, 6, size=size)]
        step = out[partner] - out[own]
        noise = rng.standard_normal((size, dim), np.float32) / dim**0.5
        noise *= np.linalg.norm(step, axis=1, keepdims=True) / 3
        block = out[own] + rng.uniform(0.1, 0.5, (size, 1)).astype(np.float32) * step + noise
        out[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return index


def mapped(index: faiss.Index) -> faiss.Index:
    """Return an index as a gallery opens its exact rows: mapped from a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "index")
        faiss.write_index(index, str(file))
        return map_index(file)


def kinds(found: Found, flat: faiss.Index, recall: float, names: Sequence[str], peers: Sequence[str]) -> None:
    mapped_flat = mapped(flat)
    rows = stored_vectors(mapped_flat)
    n, dim = rows.shape
    exact, sample = FrozenIndex(mapped_flat, np.arange(n)), sample_vectors(np.arange(n), rows, 10)
    assert sample
    print(f"{n:,} x {dim}, recall of the 10 nearest at least {recall}; exact vectors take {4 * dim} bytes each")
    print(f"{'kind':<11}{'effort':>7}{'shortlist':>10}{'build s':>9}{'cpu s':>8}{'bytes':>7}", end="")
    print(f"{'recall':>8}{'ms':>8}{'cpu ms':>8}{'peak MiB':>9}")
    for name in (name for name in names if not found.has("kinds", n, name)):
        start, busy = time.perf_counter(), time.process_time()
        with private_peak() as peak:
            built = exact if name == "flat" else replace(exact, approximate=build_index(KINDS[name], rows))
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        measured = fastest_setting(name, built, sample, recall, seconds)
        if measured is None:
            print(f"{name:<11}{'no setting holds the recall':>40}", flush=True)
            continue
        frozen, one = measured
        size = 0 if frozen.approximate is None else _bytes(frozen.approximate) / n
        figures: dict[str, Any] = {
            "kind": name,
            "effort": one.setting.effort,
            "shortlist": one.setting.shortlist,
            "recall": one.recall,
            "build_seconds": one.seconds,
            "build_processor_seconds": busy,
            "build_peak_mib": peak[0],
            "bytes_beside_exact": size,
            **latency(partial(Index(dim, frozen).search, k=10), sample),
        }
        show(figures, size)
        found.add("kinds", rows=n, **figures)
    for name in (name for name in peers if not found.has("peers", n, name)):
        figures = measure_peer(name, stored_vectors(flat), sample, recall)
        show(figures, figures["bytes"])
        found.add("peers", rows=n, **figures)


@contextmanager
def private_peak() -> Iterator[list[float]]:
    """Yield a list whose number is, after the block, how many MiB of private memory the block took at most."""

    def private() -> float:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], private() - before)

    before, peak, done = private(), [0.0], threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()


def show(figures: dict[str, Any], size: float) -> None:
    print(
        f"{figures['kind']:<11}{figures['effort']:>7}{figures.get('shortlist', 1):>10}{figures['build_seconds']:>9.1f}"
        f"{figures['build_processor_seconds']:>8.1f}{size:>7.1f}{figures['recall']:>8.4f}"
        f"{figures['milliseconds']:>8.3f}{figures['processor_milliseconds']:>8.3f}",
        end="",
    )
    print(f"{figures.get('build_peak_mib', 0):>9.0f}", flush=True)


def _bytes(index: faiss.Index) -> int:
    with tempfile.NamedTemporaryFile() as file:
        faiss.write_index(index, file.name)
        return Path(file.name).stat().st_size


def processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), help="indexes of other libraries")
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="embeddings [n, d], .npy, for the second part")
    parser.add_argument("--changes", type=int, default=10_000, help="0 leaves this part out")
    parser.add_argument("--held", type=int, nargs="*", default=[20_000], help="items of the galleries that catch up")
    parser.add_argument("--open", type=int, default=100_000, help="vectors; 0 leaves this part out")
    parser.add_argument("--repeats", type=int, default=9, help="repetitions of catching up and of opening")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, or continue it")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw build time, bytes, recall and latency by the number of rows"
    )
    args = parser.parse_args()
    threads = faiss.omp_get_max_threads()
    found = Found(args.json, dim=args.dim, recall=args.recall, processor=processor(), threads=threads)
    for held in args.held if args.changes else ():
        catch_up(found, held, args.dim, args.changes, args.repeats)
    for n in args.rows:
        if args.vectors:
            flat = real_vectors(args.vectors, n, args.dim)
        else:
            flat = build_index(KINDS["flat"], vectors(n, args.dim))
        kinds(found, flat, args.recall, args.kinds, args.peers)
        if args.picture:
            draw(args.picture, found.parts)
    if args.open:
        open_large(found, args.open, args.dim, args.repeats)


if __name__ == "__main__":
    main()
