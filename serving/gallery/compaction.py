"""Compaction: the store as a new generation of the index, written beside the old one and put in its place at once.

It reads one state of the store over a connection of its own, so that reading and writing go on meanwhile; what
changes after that state waits in the side index of whoever searches. Vectors go through memory in blocks: they are
written to the folder and mapped from there, also for other kinds of index to be built and measured. The new folder
counts from the moment that the store names it; the old one is removed then, which those who have mapped it do not
notice. One process compacts a gallery at a time, and one that is killed leaves at most a folder that nobody uses and
the next one removes.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.gallery.generation import PREFIX, Facts, finish_generation, write_rows
from serving.gallery.index import Frozen
from serving.gallery.kinds import FLAT, KINDS
from serving.gallery.measuring import Measured, Sample, measure_kind, sample_of
from serving.gallery.schema import METRIC
from serving.gallery.segment import rows_of
from serving.gallery.store import Store
from zoo.errors import GalleryError
from zoo.files import LockHeldError, atomic_folder, locked

logger = logging.getLogger(__name__)

LEGACY = ("index.faiss", "index.json")
"""What galleries of schema 1 had in place of generations."""

DUE_AT_LEAST, DUE_PART = 1000, 0.1

NEAR_TIE = 0.1
"""The share of its time by which an index must beat a simpler one: less is noise, or not worth inexact answers."""


@dataclass(frozen=True)
class Plan:
    """What a gallery was tuned for: a kind of index, and the recall of the k nearest that it must hold."""

    kind: str = "flat"
    recall: float = 1.0
    k: int = 10


def is_due(waiting: int, count: int) -> bool:
    """Whether a compaction is worth its time: `waiting` vectors of `count` have come or gone since the last one."""
    return waiting > max(DUE_AT_LEAST, DUE_PART * count)


def read_plan(store: Store) -> Plan:
    text = store.state("plan")
    return Plan(**json.loads(text)) if text else Plan()


def compact(folder: Path, store: Store, wait: bool = True) -> Facts | None:
    """Write the store's present state as the generation that counts; what was written, None for an empty gallery.

    A tuned gallery keeps its kind; the setting is chosen anew, and where none holds the recall that the gallery was
    tuned for, the new generation is flat, which is exact.
    Raises `BusyError` where another process compacts and `wait` is not set, and `GalleryError` if nothing can be
    written: the old generation counts then as before.
    """
    with alone(folder, wait), _explained(folder):
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
) -> tuple[Facts | None, list[tuple[str, Measured | None]]]:
    """Measure the kinds, make a generation of one that is fast at that recall, and remember it as the plan.

    The simplest kind is chosen, in the order of `KINDS`, unless a later one is faster by more than `NEAR_TIE`.

    The second value says what was measured of each kind: None for one that the gallery is too small for, or that
    does not hold the floor. Flat search is always among them. An empty gallery is left alone.
    """
    with alone(folder, wait=True), _explained(folder):
        with _drafted(folder, store) as draft:
            if not draft:
                return None, []
            vectors = rows_of(draft.exact.exact)
            sample = sample_of(draft.exact.ids, vectors, k)
            rows, best = [], (draft.exact, Measured(FLAT, 1.0, float("inf"), 0.0))
            for kind in sorted({"flat", *kinds}, key=list(KINDS).index):
                found = measure_kind(kind, draft.exact, vectors, sample, floor) if sample else None
                rows.append((kind, found[1] if found else None))
                if found and found[1].milliseconds < (1 - NEAR_TIE) * best[1].milliseconds:
                    best = found
            frozen, measured = best
            facts = _finish(draft, store, frozen, measured if sample else None, measured.seconds)
        store.set_state("plan", json.dumps(asdict(Plan(measured.setting.kind, floor, k))))
        store.set_generation(draft.name)
        _sweep(folder, store.generations())
    return facts, rows


class BusyError(GalleryError):
    """Another process compacts the gallery."""


@dataclass(frozen=True)
class _Draft:
    """A generation that is being written to `folder`: the store's vectors after `change`, written and mapped."""

    name: str
    folder: Path
    change: int
    exact: Frozen


@contextmanager
def _drafted(folder: Path, store: Store) -> Iterator[_Draft | None]:
    """It is there by its name once the block ends well, and not at all if it does not; None for an empty gallery."""
    with ExitStack() as until_finished:
        with store.reading_since(0) as whole:
            if not whole.count:
                yield None
                return
            name = f"{PREFIX}{whole.number}-{secrets.token_hex(4)}"
            made = until_finished.enter_context(atomic_folder(folder / name))
            exact = write_rows(made, store.dim, whole.blocks)
        # What takes long is done when the store's moment has been let go.
        yield _Draft(name, made, whole.number, exact)


def _frozen(exact: Frozen, plan: Plan) -> tuple[Frozen, Measured | None]:
    vectors = rows_of(exact.exact)
    sample: Sample | None = sample_of(exact.ids, vectors, plan.k) if plan.kind != "flat" else None
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


def _finish(draft: _Draft, store: Store, frozen: Frozen, measured: Measured | None, seconds: float) -> Facts:
    recall, milliseconds = (measured.recall, measured.milliseconds) if measured else (None, None)
    model, held = (store.fingerprint, store.dim, METRIC), (draft.change, len(frozen.ids))
    facts = Facts(*model, *held, frozen.setting, frozen.k, recall, milliseconds, seconds, {})
    return finish_generation(draft.folder, frozen.approximate, facts)


def _sweep(folder: Path, keep: set[str]) -> None:
    """Remove what no longer counts: older generations, what killed writers left, the files of schema 1."""
    for path in folder.iterdir():
        old = path.name.startswith((PREFIX, f".{PREFIX}")) and path.is_dir() and path.name not in keep
        if old:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in LEGACY:
            path.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the right to write generations and to choose the current one. Raises `BusyError`."""
    try:
        with locked(folder, wait):
            yield
    except LockHeldError:
        raise BusyError(f"{folder} is being compacted by another process.") from None


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError where a file cannot be written
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        raise GalleryError(f"the index of {folder} cannot be written: {reason}. The gallery is as it was.") from error
