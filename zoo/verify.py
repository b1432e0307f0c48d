"""The golden check: are a model folder's files what its card says, and do they still give their embeddings?"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.cards import Card, read_card
from zoo.config import FILE as CONFIG
from zoo.config import check_config
from zoo.contents import check_files, pickles_in, weight_files
from zoo.data.images import open_image
from zoo.errors import ModelFolderError, ZooError
from zoo.files import sha256_of
from zoo.floors import GOLDEN_FLOORS, GOLDEN_RESIZE_FLOORS
from zoo.golden import FILE as GOLDEN
from zoo.golden import read_golden
from zoo.loading import load
from zoo.onnx_runtime import FILES, RESIZING, open_resizing
from zoo.onnx_weights import check_weights
from zoo.parity import PARITY_FILE as PARITY
from zoo.parity import contradictions, read_parity
from zoo.results import Check
from zoo.text import GOLDEN as GOLDEN_TEXT
from zoo.text import open_tower
from zoo.text import read_golden as read_golden_text

Embed = Callable[[Sequence[np.ndarray]], np.ndarray]
"""From images, before preprocessing, to embeddings."""

TORCH = ("fp32", "fp16", "bf16")

ALLOWED = 2
"""By how many times a graph's loss may exceed what was said of it, beside fp32's slack: on another machine int8 sums in
another order."""


def verify(folder: Path) -> Iterator[Check]:
    """Every check of a model folder in turn. Raises `CardError` where the card itself cannot be read."""
    card = read_card(folder)
    for name, expected in card.files.items():
        yield _hash(folder / name, name, expected)
    for name in sorted({*weight_files(card), *_weights_in(folder)} - card.files.keys()):
        yield Check(f"sha256 {name}", False, "the card does not list it")
    yield from _torch(folder)
    yield from _graphs(folder, card)
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
    try:
        if not path.is_file():
            return Check(f"sha256 {name}", False, "the file is missing")
        if sha256_of(path) != expected:
            return Check(f"sha256 {name}", False, "differs from the card's")
        if path.suffix == ".onnx":
            check_weights(path)
    except OSError as error:  # a name longer than the file system takes, a file that may not be read
        return Check(f"sha256 {name}", False, f"cannot be read: {error.strerror}")
    except ModelFolderError as error:
        return Check(f"sha256 {name}", False, str(error))
    return Check(f"sha256 {name}", True, expected[:16])


def _torch(folder: Path) -> Iterator[Check]:
    absent = None if importlib.util.find_spec("torch") else "torch is not installed"
    sound = False
    for precision in TORCH:
        name, embed = f"golden torch {precision}", _embeds(folder, "torch", precision)
        try:
            check = _golden(folder, name, absent, GOLDEN_FLOORS[precision], embed)
        except RuntimeError as error:
            if precision == "fp32":
                raise
            # Not every operator has a form in half precision on every device.
            check = Check(name, None, str(error).splitlines()[0])
        # The same files and the same images: what passes in fp32 and fails here does so by its arithmetic alone.
        yield dataclasses.replace(check, unsuited=sound and check.ok is False)
        sound = sound or (precision == "fp32" and check.ok is True)


def _graphs(folder: Path, card: Card) -> Iterator[Check]:
    absent = None if importlib.util.find_spec("onnxruntime") else "onnxruntime is not installed"
    try:
        parity = read_parity(folder)
    except ModelFolderError as error:
        parity = {}
        yield Check(PARITY, False, str(error))
    for precision, file in FILES.items():
        if (folder / file).is_file():
            embed = _embeds(folder, "onnx", precision)
            check = _golden(folder, f"golden onnx {precision}", absent, GOLDEN_FLOORS[precision], embed)
            yield check
            if precision in parity:
                yield _statement(parity[precision], precision, check)
        if (folder / (file := RESIZING[precision])).is_file():
            embed = _resizes(folder, card, file, precision)
            yield _golden(folder, f"golden onnx {precision} resize", absent, GOLDEN_RESIZE_FLOORS[precision], embed)


def _embeds(folder: Path, runtime: str, precision: str) -> Embed:
    return lambda images: load(folder, runtime=runtime, precision=precision).embed(images)


def _resizes(folder: Path, card: Card, file: str, precision: str) -> Embed:
    """The images one by one, as they are, by the graph that resizes."""

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        check_files(folder, card, [file])
        run, mode = open_resizing(folder / file, card, precision=precision), card.preprocessing.mode
        whole = [np.asarray(open_image(image).convert(mode)) for image in images]
        return np.concatenate([run(image.reshape(1, *image.shape[:2], -1)) for image in whole])

    return embed


def _golden(folder: Path, name: str, absent: str | None, floor: float, embed: Embed) -> Check:
    if absent:
        return Check(name, None, absent)
    try:
        images, expected = read_golden(folder)
        got = embed(images)
    except ZooError as error:
        return Check(name, False, str(error))
    return _compared(name, got, expected, floor)


def _statement(said: Mapping[str, Any], precision: str, golden: Check) -> Check:
    """Whether what onnx/parity.json says of a graph agrees with itself and with the golden images, which are among
    those that its least cosine is of."""
    name = f"parity onnx {precision}"
    try:
        cosine, wrong = float(said["min_cosine"]), contradictions(said, precision)
    except (KeyError, TypeError, ValueError) as error:
        return Check(name, False, f"{PARITY} is not what zoo export writes ({error})")
    if golden.cosine is None:
        return Check(name, False if wrong else None, "; ".join(wrong) or "the golden images could not be embedded")
    if not 1 - golden.cosine <= ALLOWED * (1 - cosine) + 1 - GOLDEN_FLOORS["fp32"]:
        wrong.append(f"it says at least {cosine:.6f} to torch, on the golden images it is {golden.cosine:.6f}")
    return Check(name, not wrong, "; ".join(wrong) or f"at least {cosine:.6f} to torch")


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
    return Check(name, cosine >= floor, f"least cosine {cosine:.6f}", None if np.isnan(cosine) else cosine)


def _least_cosine(got: np.ndarray, expected: np.ndarray) -> float:
    """The least cosine between rows [n, dim], -1 to 1; NaN, which is above no floor, for a row without direction."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(np.clip(cosines, -1, 1).min())
