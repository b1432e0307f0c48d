"""Near-duplicates: precision and recall for twenty distortions, and time and memory as galleries grow.

    python tests/benchmarks/bench_duplicates.py --photos BIRDS                          without imagededup
    python tests/benchmarks/bench_duplicates.py --photos BIRDS --peer VENV/bin/python   an interpreter that has it
    python tests/benchmarks/bench_duplicates.py --photos CARS --peer VENV/bin/python --tuned 8 0.8
    python tests/benchmarks/bench_duplicates.py --photos CARS --skip 1000                other photographs
    python tests/benchmarks/bench_duplicates.py --synthetic 100000 --synthetic 1000000
    python tests/benchmarks/bench_duplicates.py --look-alikes 12 --collection BIRDS --collection CARS --out groups.json

Photographs: `--originals` images are drawn by the seed, those after the first `--skip`, and of `--pictures` of them all
twenty copies are made (`tests.benchmarks.distortions`). All images are compared with the originals. Recall is the share
of the copies that are confirmed as copies of their original. Precision is the share of the confirmed pairs that show
one picture; all other photographs, many of the same class, can be mistaken. A pair of different photographs counts as
wrong, even where the data set itself holds a picture twice.

Synthetic items: random unit vectors and hashes. Every twentieth is a copy of the one before, with a cosine of 0.9 and
10 different bits. All have one picture, so that every comparison in detail confirms a copy. A second run adds 1,000
items to the gallery.

Look-alikes: `--look-alikes` pictures of each kind (`tests.benchmarks.look_alikes`), none of which are copies, and
copies of a quarter of them; and the images of every folder of `--collection`, whose groups a person has to judge.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from serving.duplicates.candidates import build_index
from serving.duplicates.comparison import CopySearch, compare
from serving.duplicates.groups import detail_of, measure
from serving.duplicates.pictures import Pictures, PictureTable
from serving.gallery import schema
from serving.gallery.indexing import index_folder
from serving.gallery.originals import Originals
from serving.gallery.store import Store
from serving.gallery.types import make_thumbnail
from tests.benchmarks.distortions import DISTORTIONS, FORMATS, copy_of
from tests.benchmarks.figures import Figure, print_conditions, print_figures, write_figures
from tests.benchmarks.look_alikes import COPIES, LOOK_ALIKES, draw, resave, scene
from zoo.console import print_table
from zoo.files import read_json, write_json
from zoo.models.load import load
from zoo.render import Table

SEED = 31
DIM = 224
COPY_EVERY, BATCH, LATER = 20, 20_000, 1000
WORKER = Path(__file__).with_name("imagededup_worker.py")

PEERS: dict[str, tuple[float, int, Sequence[float]]] = {
    "PHash": (10, -1, tuple(range(2, 25, 2))),
    "CNN": (0.9, 1, tuple(np.arange(0.6, 1, 0.02).round(2).tolist())),
}
"""Methods of imagededup: default threshold, 1 if large scores are near, and the thresholds to choose from."""

Pairs = set[tuple[str, str]]
"""Pairs of file names, each in order."""


def write_images(source: Path, folder: Path, drawn: range, pictures: int) -> None:
    """Write originals as NUMBER-original.jpg, and copies of the first of them as NUMBER-DISTORTION.jpg or .webp."""
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    order = np.random.default_rng(SEED).permutation(len(files))
    folder.mkdir(parents=True)
    for number, index in zip(drawn, order[drawn.start : drawn.stop].tolist(), strict=False):
        data = files[index].read_bytes()
        (folder / f"{number:05}-original.jpg").write_bytes(data)
        if number < drawn.start + pictures:
            image = Image.open(BytesIO(data)).convert("RGB")
            for name in DISTORTIONS:
                suffix = ".webp" if FORMATS.get(name, ("", 0))[0] == "WEBP" else ".jpg"
                (folder / f"{number:05}-{name}{suffix}").write_bytes(copy_of(image, name, number))


def split(name: str) -> tuple[str, str]:
    """Return the number and the distortion of a file name."""
    number, _, distortion = name.rpartition(".")[0].partition("-")
    return number, distortion


def is_original(name: str) -> bool:
    return split(name)[1] == "original"


def part_of(page: Pictures, ids: np.ndarray) -> Pictures:
    """Return the items of a page with these ids."""
    rows = np.isin(page.ids, ids)
    return Pictures(page.ids[rows], page.vectors[rows], page.hashes[rows])


def scores(pairs: Pairs, names: Sequence[str]) -> dict[str, float]:
    """Return the recall of each distortion and of all, and the precision, of confirmed pairs."""
    copies = [name for name in names if not is_original(name)]
    pairs = {pair for pair in pairs if is_original(pair[0]) or is_original(pair[1])}
    found = {name: tuple(sorted((name, f"{split(name)[0]}-original.jpg"))) in pairs for name in copies}
    recall = {
        distortion: float(np.mean([found[name] for name in copies if split(name)[1] == distortion]))
        for distortion in DISTORTIONS
    }
    right = sum(split(first)[0] == split(second)[0] for first, second in pairs)
    precision = right / len(pairs) if pairs else 1.0
    return {**recall, "recall": float(np.mean(list(found.values()))), "precision": precision}


def own_pairs(images: Path, folder: Path, copied: range) -> tuple[Pairs, dict[str, float], float]:
    """Return the confirmed pairs, the share of copies of each distortion with less detail, and seconds to compare."""
    index_folder(load("photos", "onnx"), "photos", images, folder / "gallery", progress=True)
    with closing(Store(folder / "gallery" / "gallery.sqlite")) as store:
        table = PictureTable(store)
        shown = store.items_of(list(store.content_labels()))
        items = {content: some[0] for content, some in shown.items()}
        chosen = np.array([content for content, item in items.items() if is_original(item.source)])
        started = time.process_time()
        index = build_index(store.dim, len(chosen), (part_of(page, chosen) for page in table.pages()), None)
        comparison = CopySearch(table)
        pairs = [pair for page in table.pages() for _, pair in comparison.confirmed(page, index) if pair is not None]
        seconds = time.process_time() - started
        detailed = {content: [item] for content, item in items.items() if int(split(item.source)[0]) in copied}
        measures = measure(table, detailed, Originals([images]))
        details = {items[content].source: detail_of(one) for content, one in measures.items()}
    named = {tuple(sorted((items[pair.first].source, items[pair.second].source))) for pair in pairs}
    return named, less_detail(details), seconds


def peer_scores(found: Mapping[str, list[Any]], files: Sequence[str], tuned: Sequence[float]) -> dict[str, Any]:
    """Return the scores of each method by its default and its tuned threshold.

    Without thresholds in `tuned`, those of the best F1 here are taken.
    """
    columns = {}
    for number, (method, (default, sign, steps)) in enumerate(PEERS.items()):

        def at(threshold: float, method: str = method, sign: int = sign) -> dict[str, float]:
            pairs = {(first, second) for first, second, score in found[method] if sign * score >= sign * threshold}
            return scores(pairs, files)

        best = tuned[number] if tuned else max(steps, key=lambda step: harmonic(at(step)))
        columns |= {f"{method} {default:g}": at(default), f"{method} {best:g}": at(best)}
    return columns


def harmonic(found: Mapping[str, float]) -> float:
    """Return F1 of recall and precision."""
    return 2 * found["recall"] * found["precision"] / max(1e-9, found["recall"] + found["precision"])


def less_detail(details: Mapping[str, float]) -> dict[str, float]:
    """Return for each distortion the share of copies that have less detail than their original."""
    kept: dict[str, list[bool]] = {name: [] for name in DISTORTIONS}
    for source, detail in details.items():
        number, distortion = split(source)
        if distortion != "original":
            kept[distortion].append(detail < details[f"{number}-original.jpg"])
    return {name: float(np.mean(values)) for name, values in kept.items() if values}


def photographs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Print and return the scores on photographs."""
    with tempfile.TemporaryDirectory() as name:
        folder, images = Path(name), Path(name) / "images"
        skip, pictures = arguments.skip, arguments.pictures
        write_images(arguments.photos, images, range(skip, skip + arguments.originals), pictures)
        files = sorted(path.name for path in images.iterdir())
        pairs, kept, seconds = own_pairs(images, folder, range(skip, skip + pictures))
        columns, peer_pairs = {"zoo duplicates": scores(pairs, files)}, {}
        if arguments.peer:
            out = folder / "peer.json"
            subprocess.run([arguments.peer, WORKER, images, out], check=True)
            peer_pairs = read_json(out)
            columns |= peer_scores(peer_pairs, files, arguments.tuned)
    rows = [
        [what, *(f"{column[what]:.3f}" for column in columns.values()), f"{kept[what]:.2f}" if what in kept else ""]
        for what in (*DISTORTIONS, "recall", "precision")
    ]
    print_table(Table(["", *columns, "less detail"], rows, numbers=[*columns, "less detail"]))
    wrong = sorted(pair for pair in pairs if split(pair[0])[0] != split(pair[1])[0])
    print(f"{len(files):,} files, {len(pairs):,} pairs, {len(wrong)} of different photographs; {seconds:.1f} s")
    facts = {"files": files, "scores": columns, "less_detail": kept, "wrong": wrong, "seconds": seconds}
    return {**facts, "pairs": sorted(pairs), "peer_pairs": peer_pairs}


def collection(images: Path) -> tuple[list[tuple[str, str]], dict[str, float]]:
    """Return the pairs that are confirmed in a folder, and the processor time and comparisons that it took."""
    with tempfile.TemporaryDirectory() as name:
        gallery = Path(name) / "gallery"
        index_folder(load("photos", "onnx"), "photos", images, gallery, progress=True)
        with closing(Store(gallery / "gallery.sqlite")) as store:
            table = PictureTable(store)
            started = time.process_time()
            result = compare(table, progress=True)
            seconds = time.process_time() - started
            sources = {
                content: some[0].source for content, some in store.items_of(list(store.content_labels())).items()
            }
            pairs = [(sources[pair.first], sources[pair.second]) for pair in table.pairs(mirrored=True)]
    facts = {"images": result.added, "comparisons": result.candidates, "pairs": len(pairs), "seconds": seconds}
    return pairs, {**facts, "seconds for 200": seconds * 200 / max(1, result.added)}


def look_alikes(count: int) -> dict[str, Any]:
    """Print and return for each kind the pairs of different pictures, and the share of copies that are found."""
    figures = {}
    for kind in LOOK_ALIKES:
        with tempfile.TemporaryDirectory() as name:
            folder, copies = Path(name), []
            for seed in range(count):
                picture = draw(kind, seed)
                picture.save(folder / f"{seed:03}-original.png")
                for copy in COPIES if seed < count / 4 else ():
                    copies.append(f"{seed:03}-{copy}.{'png' if picture.mode == 'RGBA' else 'jpg'}")
                    (folder / copies[-1]).write_bytes(resave(picture, copy))
            pairs, facts = collection(folder)
        wrong = sum(first[:3] != second[:3] for first, second in pairs)
        found = {copy for pair in pairs for copy in pair if any(is_original(name) for name in pair)}
        facts["pairs of different pictures"] = wrong
        for copy in COPIES:
            of = [name for name in copies if split(name)[1] == copy]
            facts[copy] = sum(name in found for name in of) / len(of)
        figures[kind] = facts
    columns = list(next(iter(figures.values())))
    rows = [[kind, *(f"{value:.2f}" for value in facts.values())] for kind, facts in figures.items()]
    print_table(Table(["", *columns], rows, numbers=columns))
    return figures


def synthetic_items(store: Store, count: int, first: int = 0) -> int:
    """Write items straight into the file, without an index; return the number of copies among them."""
    rng, copies = np.random.default_rng([SEED, first]), 0
    thumbnail = make_thumbnail(scene(np.random.default_rng(SEED), (48, 48))).data
    for start in range(first, first + count, BATCH):
        size = min(BATCH, first + count - start)
        vectors = rng.normal(size=(size, DIM)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        hashes = rng.integers(0, 256, (size, 32), dtype=np.uint8)
        of = np.arange(COPY_EVERY - 1, size, COPY_EVERY)
        vectors[of] = 0.9 * vectors[of - 1] + (1 - 0.81) ** 0.5 * vectors[of]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        hashes[of] = hashes[of - 1]
        hashes[of, :10] ^= 1
        copies += len(of)
        with store.database.transaction() as db:
            change = store.change() + 1
            ids = range(start + 1, start + 1 + size)
            db.executemany("INSERT INTO contents VALUES (?, ?, ?)", ((item, f"{item:064x}", change) for item in ids))
            db.executemany(
                "INSERT INTO items VALUES (?1, ?2, NULL, '{}', ?1, '2026', ?3, NULL, NULL)",
                ((item, f"{item}.jpg", change) for item in ids),
            )
            db.executemany("INSERT INTO thumbnails VALUES (?, 'image/png', ?)", ((item, thumbnail) for item in ids))
            blobs = zip(ids, (row.tobytes() for row in vectors), strict=True)
            db.executemany("INSERT INTO embeddings (content, embedding) VALUES (?, ?)", blobs)
            pictures = zip(ids, (row.tobytes() for row in hashes), strict=True)
            db.executemany("INSERT INTO pictures (content, hash) VALUES (?, ?)", pictures)
            db.execute("UPDATE state SET value = ? WHERE key = 'change'", (change,))
    return copies


def synthetic(count: int, folder: Path) -> Iterator[Figure]:
    """Yield time, memory and recall for a gallery of synthetic items, and for an addition to it."""
    path = folder / f"{count}.sqlite"
    schema.create(path, DIM, "synthetic")
    with closing(Store(path)) as store:
        copies = synthetic_items(store, count)
        table = PictureTable(store)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        result = compare(table, progress=True)
        yield Figure(f"{count:,} items: compared", time.process_time() - started, "s")
        yield Figure("memory before", before / 1024, "MiB")
        yield Figure("largest memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB")
        yield Figure("copies found", result.confirmed / copies, "")
        synthetic_items(store, LATER, count)
        started = time.process_time()
        compare(table)
        yield Figure(f"{LATER:,} items added: compared", time.process_time() - started, "s")
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of photographs")
    parser.add_argument("--originals", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0, help="photographs to leave out, in the order of the seed")
    parser.add_argument("--pictures", type=int, default=40)
    parser.add_argument("--peer", type=Path, help="Python interpreter with imagededup, timm and torch")
    parser.add_argument("--tuned", type=float, nargs=2, default=(), help="thresholds of PHash and CNN chosen elsewhere")
    parser.add_argument("--synthetic", type=int, action="append", default=[], help="number of items; repeatable")
    parser.add_argument("--look-alikes", type=int, default=0, help="pictures of each kind that is drawn")
    parser.add_argument(
        "--collection", type=Path, action="append", default=[], help="folder of photographs; repeatable"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print_conditions()
    if arguments.photos:
        found = photographs(arguments)
        if arguments.out:
            write_json(arguments.out, found)
    alike: dict[str, Any] = {"look_alikes": look_alikes(arguments.look_alikes)} if arguments.look_alikes else {}
    for folder in arguments.collection:
        pairs, facts = collection(folder)
        print(folder, facts)
        alike[str(folder)] = {**facts, "found": pairs}
    if alike and arguments.out:
        write_json(arguments.out, alike)
    for count in arguments.synthetic:
        with tempfile.TemporaryDirectory() as name:
            figures = list(synthetic(count, Path(name)))
        print_figures(figures)
        write_figures(arguments.out, figures)


if __name__ == "__main__":
    main()
