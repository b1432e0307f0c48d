from __future__ import annotations

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from serving import limits
from serving.limits import AnswerDeadline, BodyDeadline, ConcurrencyLimit, RateLimit
from serving.refusals import HANDLERS


def app(answer) -> Starlette:
    return Starlette(routes=[Route("/", answer, methods=["GET", "POST"])], exception_handlers=HANDLERS)


async def _at_once(request: Request) -> PlainTextResponse:
    return PlainTextResponse("inside")


def client(asgi) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://service")


def test_more_requests_than_may_be_inside_are_sent_away_and_the_place_is_free_again():
    async def main() -> None:
        gate = anyio.Event()

        async def held(request: Request) -> PlainTextResponse:
            await gate.wait()
            return PlainTextResponse("inside")

        answers: list[int] = []
        async with client(ConcurrencyLimit(app(held), 2)) as http:

            async def ask() -> None:
                answers.append((await http.post("/")).status_code)

            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                busy = await http.post("/")
                assert (busy.status_code, busy.json()["error"]["code"]) == (429, "busy")
                assert busy.headers["retry-after"] == "1"
                gate.set()
            assert answers == [200, 200]
            assert (await http.post("/")).status_code == 200

    anyio.run(main)


def test_while_those_inside_wait_for_too_long_nobody_else_comes_in():
    async def main() -> None:
        behind = [False]
        async with client(ConcurrencyLimit(app(_at_once), 9, is_behind=lambda scope: behind[0])) as http:
            assert (await http.post("/")).status_code == 200
            behind[0] = True
            busy = await http.post("/")
            assert (busy.status_code, busy.json()["error"]["code"]) == (429, "busy")
            assert (await http.get("/")).status_code == 200
            behind[0] = False
            assert (await http.post("/")).status_code == 200

    anyio.run(main)


def test_a_failure_inside_frees_its_place():
    async def main() -> None:
        async def broken(request: Request) -> PlainTextResponse:
            raise RuntimeError

        limit = ConcurrencyLimit(app(broken), 1)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(limit, raise_app_exceptions=False), base_url="http://service"
        ) as http:
            assert [(await http.post("/")).status_code for _ in range(3)] == [500] * 3
        assert limit.inside == 0

    anyio.run(main)


def test_reading_pages_takes_no_place():
    async def main() -> None:
        async with client(ConcurrencyLimit(app(_at_once), 0)) as http:
            assert (await http.get("/")).status_code == 200
            assert (await http.post("/")).status_code == 429

    anyio.run(main)


def test_the_rate_by_a_clock_of_our_own():
    async def main() -> None:
        now, who = [0.0], ["a"]
        limited = RateLimit(app(_at_once), 2.0, 3, lambda scope: who[0], clock=lambda: now[0])
        async with client(limited) as http:

            async def ask() -> int:
                return (await http.get("/")).status_code

            assert [await ask() for _ in range(4)] == [200, 200, 200, 429]  # the burst
            who[0] = "b"
            assert await ask() == 200  # another client has tokens of its own
            who[0], now[0] = "a", 0.5
            assert [await ask() for _ in range(2)] == [200, 429]  # two a second: one in half of it
            now[0] = 100.0
            assert [await ask() for _ in range(4)] == [200, 200, 200, 429]  # never more than the burst
            slow = await http.get("/")
            assert slow.json()["error"]["code"] == "rate_limited"
            assert slow.headers["retry-after"] == "1"

    anyio.run(main)


def test_clients_that_are_remembered_are_bounded(monkeypatch):
    async def main() -> None:
        monkeypatch.setattr(limits, "CLIENTS", 5)
        names = iter(range(100))
        limited = RateLimit(app(_at_once), 1.0, 1, lambda scope: str(next(names)))
        async with client(limited) as http:
            for _ in range(20):
                assert (await http.get("/")).status_code == 200
        assert list(limited.buckets) == [str(i) for i in range(15, 20)]

    anyio.run(main)


@pytest.mark.parametrize(("pause", "status"), [(0.0, 200), (0.2, 408)])
def test_a_body_that_comes_drop_by_drop_ends(pause, status):
    async def main() -> None:
        async def read(request: Request) -> PlainTextResponse:
            return PlainTextResponse(str(len(await request.body())))

        async def drops():
            for _ in range(5):
                await anyio.sleep(pause)
                yield b"x"

        async with client(BodyDeadline(app(read), 0.3)) as http:
            answer = await http.post("/", content=drops())
        assert answer.status_code == status

    anyio.run(main)


def test_work_after_the_body_may_take_longer():
    async def main() -> None:
        async def work(request: Request) -> PlainTextResponse:
            await request.body()
            await anyio.sleep(0.15)
            return PlainTextResponse("done")

        async with client(BodyDeadline(app(work), 0.1)) as http:
            assert (await http.post("/", content=b"x")).text == "done"

    anyio.run(main)


def test_what_takes_too_long_is_answered_meanwhile_and_keeps_its_place_until_it_is_done():
    async def main() -> None:
        done, answered, sent = anyio.Event(), [], []

        async def slow(request: Request) -> PlainTextResponse:
            await done.wait()
            answered.append(True)
            return PlainTextResponse("late")

        inside = ConcurrencyLimit(AnswerDeadline(app(slow), 0.05), 1)
        async with client(inside) as http, anyio.create_task_group() as group:
            group.start_soon(_recorded, inside, sent)
            while not sent or sent[-1]["type"] != "http.response.body":
                await anyio.sleep(0.01)
            assert sent[0]["status"] == 504
            assert b'"no_answer"' in sent[1]["body"]
            assert (await http.post("/")).status_code == 429
            done.set()
        assert answered
        assert len(sent) == 2  # what it made in the end is dropped
        async with client(inside) as http:
            assert (await http.post("/")).text == "late"

    anyio.run(main)


async def _recorded(asgi, sent: list[dict]) -> None:
    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"", "root_path": ""}
    await asgi(scope, receive, send)


def test_an_answer_that_has_begun_may_take_its_time():
    async def main() -> None:
        async def begun(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await anyio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"all of it"})

        sent: list[dict] = []
        await _recorded(AnswerDeadline(begun, 0.02), sent)
        assert [message.get("status", message.get("body")) for message in sent] == [200, b"all of it"]

    anyio.run(main)
