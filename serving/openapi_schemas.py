"""The shapes of what the service answers, for its OpenAPI description."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def schemas() -> Json:
    label = {"type": ["string", "null"]}
    hit = {
        "id": {"type": "integer"},
        "similarity": {"type": "number", "minimum": -1, "maximum": 1},
        "label": label,
        "source": {"type": "string"},
        "p_same": {"type": ["number", "null"]},
        "thumbnail": {"type": "string"},
    }
    item = {
        "id": {"type": "integer"},
        "source": {"type": "string"},
        "label": label,
        "metadata": {"type": "object"},
        "content_sha256": {"type": "string"},
        "added_at": {"type": "string", "format": "date-time"},
        "change": {"type": "integer", "description": "The number of the gallery's change that added it"},
        "key": {"type": ["string", "null"]},
        "thumbnail": {"type": "string"},
    }
    text = {"text": {"type": "string"}, "truncated": {"type": "boolean"}}
    result = {
        "query": {**object_of({"id": {"type": ["integer", "null"]}, **text}), "required": ["id"]},
        **_told_of_search(),
        "results": {"type": "array", "items": ref("Hit")},
    }
    page = {"total": {"type": "integer"}, "items": {"type": "array", "items": ref("Item")}}
    paging = {"offset": {"type": "integer"}, "limit": {"type": "integer"}, "notes": _NOTES}
    texts = ("name", "method", "backbone", "dataset", "licence", "fingerprint", "runtime", "precision", "device")
    limits = ("max_bytes", "max_pixels", "max_images", "max_body", "max_k")
    model = {
        **{name: {"type": "string"} for name in texts},
        "dim": {"type": "integer"},
        "preprocessing": {"type": "object"},
        "text": {"type": ["object", "null"]},
        "gallery": object_of({name: {"type": "integer"} for name in ("items", "labels", "change")}),
        "limits": object_of({name: {"type": "integer"} for name in limits}),
    }
    error = object_of({"code": {"type": "string"}, "message": {"type": "string"}})
    return {
        "Hit": {**object_of(hit), "properties": {**hit, "rerank_score": {"type": "number"}}},
        "Query": {"type": "object", "properties": _query(), "additionalProperties": False},
        "SearchResult": object_of(result),
        "SearchResults": object_of({**_told_of_search(), "searches": {"type": "array", "items": {"type": "object"}}}),
        "Collections": object_of(
            {
                "collections": _several(
                    {
                        "name": ["string", "null"],
                        "path": "string",
                        "items": "integer",
                        "model": "string",
                        "dim": "integer",
                    }
                )
            }
        ),
        "Embeddings": object_of(
            {
                "model": {"type": "string"},
                "fingerprint": {"type": "string"},
                "dim": {"type": "integer"},
                "embeddings": {"type": "array", "items": {}},
                "content_sha256": {"type": "array", "items": {"type": "string"}},
            }
        ),
        "Added": object_of(
            {
                "new": {"type": "integer"},
                "items": {"type": "array", "items": ref("Item")},
                "refused": {"type": "array", "items": {"type": "object"}},
                "differing": {"type": "array", "items": {"type": "object"}},
            }
        ),
        "Item": object_of(item),
        "Described": object_of({**item, "gallery_change": _INTEGER}),
        "NewMark": object_of(
            {"query": {"anyOf": [{"type": "integer"}, _sent()]}, "item": _INTEGER, "verdict": _VERDICT}
        ),
        "Mark": object_of(_mark()),
        "Marks": object_of(
            {
                **dict.fromkeys(("total", "right", "wrong", "offset", "limit"), _INTEGER),
                "marks": {"type": "array", "items": ref("Mark")},
            }
        ),
        "Labels": object_of(
            {"total": {"type": "integer"}, "labels": _several({"label": "string", "items": "integer"})}
        ),
        "Metadata": object_of(
            {
                "total": {"type": "integer"},
                "values": _several({"key": "string", "value": ["string", "number", "boolean"], "items": "integer"}),
            }
        ),
        "Map": object_of(
            {
                "total": {"type": "integer"},
                "explained": {"type": "array", "items": {"type": "number"}},
                "points": _several({"id": "integer", "x": "number", "y": "number", "label": ["string", "null"]}),
            }
        ),
        "ItemPage": {"type": "object", "properties": {**page, **paging}, "required": list(page)},
        "Model": object_of(model),
        "Refusal": object_of({"error": error}),
    }


def _told_of_search() -> Json:
    return {
        "k": _INTEGER,
        "ordered_by": {"type": "string"},
        "notes": _NOTES,
        "milliseconds": {"type": "number"},
    }


def _query() -> Json:
    """What may be asked as JSON; each member is the parameter of its name."""
    texts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    numbers = {name: {"type": "number"} for name in ("min_similarity", "min_p")}
    return {
        "text": texts,
        "label": texts,
        "where": {"type": "object"},
        **{name: {"type": "integer"} for name in ("id", "k", "offset")},
        **numbers,
        "rerank": {"type": "string"},
    }


def _mark() -> Json:
    image = {
        "id": {"type": ["integer", "null"]},
        "content_sha256": {"type": "string"},
        "source": {"type": "string"},
        "label": {"type": ["string", "null"]},
        "thumbnail": {"type": ["string", "null"]},
    }
    return {
        "id": _INTEGER,
        "query": object_of(image),
        "result": object_of(image),
        "verdict": _VERDICT,
        "similarity": {"type": "number", "minimum": -1, "maximum": 1},
        "model": {"type": "string"},
        "marked_at": {"type": "string", "format": "date-time"},
    }


def _sent() -> Json:
    embedding = {"type": ["string", "array"], "items": {"type": "number"}, "contentEncoding": "base64"}
    digest = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    sent = object_of({"content_sha256": digest, "embedding": embedding})
    more = {"fingerprint": {"type": "string"}, "source": {"type": "string"}}
    return {**sent, "properties": {**sent["properties"], **more}, "additionalProperties": False}


_INTEGER: Json = {"type": "integer"}
_NOTES: Json = {"type": "array", "items": {"type": "string"}}
_VERDICT: Json = {"type": "string", "enum": ["right", "wrong"]}


def object_of(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _several(properties: Json) -> Json:
    return {"type": "array", "items": object_of({name: {"type": kind} for name, kind in properties.items()})}
