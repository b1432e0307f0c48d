"""Galleries as older versions of this package wrote them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

JOURNAL_TRIGGERS = (
    ("item_added", "INSERT ON items", "item", "NEW.id"),
    ("item_changed", "UPDATE ON items", "item", "NEW.id"),
    ("item_removed", "DELETE ON items", "item", "OLD.id"),
    ("key", "INSERT ON keys", "item", "NEW.item"),
    ("mark_made", "INSERT ON marks", "mark", "NEW.id"),
    ("mark_changed", "UPDATE ON marks", "mark", "NEW.id"),
    ("mark_removed", "DELETE ON marks", "mark", "OLD.id"),
    ("state_made", "INSERT ON state", "state", "NEW.key"),
    ("state_changed", "UPDATE OF value ON state", "state", "NEW.key"),
    ("state_removed", "DELETE ON state", "state", "OLD.key"),
)
"""Name, event, kind of row and its key, of each trigger of schema 7."""


def as_schema_7(store: Path) -> None:
    """Add a journal of changes."""
    noted = "INSERT INTO journal (of, key) VALUES ('{}', {}) ON CONFLICT (of, key) DO UPDATE SET number = "
    noted += "(SELECT max(number) + 1 FROM journal)"
    with closing(sqlite3.connect(store)) as db:
        db.execute(
            "CREATE TABLE journal (number INTEGER PRIMARY KEY, of TEXT NOT NULL, key NOT NULL, UNIQUE (of, key))"
        )
        for name, event, of, key in JOURNAL_TRIGGERS:
            db.execute(f"CREATE TRIGGER {name}_noted AFTER {event} BEGIN {noted.format(of, key)}; END")
        db.executescript("""
            INSERT INTO journal (of, key) SELECT 'item', id FROM items ORDER BY id;
            INSERT INTO state VALUES ('history', '0123456789abcdef'), ('following', '{}');
            PRAGMA user_version = 7;
        """)


def as_schema_6(store: Path) -> None:
    """Set the version without a journal."""
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA user_version = 6")


def as_schema_5(store: Path) -> None:
    """Remove the keys."""
    as_schema_6(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("DROP TABLE keys; PRAGMA user_version = 5;")


def as_schema_4(store: Path) -> None:
    """Remove the stored count of items."""
    as_schema_5(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("""
            DROP TRIGGER items_added;
            DROP TRIGGER items_removed;
            DELETE FROM state WHERE key = 'count';
            PRAGMA user_version = 4;
        """)


def as_schema_3(store: Path) -> None:
    """Move the embeddings to the items."""
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
    """Remove the marks."""
    as_schema_3(store)
    with closing(sqlite3.connect(store)) as db:
        db.executescript("DROP TRIGGER marks_of_removed; DROP TABLE marks; PRAGMA user_version = 2;")


def as_schema_1(folder: Path) -> None:
    """Add the single index file of schema 1."""
    as_schema_2(folder / "gallery.sqlite")
    with closing(sqlite3.connect(folder / "gallery.sqlite")) as db, db:
        db.execute("DELETE FROM state WHERE key IN ('generation', 'metric', 'plan')")
        db.execute("INSERT INTO state VALUES ('mark', '0123456789abcdef')")
        db.execute("PRAGMA user_version = 1")
    (folder / "index.faiss").write_bytes(b"an index of old")
    (folder / "index.json").write_text("{}")
