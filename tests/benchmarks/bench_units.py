"""Unit figures from which docs/one-billion.md is computed; they are written into docs/units.json.

    python tests/benchmarks/bench_units.py --part index --rows 100000 1000000
    python tests/benchmarks/bench_units.py --part images --model MODEL      any exported model, such as a ResNet-50
    python tools/one_billion.py --write                                      write the page again

Times are processor times of one thread, which other work on the machine disturbs less than wall times; the load average
is recorded with them. Every figure names its run: command, date, hardware, versions. For each kind of index the setting
is the fastest that holds the recall; searches are the gallery's own, with exact re-scoring of the shortlist, one query
at a time. Vectors and photographs are synthetic, as in bench_gallery.py and bench_embed.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from serving.gallery.index import KINDS, FrozenIndex, Index, build_index
from serving.gallery.originals import read_image
from serving.gallery.tune import QuerySample, measure_kind, sample_vectors
from serving.gallery.types import THUMBNAIL_SIDE, decode_image
from tests.benchmarks.bench_embed import SIDES, photographs
from tests.benchmarks.bench_gallery import _bytes, filled, vectors
from zoo.models.load import load

OUT = Path(__file__).parents[2] / "docs" / "units.json"
LIBRARIES = ("dml-zoo", "faiss-cpu", "onnxruntime", "numpy", "pillow")
Figures = dict[str, dict[str, Any]]


class Clock:
    seconds = 0.0


@contextmanager
def processor() -> Iterator[Clock]:
    """Measure the processor time of this process in seconds."""
    clock, start = Clock(), time.process_time()
    yield clock
    clock.seconds = time.process_time() - start


def figure(value: float, unit: str, of: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "unit": unit, "of": of}


def index_figures(rows: list[int], dim: int, recall: float) -> Figures:
    """Return, by kind and number of vectors, the bytes per vector and the processor time of building and searching."""
    found: Figures = {}
    for n in sorted(rows):
        made = vectors(n, dim)
        exact, sample = (
            FrozenIndex(build_index(KINDS["flat"], made), np.arange(n)),
            sample_vectors(np.arange(n), made, 10),
        )
        assert sample
        for name in KINDS:
            found |= _kind(name, exact, made, sample, recall)
            print(f"{name} at {n:,}: done", file=sys.stderr, flush=True)
    return found


def _kind(name: str, exact: FrozenIndex, made: np.ndarray, sample: QuerySample, recall: float) -> Figures:
    n, dim = made.shape
    measured = measure_kind(name, exact, made, sample, recall)
    if measured is None:
        return {}
    frozen, one = measured
    of = f"{name}, {n:,} x {dim}, effort {one.setting.effort}, shortlist {one.setting.shortlist} k, k 10"
    with processor() as building:
        if name != "flat":
            build_index(KINDS[name], made)
    size = 4 * dim if frozen.approximate is None else _bytes(frozen.approximate) / n
    key = f"{name} at {n}"
    return {
        f"{key}: bytes": figure(size, "bytes per vector", of),
        f"{key}: build": figure(building.seconds / n, "core-seconds per vector", of),
        f"{key}: search": figure(_search(Index(dim, frozen), sample), "core-seconds per query", of),
        f"{key}: recall": figure(one.recall, "of the 10 nearest", of),
    }


def _search(index: Index, sample: QuerySample, most: int = 100) -> float:
    index.search(sample.vectors[:1], sample.k)
    queries = sample.vectors[:most]
    with processor() as clock:
        for query in queries:
            index.search(query[None], sample.k)
    return clock.seconds / len(queries)


def image_figures(model: str, images: int, batch: int) -> Figures:
    """Return an image's time of decoding and of embedding, its size and that of its thumbnail."""
    embedder = load(model, runtime="onnx")
    of = f"JPEG {SIDES[0]} x {SIDES[1]}"
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder) / "in", images, different=min(images, 20))
        with processor() as decoding:
            made = [decode_image(read_image(path)[0], embedder.preprocessing) for path in paths]
        size = float(np.mean([path.stat().st_size for path in paths]))
    pixels = np.stack([one[0] for one in made])
    network = f"{embedder.card.backbone}, {embedder.preprocessing.crop} pixels, fp32, batch {batch}"
    return {
        "decode": figure(decoding.seconds / images, "core-seconds per image", f"{of} read, hashed, decoded, thumbnail"),
        "network": figure(_network(embedder.embed_pixels, pixels, batch), "core-seconds per image", network),
        "image": figure(size, "bytes per image", of),
        "thumbnail": figure(
            np.mean([len(one[1].data) for one in made]), "bytes per image", f"at most {THUMBNAIL_SIDE} pixels"
        ),
    }


def _network(embed: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, batch: int) -> float:
    embed(pixels[:batch])
    with processor() as clock:
        for start in range(0, len(pixels), batch):
            embed(pixels[start : start + batch])
    return clock.seconds / len(pixels)


def store_figures(rows: int, dim: int) -> Figures:
    """Return an item's bytes in the SQLite file, without thumbnail and embedding, and its time of writing."""
    with tempfile.TemporaryDirectory() as folder:
        made, path = vectors(rows, dim), Path(folder) / "g"
        with processor() as writing:
            gallery = filled(path, made)
        with gallery:
            kept = len(gallery.store.thumbnail(1).data) + 4 * dim
        size = (path / "gallery.sqlite").stat().st_size / rows
    of = f"{rows:,} items, {dim} numbers"
    return {
        "row": figure(size - kept, "bytes per item", f"{of}, without thumbnail and embedding"),
        "write": figure(writing.seconds / rows, "core-seconds per item", f"{of}, in transactions of 10,000"),
    }


def run_facts(before: float) -> dict[str, Any]:
    return {
        "command": " ".join(["python", str(Path(sys.argv[0])), *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("index", "images", "store"), action="append", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[25_000, 100_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--model", default="margin-conv4-glyphs")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    faiss.omp_set_num_threads(1)
    parts = {
        "index": lambda: index_figures(args.rows, args.dim, args.recall),
        "images": lambda: image_figures(args.model, args.images, args.batch),
        "store": lambda: store_figures(min(args.rows), args.dim),
    }
    known = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"runs": {}, "figures": {}}
    for part in args.part:
        before = os.getloadavg()[0]
        found = {key: {**value, "run": part} for key, value in parts[part]().items()}
        kept = {key: value for key, value in known["figures"].items() if value["run"] != part}
        known = {"runs": known["runs"] | {part: run_facts(before)}, "figures": kept | found}
        args.out.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
