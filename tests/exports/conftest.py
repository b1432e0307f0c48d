"""One exported toy for all tests of exports and all their processes, because exporting takes seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from exports.export import Exporter
from tests.exports.toys import make_toy, write_pictures
from tests.models import CARD


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures") / "all", 60)


@pytest.fixture(scope="session")
def exported(
    tmp_path_factory: pytest.TempPathFactory, pictures: Path, testrun_uid: str, request: pytest.FixtureRequest
) -> Path:
    """Export a toy in all precisions, once for all processes. Tests only read it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base  # of pytest-xdist
    folder = shared / f"exported-{testrun_uid}" / CARD.name
    with FileLock(shared / f"exported-{testrun_uid}.lock"):
        if not folder.is_dir():
            made = shared / f"exporting-{testrun_uid}" / CARD.name
            shutil.rmtree(made.parent, ignore_errors=True)
            make_toy(made)
            exporter = Exporter(made, str(pictures))
            for precision in ("fp32", "fp16", "int8"):
                exporter.export(precision)
            made.parent.rename(folder.parent)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """Copy the exported toy for a test that damages it."""
    return Path(shutil.copytree(exported, tmp_path / CARD.name))
