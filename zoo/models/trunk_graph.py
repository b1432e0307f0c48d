"""Graphs of trunks in `ZOO_HOME/cache/graphs`, with which ONNX Runtime embeds many images faster than torch on a CPU.

A graph is made when a job is large enough, and checked against torch. It serves every model that has the same trunk: a
backbone, and the models that whitening or finetuning of the head make from it. NumPy applies the heads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zoo import paths
from zoo.console import note
from zoo.data.preprocessing import Preprocessing
from zoo.errors import ExportError
from zoo.files import atomic_path, keep_newest, locked
from zoo.models.card import Card
from zoo.models.folder import HEADS_FILE, WEIGHTS_FILE, check_files
from zoo.models.golden import golden_pixels, read_golden
from zoo.models.onnx_runtime import FEATURES, IMAGES, open_session, runner
from zoo.models.results import EXPORT_FLOORS, GOLDEN_FLOORS

MAKING_SECONDS = 20.0
"""A graph is made for jobs that would take torch longer; making it takes half as long. On a busy machine, where all
Python code waits for the processor, the limit is higher."""

KEPT_GRAPHS = 8
NOISE_IMAGES, TIMED_IMAGES = 8, 4

Trunk = Callable[[np.ndarray], np.ndarray]
"""From normalised images float32 [n, c, crop, crop] to pooled features float32 [n, f]."""


def open_trunk_graph(folder: Path, card: Card, images: int | None = None) -> Trunk | None:
    """Return the trunk of a model as ONNX Runtime runs it on the CPU; None where torch is to be used.

    Args:
        folder: The model folder.
        card: Its card.
        images: The number of images to embed. If torch would take long for them, a missing graph is made, which is
            reported on stderr. By default only a graph in the cache is used.

    Raises:
        ModelFolderError: If the folder's weights are not those of the card.
    """
    if not _is_installed("onnxruntime"):
        return None
    check_files(folder, card)
    file = _file(card)
    trunk = _open_checked(file, folder, card)
    if trunk is None and images is not None and _is_worth_making(folder, card, images):
        trunk = _make(file, folder, card)
    if trunk is not None:
        keep_newest(file, "*.onnx", KEPT_GRAPHS)
    return trunk


def embed_with(trunk: Trunk, folder: Path, card: Card) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from pixels uint8 [n, h, w, c] to unit rows float32 [n, dim]: trunk and heads of the card."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / HEADS_FILE) if card.heads else {}
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}  # which --half stores in float16
    heads = [(tensors[f"{head.name}.weight"].T, tensors[f"{head.name}.bias"]) for head in card.heads]

    def run(pixels: np.ndarray) -> np.ndarray:
        features = trunk(normalised(pixels, card.preprocessing))
        if not heads:
            return _unit(features)
        return _unit(np.concatenate([_unit(features @ weight + bias) for weight, bias in heads], axis=1))

    return run


def normalised(pixels: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Return uint8 pixels [n, h, w, c] as a trunk's images, float32 [n, c, h, w] with the card's mean and std."""
    mean, std = (np.array(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    scale, shift = (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)
    images = np.multiply(pixels.transpose(0, 3, 1, 2), scale, dtype=np.float32, order="C")
    images -= shift
    return images


def _unit(rows: np.ndarray) -> np.ndarray:
    result: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return result


def _file(card: Card) -> Path:
    """Return the path of the graph, which is named after the weights, the architecture and the size of the images."""
    facts = [
        card.files.get(WEIGHTS_FILE),
        card.architecture,
        dict(card.architecture_args),
        card.preprocessing.crop,
        card.preprocessing.channels,
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return paths.home() / "cache" / "graphs" / f"{key[:32]}.onnx"


def _open_checked(file: Path, folder: Path, card: Card) -> Trunk | None:
    """Return the trunk of a graph that gives the golden embeddings; None if the file is missing or damaged."""
    if not file.is_file():
        return None
    try:
        trunk = _open(file)
        rows, expected = embed_with(trunk, folder, card)(golden_pixels(folder, card)), read_golden(folder)[1]
    except Exception:  # ONNX Runtime has error types of its own; torch reports what is wrong with the folder itself
        return None
    return trunk if _least_cosine(rows, expected) >= GOLDEN_FLOORS["fp32"] else None


def _open(file: Path) -> Trunk:
    run = runner(open_session(file, "cpu"), file, FEATURES)
    return lambda images: run({IMAGES: images})


def _least_cosine(rows: np.ndarray, expected: np.ndarray) -> float:
    """Return the least cosine between rows of the same number; -1 if one is not finite."""
    first, second = (_unit(values.astype(np.float64)) for values in (rows, expected))
    return float(np.nan_to_num((first * second).sum(1), nan=-1.0).min())


def _is_worth_making(folder: Path, card: Card, images: int) -> bool:
    """Return whether a graph can be made, and torch would take longer than that for this many images."""
    if not all(map(_is_installed, ("torch", "timm", "onnx", "onnxscript"))):
        return False
    from zoo.models.network import load_network
    from zoo.models.torch_runtime import run_trunk

    wall, processor = time.perf_counter(), time.process_time()
    run = run_trunk(load_network(card, folder).trunk)
    slowdown = max(1.0, (time.perf_counter() - wall) / max(time.process_time() - processor, 1e-3))
    batch = _noise(card, TIMED_IMAGES)
    run(batch)  # allocates memory
    started = time.perf_counter()
    run(batch)
    return (time.perf_counter() - started) / TIMED_IMAGES * images > MAKING_SECONDS * slowdown


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _noise(card: Card, count: int) -> np.ndarray:
    shape = count, card.preprocessing.channels, card.preprocessing.crop, card.preprocessing.crop
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _make(file: Path, folder: Path, card: Card) -> Trunk | None:
    """Make the graph, unless another process has made it meanwhile; None, with a line on stderr, if that fails."""
    note(f"making an ONNX graph of {card.name}'s trunk, which embeds faster than torch; it is kept in {file.parent}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.parent):
            if (trunk := _open_checked(file, folder, card)) is None:
                with atomic_path(file) as temporary:
                    _write_checked(temporary, folder, card)
                trunk = _open(file)
    except Exception as error:  # a full disk, weights of more than 2 GB, or what the exporter raises
        note(f"embedding with torch, because no ONNX graph of {card.name} could be made: {error}")
        return None
    return trunk


def _write_checked(file: Path, folder: Path, card: Card) -> None:
    """Write a graph; raise `ExportError` (`below-floor`) if its features are not torch's."""
    from zoo.models.graph import write_trunk_graph
    from zoo.models.network import load_network
    from zoo.models.torch_runtime import run_trunk

    trunk = load_network(card, folder).trunk
    images = np.concatenate([normalised(golden_pixels(folder, card), card.preprocessing), _noise(card, NOISE_IMAGES)])
    expected = run_trunk(trunk)(images)
    write_trunk_graph(trunk, card, file)
    if (cosine := _least_cosine(_open(file)(images), expected)) < (floor := EXPORT_FLOORS["fp32"]):
        raise ExportError(f"its features have a cosine of {cosine:.7f} to torch's, floor {floor}", code="below-floor")
