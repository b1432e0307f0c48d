"""The models that lie in the Hub's cache, and the names that load them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from zoo import hub
from zoo.models.baselines import repository_of


def in_cache() -> Iterator[Path]:
    """The folders of the models that are there whole, at what was the main branch."""
    from huggingface_hub import constants

    for ref in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*/refs/main")):
        if (commit := _commit(ref)) is None:
            continue
        folder = ref.parent.parent / "snapshots" / commit
        name = name_of(folder)
        if name and repository_of(name) is None and not hub.absent(folder):
            yield folder


def _commit(ref: Path) -> str | None:
    """The commit that a branch is at; None where the file is damaged."""
    try:
        said = ref.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return said if hub.COMMIT.fullmatch(said) else None


def name_of(folder: Path) -> str | None:
    """The name that loads a folder of the cache, without the organisation where it is `hub.organisation()`.

    None for folders that lie elsewhere.
    """
    if (found := _repository(folder)) is None:
        return None
    owner, name = found
    return name if owner == hub.organisation() else f"{owner}/{name}"


def pinned(folder: Path) -> str | None:
    """`org/name@commit`, by which a folder of the cache is found whatever the branches are at; None elsewhere."""
    found = _repository(folder)
    return None if found is None else f"{'/'.join(found)}@{folder.name}"


def _repository(folder: Path) -> tuple[str, str] | None:
    """Organisation and name of what a folder of the cache is a snapshot of."""
    found = re.fullmatch(r"models--([^/]+?)--([^/]+)", folder.parent.parent.name)
    return (found[1], found[2]) if found and folder.parent.name == "snapshots" else None
