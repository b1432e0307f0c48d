"""Published text towers of public backbones (`baselines.toml`): fetched from the Hub, written into a model folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import missing
from zoo.files import read_json, sha256_of
from zoo.models.baselines import PublicTextTower, baselines
from zoo.models.card import Card
from zoo.models.pretrained.weights import fetch_commit, fetch_file, snapshot_root


@dataclass(frozen=True)
class FetchedTower:
    """Files of a published text tower in the Hub's cache, of one commit and with the bytes that the Hub announced."""

    tower: PublicTextTower
    commit: str
    graph: Path
    tokenizer: Path

    @property
    def origin(self) -> dict[str, Any]:
        """Where the tower comes from, for recipe.json."""
        return {
            "repository": self.tower.repository,
            "commit": self.commit,
            "graph": {"file": self.tower.graph, "sha256": sha256_of(self.graph)},
            "tokenizer": {"file": self.tower.tokenizer, "sha256": sha256_of(self.tokenizer)},
        }

    def attach(self, folder: Path) -> Card:
        """Write the tower into a model folder, with the length, padding and letter case of the table of baselines.

        Returns:
            The new card.

        Raises:
            ZooError: As `zoo.models.text_graph.attach_text_tower`, if the tower does not fit the model.
        """
        from zoo.models.text_graph import attach_text_tower

        tower = self.tower
        return attach_text_tower(
            folder, self.graph, self.tokenizer, tower.length, tower.padding or None, tower.lowercase
        )


def published_tower(folder: Path) -> PublicTextTower | None:
    """Return the text tower that the table names for the unchanged public backbone in a folder; None without one."""
    try:
        origin = read_json(folder / "recipe.json")["baseline"]
        repository = origin["repository"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((baseline.text for baseline in baselines().values() if baseline.repository == repository), None)


def fetch_tower(tower: PublicTextTower) -> FetchedTower:
    """Return the files of a published text tower, from the Hub's cache or downloaded into it.

    Raises:
        HubError: If the Hub does not provide them (`hash-mismatch` if their bytes differ from the announced ones).
        MissingDependencyError: If onnx or tokenizers, which read them, are not installed.
    """
    for module, extra in (("onnx", "export"), ("tokenizers", "text")):
        _check_installed(module, extra)
    commit = snapshot_root(fetch_file(tower.repository, None, tower.tokenizer), tower.tokenizer).name
    tokenizer, graph = fetch_commit(tower.repository, commit, tower.tokenizer, tower.graph)
    return FetchedTower(tower, commit, graph, tokenizer)


def _check_installed(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise missing(module, extra)
