"""Clients of applications without a server, over galleries of the toy pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.serving.running import local_client

KEY = "write-key-of-the-routes"


@pytest.fixture(scope="module")
def http(gallery_folder: Path) -> Iterator[TestClient]:
    """A client that reads the shared gallery."""
    with local_client(gallery_folder) as client:
        yield client


@pytest.fixture(scope="module")
def texts(text_gallery: Path) -> Iterator[TestClient]:
    """A client of a gallery whose model has a text tower."""
    with local_client(text_gallery) as client:
        yield client


@pytest.fixture(scope="module")
def written_folder(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the gallery that the tests of a module change."""
    return Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("written") / "gallery"))


@pytest.fixture(scope="module")
def service(written_folder: Path) -> Iterator[TestClient]:
    """A client with a write key of that copy."""
    with local_client(written_folder, KEY) as client:
        yield client
