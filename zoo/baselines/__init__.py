"""Plain pretrained backbones as models: a dozen by short names, and any timm model of the Hub by its repository.

`baselines.toml` holds the short names. `zoo.baselines.folder` makes a model folder of one on its first use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.files import read_json

FILE = Path(__file__).parent / "baselines.toml"
METHOD = "pretrained"
"""The method of every baseline, in cards and lists."""


SEARCHED = "the papers of our recipes, DINOv2's and MIEB's results; others may print some"
"""Where published retrieval scores of public backbones were looked for."""


@dataclass(frozen=True)
class PublicText:
    """A published text tower: the Hub's repository and its files, and what `zoo text-tower` is to be told of it.

    padding: the padding token's text, "" where the tokenizer says it. joint: whether the images' embeddings lie in the
    texts' space only with the backbone's own projection (`zoo baseline --joint`).
    """

    repository: str
    graph: str
    tokenizer: str
    length: int
    padding: str = ""
    lowercase: bool = False
    joint: bool = False


@dataclass(frozen=True)
class Baseline:
    """A public backbone: its repository on the Hub is timm/`timm`. size: of the input in pixels.

    scores: published retrieval scores, each a mapping with dataset, metric, value (a fraction) and source. text: where
    its text tower is published as an ONNX graph with a tokenizer; None where it has none.
    """

    name: str
    timm: str
    dim: int
    size: int
    parameters: int
    licence: str
    source: str
    description: str
    scores: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    text: PublicText | None = None

    @property
    def repository(self) -> str:
        return f"timm/{self.timm}"

    @property
    def backbone(self) -> str:
        return self.timm.partition(".")[0]

    @property
    def dataset(self) -> str:
        """What it was trained on, as timm's tag says it."""
        return self.timm.partition(".")[2]


@cache
def baselines() -> dict[str, Baseline]:
    """The curated baselines by short name."""
    import tomllib  # most models are no baselines

    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: _baseline(name, row) for name, row in rows.items()}


def repository_of(name: str) -> str | None:
    """The Hub's repository that a short name, `timm/ID` or `hf-hub:timm/ID` means; None for all other names."""
    if name in baselines():
        return baselines()[name].repository
    repository = name.removeprefix("hf-hub:")
    return repository if re.fullmatch(r"timm/[\w.-]+", repository) else None


def short_name(repository: str) -> str:
    """The model's name: the curated one, else `org--name` in what letters a card allows."""
    curated = {baseline.repository: name for name, baseline in baselines().items()}
    return curated.get(repository) or re.sub(r"[^a-z0-9._-]", "-", repository.lower().replace("/", "--"))


def root() -> Path:
    """Where the model folders of baselines lie once they were used."""
    return paths.home() / "baselines"


def place(name: str) -> Path:
    """Where the model folder of a baseline lies if it was used before, by any of its names; none has a revision."""
    repository = repository_of(name) or (name.removeprefix("hf-hub:") if "/" in name else None)
    return folder_of(repository) if repository else root() / name


def folder_of(repository: str, commit: str | None = None) -> Path:
    """Where the model folder of a repository lies, or is to be made: its own, also where short names are alike."""
    name = short_name(repository) + (f"--{commit[:12]}" if commit else "")
    folder = root() / name
    if not (folder / "card.json").is_file() or _is_of(folder, repository, commit):
        return folder
    return root() / f"{name}--{hashlib.sha256(f'{repository}@{commit}'.encode()).hexdigest()[:12]}"


def _is_of(folder: Path, repository: str, commit: str | None) -> bool:
    """Whether the folder was made of that repository and, where one is given, commit."""
    try:
        made_of = read_json(folder / "recipe.json")["baseline"]
        return made_of["repository"] == repository and commit in (None, made_of["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _baseline(name: str, row: dict[str, Any]) -> Baseline:
    scores = tuple({**score, "value": round(score["value"] / 100, 6)} for score in row.pop("scores", ()))
    text = PublicText(**row.pop("text")) if "text" in row else None
    return Baseline(name=name, scores=scores, text=text, **row)
