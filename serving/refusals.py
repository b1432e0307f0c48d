"""Every refusal of the service is JSON of one shape: {"error": {"code": ..., "message": ...}}."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from serving.journal import REQUEST_ID
from serving.metrics import CURRENT, REFUSED
from serving.storage import storage_refusal
from zoo.errors import (
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
)

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request that is not served. `code` is for programs, `message` for people."""

    def __init__(
        self, status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def too_large(limit: int) -> RefusedError:
    return RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", f"The request has more than {limit:,} bytes."
    )


def as_json(error: Exception) -> dict[str, dict[str, str]]:
    """{"error": {"code", "message"}}."""
    refusal = _refusal(error)
    return {"error": {"code": refusal.code, "message": refusal.message}}


def respond(error: RefusedError) -> JSONResponse:
    REFUSED.labels(CURRENT.get(), error.code).inc()
    known = {HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"}}.get(error.status, {})
    return JSONResponse(as_json(error), error.status, {"Cache-Control": "no-store", **known, **error.headers})


def _refusal(error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        return RefusedError(status, status.name.lower(), error.detail, error.headers or {})
    known = next((_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS), None)
    if known is None and (storage := storage_refusal(error)):
        return RefusedError(*storage)
    if known is None:
        # The reason is in the server's log; it may name paths that are nobody's business.
        message = "The service failed on this request; its log says why."
        return RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", message)
    return RefusedError(*known, _sentence(str(error)))


async def _handle(request: Request, error: Exception) -> JSONResponse:
    answer = respond(_refusal(error))
    if answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route of that path, and several routes share one.
        answer.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return answer


async def _handle_storage(request: Request, error: Exception) -> JSONResponse:
    """Of what may be a full disk, or a failure of the service: that goes on to the handler of all, and into the log."""
    refusal = _refusal(error)
    if refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    logger.warning("request %s got %d %s: %s", request.scope.get(REQUEST_ID), refusal.status, refusal.code, error)
    return respond(refusal)


def _methods(request: Request) -> set[str]:
    met = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in met for method in getattr(route, "methods", None) or ()}


def _sentence(text: str) -> str:
    # A name that a message begins with stays as it is.
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


_ERRORS: dict[type[Exception], tuple[HTTPStatus, str]] = {
    ImageTooLargeError: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "image_too_large"),
    ImageError: (HTTPStatus.UNPROCESSABLE_ENTITY, "unreadable_image"),
    NoTextTowerError: (HTTPStatus.UNPROCESSABLE_ENTITY, "no_text_tower"),
    TextError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_text"),
    ItemNotFoundError: (HTTPStatus.NOT_FOUND, "no_such_item"),
    ItemConflictError: (HTTPStatus.CONFLICT, "key_taken"),
    ModelChangedError: (HTTPStatus.SERVICE_UNAVAILABLE, "model_changed"),
    GalleryMovedError: (HTTPStatus.SERVICE_UNAVAILABLE, "gallery_moved"),
    EvaluationError: (HTTPStatus.UNPROCESSABLE_ENTITY, "cannot_measure"),
    UsageError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value"),
    # Nobody is there to read this; but it is no failure of the service, which would be logged.
    ClientDisconnect: (HTTPStatus.BAD_REQUEST, "client_disconnected"),
}

HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[JSONResponse]]] = {
    **dict.fromkeys((RefusedError, HTTPException, *_ERRORS, Exception), _handle),
    **dict.fromkeys((GalleryError, OSError), _handle_storage),
}
"""For Starlette's `exception_handlers`."""
