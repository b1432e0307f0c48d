"""Files of a model folder: which ones belong to it, and checks of each against the card."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from zoo.errors import ModelFolderError, command
from zoo.files import open_file, read_json, sha256_of
from zoo.models.card import MODULES_FILE, Card

PYTORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
"""Suffixes of PyTorch's files."""

CONFIG_FILE, WEIGHTS_FILE, HEADS_FILE = "config.json", "model.safetensors", "heads.safetensors"
"""timm's config.json, the trunk's weights under timm's names, the weights of the heads."""

RELEVANCE_FILE = "relevance.json"
"""Curve by which a search tells likely results from others without labels (zoo.evaluation.relevance)."""

ONNX = "onnx"
"""Architecture of a foreign ONNX graph, which has no network for torch."""

KNOWN_FILES = (
    "card.json",
    MODULES_FILE,
    CONFIG_FILE,
    WEIGHTS_FILE,
    HEADS_FILE,
    "recipe.json",
    "results.json",
    RELEVANCE_FILE,
    "golden.safetensors",
    "golden_text.safetensors",
    "tokenizer.json",
    "README.md",
    "onnx/parity.json",
)

NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Ends of the names of tensors that batch norm counts and training does not fit."""

PICKLES = (".bin", ".pth", ".pt", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Suffixes of formats that may run code when they are read."""


def known_files(folder: Path, card: Card) -> list[str]:
    """Return the names of the files that the layout or the card assigns to a model folder, sorted."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(present & {*KNOWN_FILES, *card.files})


def weight_files(card: Card) -> tuple[str, ...]:
    """Return the files that the card's torch network is read from; the graph of a model that has no such network."""
    if card.architecture == ONNX:
        return ("onnx/model.onnx",)
    return (WEIGHTS_FILE, HEADS_FILE) if card.heads else (WEIGHTS_FILE,)


def count_parameters(folder: Path, card: Card) -> int | None:
    """Return the number of a network's parameters, from the headers of its weights; None if they cannot be read."""
    from safetensors import SafetensorError, safe_open

    count = 0
    try:
        for name in weight_files(card):
            open_file(folder / name).close()  # safetensors would wait for a pipe
            with safe_open(folder / name, "numpy") as tensors:
                names = (key for key in tensors.keys() if not key.endswith(NORM_STATISTICS))  # noqa: SIM118
                count += sum(math.prod(tensors.get_slice(key).get_shape()) for key in names)
    except (OSError, SafetensorError):
        return None
    return count


def is_stored_in_half(folder: Path, card: Card) -> bool:
    """Return whether a model's weights are stored in float16 (`zoo baseline --half`); they are computed in float32."""
    from safetensors import safe_open

    with safe_open(folder / weight_files(card)[0], "numpy") as tensors:
        return any(tensors.get_slice(key).get_dtype() == "F16" for key in tensors.keys())  # noqa: SIM118


def check_files(folder: Path, card: Card, files: Sequence[str] | None = None) -> None:
    """Check that the card lists the files and that their SHA-256 is the listed one.

    Args:
        folder: The model folder.
        card: Its card.
        files: Names relative to the folder; by default torch's weights.

    Raises:
        ModelFolderError: `missing-file`, `unsafe-file` or `hash-mismatch`.
    """
    for name in weight_files(card) if files is None else files:
        path = path_inside(folder, name)
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing; the model folder of {card.name} is incomplete.{_pickle_warning_in(folder)}",
                code="missing-file",
            )
        if name not in card.files:
            raise ModelFolderError(
                f"{path} is not used, because the card of {card.name} does not list it and so cannot vouch for it. "
                "Download the model folder again, or make the file again (zoo train, zoo export).",
                code="unsafe-file",
            )
        if sha256_of(path) != card.files[name]:
            exported = name.startswith("onnx/model")
            again = f", or make the graph again: {command('export', folder)}" if exported else ""
            raise ModelFolderError(
                f"{path} is not the file that the card of {card.name} describes (SHA-256 differs). Download the "
                f"model folder again, from the Hub with revision='main'{again}",
                code="hash-mismatch",
            )


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder, which no link may lead out of.

    In the Hub's cache, where folders hold links, a link may lead to any place in that cache.

    Raises:
        ModelFolderError: `unsafe-file`.
    """
    root = folder.resolve()
    # The cache's layout: models--org--name/snapshots/commit, with links to blobs there or in a store beside it.
    in_cache = root.parent.name == "snapshots" and root.parents[1].name.startswith("models--")
    allowed = root.parents[2] if in_cache else root
    path = folder / name
    if not path.resolve().is_relative_to(allowed):
        raise ModelFolderError(
            f"{path} is a link that leads out of the model folder, to {path.resolve()}; it is not followed. "
            "Put the file itself there.",
            code="unsafe-file",
        )
    return path


def check_config(folder: Path, card: Card) -> None:
    """Check that timm's config.json agrees with the card; a folder without the file passes.

    timm builds the trunk and its transforms from this file. If it contradicted the card, one folder would give two
    sets of embeddings.

    Raises:
        ModelFolderError: `damaged-file` for a file that timm did not write, `damaged-file` for a contradiction.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        return
    try:
        config = _config_facts(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelFolderError(
            f"{path} is not a config.json as timm writes it, perhaps cut off. Download the model folder again.",
            code="damaged-file",
        ) from None
    for name, value in _card_facts(card).items():
        if not _equal(config[name], value):
            raise ModelFolderError(
                f"{path} says {name} {config[name]!r}, the card of {card.name} says {value!r}: one of them was altered "
                "or belongs to another model. Download the model folder again; zoo verify lists further faults.",
                code="damaged-file",
            )


def _config_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    images = config["pretrained_cfg"]
    names = ("mean", "std", "interpolation", "input_size", "crop_pct")
    return {"architecture": config["architecture"], **{name: images[name] for name in names}}


def _card_facts(card: Card) -> dict[str, Any]:
    preprocessing = card.preprocessing
    return {
        "architecture": card.architecture,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "input_size": [preprocessing.channels, preprocessing.crop, preprocessing.crop],
        "crop_pct": preprocessing.crop / preprocessing.resize,
    }


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(_equal, actual, expected))
    if isinstance(expected, float):
        return type(actual) in (int, float) and math.isclose(actual, expected, rel_tol=1e-9)
    return bool(actual == expected)


def pickle_names(names: Iterable[str]) -> list[str]:
    """Return the names whose suffix is that of a pickle format, sorted."""
    return sorted(name for name in names if PurePosixPath(name.lower()).suffix in PICKLES)


def find_pickles(folder: Path) -> list[str]:
    """Return the pickle files anywhere in a folder, relative to it."""
    return pickle_names(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def pickle_warning(names: Sequence[str]) -> str:
    """Return a sentence that explains why pickles are not loaded; "" without names."""
    if not names:
        return ""
    return (
        f" It holds {', '.join(names)}: pickles, which can run code when they are read and are never loaded. Get the "
        "weights as safetensors, or convert a published file with: zoo convert FILE --architecture NAME --out DIR"
    )


def _pickle_warning_in(folder: Path) -> str:
    """Return `pickle_warning` for the files at the top of a folder; "" if the folder cannot be read."""
    try:
        return pickle_warning(pickle_names(path.name for path in folder.iterdir()))
    except OSError:
        return ""
