"""How much is taken on at once: requests under way, requests a second of one client, how long a body and an answer may
take.

Work that would wait longer than its client does is refused at the door (429): the service then stays as quick for those
inside as it is at its peak, and is back as soon as the rush is over.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.refusals import RefusedError, respond

CLIENTS = 10_000
"""Of how many clients the rate is remembered; the longest silent is forgotten first."""


class ConcurrencyLimit:
    """ASGI middleware: more requests that have to be worked on than can be soon get 429.

    That is where `most` are inside, and where `is_behind` says of a request that it would wait for too long: how many
    can be worked on in a second is the model's and the machine's matter.

    POST, PUT, PATCH and DELETE count, and of those that only read which `also` says so: the page's own files and
    thumbnails take next to nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        also: Callable[[Scope], bool] = lambda scope: False,
        is_behind: Callable[[Scope], bool] = lambda scope: False,
    ) -> None:
        self.app, self.most, self.also, self.is_behind, self.inside = app, most, also, is_behind, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in ("GET", "HEAD", "OPTIONS") and not self.also(scope)):
            await self.app(scope, receive, send)
            return
        if self.inside >= self.most or self.is_behind(scope):
            what = f"{self.most} requests are under way" if self.inside >= self.most else "Too many images wait"
            await respond(_too_many("busy", f"{what}. Try again in a second.", 1))(scope, receive, send)
            return
        self.inside += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.inside -= 1


class RateLimit:
    """ASGI middleware: a token bucket a client. `rate`: requests a second; `burst`: as many at once after a pause.

    of_all: the rate that clients are told, of all the workers together; by default `rate`.
    """

    def __init__(
        self,
        app: ASGIApp,
        rate: float,
        burst: int,
        client_of: Callable[[Scope], str],
        clock: Callable[[], float] = time.monotonic,
        of_all: float | None = None,
    ) -> None:
        self.told = of_all or rate
        self.app, self.rate, self.burst, self.client_of, self.clock = app, rate, burst, client_of, clock
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wait = self._wait(self.client_of(scope)) if scope["type"] == "http" else 0.0
        if wait <= 0:
            await self.app(scope, receive, send)
            return
        message = f"One client may send {self.told:g} requests a second. Try again in {wait:.1f} s."
        await respond(_too_many("rate_limited", message, wait))(scope, receive, send)

    def _wait(self, client: str) -> float:
        """Take a token; or how many seconds until there is one."""
        now = self.clock()
        tokens, since = self.buckets.pop(client, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - since) * self.rate)
        taken = tokens >= 1
        self.buckets[client] = (tokens - taken, now)
        if len(self.buckets) > CLIENTS:
            self.buckets.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self.rate


class BodyDeadline:
    """ASGI middleware: a body that is not all there within `seconds` gets 408; drip-fed ones would hold their place."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app, self.seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        ends, complete = anyio.current_time() + self.seconds, False

        async def in_time() -> Message:
            nonlocal complete
            if complete:  # what comes now is the news that the client has gone
                return await receive()
            with anyio.move_on_after(max(0.0, ends - anyio.current_time())):
                message = await receive()
                complete = not message.get("more_body", False)
                return message
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"The request was not all here after {self.seconds:g} s."
            )

        await self.app(scope, in_time, send)


class AnswerDeadline:
    """ASGI middleware: a request without an answer after `seconds` gets 504.

    What works on it cannot be stopped and keeps its place until it is done; its answer is dropped. exempt: whether a
    request may take as long as it takes.
    """

    def __init__(self, app: ASGIApp, seconds: float, exempt: Callable[[Scope], bool] = lambda scope: False) -> None:
        self.app, self.seconds, self.exempt = app, seconds, exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.exempt(scope):
            await self.app(scope, receive, send)
            return
        answered, refusal = False, None

        def late() -> None:
            nonlocal refusal
            if not answered:
                refusal = asyncio.ensure_future(respond(_too_late(self.seconds))(scope, receive, send))

        async def in_time(message: Message) -> None:
            nonlocal answered
            if refusal is None:
                answered = True
                await send(message)

        alarm = asyncio.get_running_loop().call_later(self.seconds, late)
        try:
            await self.app(scope, receive, in_time)
        finally:
            alarm.cancel()
            if refusal is not None:
                await refusal


class BrokenOff:
    """ASGI middleware: a request that is broken off gets 503, where its answer has not begun.

    That is one that was not done within --drain-seconds of the end of the process, or by a second Ctrl-C.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if not begun:
                message = "The service was stopped meanwhile. A change may have been done or not; ask again."
                refusal = RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "stopped", message)
                await respond(refusal)(scope, receive, send)


def _too_late(seconds: float) -> RefusedError:
    message = f"There was no answer after {seconds:g} s. Ask for less at once, or try again later."
    return RefusedError(HTTPStatus.GATEWAY_TIMEOUT, "no_answer", message)


def _too_many(code: str, message: str, seconds: float) -> RefusedError:
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, code, message, headers)
