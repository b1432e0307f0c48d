from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serving.gallery import Gallery
from serving.gallery.indexing import index_folder
from serving.server import listen
from tests.children import run_python
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import run, serving
from zoo.errors import ImageError, ItemNotFoundError, ModelFolderError, ModelNotFoundError, UsageError, ZooError
from zoo.models.card import read_card
from zoo.models.load import Embedder


@pytest.fixture
def query(tmp_path: Path) -> Path:
    (tmp_path / "query.png").write_bytes(toys.query(2))
    return tmp_path / "query.png"


def test_index_then_search(
    model_folder: Path, pictures: Path, query: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = tmp_path / "g"
    run_here("index", model_folder, pictures, "--out", gallery, "--json")
    assert json.loads(capsys.readouterr().out)["items"] == 24
    run_here("index", model_folder, pictures, "--out", gallery)
    assert capsys.readouterr().out == f"{gallery}: 24 images; 0 added, 24 were there already, 0 could not be read\n"
    run_here("index", model_folder, pictures / "green disc", "--out", gallery)
    moved, staying = capsys.readouterr().out.splitlines()[1:]
    assert moved.startswith("6 have moved")
    assert staying.startswith("18 are not among the images indexed now")
    run_here("index", model_folder, pictures, "--out", gallery, "--json")
    outcome = capsys.readouterr()
    assert json.loads(outcome.out)["moved"] == 6
    assert outcome.err == ""
    run_here("search", gallery, query, "-k", 3, "--json")
    assert [hit["label"] for hit in json.loads(capsys.readouterr().out)["results"]] == ["green disc"] * 3
    run_here("search", gallery, "--id", 1, "-k", 3)
    table = capsys.readouterr().out
    assert toys.HTML_LABEL in table
    assert "similarity" in table


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        ([], UsageError, "no-query"),
        (["query.png", "--id", "1"], UsageError, "no-query"),
        (["query.png", "-k", "0"], UsageError, "bad-number"),
        (["nowhere.png"], ImageError, "no-such-image"),
        (["--id", "99"], ItemNotFoundError, None),
        (["--id", "1", "--model", "none-of-mine"], ModelNotFoundError, "no-model"),
    ],
)
def test_mistakes_in_a_search_are_named(
    gallery_folder: Path,
    query: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    kind: type[ZooError],
    code: str | None,
) -> None:
    monkeypatch.chdir(query.parent)
    with raises(kind, code):
        run_here("search", gallery_folder, *words)


def test_a_model_without_onnx_is_refused(pictures: Path, tmp_path: Path) -> None:
    bare = toys.write_model(tmp_path / "bare")
    card = read_card(bare)
    shutil.rmtree(bare / "onnx")
    replace(card, files={"model.safetensors": card.files["model.safetensors"]}).write(bare)
    with pytest.raises(ModelFolderError) as caught:
        run_here("index", bare, pictures, "--out", tmp_path / "g")
    assert "zoo export" in str(caught.value)


def test_an_unusable_gallery_or_address_is_not_served(tmp_path: Path, gallery_folder: Path) -> None:
    for words, message in (
        ((tmp_path,), "zoo index MODEL DIR"),
        ((gallery_folder, "--host", "::"), "ZOO_SERVE_READ_KEYS"),
    ):
        outcome = run("serve", *words, "--port", 0)
        assert outcome.returncode in (1, 2)
        assert message in outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert outcome.stdout == ""


def test_addresses() -> None:
    for host in ("127.0.0.1", "localhost"):
        listen(host, 0, public=False).close()
    listen("0.0.0.0", 0, public=True).close()
    for host, port, part in (
        ("0.0.0.0", 0, "key"),
        ("nowhere.invalid", 0, "nowhere.invalid"),
        ("::1", 65536, "65535"),
        (f"{'a' * 64}.example", 0, "example"),
        ("a..b", 0, "a..b"),
    ):
        with raises(UsageError) as caught:
            listen(host, port, public=False)
        assert part in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as taken, raises(UsageError) as caught:
        listen("127.0.0.1", taken.getsockname()[1], public=False)
    assert "--port" in str(caught.value)


def test_an_answer_in_two_pieces_does_not_wait_for_the_first_to_be_acknowledged() -> None:
    with listen("127.0.0.1", 0, public=False) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_demo_uses_another_port_if_its_own_is_taken() -> None:
    from demo import free_port

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) == 0
    assert free_port(port) == port
    assert free_port(70_000) == 0


def test_a_server_sees_what_is_indexed_meanwhile(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    gallery = tmp_path / "g"
    index_folder(model, str(model.folder), pictures / "red stripes", gallery)
    with serving(gallery) as server:

        def found() -> list[str]:
            answer = httpx.post(f"{server.url}/search", files={"image": toys.query(1)}, params={"k": 100})
            return [hit["source"] for hit in answer.json()["results"]]

        assert len(found()) == toys.PER_CLASS
        index_folder(model, str(model.folder), pictures, gallery)
        assert len(found()) == toys.PER_CLASS * len(toys.CLASSES)
        assert found()[0].startswith("blue checks")
        with Gallery.open(gallery) as opened:
            opened.remove([item.id for item in opened.store.items(limit=100, label="blue checks")])
        assert len(found()) == toys.PER_CLASS * (len(toys.CLASSES) - 1)
        assert not found()[0].startswith("blue checks")
        assert server.stop(signal.SIGINT) == 0


def test_a_request_under_way_is_answered_before_the_end(gallery_folder: Path) -> None:
    image = toys.query(0)
    with serving(gallery_folder, stderr=subprocess.PIPE) as server:

        def break_off() -> Iterator[bytes]:
            yield image[:100]
            raise InterruptedError

        def slowly() -> Iterator[bytes]:
            yield image[:100]
            server.process.send_signal(signal.SIGTERM)
            yield image[100:]

        headers = {"content-type": "image/png"}
        with pytest.raises(InterruptedError):
            httpx.post(f"{server.url}/search", content=break_off(), headers=headers)
        answer = httpx.post(f"{server.url}/search", content=slowly(), headers=headers)
        assert answer.json()["results"][0]["label"] == "red stripes"
        said, complaints = server.process.communicate(timeout=20)
        assert (server.process.returncode, said, complaints) == (0, "", "")


def test_the_omitted_layers_are_those_of_bentoml() -> None:
    """By another name they would stay, and keep every request in memory for a minute."""
    code = """
from serving.service import ImageSearch
from serving.worker import SUPERFLUOUS, lean
app = ImageSearch.to_asgi()
names = lambda: {layer.cls.__name__ for layer in app.user_middleware}
print(names() >= SUPERFLUOUS, names() & SUPERFLUOUS == set(), end=" ")
lean(app)
print(names() & SUPERFLUOUS == set())
"""
    assert run_python(code).strip() == "True False True"


def test_bentoml_sends_no_statistics() -> None:
    code = """
import serving.service
from bentoml._internal.utils.analytics.usage_stats import do_not_track
print(do_not_track())
"""
    assert run_python(code).strip() == "True"
