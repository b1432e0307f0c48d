"""`zoo search --url`, beside the same search in the folder."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from serving.search_command import SEARCH
from tests.serving import toys
from tests.serving.running import Running
from zoo.errors import GalleryError, UsageError


def search(*words: object) -> None:
    parser = ArgumentParser()
    SEARCH.configure(parser)
    SEARCH.run(parser.parse_args([str(word) for word in words]))


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


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = ("--url", "http://127.0.0.1:9")
    Path("key").write_bytes(b"\xff\xfe")
    for words, kind, message in (
        ([], UsageError, "--url"),
        ([*url], UsageError, "one of the three"),
        ([*url, "a.png", "--id", 1], UsageError, "one of the three"),
        ([*url, "gallery", "a.png"], UsageError, "give an image"),
        ([*url, "a.png", "--model", "m"], UsageError, "give an image"),
        (["gallery", "a.png", "--key-file", "key"], UsageError, "--url"),
        ([*url, "--id", 1, "--key-file", "key"], UsageError, "ASCII"),
        ([*url, "--id", 1, "--key-file", "nowhere"], UsageError, "cannot be read"),
        ([*url, "a.png"], GalleryError, "cannot be read"),
        (["--url", "ftp://h", "--id", 1], GalleryError, "no address"),
    ):
        with pytest.raises(kind, match=message):
            search(*words)
