from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving import errors, limits
from serving.limits import FORM_BYTES, CpuQueue, Deadlines, RequestLimits, TokenBuckets
from serving.metrics import REGISTRY
from tests.serving.running import settings

SOON, NEVER = 0.01, 3600.0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; a deadlock fails after a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def app(answer: Callable[[Request], Awaitable[Any]]) -> FastAPI:
    """Return an application that answers every path with `answer`."""
    made = FastAPI(openapi_url=None)
    errors.install(made)
    made.router.add_route("/{path:path}", answer, methods=["GET", "POST", "DELETE"])
    return made


async def at_once(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def client(asgi: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(asgi, raise_app_exceptions=False), base_url="http://localhost"
    )


def limited(inner: ASGIApp, **values: object) -> RequestLimits:
    return RequestLimits(inner, settings(**values), CpuQueue(1))


def test_more_requests_than_allowed_are_refused_until_one_has_ended() -> None:
    async def scenario() -> None:
        gate, statuses = anyio.Event(), []

        async def held(request: Request) -> PlainTextResponse:
            if request.url.path == "/search":
                await gate.wait()
            return PlainTextResponse("done")

        async with client(limited(app(held), concurrency=2)) as http:

            async def search() -> None:
                statuses.append((await http.post("/search")).status_code)

            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(search)
                await anyio.wait_all_tasks_blocked()
                busy = await http.post("/search")
                assert (busy.status_code, busy.json()["error"]["code"]) == (429, "busy")
                assert busy.headers["retry-after"] == "1"
                for path, status in (("/items", 429), ("/map", 429), ("/livez", 200), ("/items/3/thumbnail", 200)):
                    assert (await http.get(path)).status_code == status, path
                gate.set()
            assert statuses == [200, 200]
            assert (await http.post("/search")).status_code == 200

    run(scenario)


def test_a_failure_frees_its_place() -> None:
    async def scenario() -> None:
        async def broken(request: Request) -> PlainTextResponse:
            raise RuntimeError

        limit = limited(app(broken), concurrency=1)
        async with client(limit) as http:
            assert [(await http.post("/search")).status_code for _ in range(3)] == [500] * 3
        assert limit.in_progress.total() == 0

    run(scenario)


def test_what_needs_a_core_is_refused_while_images_wait_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(CpuQueue, "is_behind", lambda self, seconds: asked.append(seconds) or True)

    async def scenario() -> None:
        async with client(limited(app(at_once), queue_seconds=0.5)) as http:
            for path in ("/search", "/embed", "/items", "/collections/birds/search"):
                assert (await http.post(path)).json()["error"]["code"] == "busy"
            for method, path in (("DELETE", "/items/1"), ("POST", "/evaluate"), ("GET", "/items")):
                assert (await http.request(method, path)).status_code == 200

    run(scenario)
    assert asked == [0.5] * 4


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_is_refused_whether_or_not_it_announces_its_length(announced: bool) -> None:
    async def scenario() -> None:
        size = 2000 + FORM_BYTES

        async def chunks(count: int) -> AsyncIterator[bytes]:
            for start in range(0, count, 1000):
                yield bytes(min(1000, count - start))

        async with client(limited(app(at_once), max_body=2000)) as http:
            for count, status in ((size, 200), (size + 1, 413)):
                answer = await http.post("/embed", content=bytes(count) if announced else chunks(count))
                assert answer.status_code == status
            assert answer.json()["error"]["code"] == "body_too_large"

    run(scenario)


def test_one_client_has_its_rate_and_probes_have_none() -> None:
    async def scenario() -> None:
        async with client(limited(app(at_once), rate=0.01, burst=3)) as http:
            # A made-up key does not make a new client.
            statuses = [(await http.get("/items/1", headers={"x-api-key": f"{i:020}"})).status_code for i in range(5)]
            assert statuses == [200] * 3 + [429] * 2
            refused = await http.get("/items/1")
            assert refused.json()["error"]["code"] == "rate_limited"
            assert int(refused.headers["retry-after"]) > 1
            for path in ("/livez", "/readyz", "/collections/birds/readyz"):
                assert (await http.get(path)).status_code == 200

    run(scenario)


def test_tokens_by_a_clock_of_the_test() -> None:
    now = [0.0]
    buckets = TokenBuckets(2.0, 3, clock=lambda: now[0])
    assert [buckets.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.wait("b") == 0
    now[0] = 0.5
    assert [buckets.wait("a") for _ in range(2)] == [0, 0.5]
    now[0] = 100.0
    assert [buckets.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_only_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENTS", 5)
    buckets = TokenBuckets(1.0, 1, clock=lambda: 0.0)
    assert [buckets.wait(str(i)) for i in range(20)] == [0] * 20
    assert buckets.wait("19") == 1
    assert buckets.wait("14") == 0


@pytest.mark.parametrize(("pause", "status"), [(0.0, 200), (0.2, 408)])
def test_a_body_that_comes_drop_by_drop_is_ended(pause: float, status: int) -> None:
    async def scenario() -> None:
        async def drops() -> AsyncIterator[bytes]:
            for _ in range(5):
                await anyio.sleep(pause)
                yield b"x"

        async with client(Deadlines(app(at_once), 0.3, NEVER)) as http:
            answer = await http.post("/embed", content=drops())
        assert answer.status_code == status
        if status == 408:
            assert answer.json()["error"]["code"] == "too_slow"

    run(scenario)


def test_slow_bodies_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest body of the client with most of them ends; an honest one keeps its place."""
    monkeypatch.setattr(limits, "READING_SECONDS", SOON)

    async def scenario() -> None:
        limit, gate = limited(app(at_once), concurrency=10), anyio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"x"
            await gate.wait()
            yield b"x"

        async def post(address: str) -> int:
            transport = httpx.ASGITransport(limit, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return (await http.post("/embed", content=slowly())).status_code

        async def being_read(count: int, clients: set[str]) -> None:
            while sum(map(len, limit.reading.values())) < count or not clients <= set(limit.reading):
                await asyncio.sleep(SOON)

        slow = [asyncio.create_task(post(address)) for address in 6 * ["10.0.0.1"] + 4 * ["10.0.0.2"]]
        await being_read(10, {"10.0.0.1", "10.0.0.2"})
        await asyncio.sleep(3 * SOON)
        honest = [asyncio.create_task(post(f"10.0.0.{number}")) for number in (3, 4, 5)]
        await being_read(10, {"10.0.0.3", "10.0.0.4", "10.0.0.5"})
        gate.set()
        assert await asyncio.gather(*honest) == [200, 200, 200]
        assert sorted(await asyncio.gather(*slow)) == 7 * [200] + 3 * [408]
        assert (limit.reading, limit.in_progress.total()) == ({}, 0)

    run(scenario)


def test_work_after_the_body_may_take_longer_than_the_body() -> None:
    async def scenario() -> None:
        async def work(request: Request) -> PlainTextResponse:
            await request.body()
            await anyio.sleep(0.15)
            return PlainTextResponse("done")

        async with client(Deadlines(app(work), 0.1, NEVER)) as http:
            assert (await http.post("/embed", content=b"x")).text == "done"

    run(scenario)


async def recorded(asgi: ASGIApp, sent: list[Message], path: str = "/search", client: str = "10.0.0.1") -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "client": (client, 1)}
    await asgi(scope, receive, send)


def test_a_late_answer_is_replaced_and_its_request_keeps_its_place() -> None:
    async def scenario() -> None:
        done, ended = anyio.Event(), []
        sent: list[Message] = []

        async def slow(request: Request) -> PlainTextResponse:
            await done.wait()
            ended.append(True)
            return PlainTextResponse("late")

        service = limited(Deadlines(app(slow), NEVER, 0.05), concurrency=1)
        async with client(service) as http, anyio.create_task_group() as group:
            group.start_soon(recorded, service, sent)
            while not sent or sent[-1]["type"] != "http.response.body":
                await anyio.sleep(SOON)
            assert sent[0]["status"] == 504
            assert b'"no_answer"' in sent[1]["body"]
            assert (await http.post("/search")).status_code == 429
            done.set()
        assert ended
        assert len(sent) == 2
        async with client(service) as http:
            assert (await http.post("/search")).text == "late"

    run(scenario)


def test_what_nobody_waits_for_is_not_computed() -> None:
    """Ten slow images of one request would keep a core busy long after the answer 504."""

    async def scenario() -> None:
        queue, computed = CpuQueue(1), list[int]()

        async def images(request: Request) -> PlainTextResponse:
            for number in range(10):
                await queue.run_aside(time.sleep, 0.04)
                computed.append(number)
            return PlainTextResponse("late")

        sent: list[Message] = []
        await recorded(limited(Deadlines(app(images), NEVER, 0.1)), sent)
        assert sent[0]["status"] == 504
        assert len(computed) < 5
        await queue.run(computed.clear)  # its core is free
        assert computed == []

    run(scenario)


def test_evaluate_and_an_answer_that_has_begun_may_take_long() -> None:
    async def scenario() -> None:
        async def late(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"].endswith("/evaluate"):
                await anyio.sleep(0.1)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await anyio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"all of it"})

        for path in ("/search", "/evaluate", "/collections/birds/evaluate"):
            sent: list[Message] = []
            await recorded(Deadlines(late, NEVER, 0.02), sent, path)
            assert [message.get("status", message.get("body")) for message in sent] == [200, b"all of it"]

    run(scenario)


def test_a_request_that_is_cancelled_gets_503() -> None:
    async def scenario() -> None:
        sent: list[Message] = []

        async def endless(request: Request) -> PlainTextResponse:
            await anyio.sleep(NEVER)
            return PlainTextResponse("never")

        task = asyncio.create_task(recorded(Deadlines(app(endless), NEVER, NEVER), sent))
        await asyncio.sleep(SOON)
        task.cancel()
        await task
        assert sent[0]["status"] == 503
        assert b'"stopped"' in sent[1]["body"]

    run(scenario)


def test_while_the_service_is_about_to_stop_each_answer_closes_its_connection() -> None:
    async def scenario() -> None:
        draining = [False, True]
        async with client(Deadlines(app(at_once), NEVER, NEVER, lambda: draining.pop(0))) as http:
            assert "connection" not in (await http.post("/embed")).headers
            assert (await http.post("/embed")).headers["connection"] == "close"

    run(scenario)


class Calls:
    """Calls that run until they are released."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.most, self.release = 0, threading.Event()

    def __call__(self, number: int) -> int:
        self.running.add(number)
        self.most = max(self.most, len(self.running))
        assert self.release.wait(30)
        self.running.discard(number)
        return number

    async def until(self, count: int) -> None:
        """Wait until this many have started."""
        while len(self.running) < count:
            await asyncio.sleep(0.005)


def context_of(client: str) -> contextvars.Context:
    """Return the context of a request of a client."""
    context = contextvars.copy_context()
    context.run(limits._CLIENT.set, client)
    return context


def test_a_slow_call_does_not_hold_up_the_next() -> None:
    """The first ends only after the second, which waits for it on the only core."""
    done = threading.Event()

    async def scenario() -> None:
        queue = CpuQueue(1, patience=SOON)
        slow = asyncio.create_task(queue.run(done.wait, 30))
        await asyncio.sleep(0)
        await queue.run(done.set)
        assert await slow

    run(scenario)


@pytest.mark.parametrize(("cores", "at_once"), [(1, 2), (2, 3), (3, 5)])
def test_slow_calls_of_a_client_are_added_up_to_a_limit(cores: int, at_once: int) -> None:
    async def scenario() -> None:
        queue = CpuQueue(cores, patience=SOON)
        for _ in range(2):
            call = Calls()
            tasks = [asyncio.create_task(queue.run(call, i)) for i in range(3 * at_once)]
            await call.until(at_once)
            await asyncio.sleep(10 * SOON)
            assert len(call.running) == at_once
            call.release.set()
            assert await asyncio.gather(*tasks) == list(range(3 * at_once))
            assert call.most <= at_once

    run(scenario)


def test_clients_take_turns_and_slow_calls_of_one_leave_a_place_to_the_others() -> None:
    """A client with 12 slow calls delays the quick ones of another by none of them; its own go on in their order."""

    async def scenario() -> None:
        queue, call, quick = CpuQueue(1, patience=SOON), Calls(), list[int]()
        hostile = [asyncio.create_task(queue.run(call, i), context=context_of("hostile")) for i in range(12)]
        await call.until(2)
        await asyncio.sleep(10 * SOON)
        for number in range(3):
            task = asyncio.create_task(queue.run(quick.append, number), context=context_of("honest"))
            await asyncio.wait_for(task, 10)
        assert quick == [0, 1, 2]
        assert len(call.running) == 2
        call.release.set()
        assert await asyncio.gather(*hostile) == list(range(12))

    run(scenario)


def test_a_client_waits_behind_one_call_of_each_other() -> None:
    async def scenario() -> None:
        queue, order = CpuQueue(1, patience=NEVER), list[str]()
        async with busy(queue):
            tasks = [
                asyncio.create_task(queue.run(order.append, client), context=context_of(client))
                for client in ("a", "a", "a", "b", "c")
            ]
            await asyncio.sleep(SOON)
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c", "a", "a"]

    run(scenario)


def test_one_client_may_not_have_all_requests_in_progress() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def waits(request: Request) -> PlainTextResponse:
            await gate.wait()
            return PlainTextResponse("done")

        limit = limited(app(waits), concurrency=10)
        sent: list[list[Message]] = [[] for _ in range(11)]
        tasks = [asyncio.create_task(recorded(limit, messages)) for messages in sent[:10]]
        await asyncio.sleep(SOON)
        tasks.append(asyncio.create_task(recorded(limit, sent[10], client="10.0.0.9")))
        await asyncio.sleep(SOON)
        gate.set()
        await asyncio.gather(*tasks)
        assert [messages[0]["status"] for messages in sent] == [200] * 9 + [429, 200]

    run(scenario)


def test_quick_calls_keep_to_the_cores() -> None:
    async def scenario() -> None:
        queue, call = CpuQueue(2, patience=NEVER), Calls()
        tasks = [asyncio.create_task(queue.run(call, i)) for i in range(6)]
        await call.until(2)
        await asyncio.sleep(10 * SOON)
        call.release.set()
        await asyncio.gather(*tasks)
        assert call.most == 2

    run(scenario)


def test_calls_do_not_wait_for_threads_that_read() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        async with anyio.create_task_group() as group:
            for _ in range(50):  # more than the 40 threads of anyio
                group.start_soon(anyio.to_thread.run_sync, gate.wait)
            await anyio.sleep(SOON)
            with anyio.move_on_after(10) as scope:
                assert await CpuQueue(1).run(lambda: 7) == 7
            gate.set()
        assert not scope.cancelled_caught

    run(scenario)


def test_an_error_reaches_the_caller_and_frees_the_core() -> None:
    async def scenario() -> None:
        queue = CpuQueue(1, patience=SOON)
        for _ in range(3):
            with pytest.raises(ValueError):
                await queue.run(int, "one")
        assert await queue.run(int, "7") == 7

    run(scenario)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_waiting_calls_are_counted_and_timed() -> None:
    labels = {"collection": "", "stage": "queue"}
    count, seconds = (metric(f"zoo_stage_duration_seconds_{kind}", **labels) for kind in ("count", "sum"))

    async def scenario() -> None:
        queue, call = CpuQueue(1, patience=NEVER), Calls()
        tasks = [asyncio.create_task(queue.run(call, i)) for i in range(4)]
        await call.until(1)
        await asyncio.sleep(0.1)
        assert metric("zoo_cpu_queue_length") == 3
        tasks[3].cancel()
        await asyncio.sleep(SOON)
        assert metric("zoo_cpu_queue_length") == 2
        call.release.set()
        assert await asyncio.gather(*tasks[:3]) == [0, 1, 2]

    run(scenario)
    assert metric("zoo_cpu_queue_length") == 0
    assert metric("zoo_stage_duration_seconds_count", **labels) == count + 4
    assert metric("zoo_stage_duration_seconds_sum", **labels) - seconds > 0.3


@asynccontextmanager
async def busy(queue: CpuQueue) -> AsyncIterator[None]:
    """Occupy the queue's only core."""
    call = Calls()
    task = asyncio.create_task(queue.run(call, 0))
    await call.until(1)
    yield
    call.release.set()
    await task


def test_the_queue_is_behind_while_many_calls_wait_for_long() -> None:
    async def scenario() -> None:
        queue = CpuQueue(1, patience=NEVER)
        async with busy(queue):
            waiting = [asyncio.create_task(queue.run(int)) for _ in range(CpuQueue.MIN_LENGTH)]
            aside = [asyncio.create_task(queue.run_aside(int)) for _ in range(5)]
            await asyncio.sleep(SOON)
            assert not queue.is_behind(SOON)
            waiting.append(asyncio.create_task(queue.run(int)))
            await asyncio.sleep(2 * SOON)
            assert queue.is_behind(2 * SOON)
            assert not queue.is_behind(NEVER)
            waiting[0].cancel()
            await asyncio.sleep(SOON)
            assert not queue.is_behind(SOON)
        await asyncio.gather(*waiting[1:], *aside)
        assert not queue.is_behind(0)

    run(scenario)


def test_one_slow_call_is_not_the_usual_one() -> None:
    """A client that was idle is new to the queue: its first call, which a busy moment may slow, says little."""

    async def scenario() -> None:
        queue, gate = CpuQueue(1, patience=NEVER), Calls()
        for _ in range(31):
            await queue.run(int)
        slow = asyncio.create_task(queue.run(time.sleep, 0.2))
        held = asyncio.create_task(queue.run(gate, 0))
        waiting = [asyncio.create_task(queue.run(int)) for _ in range(CpuQueue.MIN_LENGTH + 2)]
        await slow
        await gate.until(1)
        assert not queue.is_behind(1)  # eleven times .2 s would be 2.2 s
        gate.release.set()
        await asyncio.gather(held, *waiting)

    run(scenario)


def test_the_queue_is_behind_at_once_by_the_usual_duration() -> None:
    """Twelve calls of 0.05 s that wait for two cores are 0.3 s of work."""

    async def scenario() -> None:
        queue = CpuQueue(2, patience=NEVER)
        await asyncio.gather(*(queue.run(time.sleep, 0.05) for _ in range(3)))
        tasks = [asyncio.create_task(queue.run(time.sleep, 0.05)) for _ in range(14)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert queue.is_behind(0.25)
        assert not queue.is_behind(2)
        await asyncio.gather(*tasks)

    run(scenario)
