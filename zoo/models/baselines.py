"""Public backbones by short name; timm config -> card.

Plain pretrained backbones as models: a dozen by short names, and any timm model of the Hub by its repository.

`baselines.toml` holds the short names. `zoo.models.baseline_folder` makes a model folder of one on its first use.

timm's config.json: the architecture that it names, and its eval transform as our preprocessing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError, ModelFolderError
from zoo.files import read_json

BASELINES_FILE = Path(__file__).parent / "baselines.toml"
PRETRAINED = "pretrained"
"""The method of every baseline, in cards and lists."""


SCORE_SOURCES = "the papers of our recipes, DINOv2's and MIEB's results; others may print some"
"""Where published retrieval scores of public backbones were looked for."""


@dataclass(frozen=True)
class PublicTextTower:
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
    text: PublicTextTower | None = None

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

    rows = tomllib.loads(BASELINES_FILE.read_text(encoding="utf-8"))
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


def baselines_root() -> Path:
    """Where the model folders of baselines lie once they were used."""
    return paths.home() / "baselines"


def folder_by_name(name: str) -> Path:
    """Where the model folder of a baseline lies if it was used before, by any of its names; none has a revision."""
    repository = repository_of(name) or (name.removeprefix("hf-hub:") if "/" in name else None)
    return folder_of_repository(repository) if repository else baselines_root() / name


def folder_of_repository(repository: str, commit: str | None = None) -> Path:
    """Where the model folder of a repository lies, or is to be made: its own, also where short names are alike."""
    name = short_name(repository) + (f"--{commit[:12]}" if commit else "")
    folder = baselines_root() / name
    if not (folder / "card.json").is_file() or _is_of(folder, repository, commit):
        return folder
    return baselines_root() / f"{name}--{hashlib.sha256(f'{repository}@{commit}'.encode()).hexdigest()[:12]}"


def _is_of(folder: Path, repository: str, commit: str | None) -> bool:
    """Whether the folder was made of that repository and, where one is given, commit."""
    try:
        made_of = read_json(folder / "recipe.json")["baseline"]
        return made_of["repository"] == repository and commit in (None, made_of["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _baseline(name: str, row: dict[str, Any]) -> Baseline:
    scores = tuple({**score, "value": round(score["value"] / 100, 6)} for score in row.pop("scores", ()))
    text = PublicTextTower(**row.pop("text")) if "text" in row else None
    return Baseline(name=name, scores=scores, text=text, **row)


@dataclass(frozen=True)
class TimmModel:
    """What a config.json of timm says. tag: of the weights; remark: where our preprocessing departs from timm's."""

    architecture: str
    args: Mapping[str, Any]
    preprocessing: Preprocessing
    tag: str
    licence: str
    remark: str = ""


def read_timm_config(path: Path) -> TimmModel:
    """A model from timm's config.json. Raises `ModelFolderError` where it is not one, or none that takes one square."""
    try:
        values = read_json(path)
        architecture, about = values["architecture"], values.get("pretrained_cfg", values)
        args = dict(values.get("model_args") or {})
        how, remark = _preprocessing(about)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise ModelFolderError(f"{path} is not a config.json as timm writes it ({error!r}).") from None
    except CardError as error:
        raise ModelFolderError(f"{path} asks for images that this zoo does not make: {error}") from None
    # The trunk has no classifier, and its channels follow from the preprocessing.
    args = {key: value for key, value in args.items() if key not in ("num_classes", "in_chans")}
    tag = str(about.get("tag") or "")
    return TimmModel(str(architecture), args, how, tag, str(about.get("license") or "unknown"), remark)


def _preprocessing(about: Mapping[str, Any]) -> tuple[Preprocessing, str]:
    """timm's transform for evaluation (`timm.data.create_transform`), and where ours departs from it."""
    channels, height, width = (int(number) for number in about["input_size"])
    if height != width or channels not in (1, 3):
        raise CardError(f"it takes {height} x {width} pixels of {channels} channel(s); expected a square, 1 or 3.")
    crop_pct = float(about.get("crop_pct") or 0.875)
    how = Preprocessing(
        resize=max(width, math.floor(width / crop_pct)),
        crop=width,
        mode="L" if channels == 1 else "RGB",
        interpolation=str(about.get("interpolation", "bilinear")),
        mean=tuple(float(value) for value in about["mean"]),
        std=tuple(float(value) for value in about["std"]),
    )
    mode = about.get("crop_mode") or "center"
    return how, "" if mode == "center" else f"timm prepares images by {mode!r}; here the centre square is taken."
