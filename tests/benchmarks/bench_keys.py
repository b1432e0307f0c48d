"""Replacing vectors by key, each batch followed by a search that must find the new vectors, beside two peers.

    python tests/benchmarks/bench_keys.py [--held 5000] [--batch 200] [--rounds 10] [--dim 128] [--json keys.json]

The contestants take turns in each round. They are a gallery folder (`VectorGallery.put`: one durable transaction with
key, label, metadata and hash), Milvus Lite (`MilvusClient.upsert` of key and vector) and FAISS (`IndexIDMap2` over a
flat index: `remove_ids` and `add_with_ids`, and a dictionary of keys; in memory only, so that it shows the lower
bound). Time is that of the processor, with child processes: it is compared on a busy machine, and contains no waiting
for the disk. A figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import faiss
import numpy as np
import psutil
from pymilvus import DataType, MilvusClient

from serving.gallery import NewItem, VectorGallery
from serving.gallery.types import NO_PICTURE, vector_sha256
from tests.benchmarks.bench_gallery import vectors
from tests.benchmarks.figures import Figure, print_figures, write_figures
from zoo.data.preprocessing import Preprocessing
from zoo.models.card import Card

Put = Callable[[Sequence[str], np.ndarray], None]
Find = Callable[[np.ndarray], list[str]]
"""Puts vectors by their keys; returns the key of the nearest vector to each query."""


def gallery_folder(folder: Path, dim: int) -> tuple[Put, Find]:
    card = Card("made", "none", "none", "none", "none", dim, Preprocessing(8, 8), files={"model.safetensors": "0" * 64})
    gallery = VectorGallery.create(folder / "gallery", card, "made")

    def put(keys: Sequence[str], rows: np.ndarray) -> None:
        gallery.put(
            [
                NewItem(key, row, NO_PICTURE, vector_sha256(key, row), "class", {"n": 1}, key=key)
                for key, row in zip(keys, rows, strict=True)
            ]
        )

    return put, lambda queries: [str(hits[0].key) for hits in gallery.search(queries, 1)]


def milvus_lite(folder: Path, dim: int) -> tuple[Put, Find]:
    client = MilvusClient(str(folder / "milvus.db"))
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=256)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    index.add_index(field_name="vector", index_type="FLAT", metric_type="IP")
    client.create_collection("items", schema=schema, index_params=index, consistency_level="Session")

    def put(keys: Sequence[str], rows: np.ndarray) -> None:
        client.upsert("items", [{"id": key, "vector": row} for key, row in zip(keys, rows.tolist(), strict=True)])

    def find(queries: np.ndarray) -> list[str]:
        found = client.search("items", list(queries), limit=1, search_params={"metric_type": "IP"})
        return [str(hits[0]["id"]) for hits in found]

    return put, find


def faiss_map(folder: Path, dim: int) -> tuple[Put, Find]:
    index, numbers, keys_by_number = faiss.IndexIDMap2(faiss.IndexFlatIP(dim)), dict[str, int](), list[str]()

    def put(keys: Sequence[str], rows: np.ndarray) -> None:
        for key in keys:
            if key not in numbers:
                numbers[key] = len(keys_by_number)
                keys_by_number.append(key)
        ids = np.array([numbers[key] for key in keys], np.int64)
        index.remove_ids(ids)
        index.add_with_ids(rows, ids)

    return put, lambda queries: [keys_by_number[row[0]] for row in index.search(queries, 1)[1]]


CONTESTANTS = {"gallery folder": gallery_folder, "Milvus Lite": milvus_lite, "FAISS IndexIDMap2": faiss_map}


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(one.user + one.system for one in times)


def measure(held: int, batch: int, rounds: int, dim: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each round by contestant. Raises AssertionError where a search misses a new vector."""
    rows, rng = vectors(held + rounds * batch, dim), np.random.default_rng(0)
    keys = [f"camera-{number % 7}/{number:06d}" for number in range(held)]
    made = {name: make(folder, dim) for name, make in CONTESTANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for put, _ in made.values():
        for start in range(0, held, 1000):
            put(keys[start : start + 1000], rows[start : min(start + 1000, held)])
    for number in range(rounds):
        chosen = [keys[one] for one in rng.choice(held, batch, replace=False)]
        new = rows[held + number * batch :][:batch]
        for name in rng.permutation(list(made)).tolist():
            put, find = made[name]
            before = processor_seconds()
            put(chosen, new)
            found = find(new[:10])
            seconds[name].append(processor_seconds() - before)
            assert found == chosen[:10], f"{name} does not find what it was given"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", type=int, default=5000, help="items before the rounds")
    parser.add_argument("--batch", type=int, default=200, help="items that are replaced in one round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(args.held, args.batch, args.rounds, args.dim, Path(folder))
    per_item = {name: 1e6 * median(some) / args.batch for name, some in seconds.items()}
    own = per_item["gallery folder"]
    figures = [Figure(f"{name}, processor time per replaced item", value, "us") for name, value in per_item.items()]
    figures.append(Figure("Milvus Lite / gallery folder", per_item["Milvus Lite"] / own, "x"))
    figures.append(Figure("gallery folder / FAISS IndexIDMap2", own / per_item["FAISS IndexIDMap2"], "x"))
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
