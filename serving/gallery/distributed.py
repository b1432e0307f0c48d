"""Index images on the machines of a Ray cluster, to the same gallery as in one process.

This process lists the files, hands out their paths and alone writes the gallery, table by table as they come back;
so whenever it ends, what was written stays and the next run embeds the rest. Workers, each a process with a network of
its own, read, decode and embed (serving.gallery.embedding_worker). They need dml-zoo installed, and the images and the
model under the same paths as here. One that dies is replaced, and its files are tried again, as Ray does.

Outcomes are taken in the order of the files: items get the ids, sources and labels that one process gives them.
Embeddings may differ in the last bits, below 1e-6, as a network rounds by the size of the batch, and a batch is shorter
here where files of it are left out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from serving.gallery.builder import Fill
from serving.gallery.image_files import ImageFile
from serving.gallery.indexing import Run
from serving.gallery.items import NewItem
from serving.gallery.thumbnails import Thumbnail
from zoo.errors import GalleryError, UsageError, missing
from zoo.models.load import Embedder

if TYPE_CHECKING:
    import pyarrow as pa


SPARE = 2
"""Processors that Ray is told of beside those of the workers: where they take all, its data sets wait for ever."""

_TABLES = 10_000
"""At most so many tables are handed out, however many files there are; each is a whole number of batches."""


def on_ray(model_ref: str, folder: Path, address: str | None = None, workers: int | None = None) -> Fill:
    """What `index_folder` takes as `embed` to embed the images below `folder` on a Ray cluster.

    address: of a running cluster, "auto" for the one that this machine is of; by default a Ray of this machine alone
    is started, and ended afterwards. A Ray that this process has started before is used as it is. workers: how many
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

    def embed(run: Run, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool) -> None:
        with _cluster(address, workers) as size, _explained():
            worker = (model_ref, embedder.precision, embedder.card.fingerprint, _absolute(folder), known(run))
            write(run, files, _outcomes(list(tables(files, batch_size)), worker, batch_size, size), progress)

    return embed


def known(run: Run) -> np.ndarray:
    """The hashes of what the gallery has already, as workers look them up."""
    from serving.gallery.embedding_worker import sorted_hashes

    return sorted_hashes(list(run.gallery.ids_by_content()))


def tables(files: Sequence[ImageFile], batch_size: int) -> Iterator[pa.Table]:
    """The files as workers are handed them."""
    import pyarrow as pa

    from serving.gallery.embedding_worker import FILES

    rows = batch_size * max(1, len(files) // (batch_size * _TABLES))
    for start in range(0, len(files), rows):
        paths = [os.fsencode(_absolute(file.path)) for file in files[start : start + rows]]
        yield pa.table([range(start, start + len(paths)), paths], schema=FILES)


def _absolute(path: Path) -> str:
    """As it is found from a worker's own folder; links stay, as they may lead elsewhere on another machine."""
    return os.path.abspath(path.expanduser())  # noqa: PTH100


def write(run: Run, files: Sequence[ImageFile], outcomes: Iterable[pa.Table], progress: bool) -> None:
    """Take up tables of outcomes, in the order of the files; each is one transaction."""
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for table in outcomes:
            items = [_new_item(run, files[row["number"]], row) for row in table.to_pylist()]
            run.write([item for item in items if item])
            bar.update(len(items))


def _new_item(run: Run, file: ImageFile, row: dict[str, Any]) -> NewItem | None:
    if row["reason"] is not None:
        run.leave_out(file, row["reason"])
        return None
    content = row["content_sha256"]
    if not run.is_first(file, content):
        return None
    if row["embedding"] is None:
        run.recognise(file, run.gallery.item_of_content(content))
        return None
    thumbnail = Thumbnail(row["thumbnail"], row["media_type"])
    vector = np.frombuffer(row["embedding"], "<f4").astype(np.float32)
    return NewItem(file.source, vector, thumbnail, content, file.label, file.metadata)


def _outcomes(files: list[pa.Table], worker: tuple[Any, ...], batch_size: int, workers: int) -> Iterator[pa.Table]:
    """What the workers make of tables of files, in the same order."""
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

        from serving.gallery.embedding_worker import EmbeddingWorker

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
    """How many workers a running cluster gives. Raises `UsageError` where it has fewer than are asked for."""
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
            f"a worker failed: {_reason(error)} What was embedded before is in the gallery; the same command goes on "
            "from there."
        ) from None


def _reason(error: BaseException) -> str:
    """The last line of what Ray says, which ends with the worker's own traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1].strip().removeprefix("zoo.errors.") if lines else type(error).__name__).rstrip(".") + "."
