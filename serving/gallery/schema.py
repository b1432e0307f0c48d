"""Tables of a gallery's SQLite file, and checks of a file: its schema, its facts and its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from zoo.errors import GalleryError

SCHEMA = 11
"""The version of the tables; files of another one are refused."""

APPLICATION_ID = 0x5A4F4F47
"""Marks the SQLite file as a gallery ("ZOOG")."""

METRIC = "cosine"

MAX_CHANGE = 2**53
"""Largest number of changes of a gallery: SQLite's numbers end at 2**63."""
MAX_DIM = 2**16
_INTEGERS = ("change", "coming", "contents", "count", "dim", "other change", "other coming", "other dim")
"""Facts of a store that are numbers; the others are texts."""

_TABLES = f"""
PRAGMA journal_mode = WAL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
CREATE TABLE state (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
-- Images: each is embedded, pictured and indexed once, however many items show it.
CREATE TABLE contents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    content_sha256 TEXT NOT NULL UNIQUE,
    change INTEGER NOT NULL
);
CREATE INDEX contents_by_change ON contents (change);
-- Images at a place: the file `source` in `folder` (a URI, '' for a folder of another machine), or the user's `key`.
-- An item without both, as a client adds it, has no place. change: the last one that gave it an image.
CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    label TEXT,
    metadata TEXT NOT NULL,
    content INTEGER NOT NULL REFERENCES contents (id),
    added_at TEXT NOT NULL,
    change INTEGER NOT NULL,
    key TEXT UNIQUE,
    folder TEXT
);
CREATE INDEX items_by_label ON items (label, id, content);
CREATE INDEX items_by_source ON items (source);
CREATE INDEX items_by_content ON items (content, id);
-- Places whose items somebody removed: an indexed folder does not bring them back.
CREATE TABLE removed_places (
    source TEXT NOT NULL,
    key TEXT,
    folder TEXT,
    content_sha256 TEXT NOT NULL
);
-- Not a column of contents, so that reading these does not read all thumbnails.
CREATE TABLE thumbnails (
    content INTEGER PRIMARY KEY REFERENCES contents (id) ON DELETE CASCADE,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL
);
-- Contents that no item shows any more, for the index.
CREATE TABLE removals (content INTEGER PRIMARY KEY, change INTEGER NOT NULL);
CREATE INDEX removals_by_change ON removals (change);
-- from_thumbnail: 1 if it was made of the thumbnail, because the image was not available.
CREATE TABLE embeddings (
    content INTEGER PRIMARY KEY REFERENCES contents (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE embeddings_other (
    content INTEGER PRIMARY KEY REFERENCES contents (id) ON DELETE CASCADE,
    embedding BLOB NOT NULL,
    from_thumbnail INTEGER NOT NULL DEFAULT 0
);
-- Read at every change that an index applies; counting would take longer with more items.
INSERT INTO state VALUES ('count', 0), ('contents', 0);
CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
    UPDATE state SET value = value + 1 WHERE key = 'count';
END;
CREATE TRIGGER items_removed AFTER DELETE ON items BEGIN
    UPDATE state SET value = value - 1 WHERE key = 'count';
END;
CREATE TRIGGER contents_added AFTER INSERT ON contents BEGIN
    UPDATE state SET value = value + 1 WHERE key = 'contents';
END;
CREATE TRIGGER contents_removed AFTER DELETE ON contents BEGIN
    UPDATE state SET value = value - 1 WHERE key = 'contents';
END;
-- Near-duplicates (serving.duplicates). hash: of the thumbnail, NULL if it cannot be decoded; sides of the image in
-- pixels, NULL if they are not known; sharpness: NULL until it is measured.
CREATE TABLE pictures (
    content INTEGER PRIMARY KEY REFERENCES contents (id) ON DELETE CASCADE,
    hash BLOB,
    width INTEGER,
    height INTEGER,
    sharpness REAL
);
-- Pairs of contents, first < second; part: 1 if distance is of the part that both show.
CREATE TABLE copies (
    first INTEGER NOT NULL REFERENCES contents (id) ON DELETE CASCADE,
    second INTEGER NOT NULL REFERENCES contents (id) ON DELETE CASCADE,
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

_CHANGES = "SELECT change FROM items UNION ALL SELECT change FROM contents UNION ALL SELECT change FROM removals"
_STRAY = "SELECT count(*) FROM {table} WHERE content NOT IN (SELECT id FROM contents)"
_LACKING = "SELECT count(*) FROM contents WHERE id NOT IN (SELECT content FROM {table})"
_COUNT = "SELECT coalesce(max(abs(value - (SELECT count(*) FROM {table}))), 0) FROM state WHERE key = '{key}'"
_PROBLEMS = {
    "items without an image": _STRAY.format(table="items"),
    "images without an item": _LACKING.format(table="items"),
    "images without a thumbnail": _LACKING.format(table="thumbnails"),
    "thumbnails without an image": _STRAY.format(table="thumbnails"),
    "images without an embedding": _LACKING.format(table="embeddings"),
    "embeddings without an image": _STRAY.format(
        table="(SELECT content FROM embeddings UNION SELECT content FROM embeddings_other)"
    ),
    "removed images that still exist": "SELECT count(*) FROM contents WHERE id IN (SELECT content FROM removals)",
    "images without a picture's row": _LACKING.format(table="pictures"),
    "pictures without an image": _STRAY.format(table="pictures"),
    "copies without an image": _STRAY.format(
        table="(SELECT first AS content FROM copies UNION SELECT second FROM copies)"
    ),
    "items more or fewer than the stored count": _COUNT.format(table="items", key="count"),
    "images more or fewer than the stored count": _COUNT.format(table="contents", key="contents"),
    "places with values of another type": "SELECT (SELECT count(*) FROM items WHERE typeof(folder) NOT IN "
    "('text', 'null')) + (SELECT count(*) FROM removed_places WHERE typeof(source) <> 'text' OR "
    "typeof(content_sha256) <> 'text' OR typeof(key) NOT IN ('text', 'null') OR "
    "typeof(folder) NOT IN ('text', 'null'))",
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
