"""timm's config.json: the architecture that it names, and its eval transform as our preprocessing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError, ModelFolderError
from zoo.files import read_json


@dataclass(frozen=True)
class TimmModel:
    """What a config.json of timm says. tag: of the weights; remark: where our preprocessing departs from timm's."""

    architecture: str
    args: Mapping[str, Any]
    preprocessing: Preprocessing
    tag: str
    licence: str
    remark: str = ""


def read_config(path: Path) -> TimmModel:
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
