"""What a search request asks for: an image (multipart or raw) or an item's id, and k."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.refusals import RefusedError, respond, too_large

DEFAULT_K = 10
RAW_TYPES = ("application/octet-stream", "image/")


@dataclass(frozen=True)
class Query:
    """Exactly one of `image` (a file's bytes) and `item` is set."""

    k: int
    image: bytes | None = None
    item: int | None = None


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


async def read_query(request: Request) -> Query:
    """Raises `RefusedError` that says what was expected."""
    most = request.app.state.configuration.max_k
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        async with request.form(max_files=1, max_fields=8) as form:
            return await _from_form(request, form, most)
    body = await request.body()
    if not body:
        return _query(request.query_params, None, most)
    if media_type and not media_type.startswith(RAW_TYPES):
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            f"The content type {media_type[:80]} is not accepted. Send the image as multipart/form-data in the field "
            "'image', or as the raw body with an image/... content type.",
        )
    return _query(request.query_params, body, most)


def whole_number(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A parameter as a whole number between `low` and `high`; `default` where it is not given."""
    text = values.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) or not low <= int(text) <= high:
        raise RefusedError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"invalid_{name}", f"{name} must be a whole number from {low} to {high}."
        )
    return int(text)


def item_id(text: str) -> int:
    """An item's id; what cannot be one is not found, like one that is not there."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise RefusedError(HTTPStatus.NOT_FOUND, "no_such_item", "There is no item of this id; ids are whole numbers.")
    return int(text)


async def _from_form(request: Request, form: FormData, most: int) -> Query:
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    values = {**request.query_params, **fields}
    upload = form.get("image")
    if isinstance(upload, UploadFile):
        return _query(values, await upload.read(), most)
    if "id" not in values:
        found = ", ".join(sorted(set(form))) or "no field"
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "no_image", f"The form has no file in the field 'image'; it has: {found[:200]}."
        )
    return _query(values, None, most)


def _query(values: Mapping[str, str], image: bytes | None, most: int) -> Query:
    k = whole_number(values, "k", min(DEFAULT_K, most), 1, most)
    if image and "id" in values:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "image_and_id", "Search by an image or by the id of an item, not both."
        )
    if image:
        return Query(k, image=image)
    if "id" in values:
        return Query(k, item=item_id(values["id"]))
    raise RefusedError(HTTPStatus.BAD_REQUEST, "no_image", "The request holds no image: its body or file is empty.")
