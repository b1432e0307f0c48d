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
    as_schema_8(store)
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
            UPDATE state SET value = 'none-1' WHERE key = 'generation';
            PRAGMA user_version = 7;
        """)


def as_schema_8(store: Path) -> None:
    """Remove the tables of near-duplicates."""
    with closing(sqlite3.connect(store)) as db:
        db.executescript("""
            DROP TABLE copies;
            DROP TABLE pictures;
            PRAGMA user_version = 8;
        """)


def as_schema_6(store: Path) -> None:
    """Set the version without a journal."""
    as_schema_8(store)
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA user_version = 6")
