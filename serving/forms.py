"""Parameters and images of a request: of its query string, a form, a JSON object or a raw body."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import from_json
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
MAX_FORM_BYTES = 2**20
"""Largest body of a urlencoded form or a PATCH, whose reading holds up the event loop (`serving.limits`)."""
MAX_VALUES = 400_000
"""Largest number of JSON values in a line of POST /items/bulk, or in any other body. An image is one value."""
PIECE = 2**18
"""Characters of base64 that are decoded at a time; a multiple of 4."""
SPACES = "\n\r\t "
"""White space that base64 may have."""
DATA_URI = re.compile(r"\s*data:[^,]{0,200};base64,", re.IGNORECASE)
ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]{1,20}://", re.IGNORECASE)

Result = TypeVar("Result")
M = TypeVar("M", bound=BaseModel)


class _FormParser(MultiPartParser):
    """Starlette's parser, whose images stay in memory, within max_body, and are never written to disk."""

    spool_max_size = sys.maxsize


@dataclass(frozen=True)
class UploadedImage:
    """Image file of a request: the client's name of it, "" in a raw body and in JSON, and its bytes."""

    name: str
    data: bytes


Values = dict[str, list[Any]]
"""Every value of each parameter."""


async def read_request(request: Request, model: type[M]) -> tuple[M, tuple[UploadedImage, ...]]:
    """Return the parameters and the images of a request.

    The parameters are in the query string, and in a multipart form, a urlencoded form or a JSON object; the images are
    files of the multipart form, base64 in the JSON object, or the raw body.

    Raises:
        RefusedError: If the body is of another type, or the form has a file in another field.
        RequestValidationError: If a parameter is wrong.
    """
    values, media_type = query_values(request), media_type_of(request.headers)
    settings: Settings = request.app.state.settings
    if media_type == MULTIPART:
        images = await _multipart(request, values, settings.max_images)
        return _validated(model, values), images
    body = await read_body(request)
    if media_type == JSON:
        pairs, images = await in_thread_if_large(len(body), _json_parts, body, model, settings.max_images)
        _extend(values, pairs)
        return _validated(model, values), images
    if media_type == FORM:
        _extend(values, _form_values(body))
        return _validated(model, values), ()
    if body and media_type and not media_type.startswith(RAW_TYPES):
        raise RefusedError(
            415,
            "unsupported_media_type",
            f"The content type {media_type[:80]} is not accepted. Send the image as multipart/form-data in the field "
            "'image', as the raw body with an image/... content type, or as base64 in JSON.",
        )
    return _validated(model, values), (UploadedImage("", body),) if body else ()


async def in_thread_if_large(size: int, work: Callable[..., Result], *args: Any) -> Result:
    """Return the result of work on a body of this many bytes. A thread does it if it would hold up the event loop."""
    return await to_thread.run_sync(work, *args) if size > MAX_FORM_BYTES else work(*args)


async def read_body(request: Request) -> bytes:
    """Return the body, which the request does not keep as well."""
    return b"".join([part async for part in request.stream()])


def check_json_size(body: bytes) -> None:
    """Refuse a body of JSON that has too many values; reading them would hold up the event loop and fill the memory.

    Raises:
        RefusedError: 413.
    """
    if len(body) > MAX_VALUES and sum(map(body.count, b",:[{")) > MAX_VALUES:
        raise RefusedError(413, "body_too_large", f"The JSON has more than {MAX_VALUES:,} values.")


def image_of_text(text: str) -> bytes:
    """Return the bytes of an image file that is given as base64, also in a data URI. White space is left out.

    Raises:
        RefusedError: 422 for another text; an address of a picture is never fetched.
    """
    prefix = DATA_URI.match(text)
    if prefix is None and ADDRESS.match(text):
        message = "image is an address. The service fetches nothing: send the picture itself, as base64 or a data URI."
        raise RefusedError(422, "image_address", message, parameter="image")
    encoded = text[prefix.end() :] if prefix else text
    if encoded.isascii() and any(space in encoded for space in SPACES):
        encoded = encoded.translate(dict.fromkeys(map(ord, SPACES)))  # a list of words would fill the memory
    if "=" not in encoded[:-2]:  # which only the last piece may hold
        with suppress(ValueError):
            # In pieces, between which other threads run.
            starts = range(0, len(encoded), PIECE)
            return b"".join(base64.b64decode(encoded[start : start + PIECE], validate=True) for start in starts)
    raise invalid("image", "base64 of an image file, or a data URI of base64")


async def _multipart(request: Request, values: Values, most: int) -> tuple[UploadedImage, ...]:
    """Return the images of a multipart form, and add its fields to the values."""
    _check_charset(request.headers)
    try:
        form = await _FormParser(request.headers, request.stream(), max_files=most, max_fields=MAX_FIELDS).parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise _too_many_images(most) from None
        raise HTTPException(400, error.message) from None
    try:
        return await _form_images(form, values)
    finally:
        await form.close()


def _too_many_images(most: int) -> RefusedError:
    return RefusedError(400, "too_many_images", f"A request may hold at most {most} images.")


def _extend(values: Values, pairs: Iterable[tuple[str, Any]]) -> None:
    for name, value in pairs:
        values.setdefault(name, []).append(value)


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


def check_parameters(values: Values, fields: Mapping[str, FieldInfo], also: Iterable[str] = ()) -> None:
    """Refuse an unknown parameter, and one that is given twice although it has one value.

    Args:
        values: The values of each parameter.
        fields: The parameters.
        also: What the request may hold besides, for the message.

    Raises:
        RefusedError: 422, "unknown_parameter" or "invalid_NAME".
    """
    for name in values:
        if name not in fields:
            raise unknown_parameter(name, [*fields, *also])
    for name, given in values.items():
        if len(given) > 1 and get_origin(fields[name].annotation) is not list:
            raise invalid(name, "given once")


def _validated(model: type[M], values: Values) -> M:
    check_parameters(values, model.model_fields, also=("image",))
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


def _json_parts(
    body: bytes, model: type[BaseModel], most: int
) -> tuple[list[tuple[str, Any]], tuple[UploadedImage, ...]]:
    """Return the parameters and the images of a JSON object."""
    members = _json_object(body)
    images = _json_images(members.pop("image", None), most)
    if isinstance(parts := members.get("query"), list):
        members["query"], images = _numbered_images(parts, images, most)
    return list(_json_values(members, model)), images


def _numbered_images(
    parts: list[Any], images: tuple[UploadedImage, ...], most: int
) -> tuple[list[Any], tuple[UploadedImage, ...]]:
    """Return the parts of a query with the number of each image in place of its base64, and all images."""
    encoded = [isinstance(part, dict) and isinstance(part.get("image"), str) for part in parts]
    if len(images) + sum(encoded) > most:
        raise _too_many_images(most)
    numbered, found = [], list(images)
    for part, has_image in zip(parts, encoded, strict=True):
        numbered.append({**part, "image": len(found)} if has_image else part)
        found += [UploadedImage("", image_of_text(part["image"]))] if has_image else []
    return numbered, tuple(found)


def _json_object(body: bytes) -> dict[str, Any]:
    """Return the members of a JSON object, whose texts are valid Unicode."""
    check_json_size(body)
    try:
        members = from_json(body)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        message = 'The body is not a JSON object, as {"text": "a red chair", "k": 5}.'
        raise RefusedError(400, "invalid_form", message)
    return members


def _json_values(members: Mapping[str, Any], model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield parameters by name, each member of the lists by itself; null is a parameter that is not given."""
    lists = _lists(model)
    for name, value in members.items():
        if isinstance(value, list | dict) and len(value) > MAX_LABELS:
            message = f"{name} has {len(value):,} values; at most {MAX_LABELS:,} are accepted."
            raise RefusedError(422, "invalid_value", message)
        if name in lists and isinstance(value, list):
            yield from ((name, member) for member in value)
        elif value is not None:
            yield name, value


def _json_images(value: Any, most: int) -> tuple[UploadedImage, ...]:
    """Return the images of a member: a text, or several in a list."""
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) > most:
        raise _too_many_images(most)
    if not all(isinstance(text, str) for text in texts):
        raise invalid("image", "base64 of an image file, or a list of such texts")
    return tuple(UploadedImage("", image_of_text(text)) for text in texts)


def _form_values(body: bytes) -> Iterator[tuple[str, str]]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        message = (
            f"The body is not a form in UTF-8 of at most {MAX_FIELDS} fields. Send an image with curl -F image=@FILE, "
            "or with the header Content-Type: application/octet-stream."
        )
        raise RefusedError(400, "invalid_form", message) from None
    return iter(pairs)
