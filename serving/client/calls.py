"""Every call to the service: what is sent, and how its answer is read. Nothing here touches the network."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Generic, TypeVar

import httpx
import numpy as np

from serving.client.answers import (
    Added,
    Answer,
    Collection,
    Differing,
    Evaluation,
    Item,
    Items,
    Mark,
    MarkedImage,
    Marks,
    Match,
    MetadataValue,
    Model,
    Point,
    Refused,
    ServiceStats,
    Thumbnail,
)
from serving.client.images import Files, Image, Images, files_of, is_one, name_of, several
from serving.client.parameters import Box, as_json, chosen, crop_values, values_of
from zoo.errors import UsageError

T = TypeVar("T")
_BAD_IMAGE = frozenset({"unreadable_image", "image_too_large"})
LONG = 600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call(Generic[T]):
    """`form` goes beside the files. `repeatable`: to do it twice is to do it once.

    `codes`: refusals that are an answer all the same. `seconds`: how long to wait, where that is more than for others.
    `of_service`: it is not about a collection.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    values: Sequence[tuple[str, str]] = ()
    files: Files = field(default_factory=list, repr=False)
    form: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    repeatable: bool = True
    codes: frozenset[str] = frozenset()
    seconds: float = 0.0
    of_service: bool = False


def search(
    image: Image | None = None, *, item: int | None = None, text: str | None = None, **options: Any
) -> Call[list[Match]]:
    """Raises `UsageError` unless it is an image, an item or a text that is searched by."""
    if sum(query is not None for query in (image, item, text)) != 1:
        raise UsageError("search by an image, by an item of the gallery or by a text, one of the three.")
    values = values_of(options) + ([] if item is None else [("id", str(item))])
    words = None if text is None else {"text": text}
    return Call("POST", "/search", _matches, values, [] if image is None else files_of([image]), json=words)


def search_many(images: Images, **options: Any) -> Call[list[Answer]]:
    images = several(images)
    files, names = files_of(images), [name_of(image) for image in images]

    def read(response: httpx.Response) -> list[Answer]:
        body = response.json()
        _log_notes(body)
        found = body.get("searches", [body])
        return [_answer(name, one) for name, one in zip(names, found, strict=True)]

    return Call("POST", "/search", read, values_of(options), files, codes=_BAD_IMAGE)


def embed(images: Images, crop: Box | None = None) -> Call[np.ndarray]:
    values = [("format", "npy"), *crop_values(crop)]
    return Call("POST", "/embed", _array, values, files_of(several(images)))


def add(
    images: Images,
    label: str | None = None,
    source: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    update: bool = False,
    key: str | None = None,
) -> Call[Added]:
    text = None if metadata is None else as_json(metadata, "metadata")
    given = {"label": label, "source": source, "metadata": text, "key": key}
    form = {name: value for name, value in given.items() if value is not None} | ({"update": "true"} if update else {})
    codes = frozenset() if is_one(images) else _BAD_IMAGE
    return Call("POST", "/items", _added, (), files_of(several(images)), form, codes=codes)


def joined(parts: Sequence[tuple[int, Added]]) -> Added:
    """The answers to several parts, each with the number of images before it, as one to all of their images."""
    return Added(
        sum(added.new for _, added in parts),
        tuple(item for _, added in parts for item in added.items),
        {start + number: why for start, added in parts for number, why in added.refused.items()},
        tuple(replace(one, number=start + one.number) for start, added in parts for one in added.differing),
    )


def describe(
    item: int, label: str | None = None, metadata: Mapping[str, Any] | None = None, unlabel: bool = False
) -> Call[Item]:
    """Raises `UsageError` where nothing is to be changed, or a label both given and taken."""
    if (label is not None and unlabel) or (label is None and metadata is None and not unlabel):
        raise UsageError("describe an item by a label, or unlabel=True, or metadata.")
    change: dict[str, Any] = {} if metadata is None else {"metadata": json.loads(as_json(metadata, "metadata"))}
    if label is not None or unlabel:
        change["label"] = label
    return Call("PATCH", f"/items/{item}", _item, json=change, repeatable=False)


def sent_query(image: Image, crop: Box | None) -> Call[dict[str, Any]]:
    """What `mark` takes of an image that was searched by."""
    ((_, (name, _, _)),) = files = files_of([image])

    def read(response: httpx.Response) -> dict[str, Any]:
        body = response.json()
        said = {"content_sha256": body["content_sha256"][0], "embedding": body["embeddings"][0]}
        return {**said, "fingerprint": body["fingerprint"], "source": name}

    return Call("POST", "/embed", read, [("format", "base64"), *crop_values(crop)], files)


def item_of(value: int | Match) -> int:
    """The id of an item, or of a match of a search."""
    return value.id if isinstance(value, Match) else value


def check_verdict(right: bool) -> None:
    """Raise `UsageError` for what is no bool: a text would count as right, also "wrong"."""
    if not isinstance(right, bool):
        raise UsageError(f"right is True or False, not {right!r}.")


def mark(query: int | Mapping[str, Any], result: int | Match, right: bool) -> Call[Mark]:
    said = {"query": query, "item": item_of(result), "verdict": "right" if right else "wrong"}
    return Call("POST", "/feedback", lambda response: _mark(response.json()), json=said)


def unmark(mark: int) -> Call[None]:
    return Call("DELETE", f"/feedback/{mark}", _removed, repeatable=False)


def marks(offset: int, limit: int, query: int | str | None, result: int | None, right: bool | None) -> Call[Marks]:
    verdict = None if right is None else "right" if right else "wrong"
    given = {"offset": offset, "limit": limit, "query": query, "item": result, "verdict": verdict}

    def read(response: httpx.Response) -> Marks:
        body = response.json()
        return Marks(body["total"], body["right"], body["wrong"], tuple(_mark(one) for one in body["marks"]))

    return Call("GET", "/feedback", read, [(name, str(value)) for name, value in given.items() if value is not None])


def remove(item: int) -> Call[None]:
    return Call("DELETE", f"/items/{item}", _removed, repeatable=False)


def one_item(item: int) -> Call[Item]:
    return Call("GET", f"/items/{item}", _item)


def items(
    offset: int = 0,
    limit: int = 50,
    label: str | Sequence[str] | None = None,
    where: Mapping[str, Any] | None = None,
) -> Call[Items]:
    page = [("offset", str(offset)), ("limit", str(limit))]
    return Call("GET", "/items", _items, page + chosen(() if label is None else label, where))


def sample(size: int) -> Call[tuple[Item, ...]]:
    return Call("GET", "/items", lambda response: _items(response).items, [("sample", str(size))])


def thumbnail(item: int) -> Call[Thumbnail]:
    return Call("GET", f"/items/{item}/thumbnail", _thumbnail)


def labels(limit: int = 1000) -> Call[dict[str, int]]:
    def read(response: httpx.Response) -> dict[str, int]:
        return {one["label"]: one["items"] for one in response.json()["labels"]}

    return Call("GET", "/labels", read, [("limit", str(limit))])


def metadata(limit: int = 1000) -> Call[list[MetadataValue]]:
    def read(response: httpx.Response) -> list[MetadataValue]:
        return [MetadataValue.of(one) for one in response.json()["values"]]

    return Call("GET", "/metadata", read, [("limit", str(limit))])


def map_of_items() -> Call[list[Point]]:
    return Call("GET", "/map", lambda response: [Point.of(one) for one in response.json()["points"]])


def stats() -> Call[ServiceStats]:
    return Call("GET", "/stats", lambda response: ServiceStats.of(response.json()))


def model() -> Call[Model]:
    return Call("GET", "/model", lambda response: Model.of(response.json()))


def collections() -> Call[list[Collection]]:
    def read(response: httpx.Response) -> list[Collection]:
        return [Collection.of(one) for one in response.json()["collections"]]

    return Call("GET", "/collections", read, of_service=True)


def evaluate() -> Call[Evaluation]:
    # Another evaluation would do no harm, but it is minutes of work for nothing.
    return Call("POST", "/evaluate", _evaluation, repeatable=False, seconds=LONG)


def last_evaluation() -> Call[Evaluation | None]:
    def read(response: httpx.Response) -> Evaluation | None:
        return None if response.is_error else _evaluation(response)

    return Call("GET", "/evaluate", read, codes=frozenset({"no_such_item"}))


def ready() -> Call[None]:
    return Call("GET", "/readyz", lambda response: None)


def _matches(response: httpx.Response) -> list[Match]:
    body = response.json()
    if body["query"].get("truncated"):
        logger.warning("the text is longer than the service's model reads; its end was left out.")
    _log_notes(body)
    return [Match.of(one) for one in body["results"]]


def _log_notes(body: Mapping[str, Any]) -> None:
    for note in body.get("notes", ()):
        logger.warning("%s", note)


def _answer(name: str, found: Mapping[str, Any]) -> Answer:
    if "error" in found:
        return Answer(name, refused=Refused.of(found["error"]))
    return Answer(name, tuple(Match.of(one) for one in found["results"]))


def _array(response: httpx.Response) -> np.ndarray:
    rows: np.ndarray = np.load(BytesIO(response.content), allow_pickle=False)
    return rows.astype(np.float32)


def _added(response: httpx.Response) -> Added:
    body = response.json()
    if "error" in body:
        return Added(0, (), {0: Refused.of(body["error"])})
    refused = {one["number"]: Refused.of(one["error"]) for one in body["refused"]}
    differing = tuple(Differing.of(one) for one in body.get("differing", ()))
    return Added(body["new"], tuple(Item.of(one) for one in body["items"]), refused, differing)


def _mark(values: Mapping[str, Any]) -> Mark:
    return Mark.of({**values, **{name: MarkedImage.of(values[name]) for name in ("query", "result")}})


def _item(response: httpx.Response) -> Item:
    return Item.of(response.json())


def _items(response: httpx.Response) -> Items:
    body = response.json()
    _log_notes(body)
    return Items(body["total"], tuple(Item.of(one) for one in body["items"]))


def _removed(response: httpx.Response) -> None:
    response.json()["removed"]


def _thumbnail(response: httpx.Response) -> Thumbnail:
    return Thumbnail(response.content, response.headers["content-type"])


def _evaluation(response: httpx.Response) -> Evaluation:
    body = response.json()
    several = {name: tuple(body[name]) for name in ("steps", "reliability") if name in body}
    return Evaluation.of({**body, **several})
