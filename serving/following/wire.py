"""Changed rows as lines of JSON, and back again: of those that come nothing is believed.

The first line says of which store and up to where; each of the others is one row, with bytes as base64.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from serving.gallery.compaction import Plan
from serving.gallery.history import Facts, ItemRow, MarkRow, Part, RemovedItem, RemovedMark, Row, StateRow
from serving.gallery.kinds import KINDS as INDEXES
from serving.gallery.rows import LARGEST, is_unit
from zoo.errors import FollowingError
from zoo.evaluation.calibration import Calibration

KINDS: dict[str, type[Row]] = {
    "item": ItemRow,
    "removed_item": RemovedItem,
    "mark": MarkRow,
    "removed_mark": RemovedMark,
    "state": StateRow,
}
_NAMES = {row: kind for kind, row in KINDS.items()}
LONGEST = 2**24
"""Bytes of a line; a thumbnail has some ten thousand, an embedding a few."""
_TEXT, _LONG_TEXT = 2**16, 2**22
_SHA256, _NAME = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}")
_MEDIA = ("image/png", "image/jpeg")
_MAX_DIM = 2**16


@dataclass(frozen=True)
class Head:
    """The first line. `number`: up to which the rows are; `last`: of the journal; `model`: as in model.json, where the
    rows are read from the start; `backend`: where the vectors lie, if that is a database, and the gallery's name there.
    """

    history: str
    fingerprint: str
    dim: int
    change: int
    items: int
    number: int
    last: int
    model: str | None = None
    backend: tuple[str, str] | None = None

    @property
    def facts(self) -> Facts:
        return Facts(self.history, self.fingerprint, self.dim, self.change, self.items)


def written(part: Part, model: str | None = None, backend: tuple[str, str] | None = None) -> bytes:
    """The lines of a part."""
    head = Head(**vars(part.facts), number=part.number, last=part.last, model=model, backend=backend)
    return b"".join(_line(one) for one in (asdict(head), *map(_as_json, part.rows)))


def read_head(line: bytes) -> Head:
    """Raises `FollowingError`, as do the others, for what is not as it should be."""
    values = _object(line, "the first line")
    names = {field.name for field in fields(Head)}
    _check(values.keys() == names, "the first line")
    whole = ("change", "items", "number", "last")
    _check(
        all(_is_whole(values[name], 0) for name in whole) and _is_whole(values["dim"], 1, _MAX_DIM), "the first line"
    )
    _check(_is_text(values["history"], _TEXT) and _NAME.fullmatch(values["history"]), "the history's name")
    _check(_is_text(values["fingerprint"], _TEXT), "the model's fingerprint")
    _check(values["model"] is None or _is_text(values["model"], _LONG_TEXT), "the model")
    backend = values["backend"]
    pair = isinstance(backend, list) and len(backend) == 2 and all(_is_text(one, _TEXT) for one in backend)
    _check(backend is None or pair, "the vectors' place")
    return Head(**{**values, "backend": None if backend is None else (backend[0], backend[1])})


def read_rows(lines: Iterable[bytes], head: Head) -> Iterator[Row]:
    """The rows of the lines after the first; `head`: of the moment at which the last of them were read."""
    for line in lines:
        values = _object(line, "a row")
        kind = values.pop("kind", None)
        _check(isinstance(kind, str) and kind in KINDS, "a row's kind")
        assert isinstance(kind, str)
        _check(values.keys() == {field.name for field in fields(KINDS[kind])}, f"a row, {kind}")
        yield _READS[kind](values, head)


def _as_json(row: Row) -> dict[str, Any]:
    values = {"kind": _NAMES[type(row)], **vars(row)}
    return {key: base64.b64encode(one).decode() if isinstance(one, bytes) else one for key, one in values.items()}


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes, what: str) -> dict[str, Any]:
    try:
        _check(len(line) <= LONGEST and line.endswith(b"\n"), what)
        values = json.loads(line.decode())
        if b"\\u" in line:  # half a character, which can be neither kept nor answered, has no other way in
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        values = None
    _check(isinstance(values, dict), what)
    found: dict[str, Any] = values
    return found


def _item(values: dict[str, Any], head: Head) -> ItemRow:
    texts = all(_is_text(values[name], _TEXT) for name in ("source", "added_at"))
    texts &= _is_text(values["metadata"], _LONG_TEXT)
    texts &= all(values[name] is None or _is_text(values[name], _TEXT) for name in ("label", "key"))
    _check(texts and _is_id(values["id"]), "an item")
    what = f"item {values['id']}"
    _check(_is_text(values["content_sha256"], 64) and _SHA256.fullmatch(values["content_sha256"]), what)
    _check(_is_whole(values["change"], 0, head.change) and values["media_type"] in _MEDIA, what)
    _check(_is_whole(values["from_thumbnail"], 0, 1), what)
    _check_object(values["metadata"], what)
    thumbnail, embedding = _bytes(values["thumbnail"], what), _bytes(values["embedding"], what)
    _check_embedding(embedding, head.dim, what)
    return ItemRow(**{**values, "thumbnail": thumbnail, "embedding": embedding})


def _removed_item(values: dict[str, Any], head: Head) -> RemovedItem:
    _check(_is_id(values["id"]) and _is_whole(values["change"], 0, head.change), "a removed item")
    return RemovedItem(**values)


def _mark(values: dict[str, Any], head: Head) -> MarkRow:
    texts = all(_is_text(values[name], _TEXT) for name in ("query", "query_source", "model", "marked_at"))
    _check(texts and _is_id(values["id"]) and _is_id(values["item"]) and _is_whole(values["same"], 0, 1), "a mark")
    similarity = values["similarity"]
    _check(isinstance(similarity, int | float) and math.isfinite(similarity) and abs(similarity) <= 1.001, "a mark")
    return MarkRow(**{**values, "similarity": float(similarity)})


def _removed_mark(values: dict[str, Any], head: Head) -> RemovedMark:
    _check(_is_id(values["id"]), "a removed mark")
    return RemovedMark(**values)


def _state(values: dict[str, Any], head: Head) -> StateRow:
    key, value = values["key"], values["value"]
    known = key in ("plan", "folders") or (_is_text(key, _TEXT) and key.startswith("fact "))
    _check(known and (value is None or _is_text(value, _LONG_TEXT)), "a fact")
    if value is not None:
        try:
            _STATES.get(key, json.loads)(value)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise _wrong(key) from None
    return StateRow(key, value)


def _check_plan(text: str) -> None:
    plan = Plan(**json.loads(text))
    if plan.kind not in INDEXES or not 0 < plan.recall <= 1 or not _is_whole(plan.k, 1, 2**31):
        raise ValueError


def _check_embedding(blob: bytes, dim: int, what: str) -> None:
    _check(len(blob) == 4 * dim, f"the embedding of {what}")
    _check(is_unit(np.frombuffer(blob, "<f4")), f"the embedding of {what}")


def _check_object(text: str, what: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    _check(isinstance(value, dict), f"the metadata of {what}")


def _bytes(text: Any, what: str) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "!", validate=True)
    except ValueError:
        raise _wrong(what) from None


def _is_whole(value: Any, low: int, high: int = LARGEST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_id(value: Any) -> bool:
    return _is_whole(value, 1)


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most


def _check(right: Any, what: str) -> None:
    if not right:
        raise _wrong(what)


def _wrong(what: str) -> FollowingError:
    return FollowingError(f"{what} is not as it should be.")


_STATES: dict[str, Callable[[str], Any]] = {
    "plan": _check_plan,
    "fact calibration": lambda text: Calibration.from_json(json.loads(text)),
}
_READS: dict[str, Callable[[dict[str, Any], Head], Row]] = {
    "item": _item,
    "removed_item": _removed_item,
    "mark": _mark,
    "removed_mark": _removed_mark,
    "state": _state,
}
