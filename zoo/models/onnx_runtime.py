"""ONNX Runtime: open the graphs of a model folder without torch.

A graph is untrusted, since the card that vouches for it may come from the same stranger. It holds all of its weights,
has no inner graphs and so no loops, and uses the operators that ONNX Runtime itself brings. Its memory is bounded, and
so is the time of each run. Another process loads it first.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from zoo import paths
from zoo.errors import ModelFolderError, UsageError, VariantNotFoundError, check_text, command, missing, unknown
from zoo.models.card import Card
from zoo.models.graph_trial import try_graph
from zoo.models.registry import reference
from zoo.models.untrusted_graph import check_graph

GRAPH_FILES = {"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "int8": "onnx/model_int8.onnx"}
RESIZING_FILES = {precision: file.replace(".onnx", "_resize.onnx") for precision, file in GRAPH_FILES.items()}
"""Graphs that resize: their input is `IMAGES`, uint8 [n, h, w, c] of any size, upright, in the card's mode."""

VARIANT_FILES = GRAPH_FILES | {f"{precision}-resize": file for precision, file in RESIZING_FILES.items()}
"""Both kinds, by their names in onnx/parity.json."""

IMAGES, INPUT, OUTPUT, FEATURES = "images", "pixels", "embeddings", "features"
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

FINGERPRINT, PRECISION = "dml-zoo.fingerprint", "dml-zoo.precision"
"""Metadata keys of a graph: `Card.fingerprint` of its model, and its precision."""

MEMORY_SHARE = 0.75
"""Largest share of this machine's memory (or the control group's) that all graphs of a process use on the CPU."""

RUN_SECONDS = 60, 30
"""Longest time of a graph's run: a constant, and an addition for each row of the batch."""


def open_graph(
    path: Path, card: Card, device: str | None = None, precision: str | None = None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """Open a graph.

    Args:
        path: The graph.
        card: The card of its model.
        device: Cpu (default), cuda, cuda:N or tensorrt.
        precision: The precision that the graph must have; by default any.

    Returns:
        A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], which several threads may call at
        once, and the device it runs on.

    Raises:
        ModelFolderError: `other-model` or `unsupported-graph` if the graph is not the card's, `unreadable-file` or
            `unsafe-file` if it cannot be used. The function raises `unsupported-graph`.
        UsageError: `unknown-name` or `device-unavailable`.
    """
    device = device or "cpu"
    return _open(path, card, device, precision, INPUT, list(card.preprocessing.shape)), device


def open_resizing_graph(path: Path, card: Card, precision: str) -> Callable[[np.ndarray], np.ndarray]:
    """Open a graph that resizes, on the CPU: a function from images uint8 [n, h, w, c] of one size to embeddings.

    The images are upright and have the channels of the card's mode.

    Args:
        path: The graph.
        card: The card of its model.
        precision: The precision that the graph must have.

    Raises:
        ZooError: If `open_graph` would raise it.
    """
    return _open(path, card, "cpu", precision, IMAGES, None)


def _open(
    path: Path, card: Card, device: str, precision: str | None, name: str, shape: list[int] | None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from the input `name` to embeddings. shape: see `_check_signature`."""
    session = open_session(path, device)
    _check_origin(session, card, path, precision)
    _check_signature(session, card, name, shape)

    run = runner(session, path, OUTPUT)
    return lambda batch: run({name: batch})


def runner(session: Any, path: Path, output: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Return a function from a session's inputs, by name, to one of its outputs.

    It raises `ModelFolderError` (`unsupported-graph`) if the graph fails, needs more memory than `MEMORY_SHARE`, or
    does not end within `RUN_SECONDS`. ONNX Runtime ends between two operators, never within one.
    """
    import onnxruntime as ort

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        constant, each = RUN_SECONDS
        options = ort.RunOptions()
        seconds = constant + each * max(len(value) for value in inputs.values())
        _RUNS[options] = time.monotonic() + seconds
        _start_watch()
        try:
            rows: np.ndarray = session.run([output], inputs, options)[0]
        except Exception as error:  # onnxruntime raises its own types
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelFolderError(
                f"{path} cannot be run by ONNX Runtime: {reason}", code="unsupported-graph"
            ) from None
        finally:
            del _RUNS[options]
        return rows

    return run


_RUNS: dict[Any, float] = {}
"""The runs in progress: their options, and the time at which each is to end."""


@cache
def _start_watch() -> None:
    """Start the one thread that ends runs: a timer of each run would take longer than small graphs."""
    threading.Thread(target=_watch, name="runs of graphs", daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(1)
        for options, end in list(_RUNS.items()):
            if time.monotonic() > end:
                options.terminate = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_watch.cache_clear)


def check_precision(precision: str) -> None:
    """Check the name of a precision.

    Raises:
        UsageError: If ONNX graphs do not exist in this precision.
    """
    check_text("precision", precision)
    if precision not in GRAPH_FILES:
        raise unknown("ONNX precision", precision, GRAPH_FILES)


def graph_file(folder: Path, card: Card, precision: str) -> str:
    """Return the name of a precision's graph in the folder.

    Raises:
        UsageError: `unknown-name`.
        VariantNotFoundError: If the folder has no graph of this precision.
    """
    check_precision(precision)
    path = folder / GRAPH_FILES[precision]
    if not path.is_file():
        present = [name for name, file in GRAPH_FILES.items() if (folder / file).is_file()]
        images = ("--calibration", "DIR") if precision == "int8" else ()
        raise VariantNotFoundError(
            f"{card.name} has no {precision} ONNX variant ({path} is missing); it has {', '.join(present) or 'none'}. "
            f"Make it (with torch): {command('export', reference(folder), '--precision', precision, *images)}"
        )
    return GRAPH_FILES[precision]


def open_session(path: Path, device: str):  # type: ignore[no-untyped-def]  # onnxruntime has no types
    """Return an ONNX Runtime session of a graph. Raises `ModelFolderError` and `UsageError` as `open_graph` does."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise missing("onnxruntime", "cpu") from None
    providers = providers_of(device, ort.get_available_providers())
    provider = providers[0][0]
    if provider != PROVIDERS["cpu"]:
        # Libraries of CUDA and cuDNN that pip installed where the system's loader does not look. It prints errors.
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = paths.thread_count()
    # Threads that spin while they wait take the cores from those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if _int8_overflows():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if _share_memory():
        options.add_session_config_entry("session.use_env_allocators", "1")
    check_graph(path)
    try_graph(path, ort.__version__)
    try:
        session = ort.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime raises its own types
        raise ModelFolderError(f"{path} cannot be loaded by ONNX Runtime: {error}", code="unreadable-file") from None
    if provider not in session.get_providers():
        # ONNX Runtime continues without a provider whose libraries it does not find.
        raise UsageError(
            f"{provider} could not be started: {_gpu_problem()}. Or use device cpu.", code="device-unavailable"
        )
    _release_memory()
    return session


def _release_memory() -> None:
    """Give the system the memory that loading a graph has freed: glibc keeps 31 MB of it for a graph of 10 MB."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


@cache
def _share_memory() -> bool:
    """Give all sessions of this process one pool of memory on the CPU that is bounded; return whether it is.

    Without a bound, a graph of a few bytes (`Expand`, `Tile`, `Resize`) takes as much as the machine has.
    """
    import onnxruntime as ort

    if (total := _memory_size()) is None:
        return False
    pool = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(pool, ort.OrtArenaCfg({"max_mem": int(MEMORY_SHARE * total)}))
    return True


def _memory_size() -> int | None:
    """Return the bytes of memory of this machine, or of its control group if that has fewer; None if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def _gpu_problem() -> str:
    """Return why a provider for a GPU does not start."""
    if not has_nvidia_driver():
        return "this machine has no NVIDIA driver (libcuda.so.1)"
    return (
        "a library is missing or the driver is too old, as ONNX Runtime's message above says; "
        "pip install 'onnxruntime-gpu[cuda,cudnn]' installs the CUDA libraries"
    )


def has_nvidia_driver() -> bool:
    """Return whether the library of NVIDIA's driver can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def providers_of(device: str, available: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return ONNX Runtime's providers for a device, with their options, best first.

    TensorRT passes operators that it cannot run to CUDA, and CUDA to the CPU.

    Raises:
        UsageError: `unknown-name`, or `device-unavailable` if the installed ONNX Runtime lacks the provider.
    """
    check_text("device", device)
    kind, colon, number = device.partition(":")
    if kind not in PROVIDERS or (colon and (kind == "cpu" or not number.isdecimal())):
        raise unknown("device", device, PROVIDERS, "Known: cpu, cuda, cuda:N, tensorrt.")
    if PROVIDERS[kind] not in available:
        raise UsageError(
            f"this onnxruntime has no {PROVIDERS[kind]}; use device cpu, or run: pip install 'dml-zoo[gpu]'",
            code="device-unavailable",
        )
    chain = {"cpu": ("cpu",), "cuda": ("cuda", "cpu"), "tensorrt": ("tensorrt", "cuda", "cpu")}[kind]
    options = {"device_id": int(number)} if number else {}
    providers = [PROVIDERS[name] for name in chain if PROVIDERS[name] in available]
    return [(name, {} if name == PROVIDERS["cpu"] else options) for name in providers]


@cache
def _int8_overflows() -> bool:
    """Return whether int8 products overflow on this machine: x86 without VNNI adds pairs of them in 16 bits.

    ONNX Runtime then uses unsigned weights on request, which is exact but slower ("Quantize ONNX models", U8S8).
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    flags = paths.cpu_flags()
    return flags is None or not any("vnni" in flag for flag in flags)


def _check_origin(session: Any, card: Card, path: Path, precision: str | None) -> None:
    """Check the model and precision in a graph's metadata, as far as it states them."""
    metadata = session.get_modelmeta().custom_metadata_map
    if metadata.get(FINGERPRINT) not in (None, card.fingerprint):
        raise ModelFolderError(
            f"{path} is the ONNX graph of another model than {card.name}, with other weights, architecture or "
            f"preprocessing. Make it again with: {command('export', reference(path.parent.parent))}",
            code="other-model",
        )
    if precision is not None and metadata.get(PRECISION) not in (None, precision):
        raise ModelFolderError(
            f"{path} is an ONNX graph in {metadata[PRECISION]}, its name says {precision}. Make it again with: "
            f"{command('export', reference(path.parent.parent), '--precision', precision)}",
            code="other-model",
        )


def check_batch_axis(session: Any, graph: str) -> None:
    """Raise `ModelFolderError` (`unsupported-graph`) unless a graph takes any number of rows. graph: its name."""
    for value in (*session.get_inputs(), *session.get_outputs()):
        if value.shape and isinstance(value.shape[0], int):
            raise ModelFolderError(
                f"{graph} takes only batches of {value.shape[0]}, by the first axis of {value.name!r}; expected any "
                "number. Download the model folder again, or make the graph again (zoo export, zoo text-tower).",
                code="unsupported-graph",
            )


def _check_signature(session: Any, card: Card, name: str, shape: list[int] | None) -> None:
    """Check inputs and outputs of a graph. shape: of one input image; None for any height and width."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    check_batch_axis(session, f"the ONNX graph of {card.name}")
    sizes = [list(i.shape)[1:] if shape else len(i.shape) for i in inputs]
    actual = (
        [(i.name, i.type, size) for i, size in zip(inputs, sizes, strict=True)],
        [(o.name, o.type, list(o.shape)[1:]) for o in outputs],
    )
    expected = [(name, "tensor(uint8)", shape or 4)], [(OUTPUT, "tensor(float)", [card.dim])]
    if actual != expected:
        raise ModelFolderError(
            f"the ONNX graph of {card.name} has inputs and outputs {actual}, expected {expected} by its card.",
            code="unsupported-graph",
        )
