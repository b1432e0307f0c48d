"""The client that waits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Self, TypeVar, Unpack

import httpx
import numpy as np

from serving.client import calls
from serving.client.answers import (
    Added,
    Answer,
    Collection,
    Evaluation,
    Item,
    Items,
    Mark,
    Marks,
    Match,
    MetadataValue,
    Model,
    Point,
    ServiceStats,
    Thumbnail,
)
from serving.client.calls import Call
from serving.client.core import Core, Outcome, key_of
from serving.client.images import Image, Images, check_key, groups, placed
from serving.client.options import SearchOptions
from serving.client.parameters import Box
from zoo.errors import GalleryError

T = TypeVar("T")


class Client:
    """Talks to the service at `url`; safe to use from several threads.

    key: a read or write key of the service, by default from ZOO_SERVE_KEY; it is shown nowhere. timeout: seconds to
    wait for an answer. retries: how often a call is tried again that nobody took, or that may be done twice: where the
    service is not up, hangs up before it answers, is busy (429) or not ready (503), after the pause that it asks for or
    a growing one. collection: the name of the gallery to ask, where the service has several.

    An image is a path, the bytes of an image file, a PIL image or a uint8 array, as `Embedder.embed` takes them. Those
    in memory are sent as PNG, upright and in 8 bits, and so are embedded as if they were embedded here; what they were
    opened from is another file, and so another content.

    What fails raises `GalleryError` with the service's reason: `ItemNotFoundError`, `ServiceError` (with the HTTP
    status and the service's code), and an image file that cannot be read; `ImageError` an image in memory that is none.
    """

    def __init__(
        self, url: str, key: str | None = None, timeout: float = 30, retries: int = 3, collection: str | None = None
    ) -> None:
        self._core = Core(url.rstrip("/"), timeout, retries, collection)
        self._http = httpx.Client(**self._core.options(key_of(key, os.environ)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.place!r})"

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def search(
        self,
        image: Image | None = None,
        *,
        item: int | None = None,
        text: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[Match]:
        """The nearest to an image, to an item, which is left out, or to a text, where
        `model().text` says that it can be; a text's matches have no `p_same`, and one too long is logged.
        """
        return self._do(calls.search(image, item=item, text=text, **options))

    def search_many(self, images: Images, **options: Unpack[SearchOptions]) -> list[Answer]:
        """The nearest to each of several images, up to 32 in a request; one that is none does the others no harm."""
        return [one for _, part in groups(images) for one in self._do(calls.search_many(part, **options))]

    def embed(self, images: Images, crop: Box | None = None) -> np.ndarray:
        """Unit embeddings, float32 [n, dim]; of the part `crop` of each. Any number, up to 32 in a request."""
        rows = []
        for start, part in groups(images):
            with placed(start, part):
                rows.append(self._do(calls.embed(part, crop)))
        return np.concatenate(rows)

    def add(
        self,
        images: Images,
        label: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        update: bool = False,
        key: str | None = None,
    ) -> Added:
        """Add images, up to 32 in a request; what is there already, by its content, stays as it is, and is named where
        its label or metadata differ; with `update` it gets those that are given. Needs a write key.

        One image that is refused raises `ServiceError`; of several the refused ones are named. source: by default the
        name of the file. key: what you call a single image, up to 200 characters; no other can be added under it.
        Where a request of several fails, those before it are added; to add all of them again changes nothing.
        """
        check_key(images, key)
        given = (label, source, metadata, update, key)
        return calls.joined([(start, self._do(calls.add(part, *given))) for start, part in groups(images)])

    def describe(
        self, item: int, label: str | None = None, metadata: Mapping[str, Any] | None = None, unlabel: bool = False
    ) -> Item:
        """Give an item another label (`unlabel`: none), other metadata, or both. Needs a write key."""
        return self._do(calls.describe(item, label, metadata, unlabel))

    def mark(self, query: Image | int | Match, result: int | Match, right: bool, crop: Box | None = None) -> Mark:
        """Say of a result whether it is of the class of the query: an item by its id or as it was found, or an image.

        Marking the pair again replaces the mark. Of an image only its hash and its name are kept. Needs a write key.
        """
        calls.check_verdict(right)
        if isinstance(query, int | Match):
            return self._do(calls.mark(calls.item_of(query), result, right))
        sent = self._do(calls.sent_query(query, crop))
        return self._do(calls.mark(sent, result, right))

    def unmark(self, mark: int) -> None:
        """Take a mark back. Needs a write key."""
        self._do(calls.unmark(mark))

    def marks(
        self,
        offset: int = 0,
        limit: int = 50,
        query: int | str | None = None,
        result: int | None = None,
        right: bool | None = None,
    ) -> Marks:
        """Marks in the order in which they were first made. query: of an item's id or an image's SHA-256 alone; result,
        right: of this result or verdict alone.
        """
        return self._do(calls.marks(offset, limit, query, result, right))

    def remove(self, item: int) -> None:
        """Needs a write key. Raises `ItemNotFoundError`."""
        self._do(calls.remove(item))

    def item(self, item: int) -> Item:
        """Raises `ItemNotFoundError`."""
        return self._do(calls.one_item(item))

    def items(
        self,
        offset: int = 0,
        limit: int = 50,
        label: str | Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Items:
        """Items in the order of their ids; of this label, or one of these, and with these metadata (as in a search)."""
        return self._do(calls.items(offset, limit, label, where))

    def sample(self, size: int = 24) -> tuple[Item, ...]:
        """Items from all over the gallery, at random; all of them where there are fewer."""
        return self._do(calls.sample(size))

    def thumbnail(self, item: int) -> Thumbnail:
        """Raises `ItemNotFoundError`."""
        return self._do(calls.thumbnail(item))

    def labels(self, limit: int = 1000) -> dict[str, int]:
        """How many items have each label; the most frequent first."""
        return self._do(calls.labels(limit))

    def metadata(self, limit: int = 1000) -> list[MetadataValue]:
        """What the metadata of items say, and of how many; the most frequent first."""
        return self._do(calls.metadata(limit))

    def map(self) -> list[Point]:
        """Items on a plane, near one another where their embeddings are."""
        return self._do(calls.map_of_items())

    def stats(self) -> ServiceStats:
        return self._do(calls.stats())

    def model(self) -> Model:
        return self._do(calls.model())

    def collections(self) -> list[Collection]:
        """The service's galleries that the key may read."""
        return self._do(calls.collections())

    def evaluate(self) -> Evaluation:
        """Measure the labelled gallery and fit p_same anew; may take minutes. Needs a write key."""
        return self._do(calls.evaluate())

    def last_evaluation(self) -> Evaluation | None:
        """None where there was none yet."""
        return self._do(calls.last_evaluation())

    def ready(self) -> bool:
        """Whether the service answers and can embed; asked once."""
        call = calls.ready()
        try:
            self._core.finish(call, self._send(call))
        except GalleryError:
            return False
        return True

    def _do(self, call: Call[T]) -> T:
        for tried in count(1):
            outcome = self._send(call)
            wait = self._core.wait(call, tried, outcome)
            if wait is None:
                break
            time.sleep(wait)
        return self._core.finish(call, outcome)

    def _send(self, call: Call[T]) -> Outcome:
        try:
            return self._http.request(**self._core.request(call))
        except httpx.HTTPError as error:
            return error
