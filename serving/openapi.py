"""OpenAPI document of the service: FastAPI's, with the routes that read forms, the refusals, and the collections."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from serving.dependencies import COLLECTIONS_PATH
from serving.forms import FORM, JSON, MULTIPART, RAW_TYPES
from serving.keys import PROBES, SERVICE_PATHS
from serving.schemas import ErrorBody


def form_operation(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI operation of a route that reads its parameters and images with `read_request`."""
    properties = model.model_json_schema()["properties"]
    image = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {**properties, "image": {"type": "array", "items": image}}}
    encoded = {"type": "string", "description": "base64 of an image file, or a data URI"}
    members = {name: _in_json(schema) for name, schema in properties.items()}
    members["image"] = {"anyOf": [encoded, {"type": "array", "items": encoded}]}
    content = {
        MULTIPART: {"schema": form},
        "image/*": {"schema": image},
        RAW_TYPES[0]: {"schema": image},
        FORM: {"schema": {"type": "object", "properties": properties, "additionalProperties": False}},
        JSON: {"schema": {"type": "object", "properties": members, "additionalProperties": False}},
    }
    parameters = [
        {"name": name, "in": "query", "description": schema.get("description", ""), "schema": schema}
        for name, schema in properties.items()
    ]
    return {"parameters": parameters, "requestBody": {"content": content}}


def _in_json(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter in a JSON object, where a text of JSON is the value itself."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_in_json(kind) for kind in schema["anyOf"]]}
    return schema.get("contentSchema", {"type": "object"}) if schema.get("format") == "json" else schema


def json_operation(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI operation of a route that reads its JSON body itself."""
    schema = model.model_json_schema()
    shapes = schema.pop("$defs", {})
    return {"requestBody": {"required": True, "content": {JSON: {"schema": _written_out(schema, shapes)}}}}


def _written_out(schema: Any, shapes: dict[str, Any]) -> Any:
    """Return a schema with the shapes themselves in place of their names."""
    if isinstance(schema, list):
        return [_written_out(part, shapes) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _written_out(shapes[schema["$ref"].rpartition("/")[2]], shapes)
    return {name: _written_out(part, shapes) for name, part in schema.items()}


REFUSALS = {
    400: "a body that cannot be read, or without an image",
    401: "no key, or a wrong one",
    403: "a service without a write key, or a read key",
    404: "no such item",
    408: "a body that arrived too slowly",
    409: "a conflict with what the gallery holds (key_taken, model_changed) or does (being_evaluated)",
    413: "more bytes or pixels than the limits",
    415: "neither a form nor an image nor JSON",
    422: "a parameter, a body or an image that is invalid",
    429: "too many requests at once or per second",
    503: "a gallery or its model, database or disk that cannot be used now, or a service that stops; try again later",
    504: "no answer in time",
    507: "a disk that is full or refuses writes",
}


def refusals(*statuses: int, model: type[BaseModel] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of a route for its OpenAPI document."""
    return {status: {"model": model, "description": f"Refused: {REFUSALS[status]}"} for status in statuses}


READING = refusals(401, 422, 429, 503)
WRITING = refusals(401, 403, 422, 429, 503, 507)
IMAGES = refusals(400, 401, 408, 413, 415, 422, 429, 503, 504)


async def openapi(request: Request) -> JSONResponse:
    """Send the document of a collection, or of the whole service if its collections have names."""
    has_names = request.app.state.collections.root is None
    return JSONResponse(document(request.app, request.state.prefix or (None if has_names else "")))


def document(app: FastAPI, path: str | None = "") -> dict[str, Any]:
    """Return the document.

    Args:
        app: The application.
        path: The path of a collection, "" at the root; None for the root of a service of named collections.
    """
    document = deepcopy(app.openapi())
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    # The key is needed if the service was started with keys; the empty requirement stands for a service without.
    document["security"] = [{"key": []}, {}]
    paths = document["paths"]
    if path is None:
        document["paths"] = {
            f"{COLLECTIONS_PATH}/{{collection}}{name}": _of_any(operations)
            for name, operations in paths.items()
            if name not in SERVICE_PATHS
        }
        document["paths"] |= {name: paths[name] for name in sorted(SERVICE_PATHS | PROBES)}
    elif path:
        document["servers"] = [{"url": path}]
        for name in SERVICE_PATHS:
            del paths[name]
    return document


def _of_any(operations: dict[str, Any]) -> dict[str, Any]:
    """Return the operations of a path with the name of the collection as a parameter, and ids of their own."""
    name = {"name": "collection", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        method: {
            **operation,
            "operationId": f"collection_{operation['operationId']}",
            "parameters": [name, *operation.get("parameters", [])],
        }
        for method, operation in operations.items()
    }
