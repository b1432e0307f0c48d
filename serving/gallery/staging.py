"""The second slot of embeddings in a store, of another model, swapped with the first in one transaction.

Each slot has its model, its index generation and its facts. The second one holds what a rebuild has made so far, or
the embeddings that were replaced. Items, labels, thumbnails, marks and the change number belong to no slot.

`other change` is the change number up to which every item is embedded in the second slot or cannot be embedded.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from zoo.errors import ModelChangedError

Read = Callable[..., list[tuple[Any, ...]]]
Writing = Callable[[], AbstractContextManager[sqlite3.Connection]]
STAGED_VIEWS = """
CREATE TEMP VIEW items AS SELECT * FROM main.items WHERE id IN (SELECT item FROM main.embeddings_other)
    AND change <= (SELECT value FROM main.state WHERE key = 'other change');
CREATE TEMP VIEW embeddings AS SELECT other.* FROM main.embeddings_other AS other JOIN main.items ON id = item
    WHERE change <= (SELECT value FROM main.state WHERE key = 'other change');
CREATE TEMP VIEW state AS SELECT substr(key, 7) AS key, value FROM main.state WHERE key LIKE 'other %'
    UNION ALL SELECT key, value FROM main.state WHERE key IN ('metric', 'plan');
"""
"""For a connection that is to read the other slot as if it were the present one."""

_EXCHANGE = (
    "DELETE FROM state WHERE key IN ('other change', 'other role', 'other coming', 'other token')",
    "ALTER TABLE embeddings RENAME TO embeddings_before",
    "ALTER TABLE embeddings_other RENAME TO embeddings",
    "ALTER TABLE embeddings_before RENAME TO embeddings_other",
    "UPDATE state SET key = 'before ' || key "
    "WHERE key IN ('dim', 'fingerprint', 'generation', 'model') OR key LIKE 'fact %'",
    "UPDATE state SET key = substr(key, 7) WHERE key LIKE 'other %'",
    "UPDATE state SET key = 'other ' || substr(key, 8) WHERE key LIKE 'before %'",
)
_CHANGE, _ROLE = "other change", "other role"
REBUILT, REPLACED = "rebuilt", "replaced"
_PIECE = 10_000


@dataclass(frozen=True)
class Slot:
    """What the other slot holds.

    role: "rebuilt", made by a rebuild, all of it or a part; or "replaced", of the model that the store had before.
    model: its card and how it is loaded, as in model.json; change: up to where its items are settled; coming: whether
    it was announced that the slots are about to change places.
    """

    fingerprint: str
    dim: int
    model: str
    role: str
    change: int
    coming: bool


@dataclass(frozen=True)
class StagedEmbedding:
    """An embedding for the other slot: unit row, float32 [dim], as bytes; from_thumbnail: of a smaller picture."""

    item: int
    blob: bytes
    from_thumbnail: bool = False


class Staging:
    """The other slot of a store. `read` runs a query; `writing` is a transaction."""

    def __init__(self, read: Read, writing: Writing) -> None:
        self._read, self._writing = read, writing

    def slot(self) -> Slot | None:
        """What the slot holds; None where it is empty."""
        state: dict[str, Any] = dict(self._read("SELECT substr(key, 7), value FROM state WHERE key LIKE 'other %'"))
        if "fingerprint" not in state:
            return None
        model, role = str(state["model"]), str(state["role"])
        fingerprint, change, coming = str(state["fingerprint"]), int(state["change"]), "coming" in state
        return Slot(fingerprint, int(state["dim"]), model, role, change, coming)

    def begin(self, present_model: str, model: str, fingerprint: str, dim: int) -> str:
        """Make room for the embeddings of a model; what is there of the same one stays, of another one goes.

        present_model, model: the store's own and the new one, as in model.json. Returns the slot's token: who wrote
        into it and finds another one later knows that it was emptied or exchanged meanwhile.
        """
        slot = self.slot()
        if slot is None or slot.fingerprint != fingerprint:
            self.discard()
            values = {"fingerprint": fingerprint, "dim": dim, "model": model, "change": 0, "generation": ""}
            values["token"] = secrets.token_hex(8)
            with self._writing() as db:
                # Another one may have begun at the same time: the last one counts.
                db.execute("DELETE FROM state WHERE key LIKE 'other %'")
                db.execute("DELETE FROM embeddings_other")
                rows = [(f"other {key}", value) for key, value in values.items()]
                db.executemany("INSERT INTO state VALUES (?, ?)", [*rows, (_ROLE, REBUILT)])
                # From now on the store itself says which model is its own, as that may change within a transaction.
                db.execute("INSERT OR IGNORE INTO state VALUES ('model', ?)", (present_model,))
        ((token,),) = self._read("SELECT value FROM state WHERE key = 'other token'")
        self.announce(token, coming=False)  # by one that was killed
        self._look_again()
        return str(token)

    def discard(self) -> None:
        """Empty the slot, in pieces, so that writers do not wait long."""
        with self._writing() as db:
            db.execute("DELETE FROM state WHERE key LIKE 'other %'")
        left = 1
        while left:
            with self._writing() as db:
                if self.slot() is not None:  # begun anew by another process
                    return
                some = f"SELECT item FROM embeddings_other LIMIT {_PIECE}"
                left = db.execute(f"DELETE FROM embeddings_other WHERE item IN ({some})").rowcount

    def missing(self, since: int = 0) -> tuple[int, list[int]]:
        """The number of the last change, and the ids of the items written after `since` that are not embedded."""
        absent = "id NOT IN (SELECT item FROM embeddings_other)"
        ((number,),) = self._read("SELECT value FROM state WHERE key = 'change'")
        rows = self._read(
            f"SELECT id FROM items WHERE change > ? AND change <= ? AND {absent} ORDER BY id", since, number
        )
        return int(number), [row[0] for row in rows]

    def put(self, token: str, made: Iterable[StagedEmbedding]) -> None:
        """Keep embeddings; those of items that are gone meanwhile are passed over.

        Raises `ModelChangedError` where the slot has another token by now, as do the others that take one.
        """
        with self._writing() as db:
            self._check(token)
            _put(db, made)

    def mark_embedded(self, token: str, number: int) -> None:
        """Nothing is left to be done of the items up to change `number`."""
        with self._writing() as db:
            self._check(token)
            db.execute(f"UPDATE state SET value = max(value, ?) WHERE key = '{_CHANGE}'", (number,))

    def announce(self, token: str, coming: bool = True) -> None:
        """Say that the slots are about to change places, or not after all: services then load the model beforehand."""
        with self._writing() as db:
            self._check(token)
            db.execute("DELETE FROM state WHERE key = 'other coming'")
            if coming:
                db.execute("INSERT INTO state VALUES ('other coming', 1)")

    def from_thumbnails(self) -> int:
        """How many embeddings of the slot are of thumbnails."""
        ((count,),) = self._read("SELECT count(*) FROM embeddings_other WHERE from_thumbnail")
        return int(count)

    @contextmanager
    def exchange(self, token: str) -> Iterator[Exchange]:
        """A transaction at whose end the slots change places; not so where the block raises."""
        with self._writing() as db:
            self._check(token)
            exchange = Exchange(db)
            yield exchange
            exchange.finish()

    def _look_again(self) -> None:
        """What could not be embedded the last time may be possible now, and came then before what is settled."""
        with self._writing() as db:
            absent = "SELECT min(change) FROM items WHERE id NOT IN (SELECT item FROM embeddings_other)"
            ((first,),) = db.execute(absent).fetchall()
            if first is None:
                return
            lower = f"UPDATE state SET value = ? WHERE key = '{_CHANGE}' AND value >= ?"
            if db.execute(lower, (first - 1, first)).rowcount:
                db.execute("UPDATE state SET value = '' WHERE key = 'other generation'")

    def _check(self, token: str) -> None:
        rows = self._read("SELECT value FROM state WHERE key = 'other token'")
        if not rows or rows[0][0] != token:
            raise ModelChangedError("another rebuild or rollback of this gallery has taken the place of this one.")


class Exchange:
    """The last things that are done before the slots change places."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, made: Iterable[StagedEmbedding]) -> None:
        _put(self._db, made)

    def drop(self, ids: Sequence[int]) -> None:
        """Remove items that the new model has not embedded; those that are gone already are passed over."""
        change = self._next()
        gone = [i for i in ids if self._db.execute("DELETE FROM items WHERE id = ?", (i,)).rowcount]
        self._db.executemany("INSERT INTO removals VALUES (?, ?)", [(i, change) for i in gone])

    def finish(self) -> None:
        change = self._next()
        for statement in _EXCHANGE:
            self._db.execute(statement)
        self._db.execute("UPDATE state SET value = ? WHERE key = 'change'", (change,))
        values = {_CHANGE: change, _ROLE: REPLACED, "other token": secrets.token_hex(8)}
        self._db.executemany("INSERT INTO state VALUES (?, ?)", values.items())

    def _next(self) -> int:
        return int(self._db.execute("SELECT value FROM state WHERE key = 'change'").fetchone()[0]) + 1


def _put(db: sqlite3.Connection, made: Iterable[StagedEmbedding]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO embeddings_other SELECT id, ?, ? FROM items WHERE id = ?",
        [(one.blob, one.from_thumbnail, one.item) for one in made],
    )
