"""By which recipe a model was trained, and what was changed in it, as recipe.json says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.files import read_object
from zoo.private_paths import without_paths


@dataclass(frozen=True)
class Origin:
    """recipe: its name; None for a model that no recipe was to make. changed: setting -> value, as `--set` takes them.

    Whoever sets a paper's number beside a model looks it up by `recipe`, and tells `changed` with it.
    """

    recipe: str | None
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """ "changed: schedule.epochs=1", on one line; "" where nothing was. Of paths the last part, as pages are shown
        to others."""
        if not self.changed:
            return ""
        told = ", ".join(f"{key}={_value(without_paths(value))}" for key, value in self.changed.items())
        return f"changed: {' '.join(told.split())}"


def read_origin(folder: Path, name: str) -> Origin:
    """The origin of the model `name` in a folder.

    Folders from before this was recorded have nothing but their name to go by, and so has one whose recipe.json cannot
    be read.
    """
    record = read_object(folder / "recipe.json")
    if "origin" not in record:
        return Origin(None if "baseline" in record else name)
    recipe, changed = record["origin"], record.get("settings")
    return Origin(recipe if isinstance(recipe, str) else None, changed if isinstance(changed, dict) else {})


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
