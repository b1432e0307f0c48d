"""The tables of a gallery's SQLite file.

8: without a journal. 7: with one, for services that followed the gallery. 6: with clients' own keys of items. 5:
without; `state` holds how many items there are. 4: it does not; embeddings in a table of their own, and a second one
for those of another model (serving.gallery.staging). 3: in `items`; with marks (serving.gallery.feedback). 2: without;
`state` names the generation of the index that counts (serving.gallery.index_files). 1: without it. Older files are
brought up to date when they are opened, and read without a change if they cannot be written to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import GalleryError

SCHEMA = 8
APPLICATION_ID = 0x5A4F4F47
"""Marks the SQLite file as a gallery ("ZOOG")."""

METRIC = "cosine"

_MARKS = """
CREATE TABLE IF NOT EXISTS marks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item INTEGER NOT NULL,
    query TEXT NOT NULL,
    query_source TEXT NOT NULL,
    same INTEGER NOT NULL,
    similarity REAL NOT NULL,
    model TEXT NOT NULL,
    marked_at TEXT NOT NULL,
    UNIQUE (item, query)
);
CREATE INDEX IF NOT EXISTS marks_by_query ON marks (query);
CREATE TRIGGER IF NOT EXISTS marks_of_removed AFTER DELETE ON items BEGIN
    DELETE FROM marks WHERE item = OLD.id;
    DELETE FROM marks WHERE query = OLD.content_sha256;
END;
"""

_EMBEDDINGS = """
-- from_thumbnail: 1 where it is of the item's thumbnail, as the image was not at hand.
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
"""

_COUNT = """
-- Asked at every change that an index takes over; counting takes the longer the more items there are.
INSERT OR REPLACE INTO state SELECT 'count', count(*) FROM items;
CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
    UPDATE state SET value = value + 1 WHERE key = 'count';
END;
CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN
    UPDATE state SET value = value - 1 WHERE key = 'count';
END;
"""

_KEYS = """
-- What a client calls an item, so that sending it again is sending it once.
CREATE TABLE keys (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    key TEXT NOT NULL UNIQUE
);
"""

_MOVED = """
INSERT INTO embeddings (item, embedding) SELECT id, embedding FROM items ORDER BY id;
ALTER TABLE items DROP COLUMN embedding;
"""

_WITHOUT_JOURNAL = """
DROP TRIGGER IF EXISTS item_added_noted;
DROP TRIGGER IF EXISTS item_changed_noted;
DROP TRIGGER IF EXISTS item_removed_noted;
DROP TRIGGER IF EXISTS key_noted;
DROP TRIGGER IF EXISTS mark_made_noted;
DROP TRIGGER IF EXISTS mark_changed_noted;
DROP TRIGGER IF EXISTS mark_removed_noted;
DROP TRIGGER IF EXISTS state_made_noted;
DROP TRIGGER IF EXISTS state_changed_noted;
DROP TRIGGER IF EXISTS state_removed_noted;
DROP TABLE IF EXISTS journal;
DELETE FROM state WHERE key IN ('history', 'following');
"""

_NOT_MOVED = """
CREATE TEMP VIEW embeddings AS SELECT id AS item, embedding, 0 AS from_thumbnail FROM main.items;
CREATE TEMP VIEW embeddings_other AS SELECT NULL AS item, NULL AS embedding, NULL AS from_thumbnail WHERE 0;
"""
_NO_MARKS = """
CREATE TEMP VIEW marks AS SELECT NULL AS id, NULL AS item, NULL AS query, NULL AS query_source, NULL AS same,
    NULL AS similarity, NULL AS model, NULL AS marked_at WHERE 0;
"""
_NO_KEYS = "CREATE TEMP VIEW keys AS SELECT NULL AS item, NULL AS key WHERE 0;"
"""What is read of older files that cannot be written to."""

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
-- Apart from the items, so that reading these does not read all pictures.
CREATE TABLE thumbnails (
    item INTEGER PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE removals (item INTEGER PRIMARY KEY, change INTEGER NOT NULL);
CREATE INDEX removals_by_change ON removals (change);
{_EMBEDDINGS}{_MARKS}{_COUNT}{_KEYS}"""

_CHANGES = "SELECT change FROM items UNION ALL SELECT change FROM removals"
_PROBLEMS = {
    "items without a thumbnail": "SELECT count(*) FROM items WHERE id NOT IN (SELECT item FROM thumbnails)",
    "thumbnails without an item": "SELECT count(*) FROM thumbnails WHERE item NOT IN (SELECT id FROM items)",
    "items without an embedding": "SELECT count(*) FROM items WHERE id NOT IN (SELECT item FROM embeddings)",
    "embeddings without an item": "SELECT count(*) FROM (SELECT item FROM embeddings UNION SELECT item FROM "
    "embeddings_other) WHERE item NOT IN (SELECT id FROM items)",
    "items that were removed": "SELECT count(*) FROM items WHERE id IN (SELECT item FROM removals)",
    "marks of items that are not there": "SELECT count(*) FROM marks WHERE item NOT IN (SELECT id FROM items)",
    "keys without an item": "SELECT count(*) FROM keys WHERE item NOT IN (SELECT id FROM items)",
    "items more or fewer than are counted": "SELECT coalesce(max(abs(value - (SELECT count(*) FROM items))), 0) "
    "FROM state WHERE key = 'count'",
    "changes past the last one": f"SELECT count(*) FROM ({_CHANGES}) "
    "WHERE change > (SELECT value FROM state WHERE key = 'change')",
}
"""What must never be there: how it is called, and the query that counts it."""

_STEPS = {
    1: """
INSERT OR IGNORE INTO state VALUES ('generation', ''), ('metric', 'cosine');
DELETE FROM state WHERE key = 'mark';
""",
    2: _MARKS,
    3: _EMBEDDINGS + _MOVED,
    4: _COUNT,
    5: _KEYS,
    6: "",
    7: _WITHOUT_JOURNAL,
}
"""From each version to the next. The one from 3 takes as long as copying all embeddings once."""
_AS_IT_IS = {2: _NO_MARKS, 3: _NOT_MOVED, 5: _NO_KEYS}
"""In place of these steps, where a file cannot be written to."""


def create(path: Path, dim: int, fingerprint: str) -> None:
    """Write an empty store for embeddings of `dim` numbers by the model with that fingerprint."""
    db = sqlite3.connect(path)
    try:
        db.executescript(_TABLES)
        state = {"change": 0, "generation": "", "dim": dim, "metric": METRIC, "fingerprint": fingerprint}
        with db:
            db.executemany("INSERT INTO state VALUES (?, ?)", state.items())
    finally:
        db.close()


def check_version(db: sqlite3.Connection, path: Path) -> None:
    """Bring an older file up to date. Raises `GalleryError` for one that is no gallery, or a newer one."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise GalleryError(f"{path} is a SQLite file, but no gallery.")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise GalleryError(
            f"{path} has schema {version}; this version of dml-zoo reads up to {SCHEMA}. "
            "Upgrade: pip install -U dml-zoo"
        )
    if version < SCHEMA:
        _upgrade(db, version)


def problems(db: sqlite3.Connection) -> list[str]:
    """What is wrong with the file, in words; nothing where all is well."""
    try:
        found = [str(line) for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
        return found + [f"{n} {what}" for what, sql in _PROBLEMS.items() if (n := db.execute(sql).fetchone()[0])]
    except sqlite3.DatabaseError as error:  # damage that SQLite does not get past
        return [str(error)]


def _upgrade(db: sqlite3.Connection, version: int) -> None:
    try:
        db.execute("BEGIN IMMEDIATE")
        # Another process may have taken the steps meanwhile.
        (now,) = db.execute("PRAGMA user_version").fetchone()
        for statement in _statements("".join(_STEPS[number] for number in range(now, SCHEMA))):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if "readonly" not in str(error):
            raise
        db.executescript("".join(script for number, script in _AS_IT_IS.items() if number >= version))


def _statements(script: str) -> Iterator[str]:
    """One by one: `executescript` would end the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
