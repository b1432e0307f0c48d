"""Baselines: public pretrained backbones by short name (`baselines.toml`), and any other timm model of the Hub.

`zoo.models.baseline_folder` makes a model folder of a baseline on its first use.
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
from zoo.models.pretrained.packages import package_of
from zoo.models.whitening import POWER, SHRINK

BASELINES_FILE = Path(__file__).parent / "baselines.toml"
PRETRAINED = "pretrained"
"""The method of every baseline, in cards and lists."""
UNTRAINED = "untrained"
"""The method of a model whose head, or whose whole network, has random weights."""
WHITENING_HEAD = "whitening"
"""The name of the head that `zoo baseline --whiten` fits."""
WHITENING = "whitening"
"""Entry of recipe.json: the number of images of the fit, its settings, and the images that tell each of their classes
(`zoo.data.content.CLASS_IMAGES`; `photos` lacks them)."""
WHITENING_COMPARISON = "whitening_comparison"
"""Entry of recipe.json: the comparison with plain features on held-out classes. It decided whether to whiten, so it is
not among the scores of results.json."""

SCORE_SOURCES = "the papers of our recipes, DINOv2's and MIEB's results; others may print some"
"""Sources that were searched for published retrieval scores of public backbones."""


@dataclass(frozen=True)
class PublicTextTower:
    """Published text tower on the Hub, which `zoo baseline --joint` fetches (`zoo.models.public_text`).

    Attributes:
        graph: Name of the ONNX graph in the repository.
        length: Number of tokens.
        padding: Text of the padding token; "" if the tokenizer defines it.
        joint: True if image embeddings share the texts' space only with the backbone's projection.
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
    """Public backbone in the repository timm/`timm` of the Hub.

    Attributes:
        timm: timm's name of the architecture and tag.
        size: Side of the input, in pixels.
        scores: Published retrieval scores: dataset, metric, value (a fraction) and source of each; `of` where it is not
            of the pooled features at `size`.
        text: Its published text tower; None without one.
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
        """Return timm's tag, which names the training data."""
        return self.timm.partition(".")[2]


@dataclass(frozen=True)
class BaselineSettings:
    """Settings of a baseline, which say what to make of weights.

    Attributes:
        dim: Dimensions that whitening keeps, the most varied first; None for `zoo.models.whitening.default_dim`.
        size: Side of the input in pixels instead of the backbone's; timm resamples position embeddings.
        joint: Put images and texts into one space: keep the backbone's own projection (CLIP) as the head, and fetch the
            text tower that the table of baselines names.
        half: Store the weights in float16.
        gem: Exponent of the generalised mean that pools instead of the backbone's own pooling.
        squeeze: Show the network whole images, squeezed to a square, instead of their centre.
        shrink: As in `zoo.models.whitening.fit_whitening`, as is `power`.
        power: Power of the variance.
    """

    dim: int | None = None
    size: int | None = None
    joint: bool = False
    half: bool = False
    gem: float | None = None
    squeeze: bool = False
    shrink: float = SHRINK
    power: float = POWER

    @property
    def keeps_trunk(self) -> bool:
        """Return whether the trunk computes the same features as before."""
        return self.size is None and self.gem is None and not self.squeeze


@cache
def baselines() -> dict[str, Baseline]:
    """Return the curated baselines by short name."""
    import tomllib  # only baselines need it

    rows = tomllib.loads(BASELINES_FILE.read_text(encoding="utf-8"))
    return {name: _baseline(name, row) for name, row in rows.items()}


def repository_of(name: str) -> str | None:
    """Return the Hub repository of a short name, `timm/ID` or `hf-hub:timm/ID`; None for all other names."""
    if name in baselines():
        return baselines()[name].repository
    repository = name.removeprefix("hf-hub:")
    return repository if re.fullmatch(r"timm/[\w.-]+", repository) else None


def short_name(repository: str) -> str:
    """Return a repository's name as a model: the curated one, else `org--name` in letters that a card allows."""
    curated = {baseline.repository: name for name, baseline in baselines().items()}
    return curated.get(repository) or re.sub(r"[^a-z0-9._-]", "-", repository.lower().replace("/", "--"))


def baselines_root() -> Path:
    """Return the folder that holds the model folders of used baselines."""
    return paths.home() / "baselines"


def folder_by_name(name: str) -> Path:
    """Return the model folder of a baseline, by any of its names without a revision, if it was used before."""
    repository = repository_of(name) or (name.removeprefix("hf-hub:") if "/" in name else None)
    if repository:
        return folder_of_repository(repository)
    package = package_of(name)
    return baselines_root() / (package.name if package else name)


def folder_of_repository(repository: str, commit: str | None = None) -> Path:
    """Return the model folder of a repository, existing or not; equal short names get different folders."""
    name = short_name(repository) + (f"--{commit[:12]}" if commit else "")
    folder = baselines_root() / name
    if not (folder / "card.json").is_file() or _is_made_of(folder, repository, commit):
        return folder
    return baselines_root() / f"{name}--{hashlib.sha256(f'{repository}@{commit}'.encode()).hexdigest()[:12]}"


def _is_made_of(folder: Path, repository: str, commit: str | None) -> bool:
    """Return whether a folder was made of the repository and, if given, of the commit."""
    try:
        origin = read_json(folder / "recipe.json")["baseline"]
        return origin["repository"] == repository and commit in (None, origin["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _baseline(name: str, row: dict[str, Any]) -> Baseline:
    scores = tuple({**score, "value": round(score["value"] / 100, 6)} for score in row.pop("scores", ()))
    text = PublicTextTower(**row.pop("text")) if "text" in row else None
    return Baseline(name=name, scores=scores, text=text, **row)


@dataclass(frozen=True)
class TimmModel:
    """timm model, as its config.json describes it.

    Attributes:
        args: Arguments of the architecture.
        tag: Tag of the weights.
        remark: Difference between our preprocessing and timm's; "" without one.
    """

    architecture: str
    args: Mapping[str, Any]
    preprocessing: Preprocessing
    tag: str
    licence: str
    remark: str = ""


def read_timm_config(path: Path) -> TimmModel:
    """Read timm's config.json.

    Raises:
        ModelFolderError: `damaged-file` for another kind of file, `not-available` for images that this zoo cannot
            prepare, such as rectangles.
    """
    try:
        values = read_json(path)
        architecture, about = values["architecture"], values.get("pretrained_cfg", values)
        args = dict(values.get("model_args") or {})
        preprocessing, remark = _preprocessing(about)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise ModelFolderError(
            f"{path} is not a config.json as timm writes it ({error!r}).", code="damaged-file"
        ) from None
    except CardError as error:
        raise ModelFolderError(
            f"{path} requires images that this zoo cannot prepare: {error}", code="not-available"
        ) from None
    # The trunk has no classifier, and its channels follow from the preprocessing.
    args = {key: value for key, value in args.items() if key not in ("num_classes", "in_chans")}
    tag = str(about.get("tag") or "")
    return TimmModel(str(architecture), args, preprocessing, tag, str(about.get("license") or "unknown"), remark)


def _preprocessing(about: Mapping[str, Any]) -> tuple[Preprocessing, str]:
    """Return timm's transform for evaluation (`timm.data.create_transform`) as ours, and a remark on the difference."""
    channels, height, width = (int(number) for number in about["input_size"])
    if height != width or channels not in (1, 3):
        raise CardError(f"it takes {height} x {width} pixels of {channels} channel(s); expected a square, 1 or 3.")
    crop_pct = float(about.get("crop_pct") or 0.875)
    preprocessing = Preprocessing(
        resize=max(width, math.floor(width / crop_pct)),
        crop=width,
        mode="L" if channels == 1 else "RGB",
        interpolation=str(about.get("interpolation", "bilinear")),
        mean=tuple(float(value) for value in about["mean"]),
        std=tuple(float(value) for value in about["std"]),
    )
    mode = about.get("crop_mode") or "center"
    remark = "" if mode == "center" else f"timm prepares images by {mode!r}; here the centre square is taken."
    return preprocessing, remark
