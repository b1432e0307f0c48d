"""Requests to a collection that follows another one: queries wait for what is new there, changes are made there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

import anyio
from anyio import to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.following.bounds import BEHIND
from serving.following.opening import Following
from serving.following.primary import AwayError
from serving.journal import HEADER, REQUEST_ID
from serving.keys import is_open, is_write
from serving.metrics import SCOPE
from serving.paths import takes_minutes, within
from serving.refusals import RefusedError, respond

PAUSE = 5
SHARE = 0.9
"""Of the time for an answer what a passed on change may take: the rest is for saying that it may have been made."""
_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_GIVEN_BACK = ("content-type", "retry-after", "www-authenticate", "allow", "cache-control")


class PassingOn:
    """ASGI middleware. What a request may carry, and for how long it may take, is for those outside to see to."""

    def __init__(self, app: ASGIApp, seconds: float, most: int) -> None:
        """seconds: within which a request must be answered; most: how many changes are under way at once."""
        self.app, self.seconds, self.most = app, SHARE * seconds, most
        self._limiter: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        collection = scope.get(SCOPE) if scope["type"] == "http" else None
        following: Following | None = collection.following if collection else None
        path = within(scope) if following else ""
        if following is None or path == "/embed" or is_open(path):
            await self.app(scope, receive, send)
        elif is_passed_on(scope["method"], path):
            await (await self._passed_on(following, Request(scope, receive)))(scope, receive, send)
        else:
            await self.app(scope, receive, _telling(send, await following.gate.passed()))

    async def _passed_on(self, following: Following, request: Request) -> Response:
        self._limiter = self._limiter or anyio.CapacityLimiter(self.most)
        target = _as_sent(request.scope["path"], request.scope["query_string"])
        own = (HEADER, request.scope.get(REQUEST_ID, "").encode())
        headers = [*(pair for pair in request.headers.raw if pair[0] != HEADER), own]
        seconds = None if takes_minutes(request.scope) else self.seconds
        try:
            body = await request.body()
            send = partial(following.primary.pass_on, request.method, target, headers, body, seconds)
            answer = await to_thread.run_sync(send, limiter=self._limiter)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        except RefusedError as refusal:
            return respond(refusal)
        except AwayError as error:
            return respond(_away(error.begun))
        return Response(answer.content, answer.status_code, _given_back(answer.headers, following.primary.url))


def is_passed_on(method: str, path: str) -> bool:
    """Whether the primary is to answer. path: within the collection."""
    return method in _METHODS and is_write(method, path)


def _telling(send: Send, behind: float | None) -> Send:
    if behind is None:
        return send

    async def with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[BEHIND] = str(int(behind))
        await send(message)

    return with_header


def _as_sent(path: str, query: bytes) -> str:
    """Path and query in ASCII; what no address may have in it is quoted."""
    asked = "?" + quote(query, safe="!$%&'()*+,/:;=?@[]~") if query else ""
    return quote(path, safe="!$&'()*+,/:;=@~", errors="surrogatepass") + asked


def _given_back(headers: Mapping[str, str], url: str) -> dict[str, str]:
    given = {name: headers[name] for name in _GIVEN_BACK if name in headers}
    if "location" in headers:  # of the same path, here
        given["location"] = headers["location"].removeprefix(url)
    return given


def _away(begun: bool) -> RefusedError:
    if begun:
        code, told = "primary_cut_off", "did not say whether it has made the change. See what is there before sending"
    else:
        code, told = "primary_unreachable", "cannot be reached, and nothing was changed. Send"
    message = f"Changes are made at the service that this one follows, which {told} it again, in {PAUSE} seconds."
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, code, message, {"Retry-After": str(PAUSE)})
