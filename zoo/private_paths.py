"""Paths of this machine in what others are to read: of each no more than its last part is told.

A path names its owner's account, folders and work, and is nothing on any other machine.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

WORDS = ("train_classes", "test_classes", "seen_by_base", "seen_by_teacher")
"""Keys of lists of labels, which may look like paths (/m/01g317 is a class of Open Images) and are none."""

_WHOLE = re.compile(r"(file:/*|~[\w.-]*|\.{1,2})?/")
_WITHIN = re.compile(r"(?<![\w.~/])(?!(?<=:)//)(~[\w.-]*)?/[^\s,;:'\"()]+")
_FILE = re.compile(r"file:/+[^\s,;'\"()]*")
"""How a path begins that stands alone, and a full one in a sentence: neither `org/name` nor an address of the web."""


def without_paths(value: Any) -> Any:
    """The JSON value with every full path in its texts cut to the last part, whether it is there or not."""
    if isinstance(value, dict):
        return {key: inner if key in WORDS else without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    if _WHOLE.match(text):  # to its end, as names of folders may hold spaces
        return PurePosixPath(text).name
    return _WITHIN.sub(_last, _FILE.sub(_last, text))


def _last(found: re.Match[str]) -> str:
    return PurePosixPath(found.group()).name
