"""Small copies of published data sets: real files in the layouts of the official archives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def write_images(base: Path, names: Iterable[str]) -> None:
    """Write a small JPEG of its own colour at each name."""
    for number, name in enumerate(names):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (40 * number % 256, 7 * number % 256, 90)).save(path, "JPEG")


def write_lines(path: Path, *lines: str) -> Path:
    """Write a text file and its folder, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
