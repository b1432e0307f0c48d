"""The real huggingface_hub, in this process, against a Hub on loopback; its waits pass at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.zoo.hub_server import running
from tests.zoo.hub_state import Hub


@contextmanager
def connected(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[tuple[Hub, list[float]]]:
    """A Hub that this process asks, with an empty cache there; and the seconds that would have been waited."""
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
