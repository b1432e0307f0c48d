"""A generation: one folder with an index of a gallery as it was after one change, never altered once it is there.

exact.faiss    flat index of all vectors        ids.npy       int64, the item of each row, ascending
index.faiss    the approximate one, if any      facts.json    what the folder is a copy of, and what was measured

The store names the generation that counts; a folder that it does not name is not used. All of it is derived and may
be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np

from serving.gallery.flat_file import FlatFile
from serving.gallery.index import Frozen
from serving.gallery.items import Block
from serving.gallery.kinds import KINDS, Setting
from zoo.files import sha256_of, write_json

EXACT, APPROXIMATE, IDS, FACTS = "exact.faiss", "index.faiss", "ids.npy", "facts.json"
PREFIX = "index-"
NONE = "none-"
"""What the name begins with that stands for no generation, and yet for another one than before."""

CHECKED_BYTES = 256 * 2**20
"""Up to this size a generation is read and compared with its hashes when it is opened; beyond, by `verify` alone."""


@dataclass(frozen=True)
class Facts:
    """What a generation is, and what was measured of it.

    recall: of the k nearest others of sampled vectors, how many its setting finds, against exact search; milliseconds:
    the median time of such a search; both are None where nothing was measured, as flat search is exact.
    files: name -> SHA-256.
    """

    fingerprint: str
    dim: int
    metric: str
    change: int
    count: int
    setting: Setting
    k: int
    recall: float | None
    milliseconds: float | None
    seconds: float
    files: Mapping[str, str]


def write_rows(folder: Path, dim: int, blocks: Iterable[Block]) -> Frozen:
    """Begin a generation in a folder that is there: its exact rows, one block of them at a time in memory, mapped."""
    with FlatFile(folder / EXACT, dim) as file:
        for ids, vectors in blocks:
            file.add(ids, vectors)
    np.save(folder / IDS, file.ids())
    return Frozen(_mapped(folder / EXACT), file.ids())


def finish_generation(folder: Path, approximate: faiss.Index | None, facts: Facts) -> Facts:
    """Write what a generation has beside its rows; `facts` as written, with the files' hashes."""
    if approximate is not None:
        faiss.write_index(approximate, str(folder / APPROXIMATE))
    facts = Facts(**{**vars(facts), "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())}})
    write_json(folder / FACTS, asdict(facts))
    # FAISS does not say when the last bytes of a file found no room.
    open_generation(folder, facts.fingerprint, facts.dim)
    return facts


def read_facts(folder: Path) -> Facts:
    """Raises `OSError`, `ValueError` or `TypeError` for a folder that is missing or damaged."""
    values = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    facts = Facts(**{**values, "setting": Setting(**values["setting"])})
    if facts.setting.kind not in KINDS:
        raise ValueError(f"it is of an unknown kind, {facts.setting.kind!r}")
    return facts


def open_generation(folder: Path, fingerprint: str, dim: int) -> tuple[Frozen, Facts]:
    """Map a generation. Raises `OSError`, `ValueError`, `TypeError`, `RuntimeError` if it is not right."""
    try:
        facts = read_facts(folder)
    except KeyError as error:
        raise ValueError(f"{FACTS} lacks {error}") from None
    if (facts.fingerprint, facts.dim) != (fingerprint, dim):
        raise ValueError("it is of another model's gallery")
    if sum((folder / name).stat().st_size for name in facts.files) <= CHECKED_BYTES:
        check_hashes(folder, facts)
    exact = _mapped(folder / EXACT)
    approximate = _mapped(folder / APPROXIMATE) if facts.setting.kind != "flat" else None
    ids = np.load(folder / IDS, mmap_mode="r")
    sizes = {(index.ntotal, index.d) for index in (exact, approximate) if index is not None}
    if sizes != {(facts.count, dim)} or ids.shape != (facts.count,):
        raise ValueError("its size differs")
    return Frozen(exact, ids, approximate, facts.setting, facts.k), facts


def check_hashes(folder: Path, facts: Facts) -> None:
    for name, expected in facts.files.items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"the SHA-256 of {name} differs")


def _mapped(path: Path) -> faiss.Index:
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
