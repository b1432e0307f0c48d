"""Which files a model folder holds; integrity checks against the card.

timm's config.json beside the card: two files that say the same of a network must agree.

The files of a model folder: which ones it may hold, where they may be, and whether they are the card's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from zoo.errors import ModelFolderError
from zoo.files import read_json, sha256_of
from zoo.models.card import Card

CONFIG_FILE = "config.json"


def check_config(folder: Path, card: Card) -> None:
    """Raise `ModelFolderError` where config.json is no JSON object of timm's form or contradicts the card.

    It is what timm builds the trunk and its transforms from, so that a card that lies, or a file of another model,
    would give one set of embeddings here and another there. A folder without it is none of timm's, which is allowed.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        return
    try:
        said = _facts(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelFolderError(
            f"{path} is not a config.json as timm writes it, perhaps cut off. Get the model folder anew."
        ) from None
    for name, value in _facts_of(card).items():
        if not _equal(said[name], value):
            raise ModelFolderError(
                f"{path} says {name} {said[name]!r}, the card of {card.name} says {value!r}: one of them was altered "
                "or is of another model. Get the model folder anew; zoo verify names what else is wrong."
            )


def _facts(config: Mapping[str, Any]) -> dict[str, Any]:
    images = config["pretrained_cfg"]
    names = ("mean", "std", "interpolation", "input_size", "crop_pct")
    return {"architecture": config["architecture"], **{name: images[name] for name in names}}


def _facts_of(card: Card) -> dict[str, Any]:
    how = card.preprocessing
    return {
        "architecture": card.architecture,
        "mean": list(how.mean),
        "std": list(how.std),
        "interpolation": how.interpolation,
        "input_size": [how.channels, how.crop, how.crop],
        "crop_pct": how.crop / how.resize,
    }


def _equal(said: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(said, list) and len(said) == len(value) and all(map(_equal, said, value))
    if isinstance(value, float):
        return type(said) in (int, float) and math.isclose(said, value, rel_tol=1e-9)
    return bool(said == value)


KNOWN_FILES = (
    "card.json",
    "config.json",
    "model.safetensors",
    "heads.safetensors",
    "recipe.json",
    "results.json",
    "golden.safetensors",
    "golden_text.safetensors",
    "tokenizer.json",
    "README.md",
    "onnx/parity.json",
)

PICKLES = (".bin", ".pth", ".pt", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Suffixes of formats that may run code when they are read."""


def known_files(folder: Path, card: Card) -> list[str]:
    """The files of a model folder that belong to it, as the card and the layout name them, sorted."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(present & {*KNOWN_FILES, *card.files})


def pickle_names(names: Iterable[str]) -> list[str]:
    """Those of the names that are of formats which are never loaded, sorted."""
    return sorted(name for name in names if PurePosixPath(name.lower()).suffix in PICKLES)


def find_pickles(folder: Path) -> list[str]:
    """The files of a folder that are of formats which are never loaded, relative to it."""
    return pickle_names(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def pickle_warning(found: Sequence[str]) -> str:
    """A sentence that says why pickles do not do in place of weights; "" where there are none."""
    if not found:
        return ""
    return (
        f" It holds {', '.join(found)}: pickles, which can run code when they are read and are never loaded. Get the "
        "weights as safetensors, or convert a published file with: zoo convert"
    )


def pickle_warning_in(folder: Path) -> str:
    """`refusal` of what lies at the top of a folder; "" for one that is not there or may not be read."""
    try:
        return pickle_warning(pickle_names(path.name for path in folder.iterdir()))
    except OSError:
        return ""


def path_inside(folder: Path, name: str) -> Path:
    """The path of a file in the folder. Raises `ModelFolderError` where a link leads out of it.

    In the Hub's cache, where folders hold links, it may lead to anywhere in that cache.
    """
    whole = folder.resolve()
    # The cache's layout: models--org--name/snapshots/commit, with links to blobs there or in a store beside it.
    cached = whole.parent.name == "snapshots" and whole.parents[1].name.startswith("models--")
    allowed = whole.parents[2] if cached else whole
    path = folder / name
    if not path.resolve().is_relative_to(allowed):
        raise ModelFolderError(
            f"{path} is a link that leads out of the model folder, to {path.resolve()}; it is not followed. "
            "Put the file itself there."
        )
    return path


def weight_files(card: Card) -> tuple[str, ...]:
    """Return the files that the card's torch network is read from."""
    return ("model.safetensors", "heads.safetensors") if card.heads else ("model.safetensors",)


def check_files(folder: Path, card: Card, files: Sequence[str] | None = None) -> None:
    """Raise `ModelFolderError` unless the card lists `files` (default: torch's weights) and their SHA-256 is its."""
    for name in weight_files(card) if files is None else files:
        path = path_inside(folder, name)
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing; the model folder of {card.name} is incomplete.{pickle_warning_in(folder)}"
            )
        if name not in card.files:
            raise ModelFolderError(
                f"{path} is not used, because the card of {card.name} does not list it and so cannot vouch for it. "
                "Get the model folder anew from where it came from, or make the file again (zoo train, zoo export)."
            )
        if sha256_of(path) != card.files[name]:
            exported = name.startswith("onnx/model")
            again = f"Make it again with: zoo export {card.name}. Or get" if exported else "Get"
            raise ModelFolderError(
                f"{path} is not the file that the card of {card.name} describes (SHA-256 differs). {again} the model "
                "folder anew from where it came from; from the Hub with revision='main'."
            )
