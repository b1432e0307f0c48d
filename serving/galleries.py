"""Which galleries a service serves: as the command line says it, and as its processes find it in the environment.

One gallery without a name is at the root of the service; several have names, and are at /collections/NAME.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import UsageError

GALLERY, MODEL, COLLECTIONS = "ZOO_GALLERY", "ZOO_MODEL", "ZOO_COLLECTIONS"
"""Environment variables. The one gallery, and its model where that has moved; or, of several,
`{"NAME": {"gallery": FOLDER, "model": NAME_OR_FOLDER or null}, ...}`.
"""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Place:
    """Where a gallery lies, and its model, if that has moved; `name` is "" for one that is served at the root."""

    name: str
    gallery: str
    model: str | None = None


def is_name(text: str) -> bool:
    """Whether a collection may be called so."""
    return _NAME.fullmatch(text) is not None


def from_words(galleries: Sequence[str], models: Sequence[str] = ()) -> list[Place]:
    """`GALLERY` alone, or each as `NAME=GALLERY`; a model as `MODEL` or `NAME=MODEL`. Raises `UsageError`."""
    pairs = [_pair(word) for word in galleries]
    if len(pairs) > 1 and any(not name for name, _ in pairs):
        raise UsageError("of several galleries each needs a name: zoo serve birds=GALLERY cars=GALLERY2.")
    names = [name for name, _ in pairs]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"there are two galleries of the name {doubles[0]}.")
    moved = dict(_pair(word) if names != [""] else ("", word) for word in models)
    if unknown := sorted(moved.keys() - set(names)):
        raise UsageError(f"--model {unknown[0] or '...'}: say whose model it is, as NAME=MODEL; {_names(names)}.")
    return [Place(name, str(Path(folder).resolve()), moved.get(name)) for name, folder in pairs]


def doubled(places: Sequence[Place]) -> list[list[str]]:
    """The names of those that lie in one folder, for each such folder."""
    folders = [place.gallery for place in places]
    return [
        [place.name for place in places if place.gallery == folder]
        for folder in dict.fromkeys(folders)
        if folders.count(folder) > 1
    ]


def to_environment(places: Sequence[Place]) -> dict[str, str]:
    """Variables from which `from_environment` reads the same."""
    if places[0].name:
        return {COLLECTIONS: json.dumps({one.name: {"gallery": one.gallery, "model": one.model} for one in places})}
    return {GALLERY: places[0].gallery} | ({MODEL: places[0].model} if places[0].model else {})


def from_environment(environment: Mapping[str, str]) -> list[Place]:
    """Raises `UsageError` for what cannot be read; empty where nothing is named."""
    if text := environment.get(COLLECTIONS):
        if GALLERY in environment:
            raise UsageError(f"{GALLERY} and {COLLECTIONS} are both set; a service has one gallery, or named ones.")
        return _read(text)
    gallery = environment.get(GALLERY)
    return [Place("", gallery, environment.get(MODEL))] if gallery else []


def _read(text: str) -> list[Place]:
    try:
        places = [Place(name, str(one["gallery"]), one.get("model")) for name, one in json.loads(text).items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        places = []
    if not places or not all(is_name(one.name) for one in places):
        raise UsageError(
            f'{COLLECTIONS} is no JSON of collections: {{"birds": {{"gallery": "FOLDER"}}, "cars": ...}}, with names '
            "of a to z, 0 to 9 and -."
        )
    return places


def _pair(word: str) -> tuple[str, str]:
    """Name and folder; a folder whose own name has a = in it is given as ./a=b, or is there as it is written."""
    name, equals, folder = word.partition("=")
    if not equals or "/" in name or Path(word).exists():
        return "", word
    if not is_name(name) or not folder:
        raise UsageError(f"{word!r} is no NAME=FOLDER: a name is of a to z, 0 to 9 and -, at most 63 of them.")
    return name, folder


def _names(names: Sequence[str]) -> str:
    return f"there are {', '.join(names)}" if any(names) else "there is one gallery, without a name"
