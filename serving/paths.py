"""Paths of requests: within their collection, and those that BentoML's own router would answer instead of ours."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.refusals import RefusedError, respond


def within(scope: Scope) -> str:
    """The path of a request within the collection that it is about."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def takes_minutes(scope: Scope) -> bool:
    """Whether a request may take longer than others: a measurement of all of a collection."""
    return bool(scope["method"] == "POST" and within(scope) == "/evaluate")


def looks_at_every_item(scope: Scope) -> bool:
    """Whether a request that only reads takes the longer the more items there are."""
    return within(scope) in ("/map", "/metadata", "/labels", "/items", "/stats")


def needs_a_core(scope: Scope) -> bool:
    """Whether a request waits for a core, to have images or texts embedded or the index searched."""
    return bool(scope["method"] == "POST" and within(scope) in ("/search", "/embed", "/items"))


class OneLine:
    """ASGI middleware: a path with a line break, which the mount at / does not match, is not found, as any other."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not {"\n", "\r"}.isdisjoint(scope["path"]):
            await respond(RefusedError(HTTPStatus.NOT_FOUND, "not_found", "Not Found"))(scope, receive, send)
            return
        await self.app(scope, receive, send)
