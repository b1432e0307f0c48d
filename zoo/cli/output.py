"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PIPED_WIDTH = 200
"""Columns where the output is no terminal, so that a line of a table stays a line for grep."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """With control characters as Python writes them: names of files may hold some, which would steer the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def note(text: str) -> None:
    """Say something beside the output, on stderr."""
    print(f"zoo: {printable(text)}", file=sys.stderr)


def note_left_out(errors: Iterable[object]) -> None:
    """Say which images were left out, and why; the errors name their images."""
    for error in errors:
        note(f"left out: {error}")


def one_line(text: str) -> str:
    """On one line, so that what others wrote cannot pass for lines of ours.

    As Python writes them are line breaks and other controls, what turns the direction of writing, and halves of
    characters, which no encoding has.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """A table on stdout; the columns named in `numbers` are aligned to the right."""
    # Not by rich itself, which ends the process when the reader of a pipe has gone.
    print(table_text(columns, rows, numbers, None if sys.stdout.isatty() else PIPED_WIDTH), end="")


def table_text(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[str] = (),
    width: int | None = PIPED_WIDTH,
) -> str:
    """The lines of a table; width: of the page in columns, None for the terminal's."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    # Names and paths may hold square brackets, which rich would take for markup.
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as text:
        console.print(table)
    return text.get()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A file that cannot be written is the user's to put right, not a bug."""
    from zoo.errors import UsageError

    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def write_text(path: Path, text: str) -> None:
    """Write a file whole. One that cannot be written is the user's to put right: `UsageError`."""
    from zoo.files import write_bytes

    with naming(path):
        write_bytes(path, text.encode())
