"""Every refusal is JSON of one shape: {"error": {"code": ..., "message": ...}}; below /v1, also with type and param."""

from __future__ import annotations

import errno
import logging
import math
import re
import sqlite3
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from serving import metrics
from zoo.errors import (
    BackendError,
    EvaluationError,
    GalleryError,
    GalleryMovedError,
    ImageError,
    ImageTooLargeError,
    ItemConflictError,
    ItemNotFoundError,
    ModelChangedError,
    NoTextTowerError,
    TextError,
    UsageError,
    ZooError,
)

logger = logging.getLogger(__name__)

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
JSON_ERRORS = (UnicodeDecodeError, RecursionError)
"""Causes of FastAPI's error for JSON that cannot be read."""
BODY_PROBLEMS = ("extra_forbidden", "json_invalid", "missing")
"""Types of pydantic's errors that are about a JSON body as a whole."""
EXPECTED = {
    "dict_type": "a JSON object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "a whole number",
    "json_invalid": "valid JSON",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "model_attributes_type": "a JSON object, sent as application/json",
    "model_type": "a JSON object",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_type": "a text",
    "string_unicode": "a text in valid Unicode",
    "too_long": "at most {max_length} members",
    "too_short": "at least {min_length} members",
}
"""What a value should have been, by the type of pydantic's error."""
PATHS = {
    HTTPStatus.NOT_FOUND: "There is nothing at this path. The page /docs lists every path.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This path does not take this method. The header Allow names those that it takes.",
}
"""Refusals by FastAPI's router, by their status."""
OPENAI_PATH = re.compile(r"(/collections/[^/]*)?/v1/")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Types of OpenAI's errors, by the status."""
RETRY_SECONDS = 5
MAX_ANSWER = 32 * 2**20
"""Bytes of an answer, which is whole in memory: 32 times 1,000 results with all their metadata could take 500 MB."""


class RefusedError(HTTPException):
    """Refusal of a request: an HTTP status, a `code` for programs, and a message for people (`detail`).

    parameter: the name of the parameter or the member of the body that it is about, if it is about one.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code, self.parameter = code, parameter


def too_large(limit: int) -> RefusedError:
    """Return the refusal of a body of more than `limit` bytes."""
    return RefusedError(413, "body_too_large", f"The request has more than {limit:,} bytes.")


def head_too_large(limit: int) -> RefusedError:
    """Return the refusal of a request whose address and headers have more than `limit` bytes."""
    return RefusedError(431, "head_too_large", f"More than {limit:,} bytes of address and headers, or too many lines.")


def answer_too_large(fewer: str) -> RefusedError:
    """Return the refusal of a request whose answer has more than `MAX_ANSWER` bytes."""
    return RefusedError(422, "answer_too_large", f"The answer has more than {MAX_ANSWER:,} bytes. Ask for {fewer}.")


def try_again(status: int, code: str, message: str, seconds: float = RETRY_SECONDS) -> RefusedError:
    """Return a refusal for now, which says when to try again, for programs in the header Retry-After."""
    whole = max(1, math.ceil(seconds))
    return RefusedError(status, code, f"{message} Try again in {whole} s.", {"Retry-After": str(whole)})


def invalid(parameter: str, expected: str) -> RefusedError:
    """Return the refusal of a parameter's value."""
    return RefusedError(422, f"invalid_{parameter}", f"{parameter} must be {expected}.", parameter=parameter)


def unknown_parameter(name: str, known: Sequence[str] = ()) -> RefusedError:
    """Return the refusal of a parameter that does not exist: a misspelt filter must not let everything through."""
    choice = f" Parameters: {', '.join(sorted(known))}." if known else ""
    return RefusedError(422, "unknown_parameter", f"No parameter {name[:80]!r}.{choice}", parameter=name[:80])


def error_json(error: Exception) -> dict[str, dict[str, str]]:
    """Return the body of the answer to an error."""
    refusal = refusal_of(error)
    return {"error": {"code": refusal.code, "message": refusal.detail}}


def error_response(error: Exception) -> JSONResponse:
    """Return the answer to an error, and count it."""
    refusal = refusal_of(error)
    metrics.count_refusal(refusal.code)
    headers = {"Cache-Control": "no-store", **(refusal.headers or {})}
    if refusal.status_code == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    body: Mapping[str, Any] = error_json(refusal)
    status = refusal.status_code
    if _is_for_openai():
        body, status = _openai_json(refusal), 400 if status == HTTPStatus.UNPROCESSABLE_ENTITY else status
    return JSONResponse(body, status, headers)


def _is_for_openai() -> bool:
    """Return whether the current request is one of OpenAI's API, whose clients read errors of its shape."""
    scope = metrics.REQUEST.get()
    return scope is not None and OPENAI_PATH.match(scope["path"]) is not None


def _openai_json(refusal: RefusedError) -> dict[str, dict[str, str | None]]:
    """Return the body of a refusal in the shape of OpenAI's API."""
    kind = OPENAI_TYPES.get(refusal.status_code, "invalid_request_error")
    if refusal.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "server_error"
    named = {"code": refusal.code, "message": refusal.detail, "type": kind, "param": refusal.parameter}
    return {"error": named}


STATUSES: dict[type[Exception], tuple[int, str]] = {
    ImageTooLargeError: (413, "image_too_large"),
    ImageError: (422, "unreadable_image"),
    NoTextTowerError: (422, "no_text_tower"),
    TextError: (422, "invalid_text"),
    ItemNotFoundError: (404, "no_such_item"),
    ItemConflictError: (409, "key_taken"),
    ModelChangedError: (503, "model_changed"),
    GalleryMovedError: (503, "gallery_moved"),
    EvaluationError: (422, "cannot_measure"),
    UsageError: (422, "invalid_value"),
    ClientDisconnect: (400, "client_disconnected"),
}
"""Status and code of the errors whose own message is for the client."""


def refusal_of(error: Exception) -> RefusedError:
    """Return the refusal that an error stands for; 500 without a reason for a failure of the service."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, HTTPException) and isinstance(error.__cause__, JSON_ERRORS):
        return RefusedError(422, "invalid_body", "The body is not JSON in UTF-8 of moderate depth.")
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        return RefusedError(status, status.name.lower(), PATHS.get(status, str(error.detail)), error.headers)
    if isinstance(error, RequestValidationError):
        return _validation_refusal(error.errors())
    if known := next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None):
        return RefusedError(*known, _sentence(str(error)))
    return _storage_refusal(error) or RefusedError(
        500, "internal_error", "The service failed on this request; its log says why."
    )


def _validation_refusal(problems: Sequence[Mapping[str, Any]]) -> RefusedError:
    """Return the refusal of a parameter, or of a member of the body, that pydantic found to be wrong."""
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    # Of a value that can have several types, pydantic reports each; the deepest is of the type that was meant.
    same = [problem for problem in problems if problem["loc"][:2] == problems[0]["loc"][:2]]
    problem = next(unknown, max(same, key=lambda problem: len(problem["loc"])))
    (source, *place), kind = problem["loc"], problem["type"]
    if source == "body" and (not place or (len(place) == 1 and kind in BODY_PROBLEMS)):
        alike = [other for other in problems if other["type"] == kind and len(other["loc"]) == 1 + len(place)]
        message = ", ".join(map(_complaint, alike))
        return RefusedError(422, "invalid_body", f"The body is not what this path takes: {message}.")
    return RefusedError(422, f"invalid_{place[0]}", f"{place[0]}: {_complaint(problem)}.", parameter=_member(place))


def _member(place: Sequence[int | str]) -> str:
    """Return the place of a member in a JSON body, as input[2]: its name and, in a list, its number from 0."""
    return f"{place[0]}[{place[1]}]" if len(place) > 1 and isinstance(place[1], int) else str(place[0])


def _complaint(problem: Mapping[str, Any]) -> str:
    """Return what is wrong, in the words of our own checks."""
    name, kind = str(problem["loc"][-1])[:80], problem["type"]
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name!r} is unknown"
    if kind in EXPECTED:
        return f"expected {EXPECTED[kind].format(**problem.get('ctx', {}))}"
    return str(problem["msg"]).removeprefix("Value error, ").rstrip(".")


def _sentence(text: str) -> str:
    """Return the text with a capital, unless it begins with a name."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


def _storage_refusal(error: BaseException) -> RefusedError | None:
    """Return the refusal for a store that is full, read-only, busy or away; None for any other error.

    Its message names no path and no address.
    """
    if isinstance(error, BackendError):
        return try_again(503, "index_unavailable", "The database of the gallery's vectors does not answer.")
    reason = error.__cause__ if isinstance(error, GalleryError) else error
    if isinstance(reason, sqlite3.Error):
        return _sqlite_refusal(getattr(reason, "sqlite_errorcode", None) or 0)
    if isinstance(reason, OSError):
        if reason.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return _storage_full()
        return _read_only() if reason.errno == errno.EROFS else None
    return None


def _sqlite_refusal(code: int) -> RefusedError | None:
    """Return the refusal for SQLite's extended error code, whose last byte is the primary code."""
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return try_again(503, "storage_busy", "Another process is writing to the gallery.")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return _read_only()
    failed_reads = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and code not in failed_reads):
        return _storage_full()
    return None


def _storage_full() -> RefusedError:
    return RefusedError(507, "storage_full", "The service's disk is full or refuses writes. Tell its operator.")


def _read_only() -> RefusedError:
    message = "The service cannot write to the gallery's folder. Searching works; tell its operator."
    return RefusedError(503, "read_only_storage", message)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    """Answer an error; a failure of the service goes on to the outermost layer, which logs it."""
    refusal = refusal_of(error)
    if refusal.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    is_logged = refusal is error or isinstance(error, GalleryMovedError)  # serving.model_swap logs a move once
    if refusal.status_code > HTTPStatus.INTERNAL_SERVER_ERROR and not is_logged:  # storage, for its operator
        logger.warning("request %s got %d %s: %s", metrics.request_id(), refusal.status_code, refusal.code, error)
    response = error_response(refusal)
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """Return the methods of the request's path; several routes may share one."""
    return [method for method in METHODS if is_routed(request.app, {**request.scope, "method": method})]


def is_routed(app: FastAPI, scope: Scope) -> bool:
    """Return whether a route of the application answers a request."""
    inner = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
    return any(route.matches(inner)[0] is Match.FULL for route in app.routes)


def install(app: FastAPI) -> None:
    """Let the application answer every error in the one shape."""
    for kind in (HTTPException, RequestValidationError, ZooError, OSError, sqlite3.Error, ClientDisconnect):
        app.add_exception_handler(kind, _handle)
