"""What commands that remove items say before they do."""

from __future__ import annotations

import sys

from zoo.console import printable


def confirmed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def and_marks(marks: int) -> str:
    """What follows the items that are to go, where results that were marked go with them."""
    return f" and {marked(marks)} of theirs" if marks else ""


def marked(marks: int) -> str:
    return "1 marked result" if marks == 1 else f"{marks:,} marked results"
