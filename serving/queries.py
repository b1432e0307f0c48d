"""The ways in which a query without an image comes: as JSON, as a form of the plain kind, or in the address."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from serving.refusals import RefusedError, too_large
from serving.uploads import MAX_FIELDS, Upload, check_names, invalid, parameters_of, read_upload

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
QUERY_BYTES = 2**20
"""Of a query that holds no image."""

_SEVERAL = frozenset({"text", "label"})
"""Parameters of which there may be several; they are texts."""


async def read_query(request: Request, most: int, known: frozenset[str]) -> Upload:
    """As `read_upload`, which reads images; and JSON, whose members are parameters, and a form of fields alone.

    known: the parameters that there are; another one is refused.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (JSON, FORM):
        upload = await read_upload(request, most)
    else:
        body = await request.body()
        if len(body) > QUERY_BYTES:
            raise too_large(QUERY_BYTES)
        sent = _from_json(body, known) if media_type == JSON else _from_form(body)
        given = parameters_of(request)
        upload = Upload((), {name: given.get(name, ()) + sent.get(name, ()) for name in {**given, **sent}})
    check_names(upload.values, known)
    return upload


def _from_json(body: bytes, known: frozenset[str]) -> dict[str, tuple[str, ...]]:
    try:
        values = json.loads(body)
        # JSON may hold half a character, which neither the gallery nor an answer can.
        json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "invalid_json", 'The body is no JSON object, as {"text": "a red chair", "k": 5}.'
        )
    check_names(values, known)
    found = {name: _as_parameter(name, value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value}


def _as_parameter(name: str, value: Any) -> tuple[str, ...]:
    """A member of a JSON object as the parameter of that name, all its values; null is not given."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if name in _SEVERAL:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise invalid(name, 'a text, or a list of texts, as "a red chair"')
    if isinstance(value, list | bool) or (isinstance(value, dict) and name != "where"):
        raise invalid(name, "a number or a text")
    return (json.dumps(value),)


def _from_form(body: bytes) -> dict[str, tuple[str, ...]]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:  # UnicodeDecodeError is one
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "invalid_form",
            f"The body is no form in UTF-8 of at most {MAX_FIELDS} fields. If it is an image, send it as one: curl -F "
            "image=@FILE, or with the header Content-Type: application/octet-stream.",
        ) from None
    found: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        found[name] = (*found.get(name, ()), value)
    return found
