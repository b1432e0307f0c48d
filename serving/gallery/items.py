"""What goes into a gallery and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np

from serving.gallery.thumbnails import Thumbnail


class Kept(Enum):
    """What a field is given that stays as it is, where None would take away what it has."""

    AS_IT_IS = "as it is"


AS_IT_IS: Final = Kept.AS_IT_IS


@dataclass(frozen=True)
class NewItem:
    """What is added. `embedding`: unit row, float32 [dim]; `content_sha256`: of the image file's bytes, in hex.

    `added_at`: UTC, ISO 8601, of an item that was in a gallery before; by default the present. `key`: what a client
    calls it, of which no other item of the gallery has the same.
    """

    source: str
    embedding: np.ndarray
    thumbnail: Thumbnail
    content_sha256: str
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    added_at: str | None = None
    key: str | None = None


def same_metadata(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they are the same to a filter, to which 1 is not true, as it is to Python."""
    return json.dumps(dict(one), sort_keys=True) == json.dumps(dict(other), sort_keys=True)


@dataclass(frozen=True)
class Item:
    """What is known of an item, without its embedding and picture. `added_at` is UTC, ISO 8601; `key`: the client's."""

    id: int
    source: str
    label: str | None
    metadata: dict[str, Any]
    content_sha256: str
    added_at: str
    change: int
    key: str | None = None

    def differs(self, label: str | None, metadata: Mapping[str, Any]) -> bool:
        """Whether an image that is this item was given another label or other metadata; none at all asks for none."""
        return label not in (None, self.label) or (bool(metadata) and not same_metadata(metadata, self.metadata))


@dataclass(frozen=True)
class Place:
    """Where an item lies now, and what it is: its source, its label and, unless they stay, its metadata."""

    item: int
    source: str
    label: str | None
    metadata: Mapping[str, Any] | Kept = AS_IT_IS


@dataclass(frozen=True)
class Added:
    """The ids of the items given, in order (the older item's where the content was there); how many were new."""

    ids: list[int]
    new: int


@dataclass(frozen=True)
class Stats:
    items: int
    labels: int
    change: int


@dataclass(frozen=True)
class IndexStats:
    """How a gallery is searched.

    kind, effort, shortlist: the setting (serving.gallery.kinds). recall: the part of the k nearest that it finds, as
    measured when the generation was written, and the median milliseconds of a search then; None for exact search that
    was never tuned. frozen: vectors of the generation; waiting: how many came or went since; bytes: of its folder;
    device: where the generation is searched, cpu or cuda:N, whose search is exact whatever the setting.
    """

    kind: str
    effort: int
    shortlist: int
    recall: float | None
    k: int | None
    milliseconds: float | None
    generation: str
    frozen: int
    waiting: int
    bytes: int
    device: str = "cpu"


@dataclass(frozen=True)
class Changes:
    """What happened since an older change number: items gone, and items new with vectors float32 [n, dim].

    `number` is that of the last change, `count` how many items there are after it.
    """

    number: int
    count: int
    removed: np.ndarray
    ids: np.ndarray
    vectors: np.ndarray


Block = tuple[np.ndarray, np.ndarray]
"""Ids, int64 [n], ascending, and their vectors, float32 [n, dim]."""


def equal_blocks(one: Block, other: Block) -> bool:
    return all(np.array_equal(*parts) for parts in zip(one, other, strict=True))


@dataclass(frozen=True)
class Reading:
    """As `Changes`, with the new items in blocks that are read as they are asked for, once."""

    number: int
    count: int
    removed: np.ndarray
    blocks: Iterator[Block]
