"""The journal of a store: triggers note of every row that counts elsewhere too the number of its last change.

There is one row for each table and key, replaced at each change, so the journal is never longer than what was ever
written. It says what changed and not how: whoever follows reads the rows as they are now (serving.gallery.history).
"""

from __future__ import annotations

_A_NAME = "lower(hex(randomblob(8)))"
NEW_HISTORY = f"UPDATE state SET value = {_A_NAME} WHERE key = 'history'"
"""What was read of the journal says nothing from here on."""
_NOTED = (
    "INSERT INTO journal (of, key) VALUES ('{}', {}) ON CONFLICT (of, key) DO UPDATE SET number = "
    "(SELECT max(number) + 1 FROM journal)"
)
"""A changed row gets the next number, and lets go of the one it had: no number ever comes again."""
_KEPT = "({0}.key IN ('plan', 'folders') OR {0}.key GLOB 'fact *')"
"""Of the state, what whoever follows the gallery has too; the rest is made anew from it, or is of one place alone."""


def _trigger(name: str, event: str, of: str, key: str, condition: str = "") -> str:
    return f"CREATE TRIGGER {name} AFTER {event} {condition} BEGIN\n    {_NOTED.format(of, key)};\nEND;\n"


JOURNAL = (
    """
-- The last change of every row that was ever written, of an item with its embedding, thumbnail and key.
CREATE TABLE journal (number INTEGER PRIMARY KEY, of TEXT NOT NULL, key NOT NULL, UNIQUE (of, key));
"""
    + _trigger("item_added_noted", "INSERT ON items", "item", "NEW.id")
    + _trigger("item_changed_noted", "UPDATE ON items", "item", "NEW.id")
    + _trigger("item_removed_noted", "DELETE ON items", "item", "OLD.id")
    + _trigger("key_noted", "INSERT ON keys", "item", "NEW.item")
    + _trigger("mark_made_noted", "INSERT ON marks", "mark", "NEW.id")
    + _trigger("mark_changed_noted", "UPDATE ON marks", "mark", "NEW.id")
    + _trigger("mark_removed_noted", "DELETE ON marks", "mark", "OLD.id")
    + _trigger("state_made_noted", "INSERT ON state", "state", "NEW.key", f"WHEN {_KEPT.format('NEW')}")
    + _trigger("state_changed_noted", "UPDATE OF value ON state", "state", "NEW.key", f"WHEN {_KEPT.format('NEW')}")
    + _trigger("state_removed_noted", "DELETE ON state", "state", "OLD.key", f"WHEN {_KEPT.format('OLD')}")
)
NOTED_BEFORE = f"""
INSERT OR REPLACE INTO state VALUES ('history', {_A_NAME});
INSERT INTO journal (of, key) SELECT 'item', id FROM items ORDER BY id;
INSERT INTO journal (of, key) SELECT 'item', item FROM removals ORDER BY item;
INSERT INTO journal (of, key) SELECT 'mark', id FROM marks ORDER BY id;
INSERT INTO journal (of, key) SELECT 'state', key FROM state WHERE {_KEPT.format("state")};
"""
"""What the journal says of a store that was written to before it had one."""
