"""What a request carries: image files (a form's, or the raw body) and parameters (the query's and the form's)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.refusals import RefusedError, respond, too_large

RAW_TYPES = ("application/octet-stream", "image/")
MAX_FIELDS = 32
MAX_TEXT = 1000
"""Characters of a label or a source."""


@dataclass(frozen=True)
class File:
    """An image file: the name that the client gave it, "" in a raw body, and its bytes."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Upload:
    """`values`: every parameter with all its values, the query's first."""

    files: tuple[File, ...]
    values: Mapping[str, tuple[str, ...]]

    def one(self, name: str) -> str | None:
        """The value of a parameter; None where it is not given. Raises `RefusedError` where it is given twice."""
        given = self.values.get(name, ())
        if len(given) > 1:
            raise invalid(name, "given once")
        return given[0] if given else None


class BodyLimit:
    """ASGI middleware that refuses a body of more than `max_bytes`, whether or not its length was announced."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.max_bytes:
            await respond(too_large(self.max_bytes))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise too_large(self.max_bytes)
            return message

        await self.app(scope, counted, send)


async def read_upload(request: Request, most: int) -> Upload:
    """The request's files, at most `most`, and parameters. Raises `RefusedError` that says what was expected."""
    given = parameters_of(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        async with request.form(max_files=most, max_fields=MAX_FIELDS) as form:
            return await _from_form(form, given)
    body = await request.body()
    if body and media_type and not media_type.startswith(RAW_TYPES):
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            f"The content type {media_type[:80]} is not accepted. Send the image as multipart/form-data in the field "
            "'image', or as the raw body with an image/... content type.",
        )
    return Upload((File("", body),) if body else (), given)


def parameters_of(request: Request) -> dict[str, tuple[str, ...]]:
    """Those in the address, each with all its values."""
    return {name: tuple(request.query_params.getlist(name)) for name in request.query_params}


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raise `RefusedError` for a parameter that there is not: a misspelt filter must not let everything through."""
    for name in names:
        if name not in known:
            raise RefusedError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "unknown_parameter",
                f"There is no parameter {name[:80]!r} here; there are {', '.join(sorted(known))}.",
            )


def check_given_once(values: QueryParams, several: Collection[str] = ()) -> None:
    """Raise `RefusedError` for a parameter in the address that is given twice, unless it is one of `several`."""
    for name in values:
        if name not in several and len(values.getlist(name)) > 1:
            raise invalid(name, "given once")


def whole_number(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A parameter as a whole number between `low` and `high`; `default` where it is not given."""
    text = values.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) or not low <= int(text) <= high:
        raise invalid(name, f"a whole number from {low} to {high}")
    return int(text)


def real_number(text: str | None, name: str, low: float, high: float) -> float | None:
    """A parameter as a number between `low` and `high`; None where it is not given."""
    if text is None:
        return None
    plain = re.fullmatch(r"-?[0-9]{0,15}(\.[0-9]{0,20})?(e-?[0-9]{1,3})?", text, re.ASCII)
    try:
        value = float(text) if plain else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise invalid(name, f"a number from {low:g} to {high:g}")
    return value


def json_object(text: str | None, name: str) -> dict[str, Any]:
    """A parameter as a JSON object; empty where it is not given."""
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(name, 'a JSON object, as {"colour": "red"}')
    return value


def truth(text: str | None, name: str) -> bool:
    """A parameter that is true or false; false where it is not given."""
    if text not in (None, "true", "false"):
        raise invalid(name, "true or false")
    return text == "true"


def text_of(text: str | None, name: str, most: int = MAX_TEXT) -> str | None:
    """A text that can be kept; None for an empty one."""
    if text is not None and (len(text) > most or not text.isprintable() or not is_unicode(text)):
        raise invalid(name, f"a text of at most {most} characters that can be printed")
    return text or None


def is_unicode(text: str) -> bool:
    """JSON may hold half of a surrogate pair, which no file can be written with."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def item_id(text: str, what: str = "item") -> int:
    """An item's id, or a mark's; what cannot be one is not found, like one that is not there."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise RefusedError(
            HTTPStatus.NOT_FOUND, f"no_such_{what}", f"There is no {what} of this id; ids are whole numbers."
        )
    return int(text)


def invalid(name: str, expected: str) -> RefusedError:
    return RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"invalid_{name}", f"{name} must be {expected}.")


async def _from_form(form: FormData, given: dict[str, tuple[str, ...]]) -> Upload:
    files, fields = [], dict(given)
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name == "image":
            files.append(File(value.filename or "", await value.read()))
        elif isinstance(value, str) and name != "image":
            fields[name] = (*fields.get(name, ()), value)
        else:
            raise _no_image(form)
    return Upload(tuple(files), fields)


def _no_image(form: FormData) -> RefusedError:
    found = ", ".join(sorted(set(form)))[:200]
    message = (
        "The form's field 'image' holds a text and no file: curl -F image=@FILE, with the @, sends the file."
        if isinstance(form.get("image"), str)
        else f"The form has no file in the field 'image'; it has: {found}."
    )
    return RefusedError(HTTPStatus.BAD_REQUEST, "no_image", message)
