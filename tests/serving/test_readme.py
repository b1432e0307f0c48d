"""Every curl line of the README and of docs/serve.md, run by curl as it stands there, against a real service."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.configuration import WRITE_KEYS
from serving.gallery.builder import index_folder
from tests.serving import toys
from tests.serving.running import ROOT, Running, serving
from zoo.embedder import Embedder

HOST, KEY = "http://127.0.0.1:3000", "a-key-of-this-test-alone"
CURL = shutil.which("curl")


def curl_lines(document: str) -> list[str]:
    """Those of code blocks, and those within a sentence."""
    text = (ROOT / document).read_text("utf-8")
    lines = re.findall(r"^(curl .*)$|`(curl [^`]+)`", text, re.MULTILINE)
    return [block or inline for block, inline in lines]


LINES = [line for document in ("README.md", "docs/serve.md") for line in curl_lines(document)]
FILES = {name for line in LINES for name in re.findall(r"@([\w./-]+)", line)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In which the files that the lines name lie, each another picture, in folders that are their labels."""
    made, rng = tmp_path_factory.mktemp("readme"), np.random.default_rng(0)
    for name in sorted(FILES):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        toys.picture(0, rng).save(made / name)
    for number in range(5):
        for kind, label in enumerate(("greek-small-xi", "other")):
            (made / "pictures" / label).mkdir(parents=True, exist_ok=True)
            toys.picture(kind, rng).save(made / "pictures" / label / f"1{number}.png")
    return made


@pytest.fixture(scope="module")
def gallery(model: Embedder, folder: Path) -> Path:
    index_folder(model, str(model.folder), folder / "pictures", folder / "gallery")
    return folder / "gallery"


@pytest.fixture(scope="module")
def service(gallery: Path) -> Iterator[Running]:
    with serving(gallery, environment={WRITE_KEYS: KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def collections(gallery: Path) -> Iterator[Running]:
    with serving([f"birds={gallery}"]) as running:
        yield running


def asked_by(line: str) -> str:
    """The fixture of the service that a line is for."""
    if "/collections" in line:
        return "collections"
    return "text_server" if "text=" in line else "service"


def test_there_are_lines_to_run() -> None:
    paths = {re.search(r"3000(/[\w/]+)", line)[1] for line in LINES}
    assert {"/search", "/embed", "/items", "/readyz", "/collections", "/collections/birds/search"} <= paths


@pytest.mark.skipif(CURL is None, reason="there is no curl")
@pytest.mark.parametrize("line", LINES)
def test_a_curl_line_of_the_documents_works(line: str, folder: Path, request: pytest.FixtureRequest) -> None:
    running: Running = request.getfixturevalue(asked_by(line))
    assert HOST in line
    words = shlex.split(line.replace(HOST, running.url).replace("$KEY", KEY), comments=True)
    done = subprocess.run(
        [CURL, "--disable", "--noproxy", "*", "-sS", "-w", "%{stderr}%{http_code}", *words[1:]],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rb"2\d\d", done.stderr), done.stdout
    if "/search" in line:
        assert json.loads(done.stdout)["results"]
    if "format=npy" in line:
        assert np.load(folder / "row.npy").shape[-1] == toys.DIM
