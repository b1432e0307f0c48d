"""POST /search."""

from __future__ import annotations

import dataclasses
from time import perf_counter
from typing import Any, NamedTuple

from anyio import to_thread
from fastapi import APIRouter, Request

from serving.dependencies import Collection, CollectionDep, CpuQueueDep, SettingsDep
from serving.errors import RefusedError, error_json, invalid
from serving.forms import UploadedImage, checked_images, read_request
from serving.gallery.gallery import filter_notes, group_notes
from serving.gallery.search import Searcher, SearchOptions, SearchQuery
from serving.gallery.types import DEFAULT_K
from serving.metrics import stage
from serving.openapi import IMAGES, form_operation, refusals
from serving.parameters import parse_item_id
from serving.schemas import (
    MAX_QUERY_TEXT,
    ErrorDetail,
    QueryInfo,
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

ORDER = {
    "none": "similarity",
    "expansion": "similarity to the query and its first results together; similarity is to the query alone",
    "augmentation": "similarity of query and results, each with its nearest; similarity is to the query alone",
    "diffusion": "diffusion over the neighbours of the results; similarity is to the query alone",
    "reciprocal": "shared neighbours; similarity is to the query alone",
}
"""What orders the results, by the kind of re-ranking."""


class Search(NamedTuple):
    """The options and queries of a request, and the description of each query in the answer."""

    options: SearchOptions
    queries: list[tuple[SearchQuery, QueryInfo]]


async def _read_search(request: Request, settings: Settings) -> Search:
    with stage("read"):
        parameters, images = await read_request(request, SearchParameters)
        k = _k(parameters, settings.max_k)
        chosen = {option.name: getattr(parameters, option.name) for option in dataclasses.fields(SearchOptions)}
        options = SearchOptions(**chosen | {"k": k})
        return Search(options, _queries(parameters, images, settings))


def _k(parameters: SearchParameters, max_k: int) -> int:
    if "k" not in parameters.model_fields_set:
        return min(DEFAULT_K, max_k)
    if parameters.k > max_k:
        raise invalid("k", f"a whole number from 1 to {max_k}")
    return parameters.k


def _queries(
    parameters: SearchParameters, images: tuple[UploadedImage, ...], settings: Settings
) -> list[tuple[SearchQuery, QueryInfo]]:
    """Return the queries. Raises `RefusedError` for parameters that contradict one another."""
    texts, item, key = parameters.text, parameters.id, parameters.key
    of_item = item is not None or key is not None
    one_of = "Search by an image, by a text, or by the id or the key of an item: one of them."
    if texts and (images or of_item):
        raise RefusedError(400, "several_queries", one_of)
    if (images and of_item) or (item is not None and key is not None):
        raise RefusedError(400, "several_queries", one_of)
    if parameters.crop and (texts or of_item):
        raise RefusedError(400, "crop_without_image", "Only an image that is sent can be cropped.")
    if key is not None:
        return [(SearchQuery(key=key), QueryInfo(key=key))]
    if item is not None:
        item_id = parse_item_id(item)
        return [(SearchQuery(item=item_id), QueryInfo(id=item_id))]
    if not texts:
        several = len(images) > 1
        return [
            (SearchQuery(image.data), QueryInfo(name=image.name) if several else QueryInfo(id=None))
            for image in checked_images(images)
        ]
    if len(texts) > settings.max_images:
        raise RefusedError(400, "too_many_values", f"A request may search by at most {settings.max_images} texts.")
    if max(map(len, texts)) > MAX_QUERY_TEXT:
        raise RefusedError(413, "text_too_long", f"A text to search by has at most {MAX_QUERY_TEXT:,} characters.")
    if parameters.min_p is not None:
        # The similarity of a text and an image is lower than that of two images of a class: p_same is not of texts.
        message = "min_p is of pairs of images; use min_similarity for texts."
        raise RefusedError(422, "min_p_of_text", message)
    return [(SearchQuery(text=text), QueryInfo(text=text)) for text in texts]


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

    The answer to several images or texts is {searches: [...]}, one result or error for each, in order. Texts can be
    searched by where GET /model shows text; p_same is null then, and truncated tells whether the end was left out.

    ordered_by names the order of re-ranked results, and rerank_score is its value, highest first: the similarity to the
    query and its first results together (expansion); and, only of the first 200 results, the similarity of query and
    result, each together with its nearest (augmentation), what reaches the result by diffusion (diffusion; Iscen et al.
    2017), or 1 minus the distance of Zhong et al. 2017, equation 12 (reciprocal). A result is an image; also names the
    other items that have it. notes names labels that no item has, an unknown key of group_by and, without results,
    unknown keys of where.
    """
    search = await _read_search(request, settings)
    start = perf_counter()
    if search.queries[0][0].text is not None:
        await collection.call(_check_text_tower)
    several, parts = len(search.queries) > 1, []
    for number, (query, info) in enumerate(search.queries):
        # Query by query, so that other requests are served in between.
        run = cpu_queue.run_aside if number else cpu_queue.run
        parts.append(await run(_part, collection, search, query, info, several))
    chosen = search.options.selection
    any_results = any(part.results for part in parts)
    hints = await to_thread.run_sync(filter_notes, collection.gallery, chosen, any_results) if chosen else []
    if search.options.group_by is not None:
        hints += await to_thread.run_sync(group_notes, collection.gallery, search.options.group_by)
    summary: dict[str, Any] = {
        "k": search.options.k,
        "ordered_by": ORDER[search.options.rerank],
        "notes": hints,
        "milliseconds": round(1000 * (perf_counter() - start), 2),
    }
    if several:
        return SearchAnswers(searches=parts, **summary)
    return SearchAnswer(query=parts[0].query, results=parts[0].results or [], **summary)


def _check_text_tower(searcher: Searcher) -> None:
    card = searcher.embedder.card
    if card.text is None:
        raise NoTextTowerError(no_text_tower(card.name))


def _part(collection: Collection, search: Search, query: SearchQuery, info: QueryInfo, several: bool) -> SearchPart:
    """Return the answer to a query; to one of several, the answer may be the error of its image or text."""
    try:
        result = collection.current.run(lambda searcher: searcher.find(query, search.options))
    except (ImageError, TextError) as error:
        if not several:
            raise
        return SearchPart(query=info, error=ErrorDetail(**error_json(error)["error"]))
    if query.text is not None:
        info = QueryInfo(id=None, text=query.text, truncated=result.truncated)
    if query.key is not None:
        info = QueryInfo(id=result.item, key=query.key)
    hits = [SearchHit(**vars(hit), thumbnail=collection.thumbnail_path(hit.id)) for hit in result.hits]
    return SearchPart(query=info, results=hits)
