"""Embedding on the machines of a Ray cluster.

This process lists the files, sends out their paths and alone writes the gallery. Workers read, decode and embed; they
need dml-zoo, the images and the model under the same paths. Outcomes are taken in the order of the files, so that items
get the same ids as from one process. Embeddings may differ by less than 1e-6, because batches have other sizes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from serving.gallery.indexing import Fill, ImageFile, IndexingRun, read_image
from serving.gallery.types import NewItem, Thumbnail, decode_image
from zoo.errors import GalleryError, ImageError, ModelMismatchError, UsageError, missing
from zoo.models.load import Embedder, load

try:
    import pyarrow as pa
except ImportError:
    raise missing("pyarrow", "ray") from None


SPARE = 2
"""Processors that Ray is told of beside those of the workers: where they take all, its data sets wait for ever."""

_TABLES = 10_000
"""At most so many tables are handed out, however many files there are; each is a whole number of batches."""

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


def on_ray(model_ref: str, folder: Path, address: str | None = None, workers: int | None = None) -> Fill:
    """Return a function for `index_folder(embed=...)` that embeds the images below `folder` on a Ray cluster.

    address: of a running cluster, "auto" for the one that this machine is of; by default a Ray of this machine alone
    is started, and ended afterwards. A Ray that this process has started before is used unchanged. workers: how many
    processes embed, one processor each; by default one a processor, of a running cluster all but `SPARE`.
    Raises `MissingDependencyError` and `UsageError`; the run raises `GalleryError` where the cluster cannot be reached
    or a worker fails.
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise missing("ray", "ray") from None
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}.")

    def embed(
        run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool
    ) -> None:
        with _cluster(address, workers) as size, _explained():
            worker = (model_ref, embedder.precision, embedder.card.fingerprint, _absolute(folder), known(run))
            write(run, files, _outcomes(list(tables(files, batch_size)), worker, batch_size, size), progress)

    return embed


def known(run: IndexingRun) -> np.ndarray:
    """The hashes of what the gallery has already, as workers look them up."""

    return sorted_hashes(list(run.gallery.store.ids_by_content()))


def tables(files: Sequence[ImageFile], batch_size: int) -> Iterator[pa.Table]:
    """The files as workers are handed them."""

    rows = batch_size * max(1, len(files) // (batch_size * _TABLES))
    for start in range(0, len(files), rows):
        paths = [os.fsencode(_absolute(file.path)) for file in files[start : start + rows]]
        yield pa.table([range(start, start + len(paths)), paths], schema=FILES)


def write(run: IndexingRun, files: Sequence[ImageFile], outcomes: Iterable[pa.Table], progress: bool) -> None:
    """Take up tables of outcomes, in the order of the files; each is one transaction."""
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for table in outcomes:
            items = [_new_item(run, files[row["number"]], row) for row in table.to_pylist()]
            run.write([item for item in items if item])
            bar.update(len(items))


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
            pixels, thumbnail = decode_image(data, self.model.preprocessing)
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


def _absolute(path: Path) -> str:
    """Return a path that workers find from their own folder; links stay, as other machines may differ in them."""
    return os.path.abspath(path.expanduser())  # noqa: PTH100


def _new_item(run: IndexingRun, file: ImageFile, row: dict[str, Any]) -> NewItem | None:
    if row["reason"] is not None:
        run.leave_out(file, row["reason"])
        return None
    content = row["content_sha256"]
    if not run.is_first(file, content):
        return None
    if row["embedding"] is None:
        run.recognise(file, run.gallery.store.item_of_content(content))
        return None
    thumbnail = Thumbnail(row["thumbnail"], row["media_type"])
    vector = np.frombuffer(row["embedding"], "<f4").astype(np.float32)
    return NewItem(file.source, vector, thumbnail, content, file.label, file.metadata)


def _outcomes(files: list[pa.Table], worker: tuple[Any, ...], batch_size: int, workers: int) -> Iterator[pa.Table]:
    """Yield the results of the workers for tables of files, in order."""
    import ray
    import ray.data

    # It logs what it raises as well, with all of its own traceback.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    *words, hashes = worker
    data = ray.data.from_arrow(files).map_batches(
        _Actor,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        fn_constructor_args=(*words, ray.put(hashes)),
        num_cpus=1,
    )
    data.context.execution_options.preserve_order = True
    data.context.enable_progress_bars = False
    return iter(data.iter_batches(batch_size=None, batch_format="pyarrow"))


class _Actor:
    """An `EmbeddingWorker` in a process of its own, with the hashes where all workers of its machine share them."""

    def __init__(self, model_ref: str, precision: str, fingerprint: str, folder: str, hashes: Any) -> None:
        import ray

        self.worker = EmbeddingWorker(model_ref, precision, fingerprint, folder, ray.get(hashes))

    def __call__(self, files: pa.Table) -> pa.Table:
        return self.worker(files)


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Ray, running, and how many workers there are to be."""
    import ray

    if ray.is_initialized():
        yield _size(ray.cluster_resources(), workers)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    own = None if address else (workers or len(os.sched_getaffinity(0)))
    try:
        ray.init(address or "local", num_cpus=own + SPARE if own else None, **quiet)
    except Exception as error:  # Ray raises plain exceptions where it does not come up in time
        ray.shutdown()
        where = f"reach Ray at {address}" if address else "start Ray on this machine"
        advice = " If it asks for a token: set RAY_AUTH_MODE=token." if address else ""
        raise GalleryError(f"cannot {where}: {error}.{advice}") from None
    try:
        yield own or _size(ray.cluster_resources(), workers)
    finally:
        ray.shutdown()


def _size(resources: dict[str, float], workers: int | None) -> int:
    """Return the number of workers of a running cluster. Raises `UsageError` if it has fewer than requested."""
    most = int(resources.get("CPU", 0)) - SPARE
    if most < max(1, workers or 1):
        raise UsageError(
            f"the cluster has {most + SPARE} processors, of which {SPARE} stay free: at most {max(0, most)} workers, "
            f"not {workers or 1}."
        )
    return workers or most


@contextmanager
def _explained() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise GalleryError(
            f"a worker failed: {_reason(error)} What was embedded before is in the gallery; run the same command again "
            "to continue."
        ) from None


def _reason(error: BaseException) -> str:
    """The last line of what Ray says, which ends with the worker's own traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1].strip().removeprefix("zoo.errors.") if lines else type(error).__name__).rstrip(".") + "."


def _embed(model: Embedder, rows: list[dict[str, Any]]) -> None:
    """Give each row its embedding for its pixels."""
    if rows:
        vectors = model.embed_pixels(np.stack([row.pop("pixels") for row in rows]))
        for row, vector in zip(rows, vectors, strict=True):
            row["embedding"] = vector.astype("<f4").tobytes()


def _columns(thumbnail: Thumbnail) -> dict[str, Any]:
    return {"media_type": thumbnail.media_type, "thumbnail": thumbnail.data}
