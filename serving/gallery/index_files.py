"""Index generations on disk, compaction, and the index of an open gallery.

A generation is a folder that is never changed once it is complete:

exact.faiss    flat index of all vectors        ids.npy       int64, the item of each row, ascending
index.faiss    the approximate one, if any      facts.json    `GenerationFacts`

Compaction reads all vectors of one state of the store into memory, and writes a new generation. It is in use from the
moment the store names it; then the old one is removed. Processes that have mapped the old one can still read it. One
process compacts at a time. A killed one leaves a folder that nobody uses and the next compaction removes.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import faiss
import numpy as np

from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import (
    FLAT,
    KINDS,
    FrozenIndex,
    Index,
    IndexSetting,
    Neighbours,
    Segment,
    find_kind,
    stored_vectors,
)
from serving.gallery.schema import METRIC
from serving.gallery.store import Store, store_model
from serving.gallery.tune import SEED, IndexMeasurement, QuerySample, measure_kind, sample_vectors
from serving.gallery.types import Attribution, IndexStats, StoreChanges, identify_items, parse_stored, utc_now
from zoo.data.dataset import DataIdentity
from zoo.errors import GalleryError, ModelChangedError, UsageError
from zoo.files import LockHeldError, atomic_folder, locked, read_json, sha256_of, write_json

logger = logging.getLogger(__name__)

EXACT, APPROXIMATE, IDS, FACTS = "exact.faiss", "index.faiss", "ids.npy", "facts.json"
GENERATION_PREFIX = "index-"
CHECKED_BYTES = 256 * 2**20
"""Up to this size a generation is compared with its hashes when it is opened; beyond, only by `verify`."""

DUE_AT_LEAST, DUE_PART = 1000, 0.1
"""A compaction is due when more vectors than this, and this share of all, have been added or removed."""

SPEED_MARGIN = 0.1
"""Share of its time by which an index must beat a simpler one; less is noise, or not worth inexact answers."""

COMPACT, COMPACT_ITEMS = "ivf-rabitq", 100_000
"""The kind that is measured before all others for more vectors than this: it needs a tenth of a graph's bytes and of
its time to be built."""

BUSY_SECONDS = 1.0
"""Time until the next attempt when another process compacts."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 60.0, 3600.0
"""Time until the next attempt after a failed compaction, for example on a full disk; it doubles each time."""

_GENERATION = re.compile(rf"{GENERATION_PREFIX}\d+-[0-9a-f]{{8}}")

Tuning = list[tuple[str, IndexMeasurement | None]]
"""Kinds of index and their measurements; None for one that was not built or lacks the recall."""


class BusyError(GalleryError):
    """Another process compacts the gallery."""


@dataclass(frozen=True)
class GenerationFacts:
    """Content and measurements of a generation.

    Attributes:
        change: The store's change that it contains.
        count: Number of vectors.
        recall: Share of the k nearest others of sampled vectors that its setting finds; None if it was not measured,
            as flat search is exact.
        milliseconds: Median time of such a search; None if it was not measured.
        seconds: Time to build it.
        files: Name to SHA-256.
        measured: Origin of the recall and the time.
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
    measured: Attribution | None


@dataclass(frozen=True)
class TuningPlan:
    """The kind of index that a gallery was tuned for, and the recall of the k nearest that it must have."""

    kind: str = "flat"
    recall: float = 1.0
    k: int = 10


class LiveIndex:
    """The index of an open gallery in one process. It catches up with the store before each search.

    Attributes:
        repeats: 0, since an image has one row, however many items show it.
    """

    repeats = 0

    def __init__(self, folder: Path, store: Store, device: str = "cpu") -> None:
        """Open the current generation and read later changes.

        Args:
            folder: Folder of the gallery.
            store: Its store, which the caller closes.
            device: Where to search; as of `Index`.
        """
        self.folder, self._store, self._device = folder, store, device
        self._catching_up, self._compacting = threading.Lock(), threading.Lock()
        self._in_background = False
        self._not_before, self._pause = -math.inf, RETRY_SECONDS
        self._index, self._facts = self._open_current()

    def current(self) -> Index:
        """Return the index as of the store's last change. This is cheap if nothing changed."""
        index = self._index
        if self._store.position() != (index.change, index.generation):
            index = self._catch_up()
        due = self._in_background and needs_compaction(index.waiting, len(index))
        if due and time.monotonic() > self._not_before:
            self._start_compaction()
        return index

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING) -> Neighbours:
        """Search among the items that a filter lets through; as `Index.search`."""
        index, among = self.current(), None
        if selection:
            among = self._store.matching_contents(selection, (index.change, index.generation))
        return index.search(vectors, k, exact, among)

    def stats(self) -> IndexStats:
        index, facts = self.current(), self._facts
        measured = facts if facts and facts.recall is not None else None
        return IndexStats(
            kind=index.setting.kind,
            effort=index.setting.effort,
            shortlist=index.setting.shortlist,
            recall=measured.recall if measured else None,
            k=measured.k if measured else None,
            milliseconds=measured.milliseconds if measured else None,
            generation=index.generation,
            frozen=facts.count if facts else 0,
            waiting=index.waiting,
            bytes=_folder_size(self.folder / index.generation) if facts else 0,
            device=index.device,
            measured=measured.measured if measured else None,
        )

    def is_due(self) -> bool:
        """Return whether a compaction is worth its time now. Changes are counted, not read."""
        if self._store.position()[1] != self._index.generation:
            self.current()
        change = self._facts.change if self._facts else 0
        return needs_compaction(self._store.count_changes(change), self._store.count())

    def compact(self) -> GenerationFacts | None:
        """Write the next generation now; return None for an empty gallery.

        Searches and writes continue meanwhile, here and in other processes.

        Raises:
            GalleryError: If it cannot be written (code "not-writable"); the gallery is unchanged then.
        """
        with self._compacting, closing(self._store.reopen()) as store:
            return compact(self.folder, store)

    def finish(self) -> None:
        """Compact before closing if it is due, unless another process compacts or this one does in the background."""
        if not self._in_background:
            with self._compacting, suppress(ModelChangedError):
                if self.is_due():
                    self._try_to_compact()

    def compact_in_background(self) -> None:
        """From now on, let a search that finds a compaction due start it in a thread, in one process of all."""
        self._in_background = True

    def tune(self, recall: float, k: int = 10, kinds: Sequence[str] = ()) -> tuple[GenerationFacts | None, Tuning]:
        """Search from now on with a fast kind of index; see `tune`.

        Raises:
            UsageError: If the recall or k is out of range (code "invalid-value"), or a kind does not exist (code
                "unknown-name").
        """
        if not 0 < recall <= 1 or k < 1:
            message = f"recall must be above 0 and at most 1, and k at least 1, not {recall} and {k}."
            raise UsageError(message, code="invalid-value")
        for kind in kinds:
            find_kind(kind)
        with self._compacting, closing(self._store.reopen()) as store:
            return tune(self.folder, store, recall, k, kinds)

    def _catch_up(self) -> Index:
        with self._catching_up:
            index, facts = self._index, self._facts
            if self._store.position()[1] != index.generation:
                index, facts = self._open_current()
            # Searches do not wait while the changes are read, because the index may be in use.
            with self._store.stream_changes(index.change) as changes:
                changes = replace(changes, blocks=list(changes.blocks))
            index.apply(changes)
            if len(index) != changes.count:
                index, facts = self._rebuild(index.generation), None
            self._index, self._facts = index, facts
            return index

    def _open_current(self) -> tuple[Index, GenerationFacts | None]:
        """Open the current generation and apply later changes."""
        while True:
            index, facts = self._open(self._store.position()[1])
            # Another process may have replaced and removed it meanwhile.
            if index.generation == self._store.position()[1]:
                break
        with self._store.stream_changes(index.change) as changes:
            index.apply(changes)
        return (index, facts) if len(index) == changes.count else (self._rebuild(index.generation), None)

    def _open(self, generation: str) -> tuple[Index, GenerationFacts | None]:
        """Open a generation, or an empty index of this name if its files are missing or damaged."""
        empty = Index(self._store.dim, generation=generation)
        if not generation:
            return empty, None
        try:
            check_facts(self.folder, generation, self._store)
            frozen, facts = open_generation(self.folder / generation, self._store.fingerprint, self._store.dim)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            if self._store.position()[1] == generation:
                logger.info("%s: the index is built from the store; its files are not valid: %s.", self.folder, error)
            return empty, None
        return Index(self._store.dim, frozen, facts.change, generation, self._device), facts

    def _rebuild(self, generation: str) -> Index:
        logger.warning("the index of %s does not match its store; it is built again.", self.folder)
        index = Index(self._store.dim, generation=generation)
        with self._store.stream_changes(0) as changes:
            index.apply(changes)
        return index

    def _try_to_compact(self) -> None:
        try:
            with closing(self._store.reopen()) as store:
                compact(self.folder, store, wait=False)
        except BusyError:
            self._not_before = time.monotonic() + BUSY_SECONDS
        except Exception as error:  # nobody else would report it, and each search would try again
            logger.warning("%s", error, exc_info=not isinstance(error, GalleryError))
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MAX_RETRY_SECONDS)
        else:
            self._pause = RETRY_SECONDS

    def _start_compaction(self) -> None:
        if not self._compacting.acquire(blocking=False):
            return

        def run() -> None:
            try:
                faiss.omp_set_num_threads(1)  # for this thread only; searches have the other cores
                self._try_to_compact()
            finally:
                self._compacting.release()

        threading.Thread(target=run, name="compaction", daemon=True).start()


def needs_compaction(waiting: int, count: int) -> bool:
    """Return whether a compaction is worth its time after `waiting` of `count` vectors were added or removed."""
    return waiting > max(DUE_AT_LEAST, DUE_PART * count)


def read_plan(store: Store) -> TuningPlan:
    text = store.state("plan")
    return parse_stored(text, "plan", store.path, lambda values: TuningPlan(**values)) if text else TuningPlan()


def compact(folder: Path, store: Store, wait: bool = True) -> GenerationFacts | None:
    """Write the present state of the store as a new generation, and put it into use.

    A tuned gallery keeps its kind of index, whose setting is chosen again. If no setting has the recall of the plan,
    the new generation is flat, which is exact.

    Args:
        folder: Folder of the gallery.
        store: Its store.
        wait: Whether to wait while another process compacts.

    Returns:
        None for an empty gallery, which has no generation.

    Raises:
        BusyError: If another process compacts and `wait` is False.
        GalleryError: If the generation cannot be written (code "not-writable"); the old one stays in use.
    """
    with compaction_lock(folder, wait), _write_errors(folder):
        plan, start, name, facts = read_plan(store), time.perf_counter(), "", None
        with _draft_generation(folder, store, identified=plan.kind != FLAT.kind) as draft:
            if draft:
                frozen, measurement, sample = _planned_index(draft.exact, plan)
                seconds = round(time.perf_counter() - start, 3)
                measured = _attribution(draft, store, sample if measurement else None)
                name, facts = draft.name, _finish(draft, store, frozen, measurement, seconds, measured)
        store.set_generation(name, sha256_of(folder / name / FACTS) if name else "")
        _remove_unused(folder, store.generations())
    return facts


def tune(
    folder: Path, store: Store, floor: float, k: int, kinds: Sequence[str]
) -> tuple[GenerationFacts | None, Tuning]:
    """Measure kinds of index, put a generation of a fast one into use, and store the choice as the plan.

    Each of some vectors of the gallery searches all others. The simplest kind is chosen, in the order of `KINDS`,
    unless a later one is faster by more than `SPEED_MARGIN`. Flat search is always measured.

    Without names, all kinds are measured. For more than `COMPACT_ITEMS` vectors that is done only if `COMPACT` is not
    chosen over flat search.

    Args:
        folder: Folder of the gallery.
        store: Its store.
        floor: Recall of the `k` nearest that the index must have.
        k: Number of neighbours.
        kinds: Names of kinds; none for all.

    Returns:
        The facts of the generation (None for an empty gallery), and the measurement of each kind, the simplest first.
    """
    with compaction_lock(folder, wait=True), _write_errors(folder):
        with _draft_generation(folder, store, identified=True) as draft:
            if not draft:
                return None, []
            vectors = stored_vectors(draft.exact.exact)
            sample = sample_vectors(draft.exact.ids, vectors, k)
            (frozen, measurement), tuning = _fastest_index(draft.exact, vectors, sample, floor, kinds)
            measured = _attribution(draft, store, sample)
            facts = _finish(draft, store, frozen, measurement if sample else None, measurement.seconds, measured)
        store.set_state("plan", json.dumps(asdict(TuningPlan(measurement.setting.kind, floor, k))))
        store.set_generation(draft.name, sha256_of(folder / draft.name / FACTS))
        _remove_unused(folder, store.generations())
    return facts, tuning


def _fastest_index(
    exact: FrozenIndex, vectors: np.ndarray, sample: QuerySample | None, floor: float, kinds: Sequence[str]
) -> tuple[tuple[FrozenIndex, IndexMeasurement], Tuning]:
    """Return the index that `tune` chooses, and the measurements. At most two indexes are in memory at a time."""
    best = exact, IndexMeasurement(FLAT, 1.0, math.inf, 0.0)
    measured: dict[str, IndexMeasurement | None] = {}
    for names in [kinds] if kinds else _stages(len(vectors)):
        for kind in sorted({FLAT.kind, *names} - measured.keys(), key=list(KINDS).index):
            result = measure_kind(kind, exact, vectors, sample, floor) if sample else None
            measured[kind] = result[1] if result else None
            if result and result[1].milliseconds < (1 - SPEED_MARGIN) * best[1].milliseconds:
                best = result
        if best[1].setting != FLAT:
            break
    return best, [(kind, measured[kind]) for kind in KINDS if kind in measured]


def _stages(n: int) -> Iterator[Sequence[str]]:
    """Yield names of kinds to measure over n vectors; later ones only if none of the earlier beats flat search."""
    if n > COMPACT_ITEMS:
        yield [COMPACT]
    yield list(KINDS)


@contextmanager
def compaction_lock(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the right to write generations and to choose the current one.

    Raises:
        BusyError: If another process holds it and `wait` is False.
    """
    try:
        with locked(folder, wait):
            yield
    except LockHeldError:
        raise BusyError(f"another process compacts {folder}.") from None


@dataclass(frozen=True)
class _Draft:
    """A generation in the making: the vectors of the store up to a change, written to `folder` and mapped.

    data: identity of their items; None where nothing is measured.
    """

    name: str
    folder: Path
    change: int
    exact: FrozenIndex
    data: DataIdentity | None


@contextmanager
def _draft_generation(folder: Path, store: Store, identified: bool) -> Iterator[_Draft | None]:
    """Write the vectors of the store; the generation gets its name at the end of the block unless that raises.

    Yield None for an empty gallery.
    """
    with ExitStack() as until_finished:
        with store.stream_changes(0) as changes:
            if not changes.count:
                yield None
                return
            name = f"{GENERATION_PREFIX}{changes.number}-{secrets.token_hex(4)}"
            draft_folder = until_finished.enter_context(atomic_folder(folder / name))
            exact = _write_vectors(draft_folder, store.dim, changes)
            data = identify_items(folder, store.contents()) if identified else None
        # The snapshot of the store has ended before the index is built, which takes long.
        yield _Draft(name, draft_folder, changes.number, exact, data)


def _attribution(draft: _Draft, store: Store, sample: QuerySample | None) -> Attribution | None:
    """Return the origin of what was measured on a draft; None if nothing was."""
    if draft.data is None or sample is None:
        return None
    protocol = f"each searches all others; recall of the {sample.k} nearest by exact search"
    model = store_model(store)[0].identity
    return Attribution(model, draft.data, protocol, len(sample.ids), SEED, utc_now())


def _planned_index(
    exact: FrozenIndex, plan: TuningPlan
) -> tuple[FrozenIndex, IndexMeasurement | None, QuerySample | None]:
    """Return the index of the plan, or flat search if its kind lacks the recall or is unknown to this version."""
    if plan.kind == FLAT.kind:
        return exact, None, None
    vectors = stored_vectors(exact.exact)
    sample = sample_vectors(exact.ids, vectors, plan.k)
    result = measure_kind(plan.kind, exact, vectors, sample, plan.recall) if sample and plan.kind in KINDS else None
    if result is None:
        logger.warning(
            "no %s index of these %d vectors finds %g of the %d nearest, so search is exact. "
            "Choose again with: zoo gallery tune GALLERY",
            plan.kind,
            len(vectors),
            plan.recall,
            plan.k,
        )
    return (*(result or (exact, None)), sample)


def _finish(
    draft: _Draft,
    store: Store,
    frozen: FrozenIndex,
    measurement: IndexMeasurement | None,
    seconds: float,
    measured: Attribution | None,
) -> GenerationFacts:
    """Write the files of a generation apart from its vectors."""
    if frozen.approximate is not None:
        faiss.write_index(frozen.approximate, str(draft.folder / APPROXIMATE))
    facts = GenerationFacts(
        fingerprint=store.fingerprint,
        dim=store.dim,
        metric=METRIC,
        change=draft.change,
        count=len(frozen.ids),
        setting=frozen.setting,
        k=frozen.k,
        recall=measurement.recall if measurement else None,
        milliseconds=measurement.milliseconds if measurement else None,
        seconds=seconds,
        files={path.name: sha256_of(path) for path in sorted(draft.folder.iterdir())},
        measured=measured,
    )
    write_json(draft.folder / FACTS, asdict(facts))
    open_generation(draft.folder, facts.fingerprint, facts.dim)  # FAISS does not report a full disk at the last bytes
    return facts


def _remove_unused(folder: Path, used: set[str]) -> None:
    """Remove older generations and folders that killed processes left."""
    for path in folder.iterdir():
        is_generation = path.name.startswith((GENERATION_PREFIX, f".{GENERATION_PREFIX}")) and path.is_dir()
        if is_generation and path.name not in used:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError if it cannot write a file
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        message = f"the index of {folder} cannot be written: {reason}. The gallery is unchanged."
        raise GalleryError(message, code="not-writable") from error


def _folder_size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:  # the next generation has just replaced it
        return 0


def _write_vectors(folder: Path, dim: int, changes: StoreChanges) -> FrozenIndex:
    """Write the exact rows of a generation, and return them mapped. All of them are in memory meanwhile."""
    rows = Segment.of(dim, changes.blocks, changes.count)
    faiss.write_index(rows.exact, str(folder / EXACT))
    np.save(folder / IDS, rows.ids)
    return FrozenIndex(map_index(folder / EXACT), rows.ids)


def open_generation(folder: Path, fingerprint: str, dim: int) -> tuple[FrozenIndex, GenerationFacts]:
    """Map a generation of a model.

    Raises:
        OSError, ValueError, TypeError, RuntimeError: If it is missing, damaged or of another model.
    """
    facts = read_facts(folder)
    if (facts.fingerprint, facts.dim) != (fingerprint, dim):
        raise ValueError("it is of another model's gallery")
    if sum((folder / name).stat().st_size for name in facts.files) <= CHECKED_BYTES:
        check_hashes(folder, facts)
    exact = map_index(folder / EXACT)
    approximate = map_index(folder / APPROXIMATE) if facts.setting.kind != "flat" else None
    ids = np.load(folder / IDS, mmap_mode="r")
    sizes = {(index.ntotal, index.d) for index in (exact, approximate) if index is not None}
    if sizes != {(facts.count, dim)} or ids.shape != (facts.count,) or ids.dtype != np.int64:
        raise ValueError("its size differs")
    if (np.diff(ids, prepend=0) <= 0).any():
        raise ValueError("its ids do not ascend")
    return FrozenIndex(exact, ids, approximate, facts.setting, facts.k), facts


def check_facts(gallery: Path, generation: str, store: Store) -> None:
    """Raise `ValueError` or `OSError` unless a generation is the one that the store names.

    The facts hold the hashes of its files, and the store that of the facts, so that FAISS, which is written for files
    of its own, reads none that somebody else has put there.
    """
    folder = gallery / generation
    if not _GENERATION.fullmatch(generation) or folder.is_symlink():
        raise ValueError(f"{generation!r} is not a generation's name")
    if sha256_of(folder / FACTS) != store.state("generation sha256"):
        raise ValueError(f"the SHA-256 of {FACTS} is not the one in the store")


def read_facts(folder: Path) -> GenerationFacts:
    """Read the facts of a generation.

    Raises:
        OSError, ValueError, TypeError: If they are missing or damaged.
    """
    values = read_json(folder / FACTS)
    try:
        origin = values["measured"]
        measured = None if origin is None else Attribution.from_json(origin)
        facts = GenerationFacts(**{**values, "setting": IndexSetting(**values["setting"]), "measured": measured})
    except (AttributeError, KeyError) as error:
        raise ValueError(f"{FACTS} is damaged: {error}") from None
    if facts.setting.kind not in KINDS:
        raise ValueError(f"its kind of index is unknown: {facts.setting.kind!r}")
    expected = {EXACT, IDS, *([APPROXIMATE] if facts.setting.kind != FLAT.kind else [])}
    if set(facts.files) != expected or any(not (folder / name).is_file() for name in expected):
        raise ValueError(f"it has not the files {', '.join(sorted(expected))}")
    return facts


def check_hashes(folder: Path, facts: GenerationFacts) -> None:
    """Raise `ValueError` if a file differs from its hash."""
    for name, expected in facts.files.items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"the SHA-256 of {name} differs")


def map_index(path: Path) -> faiss.Index:
    """Return the index of a file, whose rows are mapped and not read."""
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
