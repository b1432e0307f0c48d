"""What the service's answers are to a program. Fields that a newer service adds are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self


class _Read:
    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the JSON of an answer. Raises `KeyError` or `TypeError` for what is none.

        A field with a default is one that older services do not give.
        """
        given = [one for one in fields(cls) if one.name in values or one.default is MISSING]  # type: ignore[arg-type]
        return cls(**{one.name: values[one.name] for one in given})


@dataclass(frozen=True)
class Match(_Read):
    """A neighbour. `similarity`: the cosine, -1 to 1; `p_same`: the probability that it is of the query's class, None
    where the gallery was never calibrated; `thumbnail`: its path at the service; `rerank_score`: of re-ranked results,
    that by which they are in order, the greatest first; None of others.
    """

    id: int
    similarity: float
    label: str | None
    source: str
    p_same: float | None
    thumbnail: str
    rerank_score: float | None = None


@dataclass(frozen=True)
class Refused(_Read):
    """Why one image of several was not taken."""

    code: str
    message: str


@dataclass(frozen=True)
class Answer:
    """To one image of several: its neighbours, or why there are none."""

    name: str
    matches: tuple[Match, ...] = ()
    refused: Refused | None = None


@dataclass(frozen=True)
class Item(_Read):
    """An item of the gallery. `added_at`: UTC, ISO 8601; `change`: the number of the gallery's change that added it;
    `key`: what its client calls it.
    """

    id: int
    source: str
    label: str | None
    metadata: Mapping[str, Any]
    content_sha256: str
    added_at: str
    change: int
    thumbnail: str
    key: str | None = None


@dataclass(frozen=True)
class Items:
    """A page of items; `total`: how many there are in all."""

    total: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class MetadataValue(_Read):
    """How many items have this value of a key of their metadata."""

    key: str
    value: str | int | float | bool
    items: int


@dataclass(frozen=True)
class Point(_Read):
    """An item on the gallery's map, x and y from -1 to 1."""

    id: int
    x: float
    y: float
    label: str | None


@dataclass(frozen=True)
class Differing(_Read):
    """An image that is there already, as item `id`, with another label or other metadata than were given. `label`: the
    one that it had; `updated`: whether it has those that were given now.
    """

    number: int
    id: int
    label: str | None
    updated: bool
    message: str


@dataclass(frozen=True)
class Added:
    """The items of the images given, in order, the refused ones left out; `new`: how many were not there before;
    `refused`: number of the image, from 0, to why; `differing`: those that were there with another label or metadata.
    Where the connection broke and the call was repeated, what was added the first time counts as there before.
    """

    new: int
    items: tuple[Item, ...]
    refused: Mapping[int, Refused]
    differing: tuple[Differing, ...] = ()


@dataclass(frozen=True)
class MarkedImage(_Read):
    """Query or result of a mark. Of a query that is no item `id`, `label` and `thumbnail` are None."""

    id: int | None
    content_sha256: str
    source: str
    label: str | None
    thumbnail: str | None


@dataclass(frozen=True)
class Mark(_Read):
    """A result that was marked. `verdict`: "right", of the query's class, or "wrong"; `similarity`: the cosine of the
    two by the model of the fingerprint `model`; `marked_at`: UTC, ISO 8601.
    """

    id: int
    query: MarkedImage
    result: MarkedImage
    verdict: str
    similarity: float
    model: str
    marked_at: str


@dataclass(frozen=True)
class Marks:
    """A page of marks; `total`: how many there are in all, `right` and `wrong` of them."""

    total: int
    right: int
    wrong: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Thumbnail:
    data: bytes
    media_type: str


@dataclass(frozen=True)
class ServiceStats(_Read):
    """`index`: how the gallery is searched; `calibration`: of p_same, None where it was never made; `marks`: how many
    results were marked right and wrong.
    """

    items: int
    labels: int
    change: int
    index: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    marks: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Model(_Read):
    """The model that embeds, as it runs there. `text`: how many tokens of a text it reads, as {"length": 77}; None
    where it cannot be asked by text.
    """

    name: str
    method: str
    backbone: str
    dataset: str
    dim: int
    licence: str
    fingerprint: str
    preprocessing: Mapping[str, Any]
    runtime: str
    precision: str
    device: str
    gallery: Mapping[str, Any]
    limits: Mapping[str, Any]
    text: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Collection(_Read):
    """A gallery of the service. `name`: None where it has only this one; `path`: of its page."""

    name: str | None
    path: str
    items: int
    model: str
    dim: int


@dataclass(frozen=True)
class Evaluation(_Read):
    """The labelled gallery measured through what is served; `served_model`: how near it comes to what is stored.

    `steps`: one each for exact search and the index, with their metrics; `not_measured`, `not_calibrated`: why there
    are none, or no calibration came of it. `reliability`: in tenths of p_same what was promised and what was so, of
    classes that it was not fitted to. `marks`: what marked results say; `marks_left_out`: how many the
    calibration could not take, as another model measured them.
    """

    date: str
    items: int
    change: int
    index_recall_at_10: float | None
    steps: tuple[Mapping[str, Any], ...]
    calibration: Mapping[str, Any] | None
    not_calibrated: str | None
    not_measured: str | None = None
    reliability: tuple[Mapping[str, Any], ...] = ()
    marks: Mapping[str, Any] | None = None
    marks_left_out: int = 0
    served_model: Mapping[str, Any] | None = None
