"""Limits of the service: requests of one client, requests in progress, sizes, durations, and the use of the cores.

Work that would wait longer than its client does is refused at once (429). So the service answers the accepted requests
as fast as at its peak, and has recovered as soon as a rush is over.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import RefusedError, error_response, too_large, try_again
from serving.forms import FORM, MAX_FORM_BYTES, media_type_of
from serving.keys import PROBES, READING_METHODS, client_of, path_in_collection
from serving.metrics import WAITING, stage
from serving.settings import Settings

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FORM_BYTES = 64 * 2**10
"""Bytes that a multipart form may add to its images: boundaries and small fields."""
MAX_CLIENTS = 10_000
"""Clients whose rate is remembered; the one that was silent for longest is forgotten first."""
COSTLY_READS = frozenset({"/map", "/metadata", "/labels", "/items", "/stats"})
"""Reading paths that take longer the more items there are, as that of an item's duplicates does."""
SHARE_OF_ONE = 0.9
"""Largest share of the requests in progress that one client may have."""
READING_SECONDS = 0.5
"""Seconds for which a body may be awaited although all places are taken."""
CPU_PATHS = frozenset({"/search", "/embed", "/items", "/v1/embeddings"})
"""Paths whose POST waits for a core."""


class ClientCalls:
    """The calls of a client that wait or run.

    Attributes:
        waiting: Its calls that wait for a core, in order of arrival.
        running: The number of its calls that run.
        slow: The number of those that have run for longer than the queue's patience.
        used: The seconds of its calls so far; of a new client, those of the client that has used least.
        durations: The seconds for which its recent calls kept a core from others.
    """

    def __init__(self, used: float) -> None:
        self.waiting, self.running, self.slow, self.used = deque[Place](), 0, 0, used
        self.durations: deque[float] = deque(maxlen=31)


class Place:
    """A call that waits for a core, or has it. counts: whether it makes others wait, in the eyes of `is_behind`."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.since, self.estimate, self.is_slow = counts, time.monotonic(), 0.0, False
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class CpuQueue:
    """Queue of calls that compute: as many run at once as there are cores, each in a thread.

    The next call is one of the client whose calls have taken the least time, so that none waits for all the calls of
    another; the calls of one client start in order of arrival. A call that takes longer than `patience` seconds lets
    another one start, so that the calls behind it share the cores with it instead of waiting for its end. At most
    `cores`, and at least 2, calls are added in this way, the last of them only for a client without such slow calls.
    """

    MIN_LENGTH = 8
    """Calls that may always wait: a few are no rush, and also wait while a model is loaded."""

    def __init__(self, cores: int, patience: float = 0.25) -> None:
        self.cores, self.patience, self.most = cores, patience, cores + max(2, cores)
        # Threads of its own: maps, counts and other slow reads may use all of the application's common threads.
        self._threads = CapacityLimiter(self.most)
        self._clients: dict[str, ClientCalls] = {}
        self._durations: deque[float] = deque(maxlen=31)

    def is_behind(self, seconds: float) -> bool:
        """Return whether a new call of the present client would wait for more than `seconds`.

        More than `MIN_LENGTH` calls must wait, and either the client's first has waited for so long, or the last will:
        for all its own calls, and for as much work of each other client.
        """
        if sum(place.counts for client in self._clients.values() for place in client.waiting) <= self.MIN_LENGTH:
            return False
        name = _CLIENT.get()
        own = self._clients.get(name)
        first = next((place for place in own.waiting if place.counts), None) if own else None
        waited = time.monotonic() - first.since if first else 0.0
        work = (1 + len(own.waiting if own else ())) * self._usual(own)
        others = (client for client in self._clients.values() if client is not own)
        total = work + sum(min(work, len(client.waiting) * self._usual(client)) for client in others)
        return max(waited, total / self.cores) > seconds

    def _usual(self, client: ClientCalls | None) -> float:
        """Return the mean time for which recent calls kept a core from others.

        It is the client's; for what it lacks to `MIN_LENGTH` calls, that of all clients counts, since one call may
        have been slow by chance.
        """
        own = client.durations if client else ()
        missing = max(0, self.MIN_LENGTH - len(own))
        usual = sum(self._durations) / max(1, len(self._durations))
        return (sum(own) + missing * usual) / (len(own) + missing)

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Wait for a core, run the call in a thread, and return its result."""
        return await self._run(Place(counts=True), lambda: call(*args, **kwargs))

    async def run_aside(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a call that does not count as waiting, such as the later images of a request that is in progress."""
        return await self._run(Place(counts=False), lambda: call(*args, **kwargs))

    async def _run(self, place: Place, call: Callable[[], Result]) -> Result:
        name = _CLIENT.get()
        least = min((client.used for client in self._clients.values()), default=0.0)
        client = self._clients.setdefault(name, ClientCalls(least))
        with stage("queue"), WAITING.track_inprogress():
            await self._wait(name, client, place)
        start = time.monotonic()
        timer = asyncio.get_running_loop().call_later(self.patience, self._count_slow, client, place)
        try:
            answer = _ANSWER.get()
            if answer is not None and answer.refusal is not None:
                raise RefusedError(504, "no_answer", "The client has an answer; the rest is not computed.")
            return await to_thread.run_sync(call, limiter=self._threads)
        finally:
            timer.cancel()
            seconds = time.monotonic() - start
            for durations in (client.durations, self._durations):
                durations.append(min(seconds, self.patience))
            client.slow -= place.is_slow
            self._release(name, client, seconds - place.estimate)

    async def _wait(self, name: str, client: ClientCalls, place: Place) -> None:
        """Wait until the call may start."""
        client.waiting.append(place)
        self._start_calls()
        try:
            await place.taken
        except asyncio.CancelledError:
            if place.taken.cancelled():
                if place in client.waiting:
                    client.waiting.remove(place)
                self._forget_if_idle(name, client)
            else:
                self._release(name, client, -place.estimate)
            raise

    def _start_calls(self) -> None:
        """Let calls start while there is a place."""
        clients = self._clients.values()
        while (running := sum(client.running for client in clients)) < self.most:
            if running >= self.cores + sum(client.slow for client in clients):
                return
            is_last = running == self.most - 1
            willing = [client for client in clients if client.waiting and not (is_last and client.slow)]
            if not willing:
                return
            client = min(willing, key=lambda client: client.used)
            place = client.waiting.popleft()
            if place.taken.cancelled():  # its task has not noticed yet
                continue
            place.estimate = self._usual(client)
            client.used += place.estimate
            client.running += 1
            place.taken.set_result(None)

    def _forget_if_idle(self, name: str, client: ClientCalls) -> None:
        if not client.waiting and not client.running and self._clients.get(name) is client:
            del self._clients[name]

    def _count_slow(self, client: ClientCalls, place: Place) -> None:
        place.is_slow = True
        client.slow += 1
        self._start_calls()

    def _release(self, name: str, client: ClientCalls, more: float) -> None:
        """Free the place of a call. more: the seconds that it took beyond the estimate."""
        client.used += more
        client.running -= 1
        self._forget_if_idle(name, client)
        self._start_calls()


class TokenBuckets:
    """Rate limit of `rate` requests per second of one client, and of `burst` at once after a pause."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Take a token of the client and return 0, or return the seconds until there is one."""
        now = self.clock()
        tokens, last = self._buckets.pop(client, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - last) * self.rate)
        taken = tokens >= 1
        self._buckets[client] = (tokens - taken, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self.rate


class _Reading(NamedTuple):
    """A body that is awaited: since when, and the scope in which its next part is."""

    since: float
    part: anyio.CancelScope


class RequestLimits:
    """ASGI middleware that refuses too many requests (429) and too large bodies (413).

    Probes have no limit.

    Requests that change something or compute count as in progress; the files of the page and thumbnails take next to
    nothing and do not.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, cpu_queue: CpuQueue, is_known: Callable[[str], bool] = lambda key: False
    ) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            settings: The settings of the service; this process keeps to its share of them.
            cpu_queue: The queue that requests wait in.
            is_known: Whether a key is one of the service's.
        """
        share = settings.share()
        self.app, self.settings, self.cpu_queue, self.is_known = app, settings, cpu_queue, is_known
        self.max_body, self.max_requests = settings.max_body + FORM_BYTES, share.concurrency
        self.in_progress = Counter[str]()
        self.reading: dict[str, dict[object, _Reading]] = {}
        self.buckets = TokenBuckets(share.rate, share.burst) if share.rate else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = path_in_collection(scope)
        if path in PROBES:
            await self.app(scope, receive, send)
            return
        most = self._most_bytes(scope)
        counts = scope["method"] not in READING_METHODS or path in COSTLY_READS or path.endswith("/duplicates")
        # A key is only looked up for what has a limit: not for files of the page and thumbnails without a rate.
        client = client_of(scope, self.is_known) if counts or self.buckets else ""
        _CLIENT.set(client)
        refusal = self._rate_refusal(client)
        announced = Headers(scope=scope).get("content-length", "")
        if refusal is None and announced.isdecimal() and int(announced) > most:
            refusal = too_large(most)
        if counts and refusal is None:
            refusal = self._load_refusal(client, scope["method"] == "POST" and path in CPU_PATHS)
        if refusal:
            await error_response(refusal)(scope, receive, send)
            return
        self.in_progress[client] += counts
        key = object()
        try:
            await self.app(scope, self._counted(receive, most, client if counts else None, key), send)
        finally:
            self._forget_reading(client, key)
            self.in_progress[client] -= counts
            if not self.in_progress[client]:
                del self.in_progress[client]

    def _rate_refusal(self, client: str) -> RefusedError | None:
        wait = self.buckets.wait(client) if self.buckets else 0.0
        if not wait:
            return None
        message = f"One client may send {self.settings.rate:g} requests a second."
        return try_again(429, "rate_limited", message, wait)

    def _most_bytes(self, scope: Scope) -> int:
        """Return the most bytes of a body; `serving.forms` limits the values of JSON."""
        is_small = media_type_of(Headers(scope=scope)) == FORM or scope["method"] == "PATCH"
        return min(MAX_FORM_BYTES, self.max_body) if is_small else self.max_body

    def _load_refusal(self, client: str, needs_core: bool) -> RefusedError | None:
        most_of_one = math.ceil(self.max_requests * SHARE_OF_ONE)
        is_full = self.in_progress.total() >= self.max_requests
        if self.in_progress[client] >= most_of_one or (is_full and not self._end_slowest()):
            return try_again(429, "busy", f"{self.max_requests} requests are in progress.", 1)
        if needs_core and self.cpu_queue.is_behind(self.settings.queue_seconds):
            return try_again(429, "busy", "Too many images wait for a core.", 1)
        return None

    def _end_slowest(self) -> bool:
        """End the request whose body has been awaited for longest, of the client with most of them, for another one."""
        requests = max(self.reading.values(), key=len, default={})
        key, slowest = next(iter(requests.items()), (None, None))
        if slowest is None or time.monotonic() - slowest.since < READING_SECONDS:
            return False
        del requests[key]
        slowest.part.cancel()
        return True

    def _forget_reading(self, client: str, key: object) -> None:
        requests = self.reading.get(client, {})
        requests.pop(key, None)
        if not requests:
            self.reading.pop(client, None)

    def _counted(self, receive: Receive, most: int, client: str | None, key: object) -> Receive:
        """Return `receive` with a limit to the bytes that arrive, also if fewer were announced.

        Args:
            receive: The function.
            most: The limit.
            client: The client, if the request counts as in progress, so that it can be ended for another one.
            key: What tells the request from others.
        """
        received, begun, complete = 0, time.monotonic(), False

        async def counted() -> Message:
            nonlocal received, complete
            if client is None or complete:
                message = await receive()
            else:
                message = await self._part(receive, client, key, begun)
                if complete := not message.get("more_body", False):
                    self._forget_reading(client, key)
            received += len(message.get("body", b""))
            if received > most:
                raise too_large(most)
            return message

        return counted

    async def _part(self, receive: Receive, client: str, key: object, begun: float) -> Message:
        """Return the next part of a body. Raises `RefusedError` (408) if the place is needed meanwhile."""
        with anyio.CancelScope() as part:
            self.reading.setdefault(client, {})[key] = _Reading(begun, part)
            return await receive()
        raise RefusedError(408, "too_slow", "The body came slowly while all places were taken. Send it again.")


class _TimedAnswer:
    """The answer to one request: the application's, or the service's own if it was sent first."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, closes: Callable[[], bool]) -> None:
        self.scope, self.receive, self.forward, self.closes = scope, receive, send, closes
        self.started = False
        self.refusal: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Send a part of the application's answer; drop it after a refusal."""
        if self.refusal is not None:
            return
        self.started = True
        if message["type"] == "http.response.start" and self.closes():
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self.forward(message)

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answer with a refusal, unless an answer has begun."""
        if not self.started and self.refusal is None:
            response = error_response(RefusedError(status, code, message))
            self.refusal = asyncio.ensure_future(response(self.scope, self.receive, self.forward))


_CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client of the request that the present task works on; "" for the service itself."""

_ANSWER: ContextVar[_TimedAnswer | None] = ContextVar("answer", default=None)
"""The answer to the request that the present task works on."""


class Deadlines:
    """ASGI middleware that ends what takes too long: 408 for a late body, 504 for a late answer, 503 at the end.

    A thread that works on a request cannot be stopped: the request keeps its place until the thread has finished, and
    its answer is dropped. Its further images are not computed. A request that is cancelled at the end of the drain
    period, or by a second Ctrl-C, gets 503.
    """

    def __init__(
        self, app: ASGIApp, body_seconds: float, answer_seconds: float, is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            body_seconds: Time for the arrival of a body.
            answer_seconds: Time until the answer begins; POST /evaluate may take longer.
            is_draining: Whether the service is about to stop, so that each answer closes its connection.
        """
        self.app, self.body_seconds, self.answer_seconds = app, body_seconds, answer_seconds
        self.is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _TimedAnswer(scope, receive, send, self.is_draining)
        outer = _ANSWER.set(answer)

        def expire() -> None:
            message = f"No answer after {self.answer_seconds:g} s. Send less at once, or try again later."
            answer.refuse(504, "no_answer", message)

        alarm = asyncio.get_running_loop().call_later(self.answer_seconds, expire)
        if scope["method"] == "POST" and path_in_collection(scope) == "/evaluate":
            alarm.cancel()
        try:
            await self.app(scope, self._in_time(receive), answer.send)
        except asyncio.CancelledError:
            answer.refuse(
                503, "stopped", "The service stopped meanwhile. A change may have been made or not; ask again."
            )
        finally:
            _ANSWER.reset(outer)
            alarm.cancel()
            if answer.refusal is not None:
                await answer.refusal

    def _in_time(self, receive: Receive) -> Receive:
        """Return `receive` with a deadline for the whole body: slow clients would keep their place."""
        end, complete = anyio.current_time() + self.body_seconds, False

        async def in_time() -> Message:
            nonlocal complete
            if complete:  # what follows is the end of the connection
                return await receive()
            with anyio.move_on_after(max(0.0, end - anyio.current_time())):
                message = await receive()
                complete = not message.get("more_body", False)
                return message
            raise RefusedError(408, "too_slow", f"The request was not complete after {self.body_seconds:g} s.")

        return in_time
