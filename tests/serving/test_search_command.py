"""`zoo search --url`, beside the same search in the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from serving.app import create_app
from serving.client import core
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import READ_KEYS
from serving.gallery import Gallery
from serving.gallery.search import Searcher
from serving.keys import Keys
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import Running, answering
from zoo.cli.main import main
from zoo.errors import ServiceError, UsageError
from zoo.models.load import Embedder


def search(*words: object) -> None:
    run_here("search", *words)


def test_a_service_finds_what_the_folder_does(
    server: Running, gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, key = tmp_path / "query.png", tmp_path / "key"
    query.write_bytes(toys.query(2))
    key.write_text("k" * 20 + "\n")

    def told(*words: object) -> dict:
        search(*words, "-k", 3, "--json")
        return json.loads(capsys.readouterr().out)

    here, there = told(gallery_folder, query), told("--url", server.url, query, "--key-file", key)
    assert here["query"] == there["query"]
    for one, other in zip(here["results"], there["results"], strict=True):
        assert one["similarity"] == pytest.approx(other["similarity"], abs=1e-5)
        assert (one["id"], one["label"], one["source"]) == (other["id"], other["label"], other["source"])
    assert [one["id"] for one in told("--url", server.url, "--id", 3)["results"]] == [
        one["id"] for one in told(gallery_folder, "--id", 3)["results"]
    ]
    search("--url", server.url, query)
    assert "green disc" in capsys.readouterr().out


def test_items_are_chosen_by_label_and_metadata(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, copy = tmp_path / "query.png", tmp_path / "gallery"
    query.write_bytes(toys.query(2))
    shutil.copytree(gallery_folder, copy)
    with Gallery.open(copy) as gallery:
        for item, year in ((1, 1908), (2, 1950), (9, 1908)):
            gallery.store.describe(item, metadata={"year": year})
        labels = gallery.store.labels()
    where = ("--where", '{"year": {"gte": 1900, "lt": 1950}}')
    app = create_app(Collections([Collection("", lambda: Searcher.open(copy), Keys.of({}))]))
    with answering(app) as url:
        for words in ((copy, query), ("--url", url, query)):
            for chosen, expected in (
                (where, {1, 9}),
                ((*where, "--label", labels[1]), {1}),
                (
                    ("--label", labels[1], "--label", labels[9]),
                    {n for n, one in labels.items() if one in (labels[1], labels[9])},
                ),
            ):
                search(*words, *chosen, "-k", 24, "--json")
                assert {one["id"] for one in json.loads(capsys.readouterr().out)["results"]} == expected
    assert main(["gallery", "list", str(copy), *where, "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["items"]] == [1, 9]
    assert main(["gallery", "list", str(copy), "--label", "red strips"]) == 0
    assert "no item has the label 'red strips'. Did you mean" in capsys.readouterr().err
    for bad, code in (("{", "not-json"), ("[1]", "not-a-json-object"), ('{"year": {"above": 3}}', None)):
        with raises(UsageError, code):
            search(copy, query, "--where", bad)


def test_the_exit_status_separates_wrong_usage_from_a_failed_service(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "FIRST_WAIT", 0.0)
    for words, status, says in (
        (["--id", "1", "--collection", "birds"], 2, "has one gallery, which has no name"),
        (["--id", "999"], 2, "no item 999"),
        (["--id", "1", "-k", "99999"], 2, "k must be"),
        (["nowhere.png"], 2, "nowhere.png is not there"),
        (["--id", "1", "--label", "\udcff"], 2, "is no Unicode text"),
        (["--id", "1", "--where", ""], 2, "--where"),
        (["--id", "1", "--where", f'{{"a": {"1" * 5000}}}'], 2, "--where"),
        (
            ["--id", "1", *(f"--label={n:050d}" for n in range(1500))],
            2,
            "characters long in an address, which has 60,000",
        ),
    ):
        assert main(["search", "--url", server.url, *words]) == status
        assert says in capsys.readouterr().err
    assert main(["search", "--url", "127.0.0.1:3000", "--id", "1"]) == 2
    assert main(["search", "--url", "http://127.0.0.1:9", "--id", "1"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_missing_or_wrong_key_names_the_option(
    gallery_folder: Path, model: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").write_text("another-key-of-it")
    with Gallery.open(gallery_folder) as gallery:
        keys = Keys.of({READ_KEYS: "the-read-key-of-it"})
        searcher = Searcher(gallery, model)
        with answering(create_app(Collections([Collection("", lambda: searcher, keys)]))) as url:
            for words in ([], ["--key-file", str(tmp_path / "wrong")]):
                assert main(["search", "--url", url, "--id", "1", *words]) == 2
                assert "--key-file or ZOO_SERVE_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "ends"), [(401, 2), (404, 2), (422, 2), (408, 1), (429, 1), (500, 1), (None, 1)])
def test_the_exit_status_of_an_answer(status: int | None, ends: int) -> None:
    assert ServiceError("so", status).exit_code == ends


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = ("--url", "http://127.0.0.1:9")
    Path("key").write_bytes(b"\xff\xfe")
    for words, code in (
        ([], "no-gallery"),
        ([*url], "no-query"),
        ([*url, "a.png", "--id", 1], "no-query"),
        ([*url, "gallery", "a.png"], "options-of-a-folder"),
        ([*url, "a.png", "--model", "m"], "options-of-a-folder"),
        (["gallery", "a.png", "--key-file", "key"], "options-of-a-service"),
        ([*url, "--id", 1, "--key-file", "key"], "bad-key"),
        ([*url, "--id", 1, "--key-file", "nowhere"], "unreadable-file"),
        ([*url, "a.png"], "no-image"),
        ([*url, "."], "no-image"),
        (["--url", "ftp://h", "--id", 1], "bad-url"),
    ):
        with raises(UsageError, code):
            search(*words)


def test_an_option_may_stand_between_the_gallery_and_the_image(
    gallery_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("query.png", "-query.png"):
        Path(name).write_bytes(toys.query(2))

    def told(*words: str) -> list[dict]:
        assert main(["search", *words]) == 0
        return json.loads(capsys.readouterr().out)["results"]

    gallery, image = str(gallery_folder), "query.png"
    expected = told(gallery, image, "-k", "3", "--json")
    assert len(expected) == 3
    for words in ((gallery, "-k", "3", image, "--json"), ("-k", "3", gallery, "--json", image)):
        assert told(*words) == expected
    assert told("-k", "3", "--json", "--", gallery, "-query.png") == expected
    assert told(gallery, "-k", "3", "--json", "--", "-query.png") == expected
