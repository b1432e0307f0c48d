"""Clients of the HTTP service: `Client` waits for each answer, `AsyncClient` is awaited.

`_Calls` describes each call once, as a generator of the requests to send, which receives their outcomes and returns the
result. Both clients run these generators; `AsyncClient` encodes images and reads answers in a thread.
"""

import functools
import inspect
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, get_args, overload

import httpx
import numpy as np
import tenacity
from anyio import to_thread
from pydantic import TypeAdapter

from serving import schemas
from serving.client.images import (
    Image,
    Images,
    SentImage,
    bulk_bodies,
    encode_image,
    encode_query,
    images_by_request,
    item_path,
    listed_images,
    shrunk,
)
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.types import Box, Thumbnail, check_key, item_change
from serving.schemas import AddedItems, SearchHit, SearchPart
from zoo.errors import GalleryError, ItemNotFoundError, ServiceError, UsageError

P = ParamSpec("P")
T = TypeVar("T")
Numbered = TypeVar("Numbered", schemas.RefusedImage, schemas.Differing, schemas.NearDuplicate)

KEY = "ZOO_SERVE_KEY"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds until a request is repeated
CONNECT_SECONDS, EVALUATION_SECONDS = 5.0, 600.0
HOST = re.compile(r"[\w.-]+(:\d+)?(/\S*)?")
"""A service's address without its scheme."""
MAX_PARAMETERS = 60_000  # characters of the query string; httpx accepts 65,536 of the whole URL
_BAD_IMAGE = frozenset({"unreadable_image", "image_too_large"})
_TOO_LARGE = frozenset({"image_too_large", "body_too_large"})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
_BROKEN_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)  # the service may have done the request

Labels = str | Sequence[str]
Metadata = Mapping[str, Any]
logger = logging.getLogger(__name__)


class SearchKeywords(TypedDict, total=False):
    """Options of `Client.search`; the service has their defaults and bounds (`serving.schemas.SearchParameters`)."""

    k: int
    offset: int
    min_similarity: float | None
    min_p: float | None
    label: Labels | None
    where: Metadata | None
    crop: Box | None
    rerank: schemas.Rerank
    group_by: str | None
    fields: Sequence[str]


@dataclass(frozen=True)
class _Exchange:
    """Request to send. repeatable: whether sending it twice has the same effect; retries: the most repetitions."""

    request: httpx.Request
    repeatable: bool
    retries: int


Outcome = httpx.Response | httpx.HTTPError
Steps = Generator[_Exchange, Outcome, T]
"""A call with the result T."""


def _advance(steps: Steps[T], outcome: Outcome | None = None) -> _Exchange | tuple[T]:
    """Run a call until its next request or its result, given the outcome of the request before."""
    try:
        return steps.send(outcome)  # type: ignore[arg-type]
    except StopIteration as end:
        return (end.value,)


class _Call(Generic[P, T]):
    """Method of both clients, made of the steps of a call: `Client` returns the result, `AsyncClient` a coroutine."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        @functools.wraps(steps)
        def waiting(client: "Client", *args: P.args, **kwargs: P.kwargs) -> T:
            return client._run(steps(client, *args, **kwargs))

        @functools.wraps(steps)
        async def awaited(client: "AsyncClient", *args: P.args, **kwargs: P.kwargs) -> T:
            return await client._run(steps(client, *args, **kwargs))

        signature = inspect.signature(steps)
        signature = signature.replace(return_annotation=get_args(signature.return_annotation)[-1])
        waiting.__signature__ = awaited.__signature__ = signature  # type: ignore[attr-defined]
        self._waiting, self._awaited = waiting, awaited

    @overload
    def __get__(self, client: "Client", kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...
    def __get__(self, client: Any, kind: type) -> Any:
        method: Any = self._awaited if issubclass(kind, AsyncClient) else self._waiting
        return method.__get__(client, kind)


class _Calls:
    """Calls of both clients."""

    _connect: type[httpx.Client] | type[httpx.AsyncClient]
    _http: httpx.Client | httpx.AsyncClient

    def __init__(
        self, url: str, key: str | None = None, timeout: float = 30, retries: int = 3, collection: str | None = None
    ) -> None:
        if timeout <= 0 or retries < 0:
            raise UsageError("timeout must be more than 0 seconds, and retries at least 0.", code="invalid-value")
        self._place, headers = connection(url, key, collection)
        self._url, self._timeout, self._retries = _checked_url(url), timeout, retries
        self._http = self._connect(base_url=self._place, headers=headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place!r})"

    @_Call
    def search(
        self,
        image: Image | None = None,
        *,
        item: int | str | None = None,
        text: str | None = None,
        query: Sequence[QueryPart] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> Steps[list[SearchHit]]:
        """Return the items nearest to an image, to an item, to a text or to a sum of such parts, one of the four.

        The items of the query are not among the hits.

        Args:
            image: The image to search by. Of a file of more than 8 MiB, or that the service calls too large, a smaller
                picture is sent.
            item: The id or the key of the item to search by.
            text: The text to search by, if `model().text` is not None. Its hits have no `p_same`. A text that is longer
                than the model reads is logged.
            query: The parts whose weighted sum to search by, at most 16; see `zoo.QueryPart`. Hits have no `p_same`.
            k: The number of hits (default: 10).
            offset: The number of nearest items to skip.
            min_similarity: The lowest cosine of a hit.
            min_p: The lowest `p_same` of a hit.
            label: The label, or several, that a hit may have (default: any).
            where: The metadata of a hit: of each key a value, a list of values, or a range `{"gte": 1900, "lt": 1950}`.
            crop: The part of the image to search by.
            rerank: "none", "expansion" (search again with the first hits), or an order of the first hits:
                "augmentation" (each together with its nearest), "diffusion" (over their neighbours), "reciprocal" (by
                shared neighbours).
            group_by: "label" or a key of the metadata: of the items with one value only the nearest is a hit.
            fields: The names of the metadata that the hits carry; "*" for all (default: none).
        """
        crop = options.pop("crop", None)
        parts = SearchQuery.of(image, item, text, query, crop).parts
        parameters = _search_parameters(options)
        files = [encode_query(part.image) for part in parts if part.image is not None]
        sent = _sent_parts(parts)
        form, body = ({"query": json.dumps(sent)}, None) if files else (None, {"query": sent})
        read = _json(schemas.SearchAnswer)
        try:
            answer = yield from self._ask(read, "POST", "/search", parameters, files=files, form=form, body=body)
        except ServiceError as error:
            smaller = [shrunk(file) for file in files] if error.code in _TOO_LARGE else files
            if smaller == files:
                raise
            answer = yield from self._ask(read, "POST", "/search", parameters, files=smaller, form=form)
        if any(part.truncated for part in answer.query.parts or ()):
            logger.warning("a text is longer than the service's model reads; its end was left out.")
        return answer.results

    @_Call
    def search_many(self, images: Images, **options: Unpack[SearchKeywords]) -> Steps[list[SearchPart]]:
        """Search by several images, with up to 32 per request and the options of `search`.

        A refused image has an error instead of results.
        """
        parameters = _search_parameters(options)
        answers: list[SearchPart] = []
        for _, files in images_by_request(listed_images(images), encode_query):
            read = functools.partial(_read_answers, files)
            answers += yield from self._ask(read, "POST", "/search", parameters, files=files, accepted=_BAD_IMAGE)
        return answers

    @_Call
    def embed(self, images: Images, crop: Box | None = None) -> Steps[np.ndarray]:
        """Return the unit embeddings, float32 [n, dim], of images or a part of each, with up to 32 per request."""
        rows, parameters = [], {"format": "npy"} | _narrowed(crop=crop)
        for start, files in images_by_request(listed_images(images), encode_query):
            try:
                rows.append((yield from self._ask(_read_array, "POST", "/embed", parameters, files=files)))
            except ServiceError as error:
                if not start:
                    raise
                # The service counts the images of each request from 1.
                place = f"Of images {start + 1} to {start + len(files)}, sent together"
                raise ServiceError(f"{place}: {error}", error.status, error.code) from None
        return np.concatenate(rows)

    @_Call
    def add(
        self,
        images: Images,
        label: str | None = None,
        source: str | None = None,
        metadata: Metadata | None = None,
        update: bool = False,
        key: str | None = None,
    ) -> Steps[AddedItems]:
        """Add images, with up to 32 per request. Needs a write key.

        An image whose content is in the gallery is not added again, so it is safe to repeat the call if one of several
        requests fails. Images that a broken request has added count as images that were in the gallery.

        Args:
            images: The images. A refused one of several is reported in the answer, by its number from 0; a single one
                raises `ServiceError`.
            label: The label of all images.
            source: Their source (default: the names of the files).
            metadata: Their metadata.
            update: Give label and metadata also to images that are in the gallery.
            key: Your own name of a single item, up to 256 characters. No other image can have it; see also `put`.
        """
        listed = listed_images(images)
        if key is not None and len(listed) > 1:  # the service cannot see it in requests of one image each
            raise UsageError(
                f"a key names a single image, not {len(listed)}; add them one by one.", code="conflicting-options"
            )
        accepted = () if listed and listed[0] is images else _BAD_IMAGE
        text = None if metadata is None else _json_text(metadata, "metadata")
        form = {"label": label, "source": source, "metadata": text, "key": key, "update": "true" if update else None}
        added = AddedItems(new=0, items=[], refused=[])
        for start, files in images_by_request(listed):
            part = yield from self._ask(_read_added, "POST", "/items", files=files, form=form, accepted=accepted)
            added = AddedItems(
                new=added.new + part.new,
                items=added.items + part.items,
                refused=added.refused + _shifted(part.refused, start),
                differing=added.differing + _shifted(part.differing, start),
                near_duplicates=added.near_duplicates + _shifted(part.near_duplicates, start),
            )
        return added

    @_Call
    def put(
        self,
        key: str,
        image: Image,
        label: str | None = None,
        metadata: Metadata | None = None,
        source: str | None = None,
    ) -> Steps[schemas.PutItem]:
        """Create or replace the item with a key: its image, label, metadata and source. Needs a write key.

        Args:
            key: Your own name of the item: 1 to 256 characters of any Unicode without control characters.
            image: The image; several keys may have one.
            label: The label (default: none).
            metadata: The metadata (default: none).
            source: The source (default: the name of the file).
        """
        text = None if metadata is None else _json_text(metadata, "metadata")
        form = {"label": label, "source": source, "metadata": text}
        return self._ask(_json(schemas.PutItem), "PUT", item_path(key), files=[encode_image(image)], form=form)

    @_Call
    def put_many(self, rows: Iterable[Metadata], fingerprint: str | None = None) -> Steps[list[schemas.BulkResult]]:
        """Create or replace items by their keys, with up to 32 images and 10,000 rows per request. Needs a write key.

        A refused row has an error among the results, by its number from 1. It is safe to repeat the call.

        Args:
            rows: Of each item its key, an image or a vector (float32 [dim]), and label, metadata and source if any.
            fingerprint: Fingerprint of the model that made the vectors; that of the gallery is `model().fingerprint`.
        """
        results, read = list[schemas.BulkResult](), _json(schemas.BulkAnswer)
        for start, lines in bulk_bodies(rows):
            answer = yield from self._ask(read, "POST", "/items/bulk", {"fingerprint": fingerprint}, lines=lines)
            results += [one.model_copy(update={"line": start + one.line}) for one in answer.results]
        return results

    @_Call
    def describe(
        self,
        item: int | str,
        label: str | None = None,
        metadata: Metadata | None = None,
        unlabel: bool = False,
        key: str | None = None,
        replace: bool = False,
    ) -> Steps[schemas.ItemInfo]:
        """Give an item, by its id or its key, another label, metadata or key. Needs a write key.

        What is not given stays.

        Args:
            item: The id or the key of the item.
            label: The label.
            metadata: Metadata, which are merged into those of the item; None as a value removes a key.
            unlabel: Remove the label.
            key: Your own name of the item.
            replace: The metadata replace those of the item.
        """
        change = item_change(label, metadata, unlabel, key) | ({"replace": True} if replace else {})
        return self._ask(_json(schemas.ItemInfo), "PATCH", item_path(item), body=change, repeatable=False)

    @_Call
    def remove(self, item: int | str) -> Steps[None]:
        """Remove an item for good, by its id or its key, or raise `ItemNotFoundError`. Needs a write key."""
        yield from self._ask(_json(schemas.Removed), "DELETE", item_path(item), repeatable=False)

    @_Call
    def item(self, item: int | str) -> Steps[schemas.ItemInfo]:
        """Return an item, by its id or its key, or raise `ItemNotFoundError`."""
        return self._ask(_json(schemas.ItemInfo), "GET", item_path(item))

    @_Call
    def duplicates(self, item: int | str, mirrored: bool = True) -> Steps[schemas.DuplicateItems]:
        """Return the copies of the picture of an item, by its id or its key, or raise `ItemNotFoundError`."""
        parameters = {"mirrored": "true" if mirrored else "false"}
        number = yield from self._number(item)
        return (yield from self._ask(_json(schemas.DuplicateItems), "GET", f"/items/{number}/duplicates", parameters))

    def _number(self, item: int | str) -> Steps[int]:
        """Return the id of an item that is named by its id or its key."""
        if isinstance(item, str):
            return (yield from self._ask(_json(schemas.ItemInfo), "GET", item_path(item))).id
        return item

    @_Call
    def items(
        self, offset: int = 0, limit: int = 50, label: Labels | None = None, where: Metadata | None = None
    ) -> Steps[schemas.ItemPage]:
        """Return a page of the items that have one of the labels and the metadata (see `search`), in order of ids."""
        parameters = {"offset": offset, "limit": limit} | _narrowed(label, where)
        return self._ask(_json(schemas.ItemPage), "GET", "/items", parameters)

    @_Call
    def sample(self, size: int = 24) -> Steps[tuple[schemas.ItemInfo, ...]]:
        """Return random items from the whole gallery, or all items if there are fewer."""
        return tuple((yield from self._ask(_json(schemas.ItemPage), "GET", "/items", {"sample": size})).items)

    @_Call
    def thumbnail(self, item: int | str) -> Steps[Thumbnail]:
        """Return the thumbnail of an item, by its id or its key, or raise `ItemNotFoundError`."""
        number = yield from self._number(item)
        return (yield from self._ask(_read_thumbnail, "GET", f"/items/{number}/thumbnail"))

    @_Call
    def labels(self, limit: int = 1000) -> Steps[dict[str, int]]:
        """Return the number of items of each label, the most frequent label first."""
        counts = yield from self._ask(_json(schemas.LabelCounts), "GET", "/labels", {"limit": limit})
        return {row.label: row.items for row in counts.labels}

    @_Call
    def metadata(self, limit: int = 1000) -> Steps[list[schemas.MetadataCount]]:
        """Return the values in the metadata with their numbers of items, the most frequent value first."""
        return (yield from self._ask(_json(schemas.MetadataCounts), "GET", "/metadata", {"limit": limit})).values

    @_Call
    def map(self) -> Steps[list[schemas.MapPoint]]:
        """Return the items as points of a plane, where similar items are close to one another."""
        return (yield from self._ask(_json(schemas.GalleryMap), "GET", "/map")).points

    @_Call
    def stats(self) -> Steps[schemas.CollectionStats]:
        """Return the numbers of the gallery and its index, and the limits of the service."""
        return self._ask(_json(schemas.CollectionStats), "GET", "/stats")

    @_Call
    def model(self) -> Steps[schemas.ServedModelInfo]:
        """Return the model of the gallery and how the service runs it."""
        return self._ask(_json(schemas.ServedModelInfo), "GET", "/model")

    @_Call
    def collections(self) -> Steps[list[schemas.CollectionInfo]]:
        """Return the collections of the service that the key may read."""
        return (yield from self._ask(_json(schemas.CollectionList), "GET", f"{self._url}/collections")).collections

    @_Call
    def evaluate(self) -> Steps[schemas.GalleryEvaluation]:
        """Measure the labelled gallery and calibrate `p_same`. May take minutes. Needs a write key."""
        read = _json(schemas.GalleryEvaluation)
        return self._ask(read, "POST", "/evaluate", repeatable=False, seconds=EVALUATION_SECONDS)

    @_Call
    def last_evaluation(self) -> Steps[schemas.GalleryEvaluation | None]:
        """Return the last evaluation, or None if the gallery was never evaluated."""
        try:
            return (yield from self._ask(_json(schemas.GalleryEvaluation), "GET", "/evaluate"))
        except ItemNotFoundError:
            return None

    @_Call
    def ready(self) -> Steps[bool]:
        """Return whether the service answers and can embed. It is asked once, without retries."""
        try:
            yield from self._ask(lambda response: None, "GET", "/readyz", retries=0)
        except GalleryError:
            return False
        return True

    def _ask(
        self,
        read: Callable[[httpx.Response], T],
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        files: Sequence[SentImage] = (),
        form: Mapping[str, str | None] | None = None,
        body: Mapping[str, Any] | None = None,
        lines: bytes | None = None,
        repeatable: bool = True,
        retries: int | None = None,
        seconds: float = 0,
        accepted: Collection[str] = (),
    ) -> Steps[T]:
        """Send a request and read its answer.

        repeatable: whether sending it twice has the same effect. retries: the most repetitions (default: the client's).
        seconds: the shortest time to wait. accepted: codes of refusals that `read` understands.
        """
        try:
            query = httpx.QueryParams(_given(parameters))
            if len(str(query)) > MAX_PARAMETERS:
                message = f"label and where are longer than the {MAX_PARAMETERS:,} characters that a URL can hold; "
                raise UsageError(f"{message}filter by fewer values, or search several times.", code="too-large")
            request = self._http.build_request(
                method,
                path,
                params=query,
                files=[("image", (file.sent_name, file.data, "application/octet-stream")) for file in files] or None,
                data=_given(form) if files else None,
                json=body,
                content=lines,
                headers=None if lines is None else {"content-type": "application/x-ndjson"},
                timeout=httpx.Timeout(max(self._timeout, seconds), connect=min(self._timeout, CONNECT_SECONDS)),
            )
        except UnicodeEncodeError as text:
            raise UsageError(f"{text.object[:80]!r} is not valid Unicode.", code="invalid-value") from None
        outcome = yield _Exchange(request, repeatable, self._retries if retries is None else retries)
        if isinstance(outcome, httpx.HTTPError):
            reason = "timed out" if isinstance(outcome, httpx.TimeoutException) else str(outcome)
            raise ServiceError(f"{self._url} does not answer: {reason or type(outcome).__name__}.")
        if not outcome.is_success and (error := _error(outcome)).code not in accepted:
            if error.code == "no_such_item":
                raise ItemNotFoundError(error.message)
            raise ServiceError(error.message, outcome.status_code, error.code or None)
        try:
            return read(outcome)
        except (ValueError, KeyError, EOFError):
            pass
        raise ServiceError(f"{self._url} does not answer like the search service. Is it another service?")


class Client(_Calls):
    """Client of the service at `url`. Several threads can share it.

    An image is a path, the bytes of an image file, a PIL image or a uint8 array, as `Embedder.embed` takes them. An
    image in memory is sent as PNG, upright and in 8 bits, and so has the embedding that it would get here. But its
    content is not that of the file that it was read from.

    Failures raise `GalleryError`: `ItemNotFoundError`, `ServiceError` (with the HTTP status and the service's code), or
    an image file that cannot be read. An unusable image in memory raises `ImageError`.

    Args:
        url: The URL of the service.
        key: A read or write key (default: the environment variable ZOO_SERVE_KEY). It is never shown.
        timeout: The seconds to wait for an answer.
        retries: The most repetitions of a request that the service did not begin, or that has the same effect twice, if
            the service cannot be reached, breaks off, is busy (429) or not ready (503). The pause is the one that the
            service asks for, or grows from 0.2 s.
        collection: The name of the gallery, if the service has several.
    """

    _connect = httpx.Client
    _http: httpx.Client

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        step = _advance(steps)
        while isinstance(step, _Exchange):
            outcome = tenacity.Retrying(**_retry_policy(step))(self._send, step.request)
            step = _advance(steps, outcome)
        return step[0]

    def _send(self, request: httpx.Request) -> Outcome:
        try:
            return self._http.send(request)
        except httpx.HTTPError as error:
            return error


class AsyncClient(_Calls):
    """`Client` for asyncio: its methods are awaited. Close it with `aclose` or by `async with`."""

    _connect = httpx.AsyncClient
    _http: httpx.AsyncClient

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def _run(self, steps: Steps[T]) -> T:
        step = await to_thread.run_sync(_advance, steps)
        while isinstance(step, _Exchange):
            outcome: Outcome = await tenacity.AsyncRetrying(**_retry_policy(step))(self._send, step.request)
            step = await to_thread.run_sync(_advance, steps, outcome)
        return step[0]

    async def _send(self, request: httpx.Request) -> Outcome:
        try:
            return await self._http.send(request)
        except httpx.HTTPError as error:
            return error


def connection(url: str, key: str | None, collection: str | None) -> tuple[str, dict[str, str]]:
    """Return the address of a collection and the headers of requests to it.

    Args:
        url: The URL of the service.
        key: The key (default: the environment variable ZOO_SERVE_KEY).
        collection: The name of the gallery, if the service has several.

    Raises:
        GalleryError: If it is not the URL of a service.
        UsageError: If it cannot be a key or a collection's name.
    """
    if collection is not None and not re.fullmatch("[a-z0-9-]+", collection):
        raise UsageError(f"{collection!r} is not a collection's name (a to z, 0 to 9, -).", code="invalid-value")
    place = _checked_url(url) if collection is None else f"{_checked_url(url)}/collections/{collection}"
    headers = {"user-agent": "dml-zoo"}
    if (key := os.environ.get(KEY) if key is None else key) is not None:
        if not re.fullmatch(r"[!-~]+", key := key.strip()):
            raise UsageError("the key is empty, or has a character that no key of a service has.", code="invalid-item")
        headers["authorization"] = f"Bearer {key}"
    return place, headers


def _checked_url(url: str) -> str:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        address = httpx.URL()
    if address.scheme not in ("http", "https") or not address.host or address.userinfo:
        shown = "the URL" if "@" in url else repr(url)  # never show a password
        hint = f" Is it http://{url}?" if HOST.fullmatch(url) else ""
        raise GalleryError(
            f"{shown} is not the URL of a service: http(s)://HOST, without a password.{hint}", code="invalid-value"
        )
    return url.rstrip("/")


def _retry_policy(exchange: _Exchange) -> dict[str, Any]:
    """Return the arguments of `tenacity.Retrying` and `tenacity.AsyncRetrying`."""
    return {
        "retry": tenacity.retry_if_result(functools.partial(_may_pass, exchange)),
        "wait": _pause,
        "stop": lambda state: state.attempt_number > exchange.retries or state.upcoming_sleep > LONGEST_PAUSE,
        "retry_error_callback": lambda state: state.outcome.result(),
    }


def _may_pass(exchange: _Exchange, outcome: Outcome) -> bool:
    """Return whether sending the request again is safe and may succeed."""
    if isinstance(outcome, httpx.HTTPError):
        return isinstance(outcome, _NOT_SENT) or (exchange.repeatable and isinstance(outcome, _BROKEN_OFF))
    if outcome.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
        return outcome.status_code == HTTPStatus.TOO_MANY_REQUESTS
    code = _error(outcome).code
    # The service has not begun a request that it refuses with storage_busy.
    return code == "storage_busy" or (exchange.repeatable and code != "read_only_storage")


def _pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds that the service asks for, or a doubling number with a random part."""
    outcome = state.outcome.result() if state.outcome else None
    asked = outcome.headers.get("retry-after", "") if isinstance(outcome, httpx.Response) else ""
    if re.fullmatch(r"[0-9]{1,6}", asked):
        return float(asked)
    doubling = tenacity.wait_exponential(FIRST_PAUSE, LONGEST_PAUSE / 2) + tenacity.wait_random(0, FIRST_PAUSE)
    return doubling(state)


def _search_parameters(options: SearchKeywords) -> dict[str, Any]:
    if unknown := options.keys() - SearchKeywords.__annotations__.keys():
        raise TypeError(f"a search has no option {', '.join(sorted(unknown))}")
    return {**options, **_narrowed(options.get("label"), options.get("where"), options.get("crop"))}


def _sent_parts(parts: Sequence[QueryPart]) -> list[dict[str, Any]]:
    """Return the parts of a query as the service takes them; an image is the number of its file."""
    numbers = itertools.count()
    return [
        _given(
            {
                "image": None if part.image is None else next(numbers),
                "text": part.text,
                "key": check_key(part.item) if isinstance(part.item, str) else None,
                "id": None if isinstance(part.item, str) else part.item,
                "weight": part.weight,
                "crop": None if part.crop is None else list(part.crop),
            }
        )
        for part in parts
    ]


def _narrowed(label: Labels | None = None, where: Metadata | None = None, crop: Box | None = None) -> dict[str, Any]:
    return {
        "label": [label] if isinstance(label, str) else list(label or ()),
        "where": None if where is None else _json_text(where, "where"),
        "crop": None if crop is None else ",".join(f"{side:.9f}" for side in crop),
    }


def _given(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _json_text(values: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(dict(values), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} must be a mapping of names to JSON values: {error}.", code="invalid-value") from None


def _json(model: type[T]) -> Callable[[httpx.Response], T]:
    """Return the reader of an answer in JSON. It logs the service's notes."""

    def read(response: httpx.Response) -> T:
        answer: T = TypeAdapter(model).validate_json(response.content)
        for note in getattr(answer, "notes", ()):
            logger.warning("%s", note)
        return answer

    return read


def _read_answers(files: Sequence[SentImage], response: httpx.Response) -> list[SearchPart]:
    """Read the answers about several images. The answer about a single one has another form."""
    query = schemas.QueryInfo(name=files[0].sent_name)
    if response.is_error:
        return [SearchPart(query=query, error=_error(response))]
    if len(files) == 1:
        return [SearchPart(query=query, results=_json(schemas.SearchAnswer)(response).results)]
    searches = _json(schemas.SearchAnswers)(response).searches
    if len(searches) != len(files):
        raise ValueError(f"{len(searches)} answers about {len(files)} images")
    return searches


def _shifted(images: Iterable[Numbered], start: int) -> list[Numbered]:
    """Return images of a later request with their numbers in the whole call."""
    return [image.model_copy(update={"number": start + image.number}) for image in images]


def _read_added(response: httpx.Response) -> AddedItems:
    """Read the answer about added images. A single image that is refused is answered with an error only."""
    if response.is_success or "refused" in response.json():
        return _json(AddedItems)(response)
    return AddedItems(new=0, items=[], refused=[schemas.RefusedImage(number=0, name="", error=_error(response))])


def _read_thumbnail(response: httpx.Response) -> Thumbnail:
    return Thumbnail(response.content, response.headers["content-type"])


def _read_array(response: httpx.Response) -> np.ndarray:
    rows: np.ndarray = np.load(BytesIO(response.content), allow_pickle=False)
    return rows.astype(np.float32)


def _error(response: httpx.Response) -> schemas.ErrorDetail:
    try:
        return schemas.ErrorBody.model_validate_json(response.content).error
    except ValueError:
        return schemas.ErrorDetail(code="", message=f"{response.status_code} {response.reason_phrase}")
