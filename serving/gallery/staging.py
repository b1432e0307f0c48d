"""A second slot for embeddings by another model, swapped with the first in one transaction.

Each slot has its model, index generation and facts. The second one holds what a rebuild has made so far, or the
embeddings that were replaced. Items, labels, thumbnails and the change number belong to no slot. The state
`other change` is the change number up to which every image is embedded in the second slot or cannot be embedded.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serving.gallery.database import Database
from serving.gallery.places import delete_items
from serving.gallery.schema import SWAP_SLOTS
from zoo.errors import ModelChangedError

STAGED_VIEWS = """
CREATE TEMP VIEW contents AS SELECT * FROM main.contents WHERE id IN (SELECT content FROM main.embeddings_other)
    AND change <= (SELECT value FROM main.state WHERE key = 'other change');
CREATE TEMP VIEW items AS SELECT * FROM main.items WHERE content IN (SELECT id FROM contents);
CREATE TEMP VIEW embeddings AS SELECT * FROM main.embeddings_other WHERE content IN (SELECT id FROM contents);
CREATE TEMP VIEW state AS SELECT substr(key, 7) AS key, value FROM main.state WHERE key LIKE 'other %'
    UNION ALL SELECT key, value FROM main.state WHERE key IN ('metric', 'plan');
"""
"""Views by which a connection reads the second slot as if it were the first."""

_SWAP = (
    "DELETE FROM state WHERE key IN ('other change', 'other role', 'other coming', 'other token')",
    *SWAP_SLOTS,
    "UPDATE state SET key = 'before ' || key "
    "WHERE key IN ('dim', 'fingerprint', 'generation', 'generation sha256', 'model') OR key LIKE 'fact %'",
    "UPDATE state SET key = substr(key, 7) WHERE key LIKE 'other %'",
    "UPDATE state SET key = 'other ' || substr(key, 8) WHERE key LIKE 'before %'",
)
_NOT_EMBEDDED = "id NOT IN (SELECT content FROM embeddings_other)"
REBUILT, REPLACED = "rebuilt", "replaced"
DELETED_AT_ONCE = 10_000


@dataclass(frozen=True)
class Slot:
    """The second slot.

    Attributes:
        model: Text of a model.json.
        role: "rebuilt" (all or a part of a rebuild), or "replaced" (of the previous model).
        change: The change number up to which all images are embedded, apart from those that cannot be.
        coming: Whether a swap was announced.
    """

    fingerprint: str
    dim: int
    model: str
    role: str
    change: int
    coming: bool


@dataclass(frozen=True)
class StagedEmbedding:
    """An embedding for the second slot. blob: from `vector_to_blob`. from_thumbnail: made of the smaller thumbnail."""

    content: int
    blob: bytes
    from_thumbnail: bool = False


class Staging:
    """The second slot of a gallery's file.

    `begin` returns a token. The methods that take it raise `ModelChangedError` if another process has emptied or
    swapped the slot meanwhile.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def slot(self) -> Slot | None:
        """Return what the slot holds, None if it is empty."""
        rows = self._database.query("SELECT substr(key, 7), value FROM state WHERE key LIKE 'other %'")
        state: dict[str, Any] = dict(rows)
        if "fingerprint" not in state:
            return None
        fingerprint, model, role = (str(state[key]) for key in ("fingerprint", "model", "role"))
        return Slot(fingerprint, int(state["dim"]), model, role, int(state["change"]), "coming" in state)

    def begin(self, present_model: str, model: str, fingerprint: str, dim: int) -> str:
        """Start or continue the embeddings of a model, in place of those of any other one. Return the token.

        Args:
            present_model: Text of the model.json of the gallery's present model.
            model: Text of the model.json of the new model.
            fingerprint: Fingerprint of the new model.
            dim: Length of its embeddings.
        """
        slot = self.slot()
        if slot is None or slot.fingerprint != fingerprint:
            self.discard()
            values = {"fingerprint": fingerprint, "dim": dim, "model": model, "change": 0, "generation": ""}
            values |= {"token": secrets.token_hex(8), "role": REBUILT}
            with self._database.transaction() as db:
                # Two processes may begin at the same time; the last one wins.
                db.execute("DELETE FROM state WHERE key LIKE 'other %'")
                db.execute("DELETE FROM embeddings_other")
                db.executemany("INSERT INTO state VALUES ('other ' || ?, ?)", values.items())
                # From now on the store names its own model, which a transaction can change.
                db.execute("INSERT OR IGNORE INTO state VALUES ('model', ?)", (present_model,))
        ((token,),) = self._database.query("SELECT value FROM state WHERE key = 'other token'")
        with self._transaction(token) as db:  # it may have been begun by another name or folder of the model
            db.execute("UPDATE state SET value = ? WHERE key = 'other model'", (model,))
        self.announce(token, coming=False)  # a killed process may have left its announcement
        self._retry_failed()
        return str(token)

    def discard(self) -> None:
        """Empty the slot in several transactions, so that writers do not wait long."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM state WHERE key LIKE 'other %'")
        deleted = 1
        while deleted:
            with self._database.transaction() as db:
                if self.slot() is not None:  # another process has begun
                    return
                piece = f"SELECT content FROM embeddings_other LIMIT {DELETED_AT_ONCE}"
                deleted = db.execute(f"DELETE FROM embeddings_other WHERE content IN ({piece})").rowcount

    def missing(self, since: int = 0) -> tuple[int, list[int]]:
        """Return the last change number, and the images that were added after change `since` and are not embedded."""
        ((number,),) = self._database.query("SELECT value FROM state WHERE key = 'change'")
        sql = f"SELECT id FROM contents WHERE change > ? AND change <= ? AND {_NOT_EMBEDDED} ORDER BY id"
        return int(number), [content for (content,) in self._database.query(sql, since, number)]

    def put(self, token: str, embeddings: Iterable[StagedEmbedding]) -> None:
        """Write embeddings of those images that still exist."""
        with self._transaction(token) as db:
            db.executemany(
                "INSERT OR REPLACE INTO embeddings_other SELECT id, ?, ? FROM contents WHERE id = ?",
                [(embedding.blob, embedding.from_thumbnail, embedding.content) for embedding in embeddings],
            )

    def mark_embedded(self, token: str, number: int) -> None:
        """Record that all images up to change `number` are embedded or cannot be."""
        with self._transaction(token) as db:
            db.execute("UPDATE state SET value = max(value, ?) WHERE key = 'other change'", (number,))

    def announce(self, token: str, coming: bool = True) -> None:
        """Announce a swap, or take it back; services load the announced model beforehand."""
        with self._transaction(token) as db:
            db.execute("DELETE FROM state WHERE key = 'other coming'")
            if coming:
                db.execute("INSERT INTO state VALUES ('other coming', 1)")

    def from_thumbnails(self) -> int:
        """Return the number of embeddings in the slot that were made of thumbnails."""
        ((count,),) = self._database.query("SELECT count(*) FROM embeddings_other WHERE from_thumbnail")
        return int(count)

    @contextmanager
    def exchange(self, token: str) -> Iterator[Callable[[Iterable[int]], int]]:
        """Swap the slots at the end of the block, in one transaction with it, unless it raises.

        Yield a function that removes the items of images, such as those that the new model has not embedded.
        """
        with self._transaction(token) as db:
            change = int(db.execute("SELECT value FROM state WHERE key = 'change'").fetchone()[0]) + 1
            yield lambda contents: _delete_items_of(db, contents, change)
            for statement in _SWAP:
                db.execute(statement)
            db.execute("UPDATE state SET value = ? WHERE key = 'change'", (change,))
            values = {"change": change, "role": REPLACED, "token": secrets.token_hex(8)}
            db.executemany("INSERT INTO state VALUES ('other ' || ?, ?)", values.items())

    @contextmanager
    def _transaction(self, token: str) -> Iterator[sqlite3.Connection]:
        with self._database.transaction() as db:
            row = db.execute("SELECT value FROM state WHERE key = 'other token'").fetchone()
            if row is None or row[0] != token:
                message = "another rebuild or rollback of this gallery has taken the place of this one."
                raise ModelChangedError(message)
            yield db

    def _retry_failed(self) -> None:
        """Lower `other change` to before the first image without embedding, which may be possible to embed now."""
        with self._database.transaction() as db:
            (first,) = db.execute(f"SELECT min(change) FROM contents WHERE {_NOT_EMBEDDED}").fetchone()
            if first is None:
                return
            lower = "UPDATE state SET value = ? WHERE key = 'other change' AND value >= ?"
            if db.execute(lower, (first - 1, first)).rowcount:
                db.execute("UPDATE state SET value = '' WHERE key = 'other generation'")


def _delete_items_of(db: sqlite3.Connection, contents: Iterable[int], change: int) -> int:
    sql = "SELECT id FROM items WHERE content = ?"
    return delete_items(db, [item for content in contents for (item,) in db.execute(sql, (content,))], change)
