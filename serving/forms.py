"""Parameters and images of a request: of its query string, a form, a JSON object or a raw body."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from serving.errors import RefusedError, invalid, unknown_parameter
from serving.gallery.filters import MAX_LABELS
from serving.settings import Settings

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
RAW_TYPES = ("application/octet-stream", "image/")
MAX_FIELDS = 32
MAX_QUERY_BYTES = 2**20
"""Largest body of JSON or a urlencoded form, whose reading holds up the event loop; `serving.limits` refuses more."""

M = TypeVar("M", bound=BaseModel)


class _FormParser(MultiPartParser):
    """Starlette's parser, whose images stay in memory, within max_body, and are never written to disk."""

    spool_max_size = sys.maxsize


@dataclass(frozen=True)
class UploadedImage:
    """Image file of a request: the client's name of it, "" in a raw body, and its bytes."""

    name: str
    data: bytes


Values = dict[str, list[Any]]
"""Every value of each parameter."""


async def read_images(request: Request, model: type[M]) -> tuple[M, tuple[UploadedImage, ...]]:
    """Return the parameters in the query string and in a multipart form, and the images of the form or the raw body.

    Raises:
        RefusedError: If the body is of another type, or the form has a file in another field.
        RequestValidationError: If a parameter is wrong.
    """
    values, media_type = query_values(request), media_type_of(request.headers)
    if media_type == MULTIPART:
        _check_charset(request.headers)
        settings: Settings = request.app.state.settings
        limits = {"max_files": settings.max_images, "max_fields": MAX_FIELDS}
        try:
            form = await _FormParser(request.headers, request.stream(), **limits).parse()
        except MultiPartException as error:
            if error.message.startswith("Too many files"):
                message = f"A request may hold at most {settings.max_images} images."
                raise RefusedError(400, "too_many_images", message) from None
            raise HTTPException(400, error.message) from None
        try:
            images = await _form_images(form, values)
        finally:
            await form.close()
        return _validated(model, values), images
    body = await request.body()
    if body and media_type and not media_type.startswith(RAW_TYPES):
        raise RefusedError(
            415,
            "unsupported_media_type",
            f"The content type {media_type[:80]} is not accepted. Send the image as multipart/form-data in the field "
            "'image', or as the raw body with an image/... content type.",
        )
    return _validated(model, values), (UploadedImage("", body),) if body else ()


async def read_query(request: Request, model: type[M]) -> tuple[M, tuple[UploadedImage, ...]]:
    """Return parameters and images as `read_images` does, or the parameters of a JSON object or a urlencoded form."""
    media_type = media_type_of(request.headers)
    if media_type not in (JSON, FORM):
        return await read_images(request, model)
    body, values = await request.body(), query_values(request)
    for name, value in _json_values(body, model) if media_type == JSON else _form_values(body):
        values.setdefault(name, []).append(value)
    return _validated(model, values), ()


def checked_images(images: tuple[UploadedImage, ...]) -> tuple[UploadedImage, ...]:
    """Return the images. Raises `RefusedError` (400) if no image has any bytes."""
    if any(image.data for image in images):
        return images
    if images:
        raise RefusedError(400, "no_image", "The image is empty.")
    message = "The request holds no image. Send it in the field 'image' of a form, curl -F image=@FILE, or as the body."
    raise RefusedError(400, "no_image", message)


def media_type_of(headers: Headers) -> str:
    """Return the content type of a body without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_charset(headers: Headers) -> None:
    """Refuse a form that is not in UTF-8: Starlette would decode it by any codec of Python, some of them quadratic."""
    _, options = parse_options_header(headers.get("content-type", ""))
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in ("utf-8", "utf8"):
        message = f"The charset {charset[:40]!r} is not accepted; send the form in UTF-8."
        raise RefusedError(415, "unsupported_media_type", message)


def query_values(request: Request) -> Values:
    """Return the values of each parameter in the query string."""
    values: Values = {}
    for name, value in request.query_params.multi_items():
        values.setdefault(name, []).append(value)
    return values


@cache
def _lists(model: type[BaseModel]) -> set[str]:
    """Return the parameters that may have several values."""
    return {name for name, field in model.model_fields.items() if get_origin(field.annotation) is list}


def check_parameters(values: Values, fields: Mapping[str, FieldInfo]) -> None:
    """Refuse an unknown parameter, and one that is given twice although it has one value.

    Raises:
        RefusedError: 422, "unknown_parameter" or "invalid_NAME".
    """
    for name in values:
        if name not in fields:
            raise unknown_parameter(name, list(fields))
    for name, given in values.items():
        if len(given) > 1 and get_origin(fields[name].annotation) is not list:
            raise invalid(name, "given once")


def _validated(model: type[M], values: Values) -> M:
    check_parameters(values, model.model_fields)
    lists = _lists(model)
    single = {name: value if name in lists else value[0] for name, value in values.items()}
    try:
        return model.model_validate(single)
    except ValidationError as error:
        problems = [{**problem, "loc": ("query", *problem["loc"])} for problem in error.errors()]
        raise RequestValidationError(problems) from None


async def _form_images(form: FormData, values: Values) -> tuple[UploadedImage, ...]:
    """Return the files of the form, and add its fields to the values."""
    images = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name == "image":
            images.append(UploadedImage(value.filename or "", await value.read()))
        elif isinstance(value, str) and name != "image":
            values.setdefault(name, []).append(value)
        elif name == "image":
            message = "The field 'image' holds a text and not a file: curl -F image=@FILE, with the @, sends the file."
            raise RefusedError(400, "no_image", message)
        else:
            names = ", ".join(sorted(set(form)))[:200]
            raise RefusedError(400, "no_image", f"The form has no file in the field 'image'; it has: {names}.")
    return tuple(images)


def _json_values(body: bytes, model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a JSON object, each member of the lists by itself; null is a parameter that is not given."""
    try:
        members = json.loads(body)
        # JSON may hold one half of a surrogate pair, which neither the gallery nor an answer can.
        json.dumps(members, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        message = 'The body is not a JSON object, as {"text": "a red chair", "k": 5}.'
        raise RefusedError(400, "invalid_form", message)
    lists = _lists(model)
    for name, value in members.items():
        if isinstance(value, list | dict) and len(value) > MAX_LABELS:
            message = f"{name} has {len(value):,} values; at most {MAX_LABELS:,} are accepted."
            raise RefusedError(422, "invalid_value", message)
        if name in lists and isinstance(value, list):
            yield from ((name, member) for member in value)
        elif value is not None:
            yield name, value


def _form_values(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        message = (
            f"The body is not a form in UTF-8 of at most {MAX_FIELDS} fields. Send an image with curl -F image=@FILE, "
            "or with the header Content-Type: application/octet-stream."
        )
        raise RefusedError(400, "invalid_form", message) from None
