"""The client that is awaited."""

from __future__ import annotations

import asyncio
import os
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


class AsyncClient:
    """`serving.Client` for asyncio: the same methods, each awaited.

    Closed by `aclose`, or as `async with AsyncClient(url) as client`.
    """

    def __init__(
        self, url: str, key: str | None = None, timeout: float = 30, retries: int = 3, collection: str | None = None
    ) -> None:
        self._core = Core(url.rstrip("/"), timeout, retries, collection)
        self._http = httpx.AsyncClient(**self._core.options(key_of(key, os.environ)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.place!r})"

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def search(
        self,
        image: Image | None = None,
        *,
        item: int | None = None,
        text: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[Match]:
        return await self._do(calls.search(image, item=item, text=text, **options))

    async def search_many(self, images: Images, **options: Unpack[SearchOptions]) -> list[Answer]:
        answers = [await self._do(calls.search_many(part, **options)) for _, part in groups(images)]
        return [one for part in answers for one in part]

    async def embed(self, images: Images, crop: Box | None = None) -> np.ndarray:
        rows = []
        for start, part in groups(images):
            with placed(start, part):
                rows.append(await self._do(calls.embed(part, crop)))
        return np.concatenate(rows)

    async def add(
        self,
        images: Images,
        label: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        update: bool = False,
        key: str | None = None,
    ) -> Added:
        check_key(images, key)
        given = (label, source, metadata, update, key)
        return calls.joined([(start, await self._do(calls.add(part, *given))) for start, part in groups(images)])

    async def describe(
        self, item: int, label: str | None = None, metadata: Mapping[str, Any] | None = None, unlabel: bool = False
    ) -> Item:
        return await self._do(calls.describe(item, label, metadata, unlabel))

    async def mark(self, query: Image | int | Match, result: int | Match, right: bool, crop: Box | None = None) -> Mark:
        calls.check_verdict(right)
        if isinstance(query, int | Match):
            return await self._do(calls.mark(calls.item_of(query), result, right))
        sent = await self._do(calls.sent_query(query, crop))
        return await self._do(calls.mark(sent, result, right))

    async def unmark(self, mark: int) -> None:
        await self._do(calls.unmark(mark))

    async def marks(
        self,
        offset: int = 0,
        limit: int = 50,
        query: int | str | None = None,
        result: int | None = None,
        right: bool | None = None,
    ) -> Marks:
        return await self._do(calls.marks(offset, limit, query, result, right))

    async def remove(self, item: int) -> None:
        await self._do(calls.remove(item))

    async def item(self, item: int) -> Item:
        return await self._do(calls.one_item(item))

    async def items(
        self,
        offset: int = 0,
        limit: int = 50,
        label: str | Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Items:
        return await self._do(calls.items(offset, limit, label, where))

    async def sample(self, size: int = 24) -> tuple[Item, ...]:
        return await self._do(calls.sample(size))

    async def thumbnail(self, item: int) -> Thumbnail:
        return await self._do(calls.thumbnail(item))

    async def labels(self, limit: int = 1000) -> dict[str, int]:
        return await self._do(calls.labels(limit))

    async def metadata(self, limit: int = 1000) -> list[MetadataValue]:
        return await self._do(calls.metadata(limit))

    async def map(self) -> list[Point]:
        return await self._do(calls.map_of_items())

    async def stats(self) -> ServiceStats:
        return await self._do(calls.stats())

    async def model(self) -> Model:
        return await self._do(calls.model())

    async def collections(self) -> list[Collection]:
        return await self._do(calls.collections())

    async def evaluate(self) -> Evaluation:
        return await self._do(calls.evaluate())

    async def last_evaluation(self) -> Evaluation | None:
        return await self._do(calls.last_evaluation())

    async def ready(self) -> bool:
        call = calls.ready()
        try:
            self._core.finish(call, await self._send(call))
        except GalleryError:
            return False
        return True

    async def _do(self, call: Call[T]) -> T:
        for tried in count(1):
            outcome = await self._send(call)
            wait = self._core.wait(call, tried, outcome)
            if wait is None:
                break
            await asyncio.sleep(wait)
        return self._core.finish(call, outcome)

    async def _send(self, call: Call[T]) -> Outcome:
        try:
            return await self._http.request(**self._core.request(call))
        except httpx.HTTPError as error:
            return error
