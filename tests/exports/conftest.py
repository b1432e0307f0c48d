"""One exported toy for all tests of exports: exporting it takes seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exports.export import Exporter
from tests.exports.toys import make_toy, write_pictures
from tests.models import CARD


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures") / "all", 60)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A toy with all its variants."""
    folder = tmp_path_factory.mktemp("models") / CARD.name
    make_toy(folder)
    exporter = Exporter(folder, str(pictures))
    for precision in ("fp32", "fp16", "int8"):
        exporter.export(precision)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """The exported toy, for a test that damages it."""
    return Path(shutil.copytree(exported, tmp_path / CARD.name))
