"""The Hub's cache names files by the hashes that the Hub announced; its client compares lengths alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

from zoo.files import sha256_of


def drop_altered(folder: Path) -> list[str]:
    """Remove files of a snapshot whose bytes are not those that the Hub announced; their names.

    Large files are announced by their SHA-256, small ones as git names them. Where the cache has no links (Windows) the
    names say nothing, and all files stay.
    """
    altered = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_announced(path)]
    for path in altered:
        path.resolve().unlink(missing_ok=True)
        _blob(path).unlink(missing_ok=True)
        path.unlink()
    return [path.relative_to(folder).as_posix() for path in altered]


def _is_announced(path: Path) -> bool:
    announced = _blob(path).name
    if not path.is_file():
        return False
    if len(announced) == 64:
        return sha256_of(path) == announced
    # 32 digits would be an MD5 by a mirror: such names are not ours to judge.
    return len(announced) != 40 or announced in _sha1(path)


def _blob(path: Path) -> Path:
    """Where the snapshot's link points; that may be a link in turn, to a store that repositories share."""
    return path.parent / path.readlink()


def _sha1(path: Path) -> tuple[str, str]:
    """As git names the file and, for mirrors, of its bytes alone."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), hashlib.sha1(data).hexdigest()
