"""A Hub on loopback with one model, and what of it has come."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.zoo.hub_state import Hub
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"
FILES = {path.relative_to(MODEL).as_posix(): path.read_bytes() for path in MODEL.rglob("*") if path.is_file()}
WEIGHTS = "model.safetensors"


@dataclasses.dataclass
class World:
    hub: Hub
    waits: list[float]
    cache: Path

    def parts(self) -> list[str]:
        """What of a download that broke off still lies in the cache."""
        return [path.name for path in self.cache.rglob("*.incomplete")]

    def gets(self, file: str) -> int:
        return len(self.hub.ranges(file))


def assert_whole(folder: Path) -> None:
    fetched = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert fetched == {name: data for name, data in FILES.items() if name != "log.jsonl"}
