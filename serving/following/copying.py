"""What a primary has, brought here: the changes since a position, or all of it, into a new folder or an old one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serving.following.primary import Primary
from serving.following.wire import Head, read_rows
from serving.gallery import schema
from serving.gallery.backends import FOLLOWED, follow
from serving.gallery.binding import MODEL, parsed_model
from serving.gallery.gallery import STORE
from serving.gallery.history import Position
from serving.gallery.replica import Replica
from zoo.errors import FollowingError
from zoo.files import atomic_folder, write_bytes
from zoo.models.card import Card


class AnewError(Exception):
    """What was read of the primary says nothing of what it has now."""


@dataclass(frozen=True)
class Fetched:
    """Rows that lie in a file until they are taken over. `model`: card and how it is loaded, where all was fetched."""

    head: Head
    rows: IO[bytes]
    text: str | None
    model: tuple[Card, str] | None

    @property
    def read(self) -> Position:
        return Position(self.head.history, self.head.number)


def check_same(head: Head, known: Position, fingerprint: str) -> None:
    """Raise `AnewError` unless the primary's history is the one that is known, of that model, and has come as far."""
    if head.history != known.history or head.fingerprint != fingerprint or head.last < known.number:
        raise AnewError


@contextmanager
def fetched(primary: Primary, folder: Path, known: Position | None, fingerprint: str | None) -> Iterator[Fetched]:
    """All that came after `known`, in a file of `folder` that is gone afterwards; None: all there is.

    Raises `AnewError`, where something was known, and `FollowingError`.
    """
    with tempfile.TemporaryFile(dir=folder) as rows:
        after, history = (known.number, known.history) if known else (0, None)
        text: str | None = None
        while True:
            head, lines = primary.changes(after, history)
            if history is not None:
                check_same(head, Position(history, after), fingerprint or head.fingerprint)
            elif head.model is None:
                raise FollowingError(f"{primary.url} does not say which model its gallery has.")
            else:
                text = head.model
            if (head.number <= after < head.last) or len(lines) > head.number - after:
                raise FollowingError(f"{primary.url} sends rows that do not go on from {after}.")
            rows.writelines(lines)
            after, history, fingerprint = max(after, head.number), head.history, head.fingerprint
            if after >= head.last:
                break
        rows.seek(0)
        yield Fetched(head, rows, text, None if text is None else _model(text, head, primary))


def take(replica: Replica, what: Fetched) -> None:
    """Raises `FollowingError`, and all is as it was."""
    replica.take(read_rows(what.rows, what.head), what.read, what.head.facts, what.text)


def make(folder: Path, what: Fetched) -> None:
    """A new folder of all that was fetched, whole or not there. Raises `FollowingError`."""
    _sweep(folder)
    with atomic_folder(folder) as made:
        schema.create(made / STORE, what.head.dim, what.head.fingerprint)
        replica = Replica(made / STORE)
        try:
            take(replica, what)
        finally:
            replica.close()
        (made / FOLLOWED).touch()
        write_beside(made, what)


def write_beside(folder: Path, what: Fetched) -> None:
    """What lies beside the store: the model's card, for people, and where the vectors are."""
    assert what.text is not None
    write_bytes(folder / MODEL, what.text.encode())
    follow(folder, what.head.backend)


def _model(text: str, head: Head, primary: Primary) -> tuple[Card, str]:
    card, ref = parsed_model(text, Path(primary.url))
    if (card.fingerprint, card.dim) != (head.fingerprint, head.dim):
        raise FollowingError(f"{primary.url} names another model than that which embedded its gallery.")
    return card, ref


def _sweep(folder: Path) -> None:
    """What one who was killed had begun; the caller has the lock of whoever makes the folder."""
    begun = re.compile(rf"\.{re.escape(folder.name)}\.\w{{8}}")
    for path in folder.parent.iterdir():
        if begun.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
