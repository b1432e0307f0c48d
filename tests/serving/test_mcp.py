"""`zoo mcp`, asked by the real client of MCP: every answer is HTTP's, and nothing outside the gallery is read."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ImageContent, TextContent
from pydantic import SecretStr

from serving.mcp_server import create_server, reaching_gallery, reaching_service
from tests.proof import bombs
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import ROOT, Running, answering, app_over, local_client, serving
from zoo.errors import ServiceError

TEXT = "a red chair"
PICTURE = base64.b64encode(toys.query(1)).decode()
KEY = "write-key-of-this-test"

Use = Callable[[Client], Coroutine[Any, Any, None]]


def over_gallery(gallery: Path, use: Use) -> None:
    """Run `use` with a client of the server over a gallery."""

    async def run() -> None:
        async with reaching_gallery(str(gallery)) as http, Client(create_server(http)) as client:
            await use(client)

    anyio.run(run)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the structured answer of a tool, which is also its text."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent), content
    assert not result.is_error, content.text
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


async def failure(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.is_error, content.text
    return content.text


def untimed(answer: Any) -> Any:
    return {name: value for name, value in answer.items() if name != "milliseconds"}


@pytest.fixture(scope="module")
def gallery(text_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery with metadata, keys and an evaluation, whose model reads texts."""
    copy = Path(shutil.copytree(text_gallery, tmp_path_factory.mktemp("mcp") / "gallery"))
    with local_client(copy, KEY) as http:
        http.patch("/items/1", json={"metadata": {"price": 9.5}, "key": "sku/1"}).raise_for_status()
        http.patch("/items/2", json={"metadata": {"price": 20}}).raise_for_status()
        http.patch("/items/3", json={"key": "null"}).raise_for_status()
        http.patch("/items/4", json={"key": '{"a": [null]}'}).raise_for_status()
        http.post("/evaluate").raise_for_status()
    return copy


SEARCHES: list[dict[str, Any]] = [
    {"image": PICTURE, "k": 5},
    {"image": f"data:image/png;base64,{PICTURE}", "label": [toys.CLASSES[1]], "min_similarity": 0.1},
    {"text": TEXT, "k": 3, "fields": ["*"]},
    {"id": 1, "k": 4, "offset": 2, "fields": ["price"]},
    {"key": "sku/1", "where": {"price": {"gte": 10}}},
    {"text": "blue checks", "label": ["no such label"]},
    {"text": "null", "k": 2},
    {"text": '["a", {"b": 1}]', "k": 2},
    {"key": '{"a": [null]}', "k": 2},
    {"id": 1, "k": 2, "text": None, "label": None, "where": None, "fields": None, "min_similarity": None},
]


def test_every_answer_is_that_of_http(gallery: Path) -> None:
    with local_client(gallery) as http:

        async def use(client: Client) -> None:
            for search in SEARCHES:
                expected = http.post("/search", json=search).json()
                assert untimed(await call(client, "search", **search)) == untimed(expected), search
            assert await call(client, "item", id=1) == http.get("/items/1").json()
            assert await call(client, "item", key="sku/1") == http.get("/items/1").json()
            assert await call(client, "item", key="null") == http.get("/items/3").json()
            where = {"price": {"lt": 15}}
            page = http.get("/items", params={"where": json.dumps(where), "limit": 3}).json()
            assert await call(client, "items", where=where, limit=3) == page
            assert page["total"] == 1
            assert await call(client, "items", label=[toys.CLASSES[0]], offset=2) == (
                http.get("/items", params={"label": toys.CLASSES[0], "offset": 2}).json()
            )
            for tool in ("labels", "metadata"):
                assert await call(client, tool, limit=2) == http.get(f"/{tool}?limit=2").json()
            assert await call(client, "model") == http.get("/model").json()
            assert await call(client, "evaluation") == http.get("/evaluate").json()
            assert await call(client, "duplicates", id=3, mirrored=False) == (
                http.get("/items/3/duplicates?mirrored=false").json()
            )
            (shown,) = (await client.call_tool("thumbnail", {"id": 1})).content
            assert isinstance(shown, ImageContent)
            expected_picture = http.get("/items/1/thumbnail")
            assert base64.b64decode(shown.data) == expected_picture.content
            assert shown.mime_type == expected_picture.headers["content-type"]

        over_gallery(gallery, use)


def test_nothing_outside_the_gallery_is_read_and_nothing_is_changed(gallery: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(toys.query(2))
    before = {path: path.read_bytes() for path in gallery.rglob("*.faiss")}

    async def use(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == {
            "search", "item", "items", "thumbnail", "duplicates", "labels", "metadata", "model", "evaluation",
        }  # fmt: skip
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        for picture in (str(secret), secret.as_uri(), "http://127.0.0.1:1/a.png", "../secret.png"):
            told = await failure(client, "search", image=picture)
            assert "image_address" in told or "invalid_image" in told
        for key in ("../../model", "..%2f..%2fstats", "a\0b", "x" * 300):
            told = await failure(client, "item", key=key)
            assert "no_such_item" in told or "invalid_key" in told
        assert "unreadable_image" in await failure(client, "search", image="QUJD")
        assert "several_queries" in await failure(client, "search", image=PICTURE, id=1)
        assert "no_image" in await failure(client, "search")
        assert "no_such_item" in await failure(client, "thumbnail", id=999)
        assert "invalid_k" in await failure(client, "search", id=1, k=0)
        assert await failure(client, "thumbnail", id="../../stats")
        assert await failure(client, "thumbnail", id=-1)

    over_gallery(gallery, use)
    assert {path: path.read_bytes() for path in gallery.rglob("*.faiss")} == before


NESTED = json.loads("[" * 90 + "]" * 90)
HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"image": base64.b64encode(bombs.png(20_000, 20_000)).decode()}, "image_too_large"),
    ("search", {"image": "A" * 50_000_000}, "body_too_large"),
    ("search", {"image": base64.b64encode(b"P5 9 9 255 ").decode()}, "unreadable_image"),
    ("search", {"image": ["a"]}, "image"),
    ("search", {"image": {"path": "/etc/passwd"}}, "image"),
    ("search", {"query": [{"image": "/etc/passwd"}]}, "invalid_image"),
    ("search", {"query": [{"image": 0}]}, "invalid_query"),
    ("search", {"query": [{"id": 1}] * 17}, "invalid_query"),
    ("search", {"query": [{"id": 1}, {"id": 1, "weight": -1}]}, "invalid_value"),
    ("search", {"id": 2**70}, "no_such_item"),
    ("search", {"id": 1.5}, "id"),
    ("search", {"id": True}, "id"),
    ("search", {"id": 1, "label": "null"}, "invalid_label"),
    ("search", {"id": 1, "where": " null"}, "invalid_where"),
    ("items", {"label": "null"}, "invalid_label"),
    ("items", {"label": ""}, "label"),
    ("search", {"id": 1, "where": ""}, "where"),
    ("item", {"id": None, "key": None}, "missing_value"),
    ("thumbnail", {"id": True}, "id"),
    ("search", {"id": 1, "k": 10**9}, "invalid_k"),
    ("search", {"id": 1, "fields": ["a"] * 1000}, "invalid_fields"),
    ("search", {"id": 1, "where": {"a": NESTED}}, "invalid_value"),
    ("search", {"id": 1, "where": {"a": "\ud800"}}, "invalid_value"),
    ("search", {"id": 1, "lables": ["blue checks"]}, "unknown_parameter"),
    ("search", {"id": 1, "path": "/etc/passwd"}, "unknown_parameter"),
    ("search", {"key": "\ud800"}, "invalid_value"),
    ("search", {"text": "x" * 10**6}, "text_too_long"),
    ("items", {"where": {"a": NESTED}}, "invalid_value"),
    ("items", {"where": {"a": "\ud800"}}, "invalid_"),
    ("items", {"label": ["\ud800"]}, "invalid_value"),
    ("items", {"label": ["x" * 10**6]}, "invalid_value"),
    ("items", {"label": ["a"] * 20_000}, "invalid_value"),
    ("items", {"offset": 10**30}, "invalid_offset"),
    ("item", {"id": 1, "collection": "../cars"}, "unknown_parameter"),
    ("item", {"key": "a/../../../stats"}, "no_such_item"),
    ("item", {"key": "?x=1#y"}, "no_such_item"),
    ("item", {"key": "\ud800"}, "invalid_key"),
    ("thumbnail", {"id": 10**30}, "no_such_item"),
    ("duplicates", {"id": 1, "mirrored": "x"}, "mirrored"),
    ("model", {"file": "/etc/passwd"}, "unknown_parameter"),
    ("no_such", {"a": 1}, "no_such"),
]


def test_hostile_arguments_are_refused_with_a_reason(gallery: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            assert tool.input_schema["additionalProperties"] is False
        for name, arguments, reason in HOSTILE:
            start = time.monotonic()
            assert reason in await failure(client, name, **arguments), (name, f"{arguments}"[:80])
            assert time.monotonic() - start < 10
        assert await call(client, "item", id=1)

    over_gallery(gallery, use)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
def test_the_command_speaks_over_stdio_for_a_gallery_and_a_service(gallery: Path, tmp_path: Path) -> None:
    reader = "read-key-of-the-model"
    named = [f"birds={gallery}", f"cars={shutil.copytree(gallery, tmp_path / 'cars')}"]
    with serving(named, environment={"ZOO_SERVE_READ_KEYS": reader}) as running:

        async def ask(*words: str, **environment: str) -> Any:
            command = StdioServerParameters(
                command=sys.executable,
                args=["-m", "zoo.cli.main", "mcp", *words],
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
            )
            async with Client(command) as client:
                return untimed(await call(client, "search", id=1, k=3))

        expected = httpx.post(
            f"{running.url}/collections/cars/search", json={"id": 1, "k": 3}, headers={"x-api-key": reader}
        ).json()
        at_service = anyio.run(lambda: ask(running.url, "--collection", "cars", ZOO_SERVE_KEY=reader))
        assert at_service == untimed(expected)
        own = anyio.run(lambda: ask(str(gallery)))
        paths = {hit["id"]: hit["thumbnail"] for hit in own["results"]}
        assert paths == {number: f"/items/{number}/thumbnail" for number in paths}
        assert [hit["similarity"] for hit in own["results"]] == [hit["similarity"] for hit in expected["results"]]


def test_of_two_collections_a_server_reaches_its_own(
    gallery: Path, gallery_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item 1 of birds has the key sku/1 and a price; cars has the same pictures without them."""
    read = {
        "ZOO_SERVE_READ_KEYS_BIRDS": SecretStr("key-of-the-birds-alone"),
        "ZOO_SERVE_READ_KEYS_CARS": SecretStr(KEY),
    }
    app = app_over([f"birds={gallery}", f"cars={gallery_folder}"], collection_keys=read)
    monkeypatch.setenv("ZOO_SERVE_KEY", KEY)

    async def ask(url: str) -> None:
        async with reaching_service(url, "cars") as http, Client(create_server(http)) as client:
            assert (await call(client, "item", id=1))["metadata"] == {}
            assert (await call(client, "model"))["text"] is None
            for key in ("sku/1", "../../birds/items/1", "../../../collections/birds/items/by-key/sku%2F1", "..", "."):
                assert "no_such_item" in await failure(client, "item", key=key)
                assert "no_such_item" in await failure(client, "search", key=key)
            found = await call(client, "search", id=1, k=24, fields=["*"])
            assert all(hit["metadata"] == {} and hit["key"] is None for hit in found["results"])
            assert {hit["thumbnail"].split("/items/")[0] for hit in found["results"]} == {"/collections/cars"}
        for collection in ("birds", "fish", None):
            with raises(ServiceError, "service"):
                async with reaching_service(url, collection):
                    raise AssertionError("the key does not read it")

    with answering(app) as url:
        anyio.run(ask, url)
    app.state.collections.close()


def test_a_service_that_does_not_answer_is_an_error(server: Running) -> None:
    async def reach(url: str, collection: str | None = None) -> None:
        async with reaching_service(url, collection):
            raise AssertionError("it does not answer")

    for url, collection in (("http://127.0.0.1:9", None), (server.url, "no-such")):
        with raises(ServiceError, "service"):
            anyio.run(reach, url, collection)
