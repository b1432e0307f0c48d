"""What the descriptions of the service's paths are put together from: parameters, bodies, answers, refusals."""

from __future__ import annotations

from serving.openapi_schemas import Json, ref


def parameter(name: str, description: str, low: int, high: int | None, default: int | None) -> Json:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {key: value for key, value in schema.items() if value is not None},
    }


def number(name: str, description: str, low: float, high: float) -> Json:
    schema = {"type": "number", "minimum": low, "maximum": high}
    return {"name": name, "in": "query", "description": description, "schema": schema}


def text(name: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def images(field: str) -> Json:
    image = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {field: {"type": "array", "items": image}}}
    return {
        "content": {
            "multipart/form-data": {"schema": form},
            "image/*": {"schema": image},
            "application/octet-stream": {"schema": image},
        }
    }


def query() -> Json:
    """An image, or words without one."""
    words = {"type": "object", "properties": {"text": {"type": "array", "items": {"type": "string"}}}}
    by_image: Json = images("image")["content"]
    return {
        "content": {
            **by_image,
            "application/json": {"schema": ref("Query")},
            "application/x-www-form-urlencoded": {"schema": words},
        }
    }


def item_id() -> Json:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}


def answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def refusal(why: str) -> Json:
    return answer(f"Refused: {why}", ref("Refusal"))


def plain(summary: str, refused: str | None = None) -> Json:
    statuses = {"200": "Yes", **({refused: "No"} if refused else {})}
    return {"summary": summary, "responses": {status: {"description": text} for status, text in statuses.items()}}


REFUSALS = {
    "400": refusal("no image in the request, or a form that cannot be read"),
    "401": refusal("no key, or a wrong one"),
    "408": refusal("a body that came too slowly"),
    "413": refusal("more bytes or pixels than the limits"),
    "415": refusal("neither a form nor an image"),
    "422": refusal("an image that cannot be decoded, or a parameter out of range"),
    "429": refusal("too many requests at once, or in a second"),
    "504": refusal("no answer in time"),
}
CHANGED = {
    "503": refusal(
        "the gallery was given another model, which cannot be loaded (model_changed), its folder is not where it was "
        "(gallery_moved), the database of its vectors does not answer (index_unavailable), or the service was stopped "
        "meanwhile (stopped); try again later"
    )
}
"""Of whatever has to do with embeddings."""
BUSY = {"429": REFUSALS["429"]}
"""What looks at every item counts among the requests at once."""

WRITING = {
    "401": refusal("no write key, or a wrong one"),
    "403": refusal("a service without a write key, or a read key"),
    **BUSY,
    "503": refusal(
        "a gallery that others write to all the time (storage_busy), or that can only be read (read_only_storage); "
        "else as for searches (model_changed, gallery_moved, index_unavailable, stopped)"
    ),
    "507": refusal("a disk that is full, or does not take what is written"),
}
