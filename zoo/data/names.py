"""Names as different systems write them: Unicode forms, letter case, backslashes, and bytes that are not UTF-8.

macOS writes "é" as two characters and others as one; Windows separates folders by backslashes and ignores letter case;
and the name of a file on Linux may be any bytes.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from zoo.console import CONTROL
from zoo.errors import UsageError
from zoo.paths import expand

_BYTE = 0xDC00
"""What Python adds to a byte of a file's name that is not UTF-8 (PEP 383)."""
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")


def canonical(text: str) -> str:
    """Return a text in Unicode's form C, in which texts that look the same are equal."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Return a text so that those are equal which differ by Unicode form and letter case alone."""
    return canonical(canonical(text).casefold())


def escaped(name: str) -> str:
    r"""Return a file's name as a text that can be stored and printed.

    A byte that is not UTF-8 becomes \xe4, and a control character \x07 or \u2028; `unescaped` finds the name again.
    """
    return CONTROL.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if _BYTE + 0x80 <= code <= _BYTE + 0xFF:
        return f"\\x{code - _BYTE:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def unescaped(text: str) -> str:
    """Return the name that `escaped` made into a text. A name that itself holds such a text is another one."""

    def character(match: re.Match[str]) -> str:
        code = int(match[1] or match[2], 16)
        return chr(code + _BYTE if match[1] and code >= 0x80 else code)

    return _ESCAPE.sub(character, text)


class Names:
    """Names that are found by other spellings."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._spelt: dict[Callable[[str], str], dict[str, list[str]]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def find(self, name: str) -> str | None:
        """Return the name that is spelt like this, else the only one that differs by Unicode form, else by letter case.

        Raises:
            UsageError: If several names differ in this way (code "invalid-table").
        """
        if name in self._names:
            return name
        for spelling in (canonical, folded):
            if spelling not in self._spelt:
                self._spelt[spelling] = defaultdict(list)
                for known in self._names:
                    self._spelt[spelling][spelling(known)].append(known)
            matches = self._spelt[spelling].get(spelling(name), [])
            if len(matches) > 1:
                choice = " or ".join(repr(escaped(match)) for match in sorted(matches))
                message = f"{escaped(name)!r} could be {choice}; write it as the file is named."
                raise UsageError(message, code="invalid-table")
            if matches:
                return matches[0]
        return None


class Paths:
    """Paths below a folder that are found by other spellings of their parts, and with backslashes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._inside: dict[str, set[str]] = {}
        self._folders: dict[str, Names] = {}

    def find(self, path: str) -> str | None:
        """Return the path that is spelt like this, else the only one whose parts are found as `Names.find` does.

        Raises:
            UsageError: If several could be meant (code "invalid-table").
        """
        if path in self._paths:
            return path
        place = ""
        for part in path.replace("\\", "/").split("/"):
            found = self._names(place).find(part)
            if found is None:
                return None
            place = f"{place}/{found}" if place else found
        return place if place in self._paths else None

    def _names(self, folder: str) -> Names:
        """Return the names in a folder."""
        if not self._inside:
            for path in self._paths:
                while path:
                    above, _, name = path.rpartition("/")
                    self._inside.setdefault(above, set()).add(name)
                    path = above
        if folder not in self._folders:
            self._folders[folder] = Names(self._inside.get(folder, ()))
        return self._folders[folder]


class FileFinder:
    """Files by the paths that a table gives them. It lists each folder once."""

    def __init__(self) -> None:
        self._listed: dict[Path, Names | None] = {}

    def find(self, root: Path, name: str) -> Path:
        """Return the path of a file that is named relative to a folder, in the spelling of the disk.

        Raises:
            UsageError: If several files could be meant (code "invalid-table").
        """
        path = root / expand(name)
        for spelt in dict.fromkeys((path, root / expand(unescaped(name)))):
            if self._has(spelt):
                return spelt
        return self._similar(root / expand(name.replace("\\", "/"))) or path

    def _has(self, path: Path) -> bool:
        names = self._names(path.parent)
        return path.name in names if names is not None else os.path.lexists(path)

    def _similar(self, path: Path) -> Path | None:
        """Return the existing path that differs by Unicode form or letter case alone; None without one."""
        parent: Path | None = path.parent
        if parent == path or parent is None:
            return None
        if self._names(parent) is None:
            parent = self._similar(parent)
        names = None if parent is None else self._names(parent)
        found = None if names is None else names.find(path.name)
        return None if parent is None or found is None else parent / found

    def _names(self, folder: Path) -> Names | None:
        """Return the names in a folder; None for one that cannot be listed."""
        if folder not in self._listed:
            try:
                self._listed[folder] = Names(os.listdir(folder))  # noqa: PTH208  # names alone, which is faster
            except (OSError, ValueError):  # ValueError: a null byte
                self._listed[folder] = None
        return self._listed[folder]
