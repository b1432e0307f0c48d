"""Embedding on the machines of a Ray cluster.

This process lists the files, sends out their paths and alone writes the gallery. Workers read, decode and embed; they
need dml-zoo, the images and the model under the same paths. Outcomes are taken in the order of the files, so that items
get the same ids as from one process. Embeddings may differ by less than 1e-6, because batches have other sizes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from serving.gallery.image_files import ImageFile
from serving.gallery.indexing import Fill, IndexingRun, ReadFile
from serving.gallery.originals import read_image
from serving.gallery.types import Thumbnail, decode_image
from zoo.errors import GalleryError, ImageError, ModelMismatchError, UsageError, check_at_least, missing
from zoo.models.card import Card
from zoo.models.load import Embedder, load
from zoo.paths import core_count

try:
    import pyarrow as pa
except ImportError:
    raise missing("pyarrow", "ray") from None


SPARE = 2
"""Processors of a Ray that stay without a worker; its data sets wait for ever if workers take all of them."""

_TABLES = 10_000
"""Greatest number of tables that are sent out; each holds a whole number of batches."""

FILES = pa.schema({"number": pa.int64(), "path": pa.binary()})
"""Columns of a table of files: number in the list of all files, and full path in the file system's bytes."""

_TEXTS, _BYTES = ("content_sha256", "media_type", "reason", "photo"), ("embedding", "thumbnail")
OUTCOMES = pa.schema({"number": pa.int64()} | dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_BYTES, pa.binary()))
"""Columns of a table of outcomes, one row per file. `reason`: why a file cannot be read; `photo`: what is known of
the photograph, as JSON. A file that the gallery has already has its hash only."""


def on_ray(model_ref: str, folder: Path, address: str | None = None, workers: int | None = None) -> Fill:
    """Return the function that embeds the images of a folder on a Ray cluster, for `index_folder`.

    A failed run raises `GalleryError`; what was embedded before stays in the gallery.

    Args:
        model_ref: Name or folder by which each worker loads the model.
        folder: The folder of the images.
        address: A running cluster, "auto" for this machine's. By default a Ray of this machine is started for the run,
            unless this process has one.
        workers: Number of processes that embed. By default one per processor, of a running cluster all but `SPARE`.

    Raises:
        MissingDependencyError: If Ray is not installed.
        UsageError: If workers is below 1 (code "invalid-value").
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise missing("ray", "ray") from None
    if workers is not None:
        check_at_least("the number of workers", workers, 1)

    def embed(
        run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool
    ) -> None:
        with _cluster(address, workers) as size, _worker_errors():
            worker = (model_ref, embedder.precision, embedder.card, _absolute(folder), known_hashes(run))
            write(run, files, _outcomes(list(tables(files, batch_size)), worker, batch_size, size), progress)

    return embed


def known_hashes(run: IndexingRun) -> np.ndarray:
    """Return the hashes of the gallery's images, as `sorted_hashes` does."""
    return sorted_hashes(list(run.gallery.store.ids_by_content()))


def tables(files: Sequence[ImageFile], batch_size: int) -> Iterator[pa.Table]:
    """Return the files as tables for the workers."""
    rows = batch_size * max(1, len(files) // (batch_size * _TABLES))
    for start in range(0, len(files), rows):
        paths = [os.fsencode(_absolute(file.path)) for file in files[start : start + rows]]
        yield pa.table([range(start, start + len(paths)), paths], schema=FILES)


def write(run: IndexingRun, files: Sequence[ImageFile], outcomes: Iterable[pa.Table], progress: bool) -> None:
    """Write outcomes to the gallery in the order of the files, each table in one step."""
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for table in outcomes:
            rows = table.to_pylist()
            read = [_read_file(run, files[row["number"]], row) for row in rows]
            run.write([file for file in read if file])
            bar.update(len(rows))


class EmbeddingWorker:
    """A process that reads, decodes and embeds files, one table after another."""

    def __init__(self, model_ref: str, precision: str, card: Card, folder: str, hashes: Any) -> None:
        """Load the model. `hashes`: of images that the gallery has, from `sorted_hashes`, or Ray's reference to them.

        Raises:
            GalleryError: If this machine lacks the folder of the images (code "not-found").
            ModelMismatchError: If `model_ref` is another model than that of the card on this machine.
        """
        host = socket.gethostname()
        if not Path(folder).is_dir():
            raise GalleryError(f"{host} has no folder {folder}; each worker reads the images.", code="not-found")
        self.model = load(model_ref, runtime="onnx", precision=precision).matching(card)
        if self.model.card.fingerprint != card.fingerprint:
            raise ModelMismatchError(
                f"{model_ref} on {host} is another model ({self.model.card.fingerprint[:12]}) than where indexing was "
                f"started ({card.fingerprint[:12]}). Put the same model on all machines."
            )
        if not isinstance(hashes, np.ndarray):
            import ray

            hashes = ray.get(hashes)
        self.hashes: np.ndarray = hashes

    def __call__(self, files: pa.Table) -> pa.Table:
        """Return the outcomes of a table of files, in the same order."""
        rows = [self._read(row["number"], Path(os.fsdecode(row["path"]))) for row in files.to_pylist()]
        if decoded := [row for row in rows if "pixels" in row]:
            vectors = self.model.embed_pixels(np.stack([row.pop("pixels") for row in decoded]))
            for row, vector in zip(decoded, vectors, strict=True):
                row["embedding"] = vector.astype("<f4").tobytes()
        return pa.Table.from_pylist(rows, OUTCOMES)

    def _read(self, number: int, path: Path) -> dict[str, Any]:
        try:
            data, content = read_image(path)
            row = {"number": number, "content_sha256": content}
            if has_hash(self.hashes, content):
                return row
            pixels, thumbnail, notes, facts = decode_image(data, self.model.preprocessing)
        except (ImageError, OSError) as error:
            return {"number": number, "reason": str(error)}
        photo = json.dumps({"notes": notes, "facts": facts})
        picture = {"media_type": thumbnail.media_type, "thumbnail": thumbnail.data}
        return {**row, **picture, "pixels": pixels, "photo": photo}


def sorted_hashes(contents: list[str]) -> np.ndarray:
    """Return SHA-256 sums, given in hex, as 32 bytes each, ascending; the workers of a machine share the memory."""
    return np.array(sorted(map(bytes.fromhex, contents)), "S32")


def has_hash(hashes: np.ndarray, content_sha256: str) -> bool:
    """Return whether sorted hashes hold one."""
    # An array of one, because NumPy drops zeros at the end of a single value.
    wanted = np.array([bytes.fromhex(content_sha256)], "S32")
    row = int(np.searchsorted(hashes, wanted)[0])
    return bool((hashes[row : row + 1] == wanted).any())


def _absolute(path: Path) -> str:
    """Return an absolute path with its links, which may lead elsewhere on another machine."""
    return os.path.abspath(path.expanduser())  # noqa: PTH100


def _read_file(run: IndexingRun, file: ImageFile, row: dict[str, Any]) -> ReadFile | None:
    if row["reason"] is not None:
        run.leave_out(file, row["reason"])
        return None
    content = row["content_sha256"]
    if row["embedding"] is None:
        return ReadFile(file, content)
    photo = json.loads(row["photo"])
    run.note(file, photo["notes"])
    vector = np.frombuffer(row["embedding"], "<f4").astype(np.float32)
    return ReadFile(file, content, vector, Thumbnail(row["thumbnail"], row["media_type"]), photo["facts"])


def _outcomes(files: list[pa.Table], worker: tuple[Any, ...], batch_size: int, workers: int) -> Iterator[pa.Table]:
    """Return the outcomes of tables of files, in the same order."""
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs what it raises, with its own traceback
    *arguments, hashes = worker
    data = ray.data.from_arrow(files).map_batches(
        EmbeddingWorker,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        fn_constructor_args=(*arguments, ray.put(hashes)),
        num_cpus=1,
    )
    data.context.execution_options.preserve_order = True
    data.context.enable_progress_bars = False
    return iter(data.iter_batches(batch_size=None, batch_format="pyarrow"))


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to Ray or start one, and give the number of workers."""
    import ray

    if ray.is_initialized():
        yield _size(ray.cluster_resources(), workers)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    own = None if address else (workers or core_count())
    try:
        ray.init(address or "local", num_cpus=own + SPARE if own else None, **quiet)
    except Exception as error:  # Ray raises plain exceptions if it does not start in time
        ray.shutdown()
        action = f"reach Ray at {address}" if address else "start Ray on this machine"
        advice = " If it asks for a token: set RAY_AUTH_MODE=token." if address else ""
        raise GalleryError(f"cannot {action}: {error}.{advice}", code="worker-failed") from None
    try:
        yield own or _size(ray.cluster_resources(), workers)
    finally:
        ray.shutdown()


def _size(resources: dict[str, float], workers: int | None) -> int:
    """Return the number of workers on a running cluster. Raises `UsageError` if it has too few processors."""
    most = int(resources.get("CPU", 0)) - SPARE
    if most < max(1, workers or 1):
        limits = f"{most + SPARE} processors, of which {SPARE} stay free: at most {max(0, most)} workers"
        raise UsageError(f"the cluster has {limits}, not {workers or 1}.", code="invalid-value")
    return workers or most


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Raise the errors of workers as `GalleryError` (code "worker-failed"), without Ray's traceback."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise GalleryError(
            f"a worker failed: {_reason(error)} The gallery has what was embedded before; the same command continues.",
            code="worker-failed",
        ) from None


def _reason(error: BaseException) -> str:
    """Return the last line of Ray's message, which follows the worker's traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1].strip().removeprefix("zoo.errors.") if lines else type(error).__name__).rstrip(".") + "."
