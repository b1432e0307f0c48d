"""What a worker of a cluster does: read, decode and embed the files that it is handed.

Tables go in and come out, as they travel between machines; nothing here knows the cluster or the gallery.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from serving.gallery.decoding import decode
from serving.gallery.image_files import read_image
from serving.gallery.thumbnails import Thumbnail
from zoo.errors import GalleryError, ImageError, ModelMismatchError
from zoo.models.load import Embedder, load

FILES = pa.schema({"number": pa.int64(), "path": pa.binary()})
"""The files' numbers in the list of all, and their full paths as the file system's bytes, which may be no UTF-8."""

OUTCOMES = pa.schema(
    {
        "number": pa.int64(),
        "content_sha256": pa.string(),
        "embedding": pa.binary(),
        "media_type": pa.string(),
        "thumbnail": pa.binary(),
        "reason": pa.string(),
    }
)
"""A row a file: `reason` where it cannot be read, else its hash in hex; no embedding where the gallery has it."""


class EmbeddingWorker:
    """One network, made once and called with table after table."""

    def __init__(self, model_ref: str, precision: str, fingerprint: str, folder: str, known: np.ndarray) -> None:
        """known: as `sorted_hashes` makes it, of the files that need no embedding.

        Raises `GalleryError` where this machine lacks the folder of images, `ModelMismatchError` where `model_ref` is
        another model here than that of the fingerprint, and what `zoo.load` raises.
        """
        if not Path(folder).is_dir():
            raise GalleryError(f"{socket.gethostname()} has no folder {folder}; workers read the images themselves.")
        self.model, self.known = load(model_ref, runtime="onnx", precision=precision), known
        if self.model.card.fingerprint != fingerprint:
            raise ModelMismatchError(
                f"{model_ref} on {socket.gethostname()} is another model ({self.model.card.fingerprint[:12]}) than "
                f"where indexing was started ({fingerprint[:12]}). Put the same model on all machines."
            )

    def __call__(self, files: pa.Table) -> pa.Table:
        """From a table of `FILES` to one of `OUTCOMES`, a row for each in the same order."""
        rows = [self._read(row["number"], Path(os.fsdecode(row["path"]))) for row in files.to_pylist()]
        _embed(self.model, [row for row in rows if "pixels" in row])
        return pa.Table.from_pylist(rows, OUTCOMES)

    def _read(self, number: int, path: Path) -> dict[str, Any]:
        try:
            data, content = read_image(path)
            row = {"number": number, "content_sha256": content}
            if is_among(self.known, content):
                return row
            pixels, thumbnail = decode(data, self.model.preprocessing)
        except (ImageError, OSError) as error:
            return {"number": number, "reason": str(error)}
        return row | {"pixels": pixels, **_columns(thumbnail)}


def sorted_hashes(contents: list[str]) -> np.ndarray:
    """SHA-256 sums given in hex as 32 bytes each, ascending: what many workers of one machine can share in memory."""
    return np.array(sorted(map(bytes.fromhex, contents)), "S32")


def is_among(hashes: np.ndarray, content_sha256: str) -> bool:
    # An array of one, as NumPy drops zeros at the end of a single value.
    wanted = np.array([bytes.fromhex(content_sha256)], "S32")
    place = int(np.searchsorted(hashes, wanted)[0])
    return bool((hashes[place : place + 1] == wanted).any())


def _embed(model: Embedder, rows: list[dict[str, Any]]) -> None:
    """Give each row its embedding for its pixels."""
    if rows:
        vectors = model.embed_pixels(np.stack([row.pop("pixels") for row in rows]))
        for row, vector in zip(rows, vectors, strict=True):
            row["embedding"] = vector.astype("<f4").tobytes()


def _columns(thumbnail: Thumbnail) -> dict[str, Any]:
    return {"media_type": thumbnail.media_type, "thumbnail": thumbnail.data}
