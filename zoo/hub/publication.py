"""What of a model goes to the Hub: the files, where to, and what the Hub answered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.files import atomic_folder, write_bytes


@dataclass(frozen=True)
class Publication:
    """What went to the Hub, or would: `contents` maps names to files or, for what was made for the Hub, bytes.

    remarks: what whoever sends it should know of it. commit, url: of the commit, None where nothing was sent.
    pull_request: its address, where one was opened.
    """

    repository: str
    revision: str
    contents: Mapping[str, Path | bytes] = field(repr=False)
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    url: str | None = None
    commit: str | None = None
    pull_request: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The names of the files with their bytes."""
        return {
            name: len(data) if isinstance(data, bytes) else data.stat().st_size for name, data in self.contents.items()
        }

    @property
    def name(self) -> str:
        """The model's name in the card that is sent."""
        name: str = json.loads(self._bytes("card.json"))["name"]
        return name

    @property
    def readme(self) -> str:
        return self._bytes("README.md").decode()

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, as they would lie on the Hub. Raises `UsageError` where one is there."""
        if folder.exists():
            raise UsageError(f"{folder} is already there; name a folder that can be made.")
        with atomic_folder(folder) as temporary:
            for name in self.contents:
                write_bytes(temporary / name, self._bytes(name))

    def to_json(self) -> dict[str, Any]:
        facts = dataclasses.asdict(dataclasses.replace(self, contents={}))
        return {**facts, "contents": self.sizes, "left_out": list(self.left_out)}

    def _bytes(self, name: str) -> bytes:
        data = self.contents[name]
        return data if isinstance(data, bytes) else data.read_bytes()
