"""Zoo verify: hashes, records, golden images.

The records beside the weights, which no hash covers: whole, and of this model and no other.

The golden check: are a model folder's files what its card says, and do they still give their embeddings?
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.images import open_image
from zoo.errors import ModelFolderError, ZooError
from zoo.files import read_json, sha256_of
from zoo.models.card import Card, read_card
from zoo.models.folder import CONFIG_FILE, check_config, check_files, find_pickles, weight_files
from zoo.models.golden import GOLDEN_FILE, read_golden
from zoo.models.load import load
from zoo.models.onnx_runtime import (
    GRAPH_FILES,
    RESIZING_FILES,
    VARIANT_FILES,
    check_self_contained,
    open_resizing_graph,
)
from zoo.models.results import (
    GOLDEN_FLOORS,
    GOLDEN_RESIZE_FLOORS,
    PARITY_FILE,
    RESULTS_FILE,
    Check,
    contradictions,
    entry_mismatch,
    read_parity,
    read_results,
)
from zoo.models.text_tower import GOLDEN_TEXT_FILE, open_text_tower, read_golden_text

RECIPE = "recipe.json"

KINDS = ("recipe", "ensemble", "baseline")
"""What a recipe.json says a model was made as, by its key."""


def verify_records(folder: Path) -> Iterator[Check]:
    """A check for each of recipe.json, results.json and, where there are graphs, onnx/parity.json.

    One that is missing cannot be checked; but graphs that give less than the fp32 graph does must have their statement.
    An onnx/parity.json that cannot be read is what `verify` says.
    """
    card = read_card(folder)
    yield _recipe(folder, card)
    yield _results(folder, card)
    yield from _parity(folder, card)


def _recipe(folder: Path, card: Card) -> Check:
    try:
        record = read_json(folder / RECIPE)
    except FileNotFoundError:
        return Check(RECIPE, None, "there is none, so how the model was made is not known")
    except (OSError, ValueError) as error:
        return Check(RECIPE, False, f"cannot be read as JSON, perhaps it was cut off: {error}")
    if not isinstance(record, dict) or not any(kind in record for kind in KINDS):
        return Check(RECIPE, False, f"is none that dml-zoo writes: it has none of {', '.join(KINDS)}")
    why = _made_as(record, card) or _made_for(record, card)
    return Check(RECIPE, not why, why or f"is of {card.name}")


def _made_as(record: Mapping[str, Any], card: Card) -> str:
    """Why a model of this card cannot have been made so; "" where it can."""
    if "ensemble" in record:
        count, joined = _count(record["ensemble"]), _count(card.architecture_args.get("members"))
        return "" if count == joined else f"is of an ensemble of {count} models, the card's is one of {joined}"
    if "recipe" in record:
        name = _member(record["recipe"], "name")
        return "" if name == card.name else f"is of another model, {name!r}"
    repository = _member(record["baseline"], "repository")
    known = repository is None or f"https://huggingface.co/{repository}" in card.sources
    return "" if known else f"is of another model, of the Hub's {repository}"


def _made_for(record: Mapping[str, Any], card: Card) -> str:
    """Why the model that the file names is not this one; "" where it is, or was not yet named when it was written."""
    if (model := record.get("model")) is None:
        return ""
    if _member(model, "fingerprint") == card.fingerprint:
        return ""
    name = _member(model, "name")
    return (
        f"is of another model, {name!r}" if name != card.name else f"is of {name} with other weights or preprocessing"
    )


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0


def _results(folder: Path, card: Card) -> Check:
    if not (folder / RESULTS_FILE).exists():
        return Check("scores", None, f"there is no {RESULTS_FILE}")
    try:
        results = read_results(folder)
    except ModelFolderError as error:
        return Check(RESULTS_FILE, False, str(error))
    # Of plain embeddings no model is known.
    if others := sorted({str(result["model"]) for result in results if result.get("model") not in (None, card.name)}):
        detail = f"holds scores of {', '.join(others)}. Delete it and measure again: zoo evaluate"
        return Check(RESULTS_FILE, False, detail)
    return Check(RESULTS_FILE, True, f"{len(results)} measurements of {card.name}")


def _parity(folder: Path, card: Card) -> Iterator[Check]:
    graphs = {variant for variant, file in VARIANT_FILES.items() if (folder / file).is_file()}
    try:
        parity = read_parity(folder)
    except ModelFolderError:
        return
    if not parity and graphs <= {"fp32"}:
        # Golden images prove the fp32 graph: it is to give what torch gives.
        if graphs:
            yield Check(PARITY_FILE, None, "there is none")
        return
    wrong = [f"says nothing of {VARIANT_FILES[variant]}" for variant in sorted(graphs - parity.keys() - {"fp32"})]
    wrong += [
        f"{variant} {why}" for variant, entry in parity.items() if (why := entry_mismatch(entry, variant, card, graphs))
    ]
    advice = ". Export the model anew, or get its folder anew"
    yield Check(PARITY_FILE, not wrong, "; ".join(wrong) + advice if wrong else f"is of {card.name}")


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
    unsafe = find_pickles(folder)
    yield Check("no pickles", not unsafe, ", ".join(unsafe) or "weights are safetensors and ONNX alone")
    if not (folder / CONFIG_FILE).is_file():
        yield Check(CONFIG_FILE, None, "there is none, so timm cannot load the trunk from here")
        return
    try:
        check_config(folder, read_card(folder))
    except ZooError as error:
        yield Check(CONFIG_FILE, False, str(error))
    else:
        yield Check(CONFIG_FILE, True, "agrees with the card")


def _weights_in(folder: Path) -> set[str]:
    """The files of a model folder that hold weights, relative to it."""
    found = [*folder.glob("*.safetensors"), *folder.glob("onnx/*.onnx")]
    return {path.relative_to(folder).as_posix() for path in found if path.name not in (GOLDEN_FILE, GOLDEN_TEXT_FILE)}


def _hash(path: Path, name: str, expected: str) -> Check:
    try:
        if not path.is_file():
            return Check(f"sha256 {name}", False, "the file is missing")
        if sha256_of(path) != expected:
            return Check(f"sha256 {name}", False, "differs from the card's")
        if path.suffix == ".onnx":
            check_self_contained(path)
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
        yield Check(PARITY_FILE, False, str(error))
    for precision, file in GRAPH_FILES.items():
        if (folder / file).is_file():
            embed = _embeds(folder, "onnx", precision)
            check = _golden(folder, f"golden onnx {precision}", absent, GOLDEN_FLOORS[precision], embed)
            yield check
            if precision in parity:
                yield _statement(parity[precision], precision, check)
        if (folder / (file := RESIZING_FILES[precision])).is_file():
            embed = _resizes(folder, card, file, precision)
            yield _golden(folder, f"golden onnx {precision} resize", absent, GOLDEN_RESIZE_FLOORS[precision], embed)


def _embeds(folder: Path, runtime: str, precision: str) -> Embed:
    return lambda images: load(folder, runtime=runtime, precision=precision).embed(images)


def _resizes(folder: Path, card: Card, file: str, precision: str) -> Embed:
    """The images one by one, as they are, by the graph that resizes."""

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        check_files(folder, card, [file])
        run, mode = open_resizing_graph(folder / file, card, precision=precision), card.preprocessing.mode
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
        return Check(name, False, f"{PARITY_FILE} is not what zoo export writes ({error})")
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
        tower = open_text_tower(folder, card)
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
