"""Output of commands: tables, scores, JSON and notes, for people and for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from zoo.render import Table

PIPED_WIDTH = 200
"""Columns of a table if the output is not a terminal, so that a row stays on one line for grep."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, break a line or turn the direction of writing, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """Escape the characters of `CONTROL`, apart from tabs and line ends. File names of others may hold some."""
    return CONTROL.sub(lambda match: match[0] if match[0] in "\t\n" else _escaped(match[0]), text)


_LATEX: ContextVar[bool] = ContextVar("latex", default=False)


@contextmanager
def tables_in_latex(latex: bool) -> Iterator[None]:
    """Let `print_table` print LaTeX in the block, and `show` comments of it, so that the output can be compiled."""
    token = _LATEX.set(latex)
    try:
        yield
    finally:
        _LATEX.reset(token)


def show(*lines: str) -> None:
    """Print lines on stdout, each on one line, also if names in it hold line ends."""
    for line in lines:
        print(f"% {one_line(line)}" if _LATEX.get() else one_line(line))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Escape the characters of `CONTROL`, which could make a text of others look like several lines of ours."""
    return CONTROL.sub(lambda match: _escaped(match[0]), text)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 epoch", "1,200 epochs", "2 classes"."""
    ending = "es" if noun.endswith(("s", "x", "sh", "rch", "tch")) else "s"  # but epochs
    return f"{number:,} {noun if number == 1 else plural or noun + ending}"


def score_text(value: float, deviation: float | None = None, sign: str = "") -> str:
    """Return a score with its standard deviation, if it has one; sign "+" shows the sign of positive values too."""
    return f"{value:{sign}.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")


def interval_text(bounds: Sequence[float] | None, sign: str = "", digits: int = 4) -> str:
    """Return the bounds of an interval; "" without one."""
    if bounds is None:
        return ""
    low, high = bounds
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def note(text: str) -> None:
    """Print a remark on stderr, apart from the output."""
    print(f"zoo: {printable(text)}", file=sys.stderr)


@cache
def note_once(text: str) -> None:
    """Print a remark on stderr, once in a process."""
    note(text)


SETTLED_SECONDS, NOTABLE_SECONDS = 2.0, 5.0
"""An estimate follows this long after the first images, which include the start of a runtime; and it is only printed if
this much time is left."""


def shows_bars() -> bool:
    """Return whether progress bars can be seen: on a terminal and in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """Progress of work on images, on stderr: a bar on a terminal, else an estimate and, at the end, the time it took.

    Work that is over soon prints neither of the two lines.

    Args:
        title: The name of the work.
        total: The number of images, if it is known.
        shown: Whether to print anything.
    """

    def __init__(self, title: str, total: int | None = None, shown: bool = True) -> None:
        from tqdm.auto import tqdm

        self.title, self.total, self.lines = title, total, shown and not shows_bars()
        self.bar = tqdm(total=total, desc=title, unit="image", disable=not shown or self.lines)
        self.started, self.done, self.estimated = time.monotonic(), 0, False
        self.settling: tuple[float, int] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.bar.close()
        seconds = time.monotonic() - self.started
        if self.lines and kind is None and seconds >= NOTABLE_SECONDS:
            rate = _rounded(self.done / seconds)
            note(f"{self.title}: {count(self.done, 'image')} in {duration(seconds)}, {rate} a second")

    def update(self, images: int = 1) -> None:
        """Count finished images."""
        self.bar.update(images)
        self.done += images
        if self.lines and self.total is not None and not self.estimated:
            self._estimate(self.total)

    def expect(self, images: int) -> None:
        """Set how many more images are to come."""
        self.total = self.bar.total = self.done + images

    def _estimate(self, total: int) -> None:
        now = time.monotonic()
        if self.settling is None:
            self.settling = now, self.done
        elif now - self.settling[0] >= SETTLED_SECONDS:
            self.estimated = True
            rate = (self.done - self.settling[1]) / (now - self.settling[0])
            if (left := (total - self.done) / rate) >= NOTABLE_SECONDS:
                images = f"{count(total, 'image')} at about {_rounded(rate)} a second"
                note(f"{self.title}: {images}: about {duration(left)} left")


def _rounded(rate: float) -> str:
    """Return a rate to two digits, not as a power of ten."""
    return f"{float(f'{rate:.2g}'):,g}"


def duration(seconds: float) -> str:
    """Return a time in two units: "24 s", "2 min 17 s", "1 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def note_left_out(errors: Iterable[object]) -> None:
    """Print on stderr which images were left out and why; the errors name their images."""
    for error in errors:
        note(f"left out: {error}")


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout; NaN and infinity raise `ValueError`."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(table: Table, form: str | None = None) -> None:
    """Print a table on stdout.

    Args:
        table: The table.
        form: "text", for people; "latex" or "csv" (default: LaTeX in `tables_in_latex`, else text).
    """
    form = form or ("latex" if _LATEX.get() else "text")
    if form != "text":
        print(table.latex() if form == "latex" else table.csv(), end="\n" if form == "latex" else "")
        return
    # Rich must not print itself: it ends the process when the reader of a pipe has gone.
    print(table_text(table, None if sys.stdout.isatty() else PIPED_WIDTH), end="")


def table_text(table: Table, width: int | None = PIPED_WIDTH) -> str:
    """Return the lines of a table.

    Args:
        table: The table.
        width: Columns of the page in characters; None for the terminal's width.
    """
    from rich import box
    from rich import table as rich_tables
    from rich.console import Console

    grid = rich_tables.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, right in zip(table.columns, table.aligned(), strict=True):
        grid.add_column(one_line(column), justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(one_line(str(cell)) for cell in row))
    # Names and paths may hold square brackets, which rich would take for markup.
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as text:
        console.print(grid)
    return text.get()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn the `OSError` of a file that cannot be written into a `UsageError` (code "not-writable") that names it."""
    from zoo.errors import UsageError

    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.", code="not-writable") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        UsageError: If the file cannot be written.
    """
    from zoo.files import write_bytes

    with write_errors(path):
        write_bytes(path, text.encode())
