"""Tables of a gallery's SQLite file, and checks of a file: its schema, its facts and its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from zoo.errors import GalleryError

SCHEMA = 10
"""The version of the tables; files of another one are refused."""

APPLICATION_ID = 0x5A4F4F47
"""Marks the SQLite file as a gallery ("ZOOG")."""

METRIC = "cosine"

MAX_CHANGE = 2**53
"""Largest number of changes of a gallery: SQLite's numbers end at 2**63."""
MAX_DIM = 2**16
_INTEGERS = ("change", "coming", "count", "dim", "other change", "other coming", "other dim")
"""Facts of a store that are numbers; the others are texts."""

_TABLES = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
CREATE TABLE state (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    label TEXT,
    metadata TEXT NOT NULL,
    content_sha256 TEXT NOT NULL UNIQUE,
    added_at TEXT NOT NULL,
    change INTEGER NOT NULL
);
CREATE INDEX items_by_change ON items (change);
CREATE INDEX items_by_label ON items (label, id);
-- Not a column of items, so that reading these does not read all thumbnails.
CREATE TABLE thumbnails (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE removals (item INTEGER PRIMARY KEY, change INTEGER NOT NULL);
CREATE INDEX removals_by_change ON removals (change);
-- from_thumbnail: 1 if it was made of the item's thumbnail, because the image was not available.
CREATE TABLE embeddings (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE embeddings_other (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
-- Read at every change that an index applies; counting would take longer with more items.
INSERT INTO state VALUES ('count', 0);
CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
    UPDATE state SET value = value + 1 WHERE key = 'count';
END;
CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN
    UPDATE state SET value = value - 1 WHERE key = 'count';
END;
-- A client's own name of an item, so that sending it twice adds it once.
CREATE TABLE keys (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    key TEXT NOT NULL UNIQUE
);
-- Near-duplicates (serving.duplicates). hash: of the thumbnail, NULL if it cannot be decoded; sides of the image in
-- pixels, NULL if they are not known; sharpness: NULL until it is measured.
CREATE TABLE pictures (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    hash BLOB,
    width INTEGER,
    height INTEGER,
    sharpness REAL
);
-- first < second; part: 1 if distance is of the part that both show.
CREATE TABLE copies (
    first INTEGER NOT NULL REFERENCES items (id) ON DELETE CASCADE,
    second INTEGER NOT NULL REFERENCES items (id) ON DELETE CASCADE,
    similarity REAL NOT NULL,
    distance INTEGER NOT NULL,
    mirrored INTEGER NOT NULL,
    part INTEGER NOT NULL,
    PRIMARY KEY (first, second)
) WITHOUT ROWID;
CREATE INDEX copies_by_second ON copies (second);
"""

SWAP_SLOTS = (
    "ALTER TABLE embeddings RENAME TO embeddings_before",
    "ALTER TABLE embeddings_other RENAME TO embeddings",
    "ALTER TABLE embeddings_before RENAME TO embeddings_other",
)
"""Statements that exchange the tables of the two slots; SQLite notes the new names in quotation marks."""

_OF_OTHERS = (
    "ANALYZE",
    "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
    "CREATE TABLE _litestream_lock (id INTEGER)",
)
"""Statements by which programs that an operator uses add tables."""

_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
Row = tuple[Any, ...]

_CHANGES = "SELECT change FROM items UNION ALL SELECT change FROM removals"
_PROBLEMS = {
    "items without a thumbnail": "SELECT count(*) FROM items WHERE id NOT IN (SELECT item FROM thumbnails)",
    "thumbnails without an item": "SELECT count(*) FROM thumbnails WHERE item NOT IN (SELECT id FROM items)",
    "items without an embedding": "SELECT count(*) FROM items WHERE id NOT IN (SELECT item FROM embeddings)",
    "embeddings without an item": "SELECT count(*) FROM (SELECT item FROM embeddings UNION SELECT item FROM "
    "embeddings_other) WHERE item NOT IN (SELECT id FROM items)",
    "removed items that still exist": "SELECT count(*) FROM items WHERE id IN (SELECT item FROM removals)",
    "items without a picture's row": "SELECT count(*) FROM items WHERE id NOT IN (SELECT item FROM pictures)",
    "keys without an item": "SELECT count(*) FROM keys WHERE item NOT IN (SELECT id FROM items)",
    "pictures without an item": "SELECT count(*) FROM pictures WHERE item NOT IN (SELECT id FROM items)",
    "copies without an item": "SELECT count(*) FROM (SELECT first AS item FROM copies UNION SELECT second FROM copies) "
    "WHERE item NOT IN (SELECT id FROM items)",
    "items more or fewer than the stored count": "SELECT coalesce(max(abs(value - (SELECT count(*) FROM items))), 0) "
    "FROM state WHERE key = 'count'",
    "embeddings of another length in the second slot": "SELECT count(*) FROM embeddings_other WHERE "
    "typeof(embedding) <> 'blob' OR length(embedding) % 4 OR "  # of no known length while the slot is emptied
    "length(embedding) <> (SELECT 4 * value FROM state WHERE key = 'other dim')",
    "pictures with values of another type": "SELECT count(*) FROM pictures WHERE NOT coalesce(hash IS NULL OR "
    "(typeof(hash) = 'blob' AND length(hash) = 32), 0) OR typeof(width) NOT IN ('integer', 'null') OR "
    "typeof(height) NOT IN ('integer', 'null') OR typeof(sharpness) NOT IN ('real', 'null')",
    "copies with values of another type": "SELECT count(*) FROM copies WHERE typeof(similarity) <> 'real' OR "
    "typeof(distance) <> 'integer' OR mirrored NOT IN (0, 1) OR part NOT IN (0, 1)",
    "removals with values of another type": "SELECT count(*) FROM removals WHERE typeof(change) <> 'integer'",
    "changes after the last one": f"SELECT count(*) FROM ({_CHANGES}) "
    "WHERE change > (SELECT value FROM state WHERE key = 'change')",
}
"""Problems of a damaged file, and the queries that count them."""


def create(path: Path, dim: int, fingerprint: str) -> None:
    """Write an empty store for embeddings of `dim` numbers by the model with this fingerprint."""
    db = sqlite3.connect(path)
    try:
        db.executescript(_TABLES)
        state = {"change": 0, "generation": "", "dim": dim, "metric": METRIC, "fingerprint": fingerprint}
        with db:
            db.executemany("INSERT INTO state VALUES (?, ?)", state.items())
    finally:
        db.close()


def check_version(db: sqlite3.Connection, path: Path) -> None:
    """Check that a file has just the tables of this version.

    Raises:
        GalleryError: If it is not a gallery or has tables of another program (code "not-a-gallery"), or is one of
            another version of dml-zoo (code "other-schema").
    """
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise GalleryError(f"{path} is a SQLite file, but not a gallery.", code="not-a-gallery")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA:
        raise GalleryError(
            f"{path} has schema {version}; this version of dml-zoo reads and writes schema {SCHEMA} only, and changes "
            "nothing. By the version that made it: zoo gallery export GALLERY FOLDER; then by this one, with all keys, "
            "labels and metadata: zoo gallery import FOLDER NEW. Or index again: zoo index MODEL DIR --out NEW",
            code="other-schema",
        )
    _check_objects(db, path)


def _check_objects(db: sqlite3.Connection, path: Path) -> None:
    """Raise `GalleryError` (code "not-a-gallery") unless tables, indexes and triggers are just those of this module.

    A trigger, view or virtual table of somebody else would run with our statements.
    """
    required, known = _own_objects()
    present = set(db.execute(_OBJECTS).fetchall())
    missing = required - {(kind, name) for kind, name, *_ in present}
    wrong = {name for _, name, *_ in present - known} | {name for _, name in missing}
    if wrong:
        names = ", ".join(sorted(repr(name)[:80] for name in wrong)[:5])
        raise GalleryError(
            f"{path} has not the tables, indexes and triggers of a gallery: {names}. It was written or changed by "
            "another program, and is not opened. Restore a backup, or index the images again.",
            code="not-a-gallery",
        )


@cache
def _own_objects() -> tuple[frozenset[tuple[str, str]], frozenset[Row]]:
    """Return type and name of each object of a gallery's file, and all rows that describe it.

    The second are also those after a swap of the slots, and the tables of Litestream and of an ANALYZE by its owner.
    """
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_TABLES)
        known = set(db.execute(_OBJECTS).fetchall())
        required = frozenset((kind, name) for kind, name, *_ in known)
        for statement in (*SWAP_SLOTS, *_OF_OTHERS):
            db.execute(statement)
        return required, frozenset(known | set(db.execute(_OBJECTS).fetchall()))


def check_state(state: Mapping[str, Any], path: Path) -> None:
    """Raise `GalleryError` (code "damaged-gallery") unless all facts of a store have their types."""
    wrong = [key for key, value in state.items() if not isinstance(value, int if key in _INTEGERS else str)]
    wrong += [key for key in ("change", "dim", "fingerprint") if key not in state]
    if not wrong:
        bounds = {"dim": range(1, MAX_DIM + 1), "change": range(MAX_CHANGE + 1)}
        wrong = [key for key, allowed in bounds.items() if state[key] not in allowed]
    if wrong:
        raise GalleryError(
            f"{path} is damaged: its facts are missing or of other types: {', '.join(sorted(map(repr, wrong)))[:200]}.",
            code="damaged-gallery",
        )


def problems(db: sqlite3.Connection) -> list[str]:
    """Return what is wrong with the file, in words."""
    try:
        damage = [str(line) for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
        counts = {problem: db.execute(sql).fetchone()[0] for problem, sql in _PROBLEMS.items()}
    except sqlite3.DatabaseError as error:  # SQLite stops at some damage
        return [str(error)]
    return damage + [f"{count} {problem}" for problem, count in counts.items() if count]
