"""The OpenAPI 3.1 description of the service, which `/docs` shows. A test holds its paths equal to the routes."""

from __future__ import annotations

from typing import Any

from serving.uploads import DEFAULT_K

MAX_LIMIT = 200
"""How many items one page of `GET /items` may hold."""

Json = dict[str, Any]


def document(max_k: int) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Image search",
            "version": "1",
            "description": "Find the images of a gallery that are nearest to yours. Every refusal is JSON of one "
            'shape: {"error": {"code", "message"}}. A request to a host name that the service does not go by is '
            "refused with 421.",
        },
        "paths": {
            "/search": {"post": _search(max_k)},
            "/items": {"get": _items()},
            "/items/{id}": {"get": _item()},
            "/items/{id}/thumbnail": {"get": _thumbnail()},
            "/model": {"get": _model()},
            "/metrics": {"get": _plain("Counters and latencies in Prometheus's text format")},
            "/livez": {"get": _plain("Whether the process is alive")},
            "/readyz": {"get": _plain("Whether a golden image is embedded and searched as it should", "503")},
        },
        "components": {"schemas": _schemas()},
    }


def _search(max_k: int) -> Json:
    image = {"type": "string", "format": "binary", "description": "The image file"}
    fields = {"image": image, "id": {"type": "integer"}, "k": {"type": "integer"}}
    return {
        "summary": "The items nearest to an image, or to an item of the gallery",
        "description": "Send an image as the multipart field image or as the raw body, or name an item by its id; an "
        "item is left out of its own results. Similarity is the cosine, -1 to 1.",
        "parameters": [
            _parameter("k", "How many to find", 1, max_k, DEFAULT_K),
            _parameter("id", "Search by this item instead of an image", 1, None, None),
        ],
        "requestBody": {
            "content": {
                "multipart/form-data": {"schema": {"type": "object", "properties": fields}},
                "image/*": {"schema": image},
                "application/octet-stream": {"schema": image},
            }
        },
        "responses": {
            "200": _json("The nearest, best first", _ref("SearchResult")),
            "400": _refusal("no image in the request, or a form that cannot be read"),
            "404": _refusal("no such item"),
            "413": _refusal("more bytes or pixels than the limits"),
            "415": _refusal("neither a form nor an image"),
            "422": _refusal("an image that cannot be decoded, or a parameter out of range"),
        },
    }


def _items() -> Json:
    return {
        "summary": "The gallery's items, page by page, or a random sample of them",
        "parameters": [
            _parameter("offset", "How many to pass over", 0, None, 0),
            _parameter("limit", "How many to give", 1, MAX_LIMIT, 50),
            {"name": "label", "in": "query", "description": "Only of this label", "schema": {"type": "string"}},
            _parameter("sample", "So many at random, instead of a page", 1, MAX_LIMIT, None),
        ],
        "responses": {"200": _json("Items", _ref("ItemPage")), "422": _refusal("a parameter out of range")},
    }


def _item() -> Json:
    responses = {"200": _json("The item", _ref("Item")), "404": _refusal("no such item")}
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


def _schemas() -> Json:
    label = {"type": ["string", "null"]}
    hit = {
        "id": {"type": "integer"},
        "similarity": {"type": "number", "minimum": -1, "maximum": 1},
        "label": label,
        "source": {"type": "string"},
        "thumbnail": {"type": "string"},
    }
    item = {
        "id": {"type": "integer"},
        "source": {"type": "string"},
        "label": label,
        "metadata": {"type": "object"},
        "content_sha256": {"type": "string"},
        "added_at": {"type": "string", "format": "date-time"},
        "change": {"type": "integer"},
        "thumbnail": {"type": "string"},
    }
    result = {
        "query": _object({"id": {"type": ["integer", "null"]}}),
        "k": {"type": "integer"},
        "milliseconds": {"type": "number"},
        "results": {"type": "array", "items": _ref("Hit")},
    }
    page = {"total": {"type": "integer"}, "items": {"type": "array", "items": _ref("Item")}}
    paging = {"offset": {"type": "integer"}, "limit": {"type": "integer"}}
    texts = ("name", "method", "backbone", "dataset", "licence", "fingerprint", "runtime", "precision", "device")
    model = {
        **{name: {"type": "string"} for name in texts},
        "dim": {"type": "integer"},
        "preprocessing": {"type": "object"},
        "gallery": _object({name: {"type": "integer"} for name in ("items", "labels", "change")}),
        "limits": _object({name: {"type": "integer"} for name in ("max_bytes", "max_pixels")}),
    }
    error = _object({"code": {"type": "string"}, "message": {"type": "string"}})
    return {
        "Hit": _object(hit),
        "SearchResult": _object(result),
        "Item": _object(item),
        "ItemPage": {"type": "object", "properties": {**page, **paging}, "required": list(page)},
        "Model": _object(model),
        "Refusal": _object({"error": error}),
    }


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _parameter(name: str, description: str, low: int, high: int | None, default: int | None) -> Json:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {key: value for key, value in schema.items() if value is not None},
    }


def _id() -> Json:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}


def _ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refusal(why: str) -> Json:
    return _json(f"Refused: {why}", _ref("Refusal"))


def _model() -> Json:
    responses = {"200": _json("The model", _ref("Model"))}
    return {"summary": "The model, the gallery's size and what an upload may hold", "responses": responses}


def _plain(summary: str, refused: str | None = None) -> Json:
    statuses = {"200": "Yes", **({refused: "No"} if refused else {})}
    return {"summary": summary, "responses": {status: {"description": text} for status, text in statuses.items()}}
