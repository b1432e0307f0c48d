"""The FAISS index of a gallery: exact inner product over unit vectors, derived from the store at any time.

On disk it is `index.faiss` with `index.json` beside it, which says of what it is a copy. A pair that is not a copy
of the store's present state is passed over: the file only saves reading the store, and is never trusted over it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from serving.gallery.items import Changes
from zoo.errors import missing
from zoo.files import atomic_path, sha256_of, write_json

try:
    import faiss
except ImportError:
    raise missing("faiss", "cpu") from None

logger = logging.getLogger(__name__)

FILE, FACTS = "index.faiss", "index.json"


@dataclass(frozen=True)
class Facts:
    """What an index file is a copy of: the store of this model's gallery after this change."""

    fingerprint: str
    dim: int
    change: int
    mark: str
    count: int
    sha256: str


class Index:
    """Vectors by id. Searches run side by side; a change waits for them and they for it."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.change, self.mark = 0, ""
        """The store's change that this index has caught up with."""
        self._lock = _SharedLock()
        self._faiss: faiss.Index = faiss.IndexIDMap(faiss.IndexFlatIP(dim))

    def __len__(self) -> int:
        return int(self._faiss.ntotal)

    def apply(self, changes: Changes) -> None:
        """Take over what happened in the store since `self.change`."""
        with self._lock.exclusive():
            if len(changes.removed):
                self._faiss.remove_ids(faiss.IDSelectorBatch(changes.removed))
            if len(changes.ids):
                self._faiss.add_with_ids(np.ascontiguousarray(changes.vectors, np.float32), changes.ids)
            self.change, self.mark = changes.number, changes.mark

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Similarities float32 [q, k] and ids int64 [q, k] of the nearest, best first; k is cut to what there is."""
        with self._lock.shared():
            k = min(k, len(self))
            if k == 0:
                return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
            similarities, ids = self._faiss.search(np.ascontiguousarray(vectors, np.float32), k)
        return similarities, ids

    def save(self, folder: Path, fingerprint: str) -> None:
        """Write the index and its facts into the gallery folder."""
        with self._lock.shared(), atomic_path(folder / FILE) as temporary:
            faiss.write_index(self._faiss, str(temporary))
            facts = Facts(fingerprint, self.dim, self.change, self.mark, len(self), sha256_of(temporary))
        write_json(folder / FACTS, asdict(facts))


def load_index(folder: Path, fingerprint: str, dim: int, last_change: tuple[int, str]) -> Index:
    """The index saved in a gallery folder if it is a copy of the store after `last_change`, else an empty index."""
    index = Index(dim)
    if last_change[0] == 0:
        return index
    try:
        facts = Facts(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
        if (facts.fingerprint, facts.dim, (facts.change, facts.mark)) != (fingerprint, dim, last_change):
            raise ValueError("it is of another state of the gallery")
        if sha256_of(folder / FILE) != facts.sha256:
            raise ValueError("its SHA-256 differs")
        stored = faiss.read_index(str(folder / FILE))
        if (stored.ntotal, stored.d) != (facts.count, dim):
            raise ValueError("its size differs")
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        logger.info("%s: the index file is not used (%s); the index is built from the store.", folder, error)
    else:
        index._faiss, index.change, index.mark = stored, facts.change, facts.mark
    return index


class _SharedLock:
    """Held by many readers or by one writer; a waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writers = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._writers += 1
            self._condition.wait_for(lambda: not self._readers)
            try:
                yield
            finally:
                self._writers -= 1
                self._condition.notify_all()
