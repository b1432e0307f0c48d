"""Run a model folder with ONNX Runtime, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zoo.cards import Card
from zoo.errors import ModelFolderError, UsageError, missing

FILES = {"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "int8": "onnx/model_int8.onnx"}
INPUT, OUTPUT = "pixels", "embeddings"
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def open_file(path: Path, card: Card, device: str | None = None) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], and the device it runs on.

    The function may be called from several threads at once. Raises `ModelFolderError` where the graph's signature is
    not the card's.
    """
    session = _session(path, device or "cpu")
    _check_signature(session, card)

    def run(pixels: np.ndarray) -> np.ndarray:
        out: np.ndarray = session.run([OUTPUT], {INPUT: pixels})[0]
        return out

    return run, device or "cpu"


def graph_file(folder: Path, card: Card, precision: str) -> str:
    """The graph's name in the folder. Raises `ModelFolderError` where there is none of that precision."""
    if precision not in FILES:
        raise UsageError(f"ONNX models come in {', '.join(FILES)}, not {precision!r}.")
    path = folder / FILES[precision]
    if not path.is_file():
        advice = "Make it with" if precision == "fp32" else "Use precision fp32, the only one that is exported so far"
        raise ModelFolderError(
            f"{card.name} has no {precision} ONNX variant ({path} is missing). {advice}: zoo export {card.name}"
        )
    return FILES[precision]


def _session(path: Path, device: str):  # type: ignore[no-untyped-def]  # onnxruntime has no types
    try:
        import onnxruntime as ort
    except ImportError:
        raise missing("onnxruntime", "cpu") from None
    if device not in PROVIDERS:
        raise UsageError(f"device {device!r} is not one of {', '.join(PROVIDERS)}.")
    if PROVIDERS[device] not in ort.get_available_providers():
        raise UsageError(f"this onnxruntime has no {PROVIDERS[device]}; install 'dml-zoo[gpu]' or use device cpu.")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    try:
        return ort.InferenceSession(path, options, providers=[PROVIDERS[device]])
    except Exception as error:  # onnxruntime raises a family of its own
        raise ModelFolderError(f"{path} cannot be loaded by ONNX Runtime: {error}") from None


def _check_signature(session, card: Card) -> None:  # type: ignore[no-untyped-def]
    inputs, outputs = session.get_inputs(), session.get_outputs()
    got = [(i.name, i.type, list(i.shape)[1:]) for i in inputs], [(o.name, o.type, list(o.shape)[1:]) for o in outputs]
    want = [(INPUT, "tensor(uint8)", list(card.preprocessing.shape))], [(OUTPUT, "tensor(float)", [card.dim])]
    if got != want:
        raise ModelFolderError(f"the ONNX graph of {card.name} takes and gives {got}, its card says {want}.")
