"""Galleries as older versions of this package wrote them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def as_schema_6(store: Path) -> None:
    """Without a journal."""
    with closing(sqlite3.connect(store)) as db:
        for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB '*_noted'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.executescript("DROP TABLE journal; DELETE FROM state WHERE key = 'history'; PRAGMA user_version = 6;")


def as_schema_5(store: Path) -> None:
    """Without keys."""
    as_schema_6(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("DROP TABLE keys; PRAGMA user_version = 5;")


def as_schema_4(store: Path) -> None:
    """Without a count of the items."""
    as_schema_5(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("""
            DROP TRIGGER items_added;
            DROP TRIGGER items_removed;
            DELETE FROM state WHERE key = 'count';
            PRAGMA user_version = 4;
        """)


def as_schema_3(store: Path) -> None:
    """Embeddings among the items."""
    as_schema_4(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("""
            ALTER TABLE items ADD COLUMN embedding BLOB NOT NULL DEFAULT x'';
            UPDATE items SET embedding = (SELECT embedding FROM embeddings WHERE item = id);
            DROP TABLE embeddings;
            DROP TABLE embeddings_other;
            PRAGMA user_version = 3;
        """)


def as_schema_2(store: Path) -> None:
    """Without marks."""
    as_schema_3(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("DROP TRIGGER marks_of_removed; DROP TABLE marks; PRAGMA user_version = 2;")


def as_schema_1(folder: Path) -> None:
    """With one file for the index."""
    as_schema_2(folder / "gallery.sqlite")
    with closing(sqlite3.connect(folder / "gallery.sqlite")) as db, db:
        db.execute("DELETE FROM state WHERE key IN ('generation', 'metric', 'plan')")
        db.execute("INSERT INTO state VALUES ('mark', '0123456789abcdef')")
        db.execute("PRAGMA user_version = 1")
    (folder / "index.faiss").write_bytes(b"an index of old")
    (folder / "index.json").write_text("{}")
