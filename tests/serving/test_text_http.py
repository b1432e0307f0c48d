"""Texts as queries: over a real connection, by the client, on the command line; and where the model has no tower."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serving import AsyncClient, Client
from serving.asking import MAX_TEXT
from serving.queries import QUERY_BYTES
from tests import text_toys
from tests.serving import toys
from tests.serving.running import Running, serving
from zoo.cli.main import main
from zoo.errors import ServiceError, UsageError
from zoo.models.load import Embedder

TEXT = "a red chair"


@pytest.fixture(scope="module")
def texts(text_server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=text_server.url, timeout=30) as client:
        yield client


def by_hand(towers: Embedder, pictures: Path, text: str, k: int) -> list[tuple[str, float]]:
    """Sources and similarities, by the tower as NumPy computes it and the images as the model embeds them."""
    files = sorted(path for path in pictures.rglob("*") if path.is_file())
    similarities = towers.embed(files) @ text_toys.expected([text], towers.dim)[0]
    order = np.argsort(-similarities, kind="stable")[:k]
    return [(str(files[i].relative_to(pictures)), float(similarities[i])) for i in order]


def found(answer: httpx.Response) -> list[tuple[str, float]]:
    assert answer.status_code == 200, answer.text
    return [(hit["source"], hit["similarity"]) for hit in answer.json()["results"]]


def test_every_way_to_send_a_text_finds_what_numpy_finds(texts: httpx.Client, towers: Embedder, pictures: Path) -> None:
    expected = by_hand(towers, pictures, TEXT, 7)
    answers = [
        texts.post("/search", json={"text": TEXT, "k": 7}),
        texts.post("/search", json={"text": [TEXT], "k": "7", "label": None}),
        texts.post("/search", data={"text": TEXT, "k": 7}),
        texts.post("/search", files={"text": (None, TEXT), "k": (None, "7")}),
        texts.post("/search", params={"text": TEXT, "k": 7}),
        texts.post("/search?k=7", json={"text": TEXT.upper()}),
    ]
    for answer in answers:
        got = found(answer)
        assert [source for source, _ in got] == [source for source, _ in expected]
        np.testing.assert_allclose([s for _, s in got], [s for _, s in expected], atol=1e-5)
    assert answers[0].json()["query"] == {"id": None, "text": TEXT, "truncated": False}
    assert {hit["p_same"] for hit in answers[0].json()["results"]} == {None}


def test_filters_pages_and_reranking_hold_for_texts(texts: httpx.Client) -> None:
    everything = found(texts.post("/search", json={"text": TEXT, "k": 24}))
    assert len(everything) == 24
    labels = [toys.CLASSES[0], toys.CLASSES[2]]
    chosen = found(texts.post("/search", json={"text": TEXT, "k": 24, "label": labels}))
    assert chosen == [hit for hit in everything if hit[0].rpartition("/")[0] in labels]
    assert found(texts.post("/search", json={"text": TEXT, "k": 5, "offset": 3})) == everything[3:8]
    least = everything[4][1]
    cut = found(texts.post("/search", json={"text": TEXT, "k": 24, "min_similarity": least}))
    assert cut == [hit for hit in everything if hit[1] >= least]
    assert found(texts.post("/search", json={"text": TEXT, "where": {"colour": "red"}})) == []
    for rerank in ("expansion", "reciprocal"):
        again = found(texts.post("/search", json={"text": TEXT, "k": 24, "rerank": rerank}))
        assert sorted(source for source, _ in again) == sorted(source for source, _ in everything)


def test_a_long_text_is_cut_and_the_answer_says_so(texts: httpx.Client) -> None:
    long = texts.post("/search", json={"text": "a red chair on the beach in rain"})
    short = texts.post("/search", json={"text": "a red chair on the beach"})
    assert (long.json()["query"]["truncated"], short.json()["query"]["truncated"]) == (True, False)
    assert found(long) == found(short)


def test_several_texts_and_an_empty_one_among_them(texts: httpx.Client) -> None:
    asked = [TEXT, "  ", "blue checks"]
    searches = texts.post("/search", json={"text": asked, "k": 3}).json()["searches"]
    assert [one["query"]["text"] for one in searches] == asked
    assert searches[1]["error"] == {"code": "invalid_text", "message": "Text 1 is empty."}
    assert searches[2]["query"]["truncated"] is False
    for one in (searches[0], searches[2]):
        alone = texts.post("/search", json={"text": one["query"]["text"], "k": 3}).json()
        assert one["results"] == alone["results"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"text": ""}, 422, "invalid_text"),
        ({"text": " \n"}, 422, "invalid_text"),
        ({"text": 17}, 422, "invalid_text"),
        ({"text": ["a", 17]}, 422, "invalid_text"),
        ({"text": {"a": 1}}, 422, "invalid_text"),
        ({"text": True}, 422, "invalid_text"),
        ({"text": "half \ud800"}, 400, "invalid_json"),
        ({"text": TEXT, "label": "half \ud800"}, 400, "invalid_json"),
        ({"text": TEXT, "where": {"a": "half \ud800"}}, 400, "invalid_json"),
        ({"text": []}, 400, "no_image"),
        ({}, 400, "no_image"),
        ([TEXT], 400, "invalid_json"),
        ({"text": "a" * (MAX_TEXT + 1)}, 413, "text_too_long"),
        ({"text": ["a"] * 33}, 400, "too_many_texts"),
        ({"text": TEXT, "id": 1}, 400, "text_and_other"),
        ({"text": TEXT, "crop": "0,0,1,1"}, 400, "crop_of_text"),
        ({"text": TEXT, "min_p": 0.5}, 422, "min_p_of_text"),
        ({"text": TEXT, "k": True}, 422, "invalid_k"),
        ({"text": TEXT, "k": [5]}, 422, "invalid_k"),
        ({"text": TEXT, "k": {"a": 5}}, 422, "invalid_k"),
        ({"text": TEXT, "k": 2.5}, 422, "invalid_k"),
        ({"text": TEXT, "min_similarity": float("nan")}, 422, "invalid_min_similarity"),
        ({"text": TEXT, "label": 5}, 422, "invalid_label"),
        ({"text": TEXT, "where": [1]}, 422, "invalid_where"),
        ({"text": TEXT, "txet": "x"}, 422, "unknown_parameter"),
        ({"text": TEXT, "\ud800": "x"}, 400, "invalid_json"),
    ],
)
def test_what_is_refused(texts: httpx.Client, body: Any, status: int, code: str) -> None:
    answer = texts.post("/search", content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_bodies_that_are_none(texts: httpx.Client) -> None:
    kinds = {"application/json": "invalid_json", "application/x-www-form-urlencoded": "invalid_form"}
    bodies = {
        "invalid_json": (b"\xff\xfe", b"[" * 100_000, b"", b'{"k": 1e999999}x'),
        "invalid_form": (b"text=\xff", b"text=%ff", b"a=1&" * 99),
    }
    for kind, code in kinds.items():
        for body in bodies[code]:
            answer = texts.post("/search", content=body, headers={"content-type": kind})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        large = texts.post("/search", content=b" " * (QUERY_BYTES + 1), headers={"content-type": kind})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    both = texts.post("/search", files={"image": toys.query(0), "text": (None, TEXT)})
    assert (both.status_code, both.json()["error"]["code"]) == (400, "text_and_other")
    assert texts.post("/items", json={"text": TEXT}).status_code in (403, 415)


def test_items_are_searched_by_json_too(texts: httpx.Client) -> None:
    assert found(texts.post("/search", json={"id": 1, "k": 3})) == found(texts.post("/search?id=1&k=3"))


def test_the_model_says_whether_it_takes_texts(texts: httpx.Client, http: httpx.Client) -> None:
    assert texts.get("/model").json()["text"] == {"length": text_toys.LENGTH}
    assert http.get("/model").json()["text"] is None


def test_a_model_without_a_tower_refuses_and_says_which_have_one(http: httpx.Client) -> None:
    for text in (TEXT, [TEXT, ""]):
        answer = http.post("/search", json={"text": text})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no_text_tower")
        assert "clip-b32, siglip2-b16" in answer.json()["error"]["message"]
        assert answer.json()["error"]["message"].startswith("toy-"), "a model's name stays as it is"


def test_clients_search_by_text(
    text_server: Running, server: Running, texts: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    expected = found(texts.post("/search", json={"text": TEXT, "k": 4}))

    async def awaited() -> list[Any]:
        async with AsyncClient(text_server.url) as client:
            return await client.search(text=TEXT, k=4)

    with Client(text_server.url) as client:
        for matches in (client.search(text=TEXT, k=4), asyncio.run(awaited())):
            assert [(match.source, match.similarity) for match in matches] == expected
        assert client.model().text == {"length": text_toys.LENGTH}
        assert not caplog.records
        client.search(text="rain " * 50)
        assert "its end was left out" in caplog.text
        with pytest.raises(UsageError, match="one of the three"):
            client.search(toys.query(0), text=TEXT)
    with Client(server.url) as other, pytest.raises(ServiceError, match="no text tower") as raised:
        other.search(text=TEXT)
    assert (raised.value.status, raised.value.code) == (422, "no_text_tower")


def test_the_command_line_searches_by_text(
    text_server: Running,
    text_gallery: Path,
    gallery_folder: Path,
    texts: httpx.Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = [source for source, _ in found(texts.post("/search", json={"text": TEXT, "k": 4}))]
    for where in ([str(text_gallery)], ["--url", text_server.url]):
        assert main(["search", *where, "--text", TEXT, "-k", "4", "--json"]) == 0
        out = json.loads(capsys.readouterr().out)
        assert out["query"] == {"image": None, "id": None, "text": TEXT}
        assert [hit["source"] for hit in out["results"]] == expected
    assert main(["search", str(text_gallery), "--text", "rain " * 50]) == 0
    assert "its end was left out" in capsys.readouterr().err
    for words, status, says in (
        ([str(gallery_folder), "--text", TEXT], 2, "has no text tower"),
        ([str(text_gallery), "--text", " "], 2, "text 1 is empty"),
        ([str(text_gallery), "--text", TEXT, "--id", "1"], 2, "one of the three"),
        (["--url", text_server.url, "a.png", "--text", TEXT], 2, "one of the three"),
    ):
        assert main(["search", *words]) == status
        assert says in capsys.readouterr().err


def test_a_service_does_not_start_with_a_tower_that_is_not_its_own(
    text_gallery: Path, towers: Embedder, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(towers.folder, tmp_path / "moved"))
    (moved / "tokenizer.json").write_text("{}")
    with pytest.raises(AssertionError, match="the server ended with 1"), serving(text_gallery, "--model", moved):
        pass
