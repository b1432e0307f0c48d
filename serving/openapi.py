"""The OpenAPI 3.1 description of the service, which `/docs` shows. A test holds its paths equal to the routes."""

from __future__ import annotations

from serving import feedback, labels, projection
from serving.asking import MAX_OFFSET
from serving.collection import FOLDER
from serving.finding import DEFAULT_K
from serving.openapi_schemas import Json, object_of, ref, schemas
from serving.reranking import KINDS, NONE

MAX_LIMIT = 200
"""How many items one page of `GET /items` may hold."""


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
        "/evaluate": {"get": _evaluation(), "post": _evaluate()},
        "/feedback": {"get": _feedback(), "post": _mark()},
        "/feedback/{id}": {"delete": _undo()},
        "/items": {"get": _items(), "post": _add()},
        "/items/{id}": {"get": _item(), "patch": _describe(), "delete": _remove()},
        "/items/{id}/thumbnail": {"get": _thumbnail()},
        "/model": {"get": _model()},
        "/stats": {"get": _stats()},
        "/labels": {"get": _labels()},
        "/metadata": {"get": _metadata()},
        "/map": {"get": _map()},
        "/livez": {"get": _plain("Whether the process is alive")},
        "/readyz": {"get": _plain("Whether a golden image is embedded and searched as it should", "503")},
    }


def _of_service() -> Json:
    return {
        FOLDER: {"get": _collections()},
        "/metrics": {"get": _plain("Counters and latencies in Prometheus's text format")},
        "/livez": {"get": _plain("Whether the process is alive")},
        "/readyz": {"get": _plain("Whether every collection embeds and finds its golden image", "503")},
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
            "200": _json("name is null where there is one gallery, at the root", ref("Collections")),
            "401": _REFUSALS["401"],
        },
    }


def _search(max_k: int) -> Json:
    return {
        "summary": "The items nearest to an image, to an item of the gallery, or to a text",
        "description": "Send an image as the multipart field image or as the raw body, or name an item by its id; an "
        "item is left out of its own results. Parameters may stand in the form as well. Similarity is the cosine, "
        "-1 to 1. Of several images the answer is {searches: [...]}, one result or error for each, in order. A text is "
        "searched by where GET /model says text; p_same is null then, and truncated says whether its end was left out.",
        "parameters": [
            _parameter("k", "How many to find", 1, max_k, DEFAULT_K),
            _parameter("id", "Search by this item instead of an image", 1, None, None),
            _text("text", "Search by these words instead of an image; may be given again"),
            _parameter("offset", "How many of the nearest to pass over", 0, MAX_OFFSET, 0),
            _number("min_similarity", "Only of at least this similarity", -1, 1),
            _number("min_p", "Only of at least this p_same; needs a calibrated gallery", 0, 1),
            _text("label", "Only of this label; may be given again"),
            _text("where", 'Only whose metadata is so: {"colour": "red", "year": [1908, 1909]}'),
            _text("crop", "Part of the image to search by: left,top,right,bottom as fractions of its sides"),
            {
                "name": "rerank",
                "in": "query",
                "description": "Search again with the first results (expansion), or order by shared neighbours",
                "schema": {"type": "string", "enum": list(KINDS), "default": NONE},
            },
        ],
        "requestBody": _query(),
        "responses": {
            "200": _json("The nearest, best first", {"anyOf": [ref("SearchResult"), ref("SearchResults")]}),
            **_REFUSALS,
            "404": _refusal("no such item"),
        },
    }


def _embed() -> Json:
    return {
        "summary": "The embeddings of images",
        "description": "Unit vectors, in the order of the images, and the SHA-256 of their files, as POST /feedback "
        "takes them. base64: of float32, little-endian; npy: one NumPy array of the vectors as the body.",
        "parameters": [
            {
                "name": "format",
                "in": "query",
                "schema": {"type": "string", "enum": ["json", "base64", "npy"], "default": "json"},
            },
            _text("crop", "Part of the images to embed: left,top,right,bottom as fractions of the sides"),
        ],
        "requestBody": _images("image"),
        "responses": {
            "200": {
                "description": "The embeddings",
                "content": {
                    "application/json": {"schema": ref("Embeddings")},
                    "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
                },
            },
            **_REFUSALS,
        },
    }


def _evaluation() -> Json:
    responses = {"200": _json("The last measurement", {"type": "object"}), "404": _refusal("never measured")}
    return {"summary": "How well the gallery's labels are found, as last measured", "responses": responses}


def _evaluate() -> Json:
    return {
        "summary": "Measure R@1 and MAP@R of the labelled items, exactly and through the index, and calibrate p_same",
        "description": "reliability: in each tenth of p_same the mean of what was promised and the share that was so, "
        "of pairs of classes that it was not fitted to. marks: how many results were marked, the part that is right "
        "and those that contradict the labels. Needs a write key.",
        "responses": {
            "200": _json("The measurement", {"type": "object"}),
            **_WRITING,
            "422": _refusal("labels that nothing can be measured by"),
        },
    }


def _add() -> Json:
    return {
        "summary": "Add images",
        "description": "The fields label, source and metadata (a JSON object) hold for all images of the request. An "
        "image whose content is there already is answered with its item; where that has another label or metadata it "
        "is named in differing, and with update it gets those of the request. One that cannot be read is named in "
        "refused, and the others are added. Needs a write key.",
        "parameters": [
            _text("label", "Of all images"),
            _text("source", "Where they come from"),
            _text("metadata", "JSON"),
            {
                **_text("update", "Also of images that are there already"),
                "schema": {"type": "boolean", "default": False},
            },
        ],
        "requestBody": _images("image"),
        "responses": {
            "200": _json("All were there already", ref("Added")),
            "201": _json("Added", ref("Added")),
            **_WRITING,
            **_REFUSALS,
        },
    }


def _feedback() -> Json:
    return {
        "summary": "The results that were marked right or wrong, in the order in which they first were, page by page",
        "parameters": [
            _parameter("offset", "How many to pass over", 0, None, 0),
            _parameter("limit", "How many to give", 1, feedback.MOST, 50),
            _text("query", "Only of this query: the id of an item, or the content_sha256 of an image"),
            _parameter("item", "Only of this result", 1, None, None),
            {**_text("verdict", "Only of this verdict"), "schema": _VERDICT},
        ],
        "responses": {
            "200": _json("Marks", ref("Marks")),
            "404": _refusal("no such item"),
            "422": _refusal("a parameter out of range"),
        },
    }


def _mark() -> Json:
    return {
        "summary": "Mark a result right, of the query's class, or wrong",
        "description": "Marking the pair again replaces the mark. query: the id of an item, or content_sha256 and "
        "embedding of an image as POST /embed gives them; of such an image the hash and the source are kept. Marks are "
        "calibrated and evaluated by; they go when one of their items is removed. Needs a write key.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref("NewMark")}}},
        "responses": {
            "200": _json("It takes the place of an older mark", ref("Mark")),
            "201": _json("Marked", ref("Mark")),
            **_WRITING,
            "404": _refusal("no such item"),
            "422": _refusal("a body that is not understood, or an image marked as a result of itself"),
        },
    }


def _undo() -> Json:
    return {
        "summary": "Take a mark back. Needs a write key",
        "parameters": [_id()],
        "responses": {
            "200": _json("It is gone", object_of({"removed": {"type": "integer"}})),
            **_WRITING,
            "404": _refusal("no such mark"),
        },
    }


def _describe() -> Json:
    body = {"label": {"type": ["string", "null"]}, "metadata": {"type": "object"}}
    return {
        "summary": "Change an item's label or metadata; what is not named stays. Needs a write key",
        "parameters": [_id()],
        "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": body}}}},
        "responses": {
            "200": _json("The item", ref("Item")),
            **_WRITING,
            "404": _refusal("no such item"),
            "422": _refusal("a body that is not understood"),
        },
    }


def _remove() -> Json:
    return {
        "summary": "Remove an item. Needs a write key",
        "parameters": [_id()],
        "responses": {
            "200": _json("It is gone", object_of({"removed": {"type": "integer"}})),
            **_WRITING,
            "404": _refusal("no such item"),
        },
    }


def _stats() -> Json:
    return {
        "summary": "Items, labels, marks, the index and its measured recall, the calibration",
        "responses": {"200": _json("The gallery", {"type": "object"})},
    }


def _labels() -> Json:
    return {
        "summary": "The labels and how many items have each, the most frequent first",
        "parameters": [_parameter("limit", "How many labels to give", 1, labels.MOST, labels.DEFAULT)],
        "responses": {"200": _json("Labels", ref("Labels")), "422": _refusal("a parameter out of range")},
    }


def _metadata() -> Json:
    return {
        "summary": "What the items' metadata say, by key and value, the most frequent first",
        "parameters": [_parameter("limit", "How many values to give", 1, labels.MOST, labels.DEFAULT)],
        "responses": {"200": _json("Values", ref("Metadata")), "422": _refusal("a parameter out of range")},
    }


def _map() -> Json:
    return {
        "summary": f"Items as points of a plane, up to {projection.MOST:,} of them",
        "description": "The first two principal components of their embeddings, from -1 to 1 on one scale; explained: "
        "the parts of the variance that x and y hold.",
        "responses": {"200": _json("The map", ref("Map"))},
    }


def _items() -> Json:
    return {
        "summary": "The gallery's items, page by page, or a random sample of them",
        "parameters": [
            _parameter("offset", "How many to pass over", 0, None, 0),
            _parameter("limit", "How many to give", 1, MAX_LIMIT, 50),
            {"name": "label", "in": "query", "description": "Only of this label", "schema": {"type": "string"}},
            _text("where", 'Only whose metadata is so: {"colour": "red", "year": [1908, 1909]}'),
            _parameter("sample", "So many at random, instead of a page", 1, MAX_LIMIT, None),
        ],
        "responses": {"200": _json("Items", ref("ItemPage")), "422": _refusal("a parameter out of range")},
    }


def _item() -> Json:
    responses = {"200": _json("The item", ref("Item")), "404": _refusal("no such item")}
    return {"summary": "One item", "parameters": [_id()], "responses": responses}


def _thumbnail() -> Json:
    picture = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": "A small picture of the item",
        "parameters": [_id()],
        "responses": {
            "200": {"description": "The picture", "content": {"image/png": picture, "image/jpeg": picture}},
            "304": {"description": "The picture is the one of the given If-None-Match"},
            "404": _refusal("no such item"),
        },
    }


def _parameter(name: str, description: str, low: int, high: int | None, default: int | None) -> Json:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {key: value for key, value in schema.items() if value is not None},
    }


def _number(name: str, description: str, low: float, high: float) -> Json:
    schema = {"type": "number", "minimum": low, "maximum": high}
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _text(name: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _images(field: str) -> Json:
    image = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {field: {"type": "array", "items": image}}}
    return {
        "content": {
            "multipart/form-data": {"schema": form},
            "image/*": {"schema": image},
            "application/octet-stream": {"schema": image},
        }
    }


def _query() -> Json:
    """An image, or words without one."""
    text = {"type": "object", "properties": {"text": {"type": "array", "items": {"type": "string"}}}}
    images: Json = _images("image")["content"]
    return {
        "content": {
            **images,
            "application/json": {"schema": ref("Query")},
            "application/x-www-form-urlencoded": {"schema": text},
        }
    }


def _id() -> Json:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refusal(why: str) -> Json:
    return _json(f"Refused: {why}", ref("Refusal"))


def _model() -> Json:
    responses = {"200": _json("The model", ref("Model"))}
    return {"summary": "The model, the gallery's size and what an upload may hold", "responses": responses}


def _plain(summary: str, refused: str | None = None) -> Json:
    statuses = {"200": "Yes", **({refused: "No"} if refused else {})}
    return {"summary": summary, "responses": {status: {"description": text} for status, text in statuses.items()}}


_VERDICT: Json = {"type": "string", "enum": list(feedback.VERDICTS)}
_REFUSALS = {
    "400": _refusal("no image in the request, or a form that cannot be read"),
    "401": _refusal("no key, or a wrong one"),
    "408": _refusal("a body that came too slowly"),
    "413": _refusal("more bytes or pixels than the limits"),
    "415": _refusal("neither a form nor an image"),
    "422": _refusal("an image that cannot be decoded, or a parameter out of range"),
    "429": _refusal("too many requests at once, or in a second"),
}
_WRITING = {
    "401": _refusal("no write key, or a wrong one"),
    "403": _refusal("a service without a write key, or a read key"),
    "429": _REFUSALS["429"],
}
