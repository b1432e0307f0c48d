"""Generations of an index on disk, compaction, and the index of an open gallery.

A generation is a folder that is never changed once it is complete:

exact.faiss    flat index of all vectors        ids.npy       int64, the item of each row, ascending
index.faiss    the approximate one, if any      facts.json    the state of the store it was made of, and measurements

Compaction reads one state of the store and writes a new generation beside the old one, block by block. It is in use
from the moment the store names it; then the old one is removed. Processes that have mapped the old one can still read
it. One process compacts at a time. One that is killed leaves a folder that nobody uses and the next compaction removes.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import faiss
import numpy as np

from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import FLAT, KINDS, FrozenIndex, Index, IndexSetting, Neighbours, find_kind, stored_vectors
from serving.gallery.schema import METRIC
from serving.gallery.store import Store
from serving.gallery.tune import IndexMeasurement, QuerySample, measure_kind, sample_vectors
from serving.gallery.types import Block, IndexStats
from zoo.errors import GalleryError, ModelChangedError, UsageError
from zoo.files import LockHeldError, atomic_folder, locked, sha256_of, write_json

_INDEX = struct.Struct("<4siqqqBi")
_SIZE = struct.Struct("<Q")
_UNUSED = 1 << 20
"""What stands in two places that FAISS has given up."""

EXACT, APPROXIMATE, IDS, FACTS = "exact.faiss", "index.faiss", "ids.npy", "facts.json"
GENERATION_PREFIX = "index-"
NO_GENERATION = "none-"
"""What the name begins with that stands for no generation, and yet for another one than before."""

CHECKED_BYTES = 256 * 2**20
"""Up to this size a generation is read and compared with its hashes when it is opened; beyond, by `verify` alone."""

logger = logging.getLogger(__name__)
LEGACY = ("index.faiss", "index.json")
"""What galleries of schema 1 had in place of generations."""

DUE_AT_LEAST, DUE_PART = 1000, 0.1
SPEED_MARGIN = 0.1
"""The share of its time by which an index must beat a simpler one: less is noise, or not worth inexact answers."""

RETRY_SECONDS, MOST_RETRY_SECONDS = 60.0, 3600.0
"""After a compaction that failed, as where the disk was full: when it is tried again; twice as late each time."""

BUSY_SECONDS = 1.0
"""Where another process compacts."""


class FlatFile:
    """Writes an `IndexFlatIP` of vectors of `dim` numbers; with `named`, an `IndexIDMap` around it. A context.

    A file that was not closed well says that it holds nothing.
    """

    def __init__(self, path: Path, dim: int, named: bool = False) -> None:
        self._file: BinaryIO = path.open("wb")
        self._dim, self._named, self._ids = dim, named, [np.empty(0, np.int64)]
        self._file.write(self._head(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._finish()

    def add(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Append float32 [n, dim] with their ids, int64 [n]."""
        self._ids.append(ids)
        self._file.write(np.ascontiguousarray(vectors, "<f4").data)

    def ids(self) -> np.ndarray:
        """The ids of all rows so far, int64 [n]."""
        return np.concatenate(self._ids)

    def _finish(self) -> None:
        ids = self.ids()
        if self._named:
            self._file.write(_SIZE.pack(len(ids)) + ids.astype("<i8").tobytes())
        self._file.seek(0)
        self._file.write(self._head(len(ids)))

    def _head(self, count: int) -> bytes:
        names = [b"IxMp", b"IxFI"] if self._named else [b"IxFI"]
        numbers = self._dim, count, _UNUSED, _UNUSED, True, faiss.METRIC_INNER_PRODUCT
        return b"".join(_INDEX.pack(name, *numbers) for name in names) + _SIZE.pack(count * self._dim)


@dataclass(frozen=True)
class GenerationFacts:
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
    setting: IndexSetting
    k: int
    recall: float | None
    milliseconds: float | None
    seconds: float
    files: Mapping[str, str]


def write_vectors(folder: Path, dim: int, blocks: Iterable[Block]) -> FrozenIndex:
    """Begin a generation in a folder that is there: its exact rows, one block of them at a time in memory, mapped."""
    with FlatFile(folder / EXACT, dim) as file:
        for ids, vectors in blocks:
            file.add(ids, vectors)
    np.save(folder / IDS, file.ids())
    return FrozenIndex(_mapped(folder / EXACT), file.ids())


def finish_generation(folder: Path, approximate: faiss.Index | None, facts: GenerationFacts) -> GenerationFacts:
    """Write what a generation has beside its rows; `facts` as written, with the files' hashes."""
    if approximate is not None:
        faiss.write_index(approximate, str(folder / APPROXIMATE))
    facts = GenerationFacts(
        **{**vars(facts), "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())}}
    )
    write_json(folder / FACTS, asdict(facts))
    # FAISS does not say when the last bytes of a file found no room.
    open_generation(folder, facts.fingerprint, facts.dim)
    return facts


def read_facts(folder: Path) -> GenerationFacts:
    """Raises `OSError`, `ValueError` or `TypeError` for a folder that is missing or damaged."""
    values = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    facts = GenerationFacts(**{**values, "setting": IndexSetting(**values["setting"])})
    if facts.setting.kind not in KINDS:
        raise ValueError(f"it is of an unknown kind, {facts.setting.kind!r}")
    return facts


def open_generation(folder: Path, fingerprint: str, dim: int) -> tuple[FrozenIndex, GenerationFacts]:
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
    return FrozenIndex(exact, ids, approximate, facts.setting, facts.k), facts


def check_hashes(folder: Path, facts: GenerationFacts) -> None:
    for name, expected in facts.files.items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"the SHA-256 of {name} differs")


@dataclass(frozen=True)
class TuningPlan:
    """What a gallery was tuned for: a kind of index, and the recall of the k nearest that it must hold."""

    kind: str = "flat"
    recall: float = 1.0
    k: int = 10


def needs_compaction(waiting: int, count: int) -> bool:
    """Whether a compaction is worth its time: `waiting` vectors of `count` have come or gone since the last one."""
    return waiting > max(DUE_AT_LEAST, DUE_PART * count)


def read_plan(store: Store) -> TuningPlan:
    text = store.state("plan")
    return TuningPlan(**json.loads(text)) if text else TuningPlan()


def compact(folder: Path, store: Store, wait: bool = True) -> GenerationFacts | None:
    """Write the store's present state as the generation that counts; what was written, None for an empty gallery.

    A tuned gallery keeps its kind; the setting is selection anew, and where none holds the recall that the gallery was
    tuned for, the new generation is flat, which is exact.
    Raises `BusyError` where another process compacts and `wait` is not set, and `GalleryError` if nothing can be
    written: the old generation counts then as before.
    """
    with compaction_lock(folder, wait), _explained(folder):
        plan, start, name, facts = read_plan(store), time.perf_counter(), "", None
        with _drafted(folder, store) as draft:
            if draft:
                frozen, measured = _frozen(draft.exact, plan)
                seconds = round(time.perf_counter() - start, 3)
                name, facts = draft.name, _finish(draft, store, frozen, measured, seconds)
        store.set_generation(name)
        _sweep(folder, store.generations())
    return facts


def tune(
    folder: Path, store: Store, floor: float, k: int, kinds: Sequence[str]
) -> tuple[GenerationFacts | None, list[tuple[str, IndexMeasurement | None]]]:
    """Measure the kinds, make a generation of one that is fast at that recall, and remember it as the plan.

    The simplest kind is selection, in the order of `KINDS`, unless a later one is faster by more than `NEAR_TIE`.

    The second value says what was measured of each kind: None for one that the gallery is too small for, or that
    does not hold the floor. Flat search is always among them. An empty gallery is left alone.
    """
    with compaction_lock(folder, wait=True), _explained(folder):
        with _drafted(folder, store) as draft:
            if not draft:
                return None, []
            vectors = stored_vectors(draft.exact.exact)
            sample = sample_vectors(draft.exact.ids, vectors, k)
            rows, best = [], (draft.exact, IndexMeasurement(FLAT, 1.0, float("inf"), 0.0))
            for kind in sorted({"flat", *kinds}, key=list(KINDS).index):
                found = measure_kind(kind, draft.exact, vectors, sample, floor) if sample else None
                rows.append((kind, found[1] if found else None))
                if found and found[1].milliseconds < (1 - SPEED_MARGIN) * best[1].milliseconds:
                    best = found
            frozen, measured = best
            facts = _finish(draft, store, frozen, measured if sample else None, measured.seconds)
        store.set_state("plan", json.dumps(asdict(TuningPlan(measured.setting.kind, floor, k))))
        store.set_generation(draft.name)
        _sweep(folder, store.generations())
    return facts, rows


class BusyError(GalleryError):
    """Another process compacts the gallery."""


@contextmanager
def compaction_lock(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the right to write generations and to choose the current one. Raises `BusyError`."""
    try:
        with locked(folder, wait):
            yield
    except LockHeldError:
        raise BusyError(f"{folder} is being compacted by another process.") from None


class LiveIndex:
    """Every process has its own, and catches up with the store by its change number before it answers."""

    def __init__(self, folder: Path, store: Store, device: str = "cpu") -> None:
        """`store`: that of the gallery in `folder`; who made it closes it. device: as `Index` takes it."""
        self.folder, self._store, self._device = folder, store, device
        self._catching_up, self._compacting = threading.Lock(), threading.Lock()
        self._in_background = False
        self._not_before, self._pause = -math.inf, RETRY_SECONDS
        self._index, self._facts = self._newest()

    def close(self) -> None:
        """Nothing is held that has to be let go; the store is closed by who made it."""

    def current(self) -> Index:
        """The index, brought up to the store's last change and its generation: cheap where nothing changed."""
        index = self._index
        if self._store.position() != (index.change, index.generation):
            index = self._catch_up()
        if self._in_background and needs_compaction(index.waiting, len(index)) and time.monotonic() > self._not_before:
            self._start_compaction()
        return index

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING) -> Neighbours:
        """As `Index.search`, of the items that `selection` lets through."""
        return self.current().search(vectors, k, exact, self._store.matching_ids(selection) if selection else None)

    def _catch_up(self) -> Index:
        with self._catching_up:
            index, facts = self._index, self._facts
            if self._store.position()[1] != index.generation:
                index, facts = self._newest()
            # What is searched already takes changes over at once, and not block by block.
            with self._store.stream_changes(index.change) as changes:
                changes = replace(changes, blocks=list(changes.blocks))
            index.apply(changes)
            if len(index) != changes.count:
                index, facts = self._rebuilt(index.generation)
            self._index, self._facts = index, facts
            return index

    def stats(self) -> IndexStats:
        index, facts = self.current(), self._facts
        setting, measured = index.setting, facts if facts and facts.recall is not None else None
        return IndexStats(
            kind=setting.kind,
            effort=setting.effort,
            shortlist=setting.shortlist,
            recall=measured.recall if measured else None,
            k=measured.k if measured else None,
            milliseconds=measured.milliseconds if measured else None,
            generation=index.generation,
            frozen=facts.count if facts else 0,
            waiting=index.waiting,
            bytes=_size(self.folder / index.generation) if facts else 0,
            device=index.device,
        )

    def is_due(self) -> bool:
        """Whether a compaction is worth its time now: what has come is counted, and not read."""
        if self._store.position()[1] != self._index.generation:
            self.current()
        held = self._facts.change if self._facts else 0
        return needs_compaction(self._store.count_changes(held), self._store.count())

    def compact(self) -> GenerationFacts | None:
        """Write the next generation of the index now; None for an empty gallery.

        Searches and writes go on meanwhile, here and in other processes. Raises `GalleryError` where it cannot be
        written; the gallery is then as it was.
        """
        with self._compacting, self._store.reopen().closing() as store:
            return compact(self.folder, store)

    def finish(self) -> None:
        """Compact if that is due and nobody else does; where it cannot be done, the gallery is as good without."""
        if not self._in_background:
            with self._compacting, suppress(ModelChangedError):
                if self.is_due():
                    self._try_to_compact()

    def tune(
        self, recall: float, k: int = 10, kinds: Sequence[str] = tuple(KINDS)
    ) -> tuple[GenerationFacts | None, list[tuple[str, IndexMeasurement | None]]]:
        """Search from now on with a fast kind of index that finds `recall` of the `k` nearest, exactly on a near tie.

        Measured on the gallery's own vectors, each of which searches all others. Returns what was chosen, None for an
        empty gallery, and what was measured of every kind, None for one that was out of the question.
        """
        if not 0 < recall <= 1 or k < 1:
            raise UsageError(f"recall is a fraction up to 1 and k at least 1, not {recall} and {k}.")
        kinds = [kind for kind in kinds if find_kind(kind)]
        with self._compacting, self._store.reopen().closing() as store:
            return tune(self.folder, store, recall, k, kinds)

    def compact_in_background(self) -> None:
        """From now on, where a compaction is due, a thread of this process does it unless another process does."""
        self._in_background = True

    def _opened(self, generation: str) -> tuple[Index, GenerationFacts | None]:
        """The generation of that name, or an empty index in its place where its files are not right."""
        if not generation or generation.startswith(NO_GENERATION):
            return Index(self._store.dim, generation=generation), None
        try:
            found = open_generation(self.folder / generation, self._store.fingerprint, self._store.dim)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            if self._store.position()[1] == generation:
                logger.info("%s: the index is built from the store; its file is not used: %s.", self.folder, error)
            return Index(self._store.dim, generation=generation), None
        return Index(self._store.dim, found[0], found[1].change, generation, self._device), found[1]

    def _newest(self) -> tuple[Index, GenerationFacts | None]:
        """The generation that counts, with what came since; another may come, and this one go, before it is open."""
        while True:
            index, facts = self._opened(self._store.position()[1])
            if index.generation == self._store.position()[1]:
                break
        with self._store.stream_changes(index.change) as new:
            index.apply(new)
        return (index, facts) if len(index) == new.count else self._rebuilt(index.generation)

    def _rebuilt(self, generation: str) -> tuple[Index, None]:
        logger.warning("the index of %s does not add up; it is built anew from the store.", self.folder)
        index = Index(self._store.dim, generation=generation)
        with self._store.stream_changes(0) as whole:
            index.apply(whole)
        return index, None

    def _try_to_compact(self) -> None:
        try:
            with self._store.reopen().closing() as store:
                compact(self.folder, store, wait=False)
        except BusyError:
            self._not_before = time.monotonic() + BUSY_SECONDS
        except Exception as error:  # in the background nobody else would hear of it, and search after search try again
            logger.warning("%s", error, exc_info=not isinstance(error, GalleryError))
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MOST_RETRY_SECONDS)
        else:
            self._pause = RETRY_SECONDS

    def _start_compaction(self) -> None:
        if not self._compacting.acquire(blocking=False):
            return

        def run() -> None:
            try:
                faiss.omp_set_num_threads(1)  # of this thread alone: searches have the other cores
                self._try_to_compact()
            finally:
                self._compacting.release()

        # Killed with the process, it leaves a folder that nobody uses and the next compaction removes.
        threading.Thread(target=run, name="compaction", daemon=True).start()


def _mapped(path: Path) -> faiss.Index:
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


@dataclass(frozen=True)
class _Draft:
    """A generation that is being written to `folder`: the store's vectors after `change`, written and mapped."""

    name: str
    folder: Path
    change: int
    exact: FrozenIndex


@contextmanager
def _drafted(folder: Path, store: Store) -> Iterator[_Draft | None]:
    """It is there by its name once the block ends well, and not at all if it does not; None for an empty gallery."""
    with ExitStack() as until_finished:
        with store.stream_changes(0) as whole:
            if not whole.count:
                yield None
                return
            name = f"{GENERATION_PREFIX}{whole.number}-{secrets.token_hex(4)}"
            made = until_finished.enter_context(atomic_folder(folder / name))
            exact = write_vectors(made, store.dim, whole.blocks)
        # What takes long is done when the store's moment has been let go.
        yield _Draft(name, made, whole.number, exact)


def _frozen(exact: FrozenIndex, plan: TuningPlan) -> tuple[FrozenIndex, IndexMeasurement | None]:
    vectors = stored_vectors(exact.exact)
    sample: QuerySample | None = sample_vectors(exact.ids, vectors, plan.k) if plan.kind != "flat" else None
    found = measure_kind(plan.kind, exact, vectors, sample, plan.recall) if sample else None
    if plan.kind != "flat" and found is None:
        logger.warning(
            "no %s index of these %d vectors finds %g of the %d nearest; the gallery is searched exactly. "
            "Choose anew with: zoo gallery tune",
            plan.kind,
            len(vectors),
            plan.recall,
            plan.k,
        )
    return found or (exact, None)


def _finish(
    draft: _Draft, store: Store, frozen: FrozenIndex, measured: IndexMeasurement | None, seconds: float
) -> GenerationFacts:
    recall, milliseconds = (measured.recall, measured.milliseconds) if measured else (None, None)
    model, held = (store.fingerprint, store.dim, METRIC), (draft.change, len(frozen.ids))
    facts = GenerationFacts(*model, *held, frozen.setting, frozen.k, recall, milliseconds, seconds, {})
    return finish_generation(draft.folder, frozen.approximate, facts)


def _sweep(folder: Path, keep: set[str]) -> None:
    """Remove what no longer counts: older generations, what killed writers left, the files of schema 1."""
    for path in folder.iterdir():
        old = (
            path.name.startswith((GENERATION_PREFIX, f".{GENERATION_PREFIX}"))
            and path.is_dir()
            and path.name not in keep
        )
        if old:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in LEGACY:
            path.unlink(missing_ok=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError where a file cannot be written
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        raise GalleryError(f"the index of {folder} cannot be written: {reason}. The gallery is as it was.") from error


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:  # the next generation has just taken its place
        return 0
