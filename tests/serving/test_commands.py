from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.gallery import VectorGallery
from serving.gallery.filters import Filter
from serving.gallery.indexing import index_folder
from serving.openai_shapes import EmbeddingRequest
from tests.commandline import parsed, run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import serving
from zoo.errors import (
    ImageError,
    ItemNotFoundError,
    ModelFolderError,
    ModelNotFoundError,
    UsageError,
    VariantNotFoundError,
    ZooError,
)
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
    report = json.loads(capsys.readouterr().out)
    assert (report["items"], report["seconds"] > 0) == (24, True)
    run_here("index", model_folder, pictures, "--out", gallery)
    assert capsys.readouterr().out == f"{gallery}: 24 images; 0 added, 24 already there, 0 unreadable\n"
    run_here("index", model_folder, pictures / "green disc", "--out", gallery)
    moved, staying = capsys.readouterr().out.splitlines()[1:]
    assert moved.startswith("6 items updated: moved")
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
        ([], UsageError, "missing-value"),
        (["query.png", "--id", "1"], UsageError, "missing-value"),
        (["query.png", "-k", "0"], UsageError, "invalid-value"),
        (["nowhere.png"], ImageError, "not-found"),
        (["--id", "99"], ItemNotFoundError, None),
        (["--id", "1", "--model", "none-of-mine"], ModelNotFoundError, "model-not-found"),
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


def test_with_runtime_onnx_a_model_without_a_graph_is_refused(pictures: Path, tmp_path: Path) -> None:
    bare = toys.write_model(tmp_path / "bare")
    card = read_card(bare)
    shutil.rmtree(bare / "onnx")
    replace(card, files={"model.safetensors": card.files["model.safetensors"]}).write(bare)
    with pytest.raises(ModelFolderError) as caught:
        run_here("index", bare, pictures, "--out", tmp_path / "g", "--runtime", "onnx")
    assert "zoo export" in str(caught.value)


def test_no_graph_is_made_for_a_precision_that_the_environment_names(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, gallery = toys.write_model(tmp_path / "model"), tmp_path / "g"
    run_here("index", model, pictures, "--out", gallery, "--runtime", "onnx")
    card = read_card(model)
    shutil.rmtree(model / "onnx")
    replace(card, files={"model.safetensors": card.files["model.safetensors"]}).write(model)
    started: list[object] = []
    monkeypatch.setattr("subprocess.run", lambda *words, **_: started.append(words))
    monkeypatch.setenv("ZOO_PRECISION", "fp16")
    with raises(VariantNotFoundError):
        run_here("serve", gallery, "--port", 0)
    assert started == []


@pytest.mark.slow
def test_the_demo_indexes_photographs_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import demo

    folder = tmp_path / "my photographs"
    (folder / "2024").mkdir(parents=True)
    for name in ("chelsea.png", "coffee.png"):
        shutil.copy(demo.sample_folder() / name, folder / "2024")
    (folder / "broken.jpg").write_bytes(b"no image")
    monkeypatch.setattr(demo, "HOME", tmp_path / "home")
    monkeypatch.setattr("sys.argv", ["demo.py", "--serve", "0", "--photos", str(folder)])
    monkeypatch.setenv("ZOO_HOME", "restored after the test")
    assert demo.main() == 0
    with VectorGallery.open(tmp_path / "home" / "gallery") as gallery:
        assert gallery.card.name == "photos"
        assert [item.source for item in gallery.store.items(limit=10)] == ["2024/chelsea.png", "2024/coffee.png"]
    monkeypatch.setattr("sys.argv", ["demo.py", "--serve", "0", "--photos", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 2


@pytest.mark.parametrize("photos", [None, Path("my photographs")])
def test_the_demo_ends_with_lines_that_can_be_copied(photos: Path | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a command that `zoo` knows, or a request that the service understands."""
    import demo

    demo.print_lines(photos)
    printed = capsys.readouterr().out.replace("\\\n", "").splitlines()
    starts = (shlex.quote(os.path.relpath(demo.ZOO)), "curl")
    lines = [shlex.split(line, comments=True) for line in printed if line.startswith(starts)]
    commands = [words[1:] for words in lines if words[0] != "curl"]
    given = [parsed(name, *words) for name, *words in commands]
    assert [name for name, *_ in commands] == ["index", "search", "serve", "mcp", "serve"]
    assert (photos or Path("PHOTOS")) in given[0].values()
    assert given[4]["embed"] == "photos"
    (request,) = [words for words in lines if words[0] == "curl"]
    assert request[-3:-1] == ["http://127.0.0.1:3000/v1/embeddings", "-d"]
    picture = base64.b64encode(toys.query(0)).decode()
    (content,) = EmbeddingRequest.model_validate_json(request[-1].replace("...", picture)).contents(False)
    assert content.image == toys.query(0)


def test_the_demo_uses_another_port_if_its_own_is_taken() -> None:
    from demo import free_port

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) == 0
    assert free_port(port) == port
    assert free_port(70_000) == 0


@pytest.mark.slow
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
        with VectorGallery.open(gallery) as opened:
            opened.remove([item.id for item in opened.store.items(0, 100, Filter(("blue checks",)))])
        assert len(found()) == toys.PER_CLASS * (len(toys.CLASSES) - 1)
        assert not found()[0].startswith("blue checks")
        assert server.stop(signal.SIGINT) == 0


def test_adding_says_what_was_assumed_about_a_file(
    model_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here("index", model_folder, pictures, "--out", tmp_path / "g")
    dark, plain = tmp_path / "dark.png", tmp_path / "plain.png"
    Image.fromarray(np.arange(900, dtype=np.uint16).reshape(30, 30)).save(dark)
    plain.write_bytes(toys.query(3))
    capsys.readouterr()
    run_here("gallery add", tmp_path / "g", plain, dark)
    assert capsys.readouterr().out.count("dark.png: ") == 1
    for file, number in ((dark, 1), (plain, 0)):
        run_here("gallery add", tmp_path / "g", file, "--key", file.stem, "--json")
        assert len(json.loads(capsys.readouterr().out)["notes"]) == number
