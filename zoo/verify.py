"""The golden check: are a model folder's files what its card says, and do they still give their embeddings?"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.cards import Card, read_card
from zoo.config import FILE as CONFIG
from zoo.config import check_config
from zoo.contents import pickles_in
from zoo.errors import ZooError
from zoo.files import sha256_of
from zoo.floors import GOLDEN_FLOORS
from zoo.golden import FILE as GOLDEN
from zoo.golden import read_golden
from zoo.loading import load, weight_files
from zoo.onnx_runtime import FILES
from zoo.text import GOLDEN as GOLDEN_TEXT
from zoo.text import open_tower
from zoo.text import read_golden as read_golden_text


@dataclass(frozen=True)
class Check:
    """One line of the outcome. `ok` is None where the check could not be made on this machine."""

    name: str
    ok: bool | None
    detail: str


def verify(folder: Path) -> Iterator[Check]:
    """Every check of a model folder in turn. Raises `CardError` where the card itself cannot be read."""
    card = read_card(folder)
    for name, expected in card.files.items():
        yield _hash(folder / name, name, expected)
    for name in sorted({*weight_files(card), *_weights_in(folder)} - card.files.keys()):
        yield Check(f"sha256 {name}", False, "the card does not list it")
    yield _golden(
        folder, card, "torch", "fp32", None if importlib.util.find_spec("torch") else "torch is not installed"
    )
    for precision, file in FILES.items():
        if (folder / file).is_file():
            absent = None if importlib.util.find_spec("onnxruntime") else "onnxruntime is not installed"
            yield _golden(folder, card, "onnx", precision, absent)
    if card.text is not None:
        yield _golden_text(folder, card)


def verify_files(folder: Path) -> Iterator[Check]:
    """Of the files beside the weights: nothing that could be unpickled, and a config.json that agrees with the card."""
    unsafe = pickles_in(folder)
    yield Check("no pickles", not unsafe, ", ".join(unsafe) or "weights are safetensors and ONNX alone")
    if not (folder / CONFIG).is_file():
        yield Check(CONFIG, None, "there is none, so timm cannot load the trunk from here")
        return
    try:
        check_config(folder, read_card(folder))
    except ZooError as error:
        yield Check(CONFIG, False, str(error))
    else:
        yield Check(CONFIG, True, "agrees with the card")


def _weights_in(folder: Path) -> set[str]:
    """The files of a model folder that hold weights, relative to it."""
    found = [*folder.glob("*.safetensors"), *folder.glob("onnx/*.onnx")]
    return {path.relative_to(folder).as_posix() for path in found if path.name not in (GOLDEN, GOLDEN_TEXT)}


def _hash(path: Path, name: str, expected: str) -> Check:
    if not path.is_file():
        return Check(f"sha256 {name}", False, "the file is missing")
    equal = sha256_of(path) == expected
    return Check(f"sha256 {name}", equal, expected[:16] if equal else "differs from the card's")


def _golden(folder: Path, card: Card, runtime: str, precision: str, absent: str | None) -> Check:
    name = f"golden {runtime} {precision}"
    if absent:
        return Check(name, None, absent)
    try:
        images, expected = read_golden(folder)
        got = load(folder, runtime=runtime, precision=precision).embed(images)
    except ZooError as error:
        return Check(name, False, str(error))
    return _compared(name, got, expected, GOLDEN_FLOORS[precision])


def _golden_text(folder: Path, card: Card) -> Check:
    name = "golden text"
    if absent := [module for module in ("onnxruntime", "tokenizers") if importlib.util.find_spec(module) is None]:
        return Check(name, None, f"{absent[0]} is not installed")
    try:
        texts, expected = read_golden_text(folder)
        tower = open_tower(folder, card)
        got = tower.embed(tower.tokens(texts))
    except ZooError as error:
        return Check(name, False, str(error))
    return _compared(name, got, expected, GOLDEN_FLOORS["fp32"])


def _compared(name: str, got: np.ndarray, expected: np.ndarray, floor: float) -> Check:
    if got.shape != expected.shape:
        return Check(name, False, f"gives {list(got.shape)}, golden are {list(expected.shape)}")
    cosine = _least_cosine(got, expected)
    return Check(name, cosine >= floor, f"least cosine {cosine:.6f}")


def _least_cosine(got: np.ndarray, expected: np.ndarray) -> float:
    """The least cosine between rows [n, dim], -1 to 1; NaN, which is above no floor, for a row without direction."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(np.clip(cosines, -1, 1).min())
