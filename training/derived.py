"""What commands have in common that make a model of another one: its name, and what is said when it is there."""

from __future__ import annotations

from pathlib import Path

from zoo.cards import NAME
from zoo.errors import UsageError


def derived_name(given: str | None, source: str, ending: str) -> str:
    """The name given, else the last part of the source's path or repository with an ending.

    Raises `UsageError` for what no name can be.
    """
    name = given or f"{source.rstrip('/').rpartition('/')[2].lower()}-{ending}"
    if not NAME.fullmatch(name):
        raise UsageError(
            f"the name {name!r} may hold lower-case letters, digits, '.', '_' and '-' only; give --as NAME."
        )
    return name


def say_what_next(name: str, folder: Path) -> None:
    """Print where the model is, and how pictures are searched with it."""
    print(f"Written to {folder}.")
    print(f"Index pictures with: zoo export {name} && zoo index {name} DIR --out GALLERY")
