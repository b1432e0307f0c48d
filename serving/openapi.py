"""The OpenAPI 3.1 description of the service, which `/docs` shows. A test holds its paths equal to the routes."""

from __future__ import annotations

from serving import labels, openapi_writing
from serving.asking import MAX_OFFSET
from serving.collection import FOLDER
from serving.gallery.map import MOST
from serving.gallery.search import DEFAULT_K, NONE, RERANKINGS
from serving.openapi_parts import (
    BUSY,
    CHANGED,
    REFUSALS,
    answer,
    images,
    item_id,
    number,
    parameter,
    plain,
    query,
    refusal,
    text,
)
from serving.openapi_schemas import Json, ref, schemas
from serving.searching import FINGERPRINT, MODEL

MAX_LIMIT = 200
"""How many items one page of `GET /items` may hold."""
WHERE = (
    'Only whose metadata is so: {"colour": ["red", "blue"], "year": {"gte": 1900, "lt": 1950}}. A value, one of a '
    "list, or a range (gt, gte, lt, lte) of numbers or of texts. Of a list in the metadata one member is enough; a "
    "key that is not there is null."
)


def document(max_k: int, path: str | None = "") -> Json:
    """Of a collection whose routes begin with `path`, "" at the service's root; None: of a service of named ones."""
    paths = _of_collection(max_k)
    if path == "":
        paths |= _of_service()
    elif path is None:
        paths = {f"{FOLDER}/{{collection}}{one}": _of_any(what) for one, what in paths.items()} | _of_service()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Image search",
            "version": "1",
            "description": "Find the images of a gallery that are nearest to yours. Every refusal is JSON of one "
            'shape: {"error": {"code", "message"}}. A request to a host name that the service does not go by is '
            "refused with 421.",
        },
        **({"servers": [{"url": path}]} if path else {}),
        "paths": paths,
        "components": {"schemas": schemas(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        # Needed where the service was started with keys; the empty one says that it may have none.
        "security": [{"key": []}, {}],
    }


def _of_collection(max_k: int) -> Json:
    return {
        "/search": {"post": _search(max_k)},
        "/embed": {"post": _embed()},
        "/evaluate": {"get": _evaluation(), "post": openapi_writing.evaluate()},
        "/feedback": {"get": openapi_writing.marks(), "post": openapi_writing.mark()},
        "/feedback/{id}": {"delete": openapi_writing.take_back()},
        "/items": {"get": _items(), "post": openapi_writing.add()},
        "/items/{id}": {"get": _item(), "patch": openapi_writing.describe(), "delete": openapi_writing.remove()},
        "/items/{id}/thumbnail": {"get": _thumbnail()},
        "/model": {"get": _model()},
        "/stats": {"get": _stats()},
        "/labels": {"get": _labels()},
        "/metadata": {"get": _metadata()},
        "/map": {"get": _map()},
        "/livez": {"get": plain("Whether the process is alive")},
        "/readyz": {"get": plain("Whether a golden image is embedded and searched as it should", "503")},
    }


def _of_service() -> Json:
    return {
        FOLDER: {"get": _collections()},
        "/metrics": {"get": plain("Counters and latencies in Prometheus's text format")},
        "/livez": {"get": plain("Whether the process is alive")},
        "/readyz": {"get": plain("Whether every collection embeds and finds its golden image", "503")},
    }


def _of_any(operations: Json) -> Json:
    named = {"name": "collection", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        method: {**operation, "parameters": [named, *operation.get("parameters", [])]}
        for method, operation in operations.items()
    }


def _collections() -> Json:
    return {
        "summary": "The collections that the key may read",
        "responses": {
            "200": answer("name is null where there is one gallery, at the root", ref("Collections")),
            "401": REFUSALS["401"],
            **CHANGED,
        },
    }


def _search(max_k: int) -> Json:
    return {
        "summary": "The items nearest to an image, to an item of the gallery, or to a text",
        "description": "Send an image as the multipart field image or as the raw body, or name an item by its id; an "
        "item is left out of its own results. Parameters may stand in the form as well. Similarity is the cosine, "
        "-1 to 1. Of several images the answer is {searches: [...]}, one result or error for each, in order. A text is "
        "searched by where GET /model says text; p_same is null then, and truncated says whether its end was left out. "
        "ordered_by says what re-ranked results are in the order of, and rerank_score of each is that, the greatest "
        "first: the similarity to the query and its first results together (expansion), or 1 minus the distance of "
        "Zhong et al. 2017, equation 12 (reciprocal; the first 200 results alone have it). notes says which labels no "
        "item has, and, where nothing was found, which keys of where.",
        "parameters": [
            parameter("k", "How many to find", 1, max_k, min(DEFAULT_K, max_k)),
            parameter("id", "Search by this item instead of an image", 1, None, None),
            text("text", "Search by these words instead of an image; may be given again"),
            parameter("offset", "How many of the nearest to pass over", 0, MAX_OFFSET, 0),
            number("min_similarity", "Only of at least this similarity", -1, 1),
            number("min_p", "Only of at least this p_same; needs a calibrated gallery", 0, 1),
            text("label", "Only of this label; may be given again"),
            text("where", WHERE),
            text("crop", "Part of the image to search by: left,top,right,bottom as fractions of its sides"),
            {
                "name": "rerank",
                "in": "query",
                "description": "Search again with the first results (expansion), or order by shared neighbours",
                "schema": {"type": "string", "enum": list(RERANKINGS), "default": NONE},
            },
        ],
        "requestBody": query(),
        "responses": {
            "200": answer("The nearest, best first", {"anyOf": [ref("SearchResult"), ref("SearchResults")]}),
            **REFUSALS,
            **CHANGED,
            "404": refusal("no such item"),
        },
    }


def _embed() -> Json:
    return {
        "summary": "The embeddings of images",
        "description": "Unit vectors, in the order of the images, and the SHA-256 of their files, as POST /feedback "
        "takes them. base64: of float32, little-endian; npy: one NumPy array of the vectors as the body, their model "
        f"in the headers {MODEL} and {FINGERPRINT}.",
        "parameters": [
            {
                "name": "format",
                "in": "query",
                "schema": {"type": "string", "enum": ["json", "base64", "npy"], "default": "json"},
            },
            text("crop", "Part of the images to embed: left,top,right,bottom as fractions of the sides"),
        ],
        "requestBody": images("image"),
        "responses": {
            "200": {
                "description": "The embeddings",
                "headers": {
                    MODEL: {"description": "npy: the model's name", "schema": {"type": "string"}},
                    FINGERPRINT: {"description": "npy: its fingerprint, as in JSON", "schema": {"type": "string"}},
                },
                "content": {
                    "application/json": {"schema": ref("Embeddings")},
                    "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
                },
            },
            **REFUSALS,
            **CHANGED,
        },
    }


def _evaluation() -> Json:
    responses = {"200": answer("The last measurement", {"type": "object"}), "404": refusal("never measured"), **CHANGED}
    return {"summary": "How well the gallery's labels are found, as last measured", "responses": responses}


def _stats() -> Json:
    return {
        "summary": "Items, labels, marks, the index and its measured recall, the calibration",
        "responses": {"200": answer("The gallery", {"type": "object"}), **CHANGED, **BUSY},
    }


def _labels() -> Json:
    return {
        "summary": "The labels and how many items have each, the most frequent first",
        "parameters": [parameter("limit", "How many labels to give", 1, labels.MOST, labels.DEFAULT)],
        "responses": {"200": answer("Labels", ref("Labels")), "422": refusal("a parameter out of range"), **BUSY},
    }


def _metadata() -> Json:
    return {
        "summary": "What the items' metadata say, by key and value, the most frequent first",
        "parameters": [parameter("limit", "How many values to give", 1, labels.MOST, labels.DEFAULT)],
        "responses": {"200": answer("Values", ref("Metadata")), "422": refusal("a parameter out of range"), **BUSY},
    }


def _map() -> Json:
    return {
        "summary": f"Items as points of a plane, up to {MOST:,} of them",
        "description": "Near points have near embeddings (t-SNE); x and y are on one scale from -1 to 1. explained: "
        "the shares of the variance in the first two principal components, from which the map starts.",
        "responses": {"200": answer("The map", ref("Map")), **CHANGED, **BUSY},
    }


def _items() -> Json:
    return {
        "summary": "The gallery's items, page by page, or a random sample of them",
        "parameters": [
            parameter("offset", "How many to pass over", 0, None, 0),
            parameter("limit", "How many to give", 1, MAX_LIMIT, 50),
            text("label", "Only of this label; may be given again, for any of several"),
            text("where", WHERE),
            parameter("sample", "So many at random, instead of a page", 1, MAX_LIMIT, None),
        ],
        "responses": {"200": answer("Items", ref("ItemPage")), "422": refusal("a parameter out of range"), **BUSY},
    }


def _item() -> Json:
    responses = {"200": answer("The item", ref("Item")), "404": refusal("no such item")}
    return {"summary": "One item", "parameters": [item_id()], "responses": responses}


def _thumbnail() -> Json:
    picture = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": "A small picture of the item",
        "parameters": [item_id()],
        "responses": {
            "200": {"description": "The picture", "content": {"image/png": picture, "image/jpeg": picture}},
            "304": {"description": "The picture is the one of the given If-None-Match"},
            "404": refusal("no such item"),
        },
    }


def _model() -> Json:
    responses = {"200": answer("The model", ref("Model")), **CHANGED}
    return {"summary": "The model, the gallery's size and what an image and a request may hold", "responses": responses}
