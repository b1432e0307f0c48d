from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from serving import Client
from serving.client import calls as client
from serving.gallery.indexing import index_folder
from serving.gallery.rebuild import Upgrade
from tests import text_toys
from tests.serving import toys
from tests.serving.clients import KEY, Awaited
from tests.serving.running import Running, serving
from zoo.models.load import Embedder, load
from zoo.models.text_graph import attach_text_tower

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")


@pytest.fixture(scope="session")
def model(model_folder: Path) -> Embedder:
    return load(model_folder, runtime="onnx")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return load(toys.write_model(tmp_path_factory.mktemp("models") / "other", seed=9, name="other"), runtime="onnx")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def folder(tmp_path: Path, pictures: Path) -> Path:
    """A copy of the toy pictures, to change."""
    return Path(shutil.copytree(pictures, tmp_path / "pictures"))


@pytest.fixture(scope="session")
def gallery_folder(tmp_path_factory: pytest.TempPathFactory, model: Embedder, pictures: Path) -> Path:
    """A gallery of the toy pictures. Read it only: the server of this session serves it."""
    out = tmp_path_factory.mktemp("galleries") / "toys"
    index_folder(model, str(model.folder), pictures, out, batch_size=5)
    return out


@pytest.fixture
def path(gallery_folder: Path, tmp_path: Path) -> Path:
    """A copy of the gallery, to change."""
    return Path(shutil.copytree(gallery_folder, tmp_path / "g"))


@pytest.fixture(scope="session")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """The toy model with a text tower."""
    folder = toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")
    attach_text_tower(folder, *text_toys.write_tower(folder.parent / "text", toys.DIM, padded=True))
    return load(folder, runtime="onnx")


@pytest.fixture(scope="session")
def text_gallery(towers: Embedder, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of the toy pictures that is searched by texts. Read it only."""
    out = tmp_path_factory.mktemp("galleries") / "texts"
    index_folder(towers, str(towers.folder), pictures, out, batch_size=8)
    return out


@pytest.fixture(scope="session")
def text_server(text_gallery: Path) -> Iterator[Running]:
    with serving(text_gallery) as running:
        yield running


@pytest.fixture(scope="session")
def server(gallery_folder: Path) -> Iterator[Running]:
    with serving(gallery_folder) as running:
        yield running


@pytest.fixture(scope="session")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as connected:
        yield connected


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one module: while it is open, playwright's loop stands in the way of others' `asyncio.run`."""
    from tests.serving.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def writable(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of a copy of the gallery of toys, to change with the key `KEY`."""
    copy = Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("writable") / "gallery"))
    with serving(copy, environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as running:
        yield running


@pytest.fixture
def unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap rebuilt galleries at once: no service has to be given notice to load their model first."""
    monkeypatch.setattr(Upgrade, "swap", functools.partialmethod(Upgrade.swap, notice=0))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients pause only for a moment before they try again, and find no key."""
    monkeypatch.setattr(client, "_pause", lambda state: 0.001)
    monkeypatch.delenv(client.KEY, raising=False)


@pytest.fixture(params=[Client, Awaited])
def kind(request: pytest.FixtureRequest, quick: None) -> Iterator[Any]:
    """Makes clients of either kind, which are closed in the end."""
    made = []

    def make(*args: Any, **values: Any) -> Any:
        made.append(request.param(*args, **values))
        return made[-1]

    make.name = request.param.__name__
    yield make
    for each in made:
        each.close()
