"""The real huggingface_hub in this process, connected to a Hub on loopback; its waits take no time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.zoo.hub_server import running
from tests.zoo.hub_state import Hub
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"
FILES = {path.relative_to(MODEL).as_posix(): path.read_bytes() for path in MODEL.rglob("*") if path.is_file()}
WEIGHTS = "model.safetensors"


@contextmanager
def connected(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[tuple[Hub, list[float]]]:
    """Connect this process to a Hub with an empty cache; yield the Hub and the seconds that would have been waited."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, time=time.time)
    with running() as hub:
        constants = "huggingface_hub.constants"
        monkeypatch.setattr(
            f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(f"{constants}.ENDPOINT", hub.url)
        monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
        for module in ("huggingface_hub.file_download", "huggingface_hub.utils._http", "zoo.hub.download"):
            monkeypatch.setattr(f"{module}.time", clock)
        yield hub, waits


@dataclass
class World:
    """A Hub with one model, the waits of the client, and its cache."""

    hub: Hub
    waits: list[float]
    cache: Path

    def parts(self) -> list[str]:
        """Return the parts of interrupted downloads in the cache."""
        return [path.name for path in self.cache.rglob("*.incomplete")]

    def gets(self, file: str) -> int:
        """Return the number of downloads of a file."""
        return len(self.hub.ranges(file))


def assert_whole(folder: Path) -> None:
    """Check that a folder has exactly the published files of the model."""
    fetched = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert fetched == {name: data for name, data in FILES.items() if name != "log.jsonl"}
