"""`zoo search --url`, beside the same search in the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from serving.gallery import VectorGallery
from serving.gallery.calibration import calibrate_gallery
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import Running, answering, app_over, serving
from zoo.cli.main import main
from zoo.errors import ItemNotFoundError, ServiceError, UsageError
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


def test_a_key_is_searched_in_the_folder_and_at_the_service(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.store.describe(3, key="cam-1/0001")

    def told(*words: object) -> dict:
        search(*words, "-k", 4, "--json")
        return json.loads(capsys.readouterr().out)

    with answering(app_over(path)) as url:
        for place in ([path], ["--url", url]):
            answer = told(*place, "--key", "cam-1/0001")
            assert answer["query"] == {"image": None, "id": None, "key": "cam-1/0001"}
            assert answer["results"] == told(*place, "--id", 3)["results"]
            with raises(ItemNotFoundError):
                search(*place, "--key", "cam-1")
            with raises(UsageError, "invalid-item"):
                search(*place, "--key", "")
            for other in (("--id", 3), ("--text", "a")):
                with raises(UsageError, "missing-value"):
                    search(*place, "--key", "cam-1/0001", *other)


def test_results_show_the_metadata_that_are_asked_for(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.store.describe(3, metadata={"price": 9.5, "tags": ["a", None], "label": "own"})

    def told(*words: object) -> list[dict]:
        search(*words, "-k", 23, "--json")
        return json.loads(capsys.readouterr().out)["results"]

    with answering(app_over(path)) as url:
        for place in ([path], ["--url", url]):
            assert all("metadata" not in result for result in told(*place, "--id", 4))
            found = {result["id"]: result["metadata"] for result in told(*place, "--id", 4, "--fields", "*")}
            assert found[3] == {"price": 9.5, "tags": ["a", None], "label": "own"}
            assert {number: values for number, values in found.items() if values} == {3: found[3]}
            some = told(*place, "--id", 4, "--fields", "price", "--fields", "size")
            assert next(result["metadata"] for result in some if result["id"] == 3) == {"price": 9.5}
            search(*place, "--id", 4, "-k", 23, "--fields", "*")
            printed = capsys.readouterr().out
            assert "9.5" in printed
            assert '["a", null]' in printed


def test_a_calibrated_gallery_says_how_likely_each_result_is(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, copy = tmp_path / "query.png", tmp_path / "gallery"
    query.write_bytes(toys.query(2))
    shutil.copytree(gallery_folder, copy)
    search(copy, query)
    assert "p_same" not in capsys.readouterr().out
    with VectorGallery.open(copy) as gallery:
        calibrate_gallery(gallery)
    search(copy, query, "--json")
    here = [hit["p_same"] for hit in json.loads(capsys.readouterr().out)["results"]]
    with answering(app_over(copy)) as url:
        answer = httpx.post(f"{url}/search", files={"image": query.read_bytes()}).json()["results"]
        for words in ((copy, query), ("--url", url, query)):
            search(*words)
            header, _, *rows = capsys.readouterr().out.splitlines()
            assert header.split()[:2] == ["similarity", "p_same"]
            assert [row.split()[1] for row in rows] == [f"{hit['p_same']:.2f}" for hit in answer]
    assert here == pytest.approx([hit["p_same"] for hit in answer], abs=1e-3)


def test_items_are_chosen_by_label_and_metadata(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, copy = tmp_path / "query.png", tmp_path / "gallery"
    query.write_bytes(toys.query(2))
    shutil.copytree(gallery_folder, copy)
    with VectorGallery.open(copy) as gallery:
        for item, year in ((1, 1908), (2, 1950), (9, 1908)):
            gallery.store.describe(item, metadata={"year": year})
        labels = gallery.store.labels()
    where = ("--where", '{"year": {"gte": 1900, "lt": 1950}}')
    with answering(app_over(copy)) as url:
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
    for bad, code in (("{", "invalid-value"), ("[1]", "invalid-value"), ('{"year": {"above": 3}}', "invalid-value")):
        with raises(UsageError, code):
            search(copy, query, "--where", bad)


def test_the_exit_status_separates_wrong_usage_from_a_failed_service(
    server: Running, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, status, says in (
        (["--id", "1", "--collection", "birds"], 2, "'birds'"),
        (["--id", "999"], 2, "999"),
        (["--id", "1", "-k", "99999"], 2, "k "),
        (["nowhere.png"], 2, "nowhere.png"),
        (["--id", "1", "--label", "\udcff"], 2, "udcff"),
        (["--id", "1", "--where", ""], 2, "--where"),
        (["--id", "1", "--where", f'{{"a": {"1" * 5000}}}'], 2, "--where"),
        (
            ["--id", "1", *(f"--label={n:050d}" for n in range(1500))],
            2,
            "60,000",
        ),
    ):
        assert main(["search", "--url", server.url, *words]) == status
        assert says in capsys.readouterr().err
    assert main(["search", "--url", "127.0.0.1:3000", "--id", "1"]) == 2
    assert main(["search", "--url", "http://127.0.0.1:9", "--id", "1"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_missing_or_wrong_key_names_the_option(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").write_text("another-key-of-it")
    with answering(app_over(gallery_folder, read_keys="the-read-key-of-it")) as url:
        for words in ([], ["--key-file", str(tmp_path / "wrong")]):
            assert main(["search", "--url", url, "--id", "1", *words]) == 2
            assert "--key-file" in capsys.readouterr().err


def test_a_collection_is_searched_with_its_key(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("the-key-of-the-birds")
    keys = {"ZOO_SERVE_READ_KEYS_BIRDS": SecretStr("the-key-of-the-birds")}
    with answering(app_over([f"birds={gallery_folder}", f"cars={gallery_folder}"], collection_keys=keys)) as url:
        words = ["--url", url, "--collection", "birds", "--id", 3, "-k", 2, "--json"]
        search(*words, "--key-file", tmp_path / "key")
        found = json.loads(capsys.readouterr().out)["results"]
        search(gallery_folder, "--id", 3, "-k", 2, "--json")
        assert [hit["id"] for hit in found] == [h["id"] for h in json.loads(capsys.readouterr().out)["results"]]
        with raises(ServiceError, "key_needed"):
            search(*words)
        with raises(ServiceError, "name_a_collection") as caught:
            search("--url", url, "--id", 3)
        assert "--collection NAME. They are: cars." in str(caught.value)
        assert "/collections/" not in str(caught.value)
        with raises(ServiceError, "name_a_collection") as caught:
            search("--url", url, "--id", 3, "--key-file", tmp_path / "key")
        assert "birds, cars." in str(caught.value)
    with raises(UsageError, "option-without-effect"):
        search(gallery_folder, "--collection", "birds", "--id", 3)


def test_a_text_is_searched_in_the_folder_and_at_the_service(
    text_gallery: Path, gallery_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    with answering(app_over(text_gallery)) as url:
        for place in ([text_gallery], ["--url", url]):
            search(*place, "--text", "a red chair", "-k", 4, "--json")
            answers.append(json.loads(capsys.readouterr().out))
    for answer in answers:
        assert answer["query"] == {"image": None, "id": None, "text": "a red chair"}
        assert [hit["id"] for hit in answer["results"]] == [hit["id"] for hit in answers[0]["results"]]
    assert main(["search", str(text_gallery), "--text", "rain " * 50]) == 0
    assert capsys.readouterr().err, "the end of the text was left out"
    for words in (
        (gallery_folder, "--text", "a"),
        (text_gallery, "--text", " "),
        (text_gallery, "--text", "a", "--id", 1),
        ("--url", "http://127.0.0.1:9", "a.png", "--text", "a"),
    ):
        assert main(["search", *map(str, words)]) == 2


@pytest.mark.slow
def test_a_service_does_not_start_with_a_changed_text_tower(
    text_gallery: Path, towers: Embedder, tmp_path: Path
) -> None:
    changed = Path(shutil.copytree(towers.folder, tmp_path / "changed"))
    (changed / "tokenizer.json").write_text("{}")
    with pytest.raises(AssertionError, match="the server ended with 1"), serving(text_gallery, "--model", changed):
        pass


def test_the_serving_process_holds_no_torch(server: Running) -> None:
    assert httpx.post(f"{server.url}/search?id=1").status_code == 200
    assert "torch" not in Path(f"/proc/{server.process.pid}/maps").read_text()


@pytest.mark.parametrize(("status", "ends"), [(401, 2), (404, 2), (422, 2), (408, 1), (429, 1), (500, 1), (None, 1)])
def test_the_exit_status_of_an_answer(status: int | None, ends: int) -> None:
    assert ServiceError("so", status).exit_code == ends


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = ("--url", "http://127.0.0.1:9")
    Path("key").write_bytes(b"\xff\xfe")
    for words, code in (
        ([], "missing-value"),
        ([*url], "missing-value"),
        ([*url, "a.png", "--id", 1], "missing-value"),
        ([*url, "gallery", "a.png"], "command-line"),
        ([*url, "a.png", "--model", "m"], "option-without-effect"),
        (["gallery", "a.png", "--key-file", "key"], "option-without-effect"),
        ([*url, "--id", 1, "--key-file", "key"], "invalid-item"),
        ([*url, "--id", 1, "--key-file", "nowhere"], "unreadable-file"),
        ([*url, "a.png"], "not-found"),
        ([*url, "."], "not-found"),
        ([*url, "--id", 1, "--where", "a=1"], "invalid-value"),
        (["--url", "ftp://h", "--id", 1], "invalid-value"),
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
