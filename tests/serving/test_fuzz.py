"""The short form of `make proof PART=fuzz`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import fuzz
from tests.proof.service import Service, service


@pytest.fixture(scope="module")
def served(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(gallery_folder, tmp_path_factory.mktemp("fuzz")) as started:
        yield started


def test_damaged_images_of_every_kind(served: Service) -> None:
    found = fuzz.damaged_images(served, 300)
    assert found["searched"] > 50
    assert found["unreadable_image"] > 50


def test_bombs(served: Service) -> None:
    fuzz.bombs_sent(served, 50_000)
