"""Verification of a model folder: hashes, golden images, and the records that no hash covers."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.images import open_image
from zoo.errors import ModelFolderError, ZooError, command
from zoo.files import read_json, sha256_of
from zoo.models.card import Card, read_card
from zoo.models.folder import CONFIG_FILE, ONNX, check_config, check_files, find_pickles, weight_files
from zoo.models.golden import GOLDEN_FILE, read_golden
from zoo.models.load import load
from zoo.models.onnx_runtime import (
    GRAPH_FILES,
    RESIZING_FILES,
    VARIANT_FILES,
    open_resizing_graph,
)
from zoo.models.registry import reference
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
from zoo.models.untrusted_graph import check_graph

RECIPE = "recipe.json"

KINDS = ("recipe", "ensemble", "baseline")
"""Keys of recipe.json for the ways in which a model is made."""


Embed = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Function from images before preprocessing to embeddings."""

TORCH = ("fp32", "fp16", "bf16")

ALLOWED = 2
"""Largest ratio of a graph's loss to the recorded one, beside fp32's tolerance: machines sum in different orders."""


def verify(folder: Path) -> Iterator[Check]:
    """Run every check of a model folder's weights in turn. Raises `CardError` if the card cannot be read."""
    card = read_card(folder)
    for name, expected in card.files.items():
        yield _check_hash(folder / name, name, expected)
    for name in sorted({*weight_files(card), *_weights_in(folder)} - card.files.keys()):
        yield Check(f"sha256 {name}", False, "is not in the card")
    if card.architecture != ONNX:
        yield from _check_torch(folder)
    yield from _check_graphs(folder, card)
    if card.text is not None:
        yield _check_golden_text(folder, card)


def verify_files(folder: Path) -> Iterator[Check]:
    """Check that the folder has no pickles and that config.json agrees with the card."""
    unsafe = find_pickles(folder)
    yield Check("no pickles", not unsafe, ", ".join(unsafe) or "weights are safetensors and ONNX only")
    if not (folder / CONFIG_FILE).is_file():
        yield Check(CONFIG_FILE, None, "is missing: timm cannot load the trunk from this folder")
        return
    try:
        check_config(folder, read_card(folder))
    except ZooError as error:
        yield Check(CONFIG_FILE, False, str(error))
    else:
        yield Check(CONFIG_FILE, True, "agrees with the card")


def _weights_in(folder: Path) -> set[str]:
    """Return the files of a model folder that hold weights, relative to it."""
    files = [*folder.glob("*.safetensors"), *folder.glob("onnx/*.onnx")]
    return {path.relative_to(folder).as_posix() for path in files if path.name not in (GOLDEN_FILE, GOLDEN_TEXT_FILE)}


def _check_hash(path: Path, name: str, expected: str) -> Check:
    try:
        if not path.is_file():
            return Check(f"sha256 {name}", False, "the file is missing")
        if sha256_of(path) != expected:
            return Check(f"sha256 {name}", False, "differs from the card's")
        if path.suffix == ".onnx":
            check_graph(path)
    except OSError as error:  # a name longer than the file system allows, a file without permission
        return Check(f"sha256 {name}", False, f"cannot be read: {error.strerror}")
    except ModelFolderError as error:
        return Check(f"sha256 {name}", False, str(error))
    return Check(f"sha256 {name}", True, expected[:16])


def _check_torch(folder: Path) -> Iterator[Check]:
    absent = None if importlib.util.find_spec("torch") else "torch is not installed"
    sound = False
    for precision in TORCH:
        name, embed = f"golden torch {precision}", _embed_with(folder, "torch", precision)
        try:
            check = _check_golden(folder, name, absent, GOLDEN_FLOORS[precision], embed)
        except RuntimeError as error:
            if precision == "fp32":
                raise
            # Some operators have no half-precision form on some devices.
            check = Check(name, None, str(error).splitlines()[0])
        # The files and images are the same, so after a pass in fp32 only the arithmetic can fail.
        yield dataclasses.replace(check, unsuited=sound and check.ok is False)
        sound = sound or (precision == "fp32" and check.ok is True)


def _check_graphs(folder: Path, card: Card) -> Iterator[Check]:
    absent = None if importlib.util.find_spec("onnxruntime") else "onnxruntime is not installed"
    try:
        parity = read_parity(folder)
    except ModelFolderError as error:
        parity = {}
        yield Check(PARITY_FILE, False, str(error))
    for precision, file in GRAPH_FILES.items():
        if (folder / file).is_file():
            embed = _embed_with(folder, "onnx", precision)
            golden = _check_golden(folder, f"golden onnx {precision}", absent, GOLDEN_FLOORS[precision], embed)
            yield golden
            if precision in parity:
                yield _check_parity_entry(parity[precision], precision, golden)
        if (folder / (file := RESIZING_FILES[precision])).is_file():
            embed = _embed_resizing(folder, card, file, precision)
            yield _check_golden(
                folder, f"golden onnx {precision} resize", absent, GOLDEN_RESIZE_FLOORS[precision], embed
            )


def _embed_with(folder: Path, runtime: str, precision: str) -> Embed:
    return lambda images: load(folder, runtime=runtime, precision=precision).embed(images)


def _embed_resizing(folder: Path, card: Card, file: str, precision: str) -> Embed:
    """Return a function that embeds images one by one, in their own sizes, by the graph that resizes."""

    def embed(images: Sequence[np.ndarray]) -> np.ndarray:
        check_files(folder, card, [file])
        run, mode = open_resizing_graph(folder / file, card, precision), card.preprocessing.mode
        arrays = [np.asarray(open_image(image).convert(mode)) for image in images]
        return np.concatenate([run(array.reshape(1, *array.shape[:2], -1)) for array in arrays])

    return embed


def _check_golden(folder: Path, name: str, absent: str | None, floor: float, embed: Embed) -> Check:
    if absent:
        return Check(name, None, absent)
    try:
        images, expected = read_golden(folder)
        actual = embed(images)
    except ZooError as error:
        return Check(name, False, str(error))
    return _compare(name, actual, expected, floor)


def _check_parity_entry(entry: Mapping[str, Any], precision: str, golden: Check) -> Check:
    """Check an entry of onnx/parity.json against itself and the golden images, which its least cosine includes."""
    name = f"parity onnx {precision}"
    try:
        cosine, problems = float(entry["min_cosine"]), contradictions(entry, precision)
    except (KeyError, TypeError, ValueError) as error:
        return Check(name, False, f"{PARITY_FILE} was not written by zoo export ({error})")
    if golden.cosine is None:
        return Check(name, False if problems else None, "; ".join(problems) or "the golden images were not embedded")
    if not 1 - golden.cosine <= ALLOWED * (1 - cosine) + 1 - GOLDEN_FLOORS["fp32"]:
        problems.append(f"its least cosine to torch is {cosine:.6f}, the golden images have {golden.cosine:.6f}")
    return Check(name, not problems, "; ".join(problems) or f"at least {cosine:.6f} to torch")


def _check_golden_text(folder: Path, card: Card) -> Check:
    name = "golden text"
    if absent := [module for module in ("onnxruntime", "tokenizers") if importlib.util.find_spec(module) is None]:
        return Check(name, None, f"{absent[0]} is not installed")
    try:
        texts, expected = read_golden_text(folder)
        tower = open_text_tower(folder, card)
        actual = tower.embed(tower.tokens(texts))
    except ZooError as error:
        return Check(name, False, str(error))
    return _compare(name, actual, expected, GOLDEN_FLOORS["fp32"])


def _compare(name: str, actual: np.ndarray, expected: np.ndarray, floor: float) -> Check:
    if actual.shape != expected.shape:
        return Check(name, False, f"gives {list(actual.shape)}, golden are {list(expected.shape)}")
    cosine = _least_cosine(actual, expected)
    return Check(name, cosine >= floor, f"least cosine {cosine:.6f}", None if np.isnan(cosine) else cosine)


def _least_cosine(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the least cosine between rows [n, dim]; NaN, which passes no floor, for a row without direction."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(np.clip(cosines, -1, 1).min())


def verify_records(folder: Path) -> Iterator[Check]:
    """Check recipe.json, results.json and onnx/parity.json, and that they describe this model.

    A missing file gives a check without a result, but graphs of less than fp32 need their entry in parity.json.
    `verify` reports an onnx/parity.json that cannot be read.
    """
    card = read_card(folder)
    yield _check_recipe(folder, card)
    yield _check_results(folder, card)
    yield from _check_parity(folder, card)


def _check_recipe(folder: Path, card: Card) -> Check:
    try:
        record = read_json(folder / RECIPE)
    except FileNotFoundError:
        return Check(RECIPE, None, "is missing: the origin of the model is unknown")
    except (OSError, ValueError) as error:
        return Check(RECIPE, False, f"cannot be read as JSON, perhaps it was cut off: {error}")
    if not isinstance(record, dict) or not any(kind in record for kind in KINDS):
        return Check(RECIPE, False, f"was not written by dml-zoo: it has no key of {', '.join(KINDS)}")
    problem = _origin_problem(record, card) or _identity_problem(record, card)
    return Check(RECIPE, not problem, problem or f"belongs to {card.name}")


def _origin_problem(record: Mapping[str, Any], card: Card) -> str:
    """Return why the record cannot describe the making of this model; "" if it can."""
    if "ensemble" in record:
        count, joined = _count(record["ensemble"]), _count(card.architecture_args.get("members"))
        return "" if count == joined else f"belongs to an ensemble of {count} models, the card's has {joined}"
    if "recipe" in record:
        name = _member(record["recipe"], "name")
        return "" if name == card.name else f"belongs to another model, {name!r}"
    repository = _member(record["baseline"], "repository")
    matches = repository is None or f"https://huggingface.co/{repository}" in card.sources
    return "" if matches else f"belongs to another model, the Hub's {repository}"


def _identity_problem(record: Mapping[str, Any], card: Card) -> str:
    """Return why the model that the record names is not this one; "" if it is, or if none is named."""
    if (model := record.get("model")) is None:
        return ""
    if _member(model, "fingerprint") == card.fingerprint:
        return ""
    name = _member(model, "name")
    if name != card.name:
        return f"belongs to another model, {name!r}"
    return f"belongs to {name} with other weights or preprocessing"


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0


def _check_results(folder: Path, card: Card) -> Check:
    if not (folder / RESULTS_FILE).exists():
        return Check("scores", None, f"{RESULTS_FILE} is missing")
    try:
        results = read_results(folder)
    except ModelFolderError as error:
        return Check(RESULTS_FILE, False, str(error))
    # Scores of plain embeddings have no model.
    if foreign := sorted({str(result["model"]) for result in results if result.get("model") not in (None, card.name)}):
        again = command("evaluate", reference(folder), "--save")
        detail = f"holds scores of {', '.join(foreign)}. Delete it and measure again: {again}"
        return Check(RESULTS_FILE, False, detail)
    return Check(RESULTS_FILE, True, f"{len(results)} measurements of {card.name}")


def _check_parity(folder: Path, card: Card) -> Iterator[Check]:
    graphs = {variant for variant, file in VARIANT_FILES.items() if (folder / file).is_file()}
    try:
        parity = read_parity(folder)
    except ModelFolderError:
        return
    if not parity and graphs <= {"fp32"}:
        # Golden images prove the fp32 graph, which must agree with torch.
        if graphs:
            yield Check(PARITY_FILE, None, "is missing")
        return
    problems = [f"has no entry for {VARIANT_FILES[name]}" for name in sorted(graphs - parity.keys() - {"fp32"})]
    for variant, entry in parity.items():
        if problem := entry_mismatch(entry, variant, card):
            problems.append(f"{variant} {problem}")
    detail = f"{'; '.join(problems)}. Export the model again, or download its folder again"
    yield Check(PARITY_FILE, not problems, detail if problems else f"belongs to {card.name}")
