"""The choice of a gallery's index: FAISS, or a collection in Milvus."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from serving.gallery.backends.milvus import ELSEWHERE, MilvusIndex, address_of
from serving.gallery.index_files import LiveIndex
from serving.gallery.store import Store
from zoo.errors import GalleryError, UsageError
from zoo.files import write_json

FILE, FAISS, STORE = "backend.json", "faiss", "gallery.sqlite"


def open_index(folder: Path, store: Store, device: str) -> LiveIndex | MilvusIndex:
    """The index of the gallery in `folder`. A store read as its other model's has one of FAISS.

    device: where one of FAISS is searched, cpu, or a GPU as `serving.gallery.index` takes it.
    """
    chosen = _chosen(folder)
    if chosen is None or chosen[0] == FAISS or store.other:
        return LiveIndex(folder, store, device)
    address, name = address_of(chosen[0]), chosen[1]
    return MilvusIndex(folder, store, address, name)


def backend_of(folder: Path) -> str:
    """ "faiss", or the address of the collection."""
    chosen = _chosen(folder)
    return FAISS if chosen is None else chosen[0]


def check(backend: str) -> None:
    """Raise `UsageError` for what is neither "faiss" nor an address."""
    if backend == FAISS:
        return
    if not backend.startswith("milvus://"):
        raise UsageError(f"no index {backend!r}; expected faiss, milvus://host:port/collection or milvus:///path.db")
    address_of(backend)


def check_workers(folder: Path, workers: int) -> None:
    """Raise `UsageError` where the gallery's index is for one process and there are to be more."""
    backend = backend_of(folder)
    if workers > 1 and backend != FAISS and address_of(backend).embedded:
        raise UsageError(
            f"the vectors of {folder} lie in {backend}, and an embedded Milvus takes one process at a time, not "
            f"{workers} workers. Serve with --workers 1, or {ELSEWHERE}."
        )


def choose(folder: Path, backend: str) -> None:
    """From its next opening on the gallery has that index, "faiss" or an address; a collection is filled now.

    Raises `UsageError` for what is neither, and `GalleryError` where Milvus does not take it or the collection is there
    and not this gallery's. The collection that the gallery had before stays as it is.
    """
    check(backend)
    before = _chosen(folder)
    name = before[1] if before else secrets.token_hex(8)
    if backend == FAISS:
        if before:  # the name stays, by which the collection is this gallery's
            write_json(folder / FILE, {"address": FAISS, "gallery": name})
        return
    address = address_of(backend)
    with Store(folder / STORE).closing() as store:
        MilvusIndex(folder, store, address, name).close()
    write_json(folder / FILE, {"address": address.text, "gallery": name})


def _chosen(folder: Path) -> tuple[str, str] | None:
    try:
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return str(values["address"]), str(values["gallery"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GalleryError(f"{folder / FILE} does not name the gallery's index: {error!r}.") from None
