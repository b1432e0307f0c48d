"""POST /search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import TypeAdapter

from serving.dependencies import Collection, CollectionDep, CpuQueueDep, SettingsDep
from serving.errors import MAX_ANSWER, RefusedError, answer_too_large, error_json, invalid
from serving.forms import UploadedImage, checked_images, read_request
from serving.gallery.gallery import filter_notes, shown_notes
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.search import MIN_P_OF_PICTURES, Searcher, SearchOptions, SearchResult
from serving.gallery.types import DEFAULT_K
from serving.metrics import stage
from serving.openapi import IMAGES, form_operation, refusals
from serving.parameters import parse_item_id
from serving.schemas import (
    MAX_QUERY_TEXT,
    ErrorDetail,
    QueryInfo,
    QueryPartInfo,
    QueryPartParameters,
    SearchAnswer,
    SearchAnswers,
    SearchHit,
    SearchParameters,
    SearchPart,
)
from serving.settings import Settings
from zoo.errors import ImageError, NoTextTowerError, TextError
from zoo.models.text_tower import no_text_tower

router = APIRouter()

PART = TypeAdapter(SearchPart)
ORDER = {
    "none": "similarity",
    "expansion": "similarity to the query and its first results together; similarity is to the query alone",
    "augmentation": "similarity of query and results, each with its nearest; similarity is to the query alone",
    "diffusion": "diffusion over the neighbours of the results; similarity is to the query alone",
    "reciprocal": "shared neighbours; similarity is to the query alone",
}
"""What orders the results, by the kind of re-ranking."""


class Search(NamedTuple):
    """The options and queries of a request, the names of the files of each query's parts (None for other parts), and
    whether the query is written in parts.
    """

    options: SearchOptions
    queries: list[SearchQuery]
    names: list[Sequence[str | None]]
    in_parts: bool

    @property
    def several(self) -> bool:
        return len(self.queries) > 1


class _Part(NamedTuple):
    """Answer to a query, its bytes, and `SearchResult.grouped`."""

    answer: SearchPart
    size: int
    grouped: int | None = None


class _Images(NamedTuple):
    """Embeddings of images of a query, by the number of their part, and the searcher that embedded them."""

    searcher: Searcher
    embeddings: Mapping[int, np.ndarray]

    def of(self, searcher: Searcher) -> Mapping[int, np.ndarray]:
        """Return the embeddings; none for the searcher of another model, which the gallery has got meanwhile."""
        return self.embeddings if searcher is self.searcher else {}


async def _read_search(request: Request, settings: Settings) -> Search:
    with stage("read"):
        parameters, images = await read_request(request, SearchParameters)
        k = _k(parameters, settings.max_k)
        chosen = {option.name: getattr(parameters, option.name) for option in dataclasses.fields(SearchOptions)}
        options = SearchOptions(**chosen | {"k": k})
        queries = _queries(parameters, images, settings)
        if options.min_p is not None and not all(query.picture for query in queries):
            raise RefusedError(422, "min_p_without_picture", MIN_P_OF_PICTURES)
        if parameters.query is not None:
            names: list[Sequence[str | None]] = [_names(parameters.query, images)]
        else:
            names = [[image.name] for image in images] or [[None]] * len(queries)
        return Search(options, queries, names, parameters.query is not None)


def _k(parameters: SearchParameters, max_k: int) -> int:
    if "k" not in parameters.model_fields_set:
        return min(DEFAULT_K, max_k)
    if parameters.k > max_k:
        raise invalid("k", f"a whole number from 1 to {max_k}")
    return parameters.k


def _queries(parameters: SearchParameters, images: tuple[UploadedImage, ...], settings: Settings) -> list[SearchQuery]:
    """Return the queries. Raises `RefusedError` for parameters that contradict one another."""
    texts, item, key = parameters.text, parameters.id, parameters.key
    ways = (bool(images) and parameters.query is None, bool(texts), item is not None, key is not None)
    if sum((*ways, parameters.query is not None)) > 1:
        one_of = "Search by an image, by a text, by the id or the key of an item, or by a query of parts: one of them."
        raise RefusedError(400, "several_queries", one_of)
    if parameters.crop and (parameters.query is not None or texts or item is not None or key is not None):
        message = "Only an image that is sent can be cropped; of several parts, each has its own crop."
        raise RefusedError(400, "crop_without_image", message)
    if parameters.query is not None:
        return [SearchQuery(_parts(parameters.query, images))]
    if key is not None:
        return [SearchQuery.of(item=key)]
    if item is not None:
        return [SearchQuery.of(item=parse_item_id(item))]
    if not texts:
        return [SearchQuery.of(image.data, crop=parameters.crop) for image in checked_images(images)]
    if len(texts) > settings.max_images:
        raise RefusedError(400, "too_many_values", f"A request may search by at most {settings.max_images} texts.")
    if max(map(len, texts)) > MAX_QUERY_TEXT:
        raise RefusedError(413, "text_too_long", f"A text to search by has at most {MAX_QUERY_TEXT:,} characters.")
    return [SearchQuery.of(text=text) for text in texts]


def _parts(given: Sequence[QueryPartParameters], images: tuple[UploadedImage, ...]) -> tuple[QueryPart, ...]:
    """Return the parts of a query. Raises `RefusedError` if its images are not just those of the request."""
    if sorted(part.image for part in given if part.image is not None) != list(range(len(images))):
        expected = f"a list in which each of the {len(images)} images of the request is in one part, by its number"
        raise invalid("query", f"{expected} from 0")
    images = checked_images(images) if images else ()
    return tuple(
        QueryPart(
            image=None if part.image is None else images[part.image].data,
            item=part.key if part.id is None else parse_item_id(part.id),
            text=part.text,
            weight=part.weight,
            crop=part.crop,
        )
        for part in given
    )


def _names(given: Sequence[QueryPartParameters], images: tuple[UploadedImage, ...]) -> list[str | None]:
    return [None if part.image is None else images[part.image].name for part in given]


@router.post(
    "/search",
    summary="The items nearest to an image, to an item of the gallery, or to a text",
    response_model_exclude_unset=True,
    openapi_extra=form_operation(SearchParameters),
    responses=IMAGES | refusals(404),
)
async def search(
    request: Request, collection: CollectionDep, settings: SettingsDep, cpu_queue: CpuQueueDep
) -> SearchAnswer | SearchAnswers:
    """Search by an image, as the multipart field image or as the raw body, or by the id or the key of an item, which is
    left out of its own results. The parameters may also be a form or JSON, with the image as base64. Similarity is the
    cosine, -1 to 1. fields names the metadata that the results carry.

    query is a weighted sum of up to 16 images, texts and items, as
    [{"image": 0}, {"text": "red"}, {"id": 17, "weight": -0.5}]: the unit embedding of each part times its weight. An
    image is the number of one of the request's images, in JSON also base64. Similarity is to the sum; p_same is null.

    The answer to several images or texts is {searches: [...]}, one result or error for each, in order. Texts can be
    searched by where GET /model shows text; p_same is null then, and truncated tells whether the end was left out.

    ordered_by names the order of re-ranked results, and rerank_score is its value, highest first: the similarity to the
    query and its first results together (expansion); and, only of the first 200 results, the similarity of query and
    result, each together with its nearest (augmentation), what reaches the result by diffusion (diffusion; Iscen et al.
    2017), or 1 minus the distance of Zhong et al. 2017, equation 12 (reciprocal). A result is an image; also names the
    other items that have it. notes names labels that no item has, unknown keys of group_by and fields and, without
    results, those of where, and says if groups were found only among the nearest images. An answer of more than 32 MiB
    is refused.
    """
    search = await _read_search(request, settings)
    start = perf_counter()
    if any(part.text is not None for part in search.queries[0].parts):
        await collection.call(_check_text_tower)
    parts: list[_Part] = []
    run = cpu_queue.run
    for number, query in enumerate(search.queries):
        # Query by query, and image by image, so that other requests are served in between.
        images: dict[int, np.ndarray] = {}
        searcher = collection.current.searcher
        for place, part in enumerate(query.parts) if len(query.parts) > 1 else ():
            if part.image is not None:
                images[place] = await run(searcher.embed, part.image, part.crop)
                run = cpu_queue.run_aside
        parts.append(await run(_answer, collection, search, number, _Images(searcher, images)))
        run = cpu_queue.run_aside
        if sum(part.size for part in parts) > MAX_ANSWER:
            raise answer_too_large("fewer results, fields or queries")
    answers = [part.answer for part in parts]
    chosen, group_by = search.options.selection, search.options.group_by
    any_results = any(answer.results for answer in answers)
    hints = await to_thread.run_sync(filter_notes, collection.gallery, chosen, any_results) if chosen else []
    if group_by is not None or search.options.fields:
        grouped = max((part.grouped for part in parts if part.grouped), default=None)
        shown = group_by, search.options.fields, grouped
        hints += await to_thread.run_sync(shown_notes, collection.gallery, *shown)
    summary: dict[str, Any] = {
        "k": search.options.k,
        "ordered_by": ORDER[search.options.rerank],
        "notes": hints,
        "milliseconds": round(1000 * (perf_counter() - start), 2),
    }
    if search.several:
        return SearchAnswers(searches=answers, **summary)
    return SearchAnswer(query=answers[0].query, results=answers[0].results or [], **summary)


def _check_text_tower(searcher: Searcher) -> None:
    card = searcher.embedder.card
    if card.text is None:
        raise NoTextTowerError(no_text_tower(card.name))


def _answer(collection: Collection, search: Search, number: int, images: _Images) -> _Part:
    """Return the answer to a query; to one of several, the answer may be the error of its image or text."""
    query = search.queries[number]
    try:
        result = collection.current.run(lambda searcher: searcher.find(query, search.options, images.of(searcher)))
    except (ImageError, TextError) as error:
        if not search.several:
            raise
        text = query.parts[0].text
        info = QueryInfo(name=search.names[number][0]) if text is None else QueryInfo(text=text)
        return _Part(SearchPart(query=info, error=ErrorDetail(**error_json(error)["error"])), 0)
    hits = [SearchHit(**vars(hit), thumbnail=collection.thumbnail_path(hit.id)) for hit in result.hits]
    answer = SearchPart(query=_query_info(search, number, result), results=hits)
    return _Part(answer, len(PART.dump_json(answer)), result.grouped)


def _query_info(search: Search, number: int, result: SearchResult) -> QueryInfo:
    """Return the description of a query in its answer."""
    known = zip(search.queries[number].parts, result.items, result.truncated, search.names[number], strict=True)
    parts = [_described(part, item, truncated, name) for part, item, truncated, name in known]
    if search.in_parts:
        weights = [part.weight for part in search.queries[number].parts]
        described = [QueryPartInfo(**part, weight=weight) for part, weight in zip(parts, weights, strict=True)]
        return QueryInfo(parts=described)
    return QueryInfo(**({"id": None} if "name" in parts[0] and not search.several else parts[0]))


def _described(part: QueryPart, item: int | None, truncated: bool, name: str | None) -> dict[str, Any]:
    """Return what an answer says of a part of a query."""
    if part.text is not None:
        return {"id": None, "text": part.text, "truncated": truncated}
    if isinstance(part.item, str):
        return {"id": item, "key": part.item}
    return {"id": item} if item is not None else {"name": name}
