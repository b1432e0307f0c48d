"""ResNet-50 at 224 x 224 with 2 threads: exported graphs compared with torch, as ratios of one process.

    python tests/benchmarks/bench_exports.py [--batches 1 8] [--repeats 7] [--threads 2] [--size 224] [--json FILE]

Weights are random. Runs alternate, and the best repeat of each counts, so that other work on the machine affects all
alike. "eager" is torch as `zoo.load` runs it, "ONNX" the session that `zoo.load` opens, whose threads sleep while they
wait; "spinning" is the same with ONNX Runtime's default. fp16 is for GPUs and for size: a CPU computes it in float32.
If torch sees a GPU (--device), torch in fp32, fp16 and bf16, plain and compiled, and ONNX Runtime's CUDA provider are
also measured there, relative to torch fp32 on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from exports.precision import write_fp16
from exports.quantize import write_int8
from tests.benchmarks.figures import Figure, print_figures, write_figures
from tests.benchmarks.torch_forms import torch_forms, unavailable
from tests.models import CARD, make_model
from zoo.data.preprocessing import Preprocessing
from zoo.models.card import Card, Head
from zoo.models.graph import write_graph
from zoo.models.network import PixelNetwork, load_network
from zoo.models.onnx_runtime import INPUT, OUTPUT, open_session

Run = Callable[[np.ndarray], np.ndarray]

TARGETS = {(1, "ONNX fp32"): 2.8, (8, "ONNX fp32"): 2.6, (8, "ONNX int8"): 5.0}
"""Targets as multiples of eager, by batch and form; those of fp32 were measured once, on a similar machine."""

EAGER, PRECISIONS = "eager", ("fp32", "fp16", "int8")


def pictures(count: int, size: int) -> np.ndarray:
    """Draw coarse random patterns with grain, uint8 [count, size, size, 3]."""
    draw = np.random.default_rng(0)
    coarse = draw.uniform(0, 255, (count, 8, 8, 3)).repeat(size // 8 + 1, 1).repeat(size // 8 + 1, 2)[:, :size, :size]
    return np.clip(coarse + draw.normal(0, 10, coarse.shape), 0, 255).astype(np.uint8)


def eager(card: Card, folder: Path, channels_last: bool = False) -> Run:
    network = PixelNetwork(load_network(card, folder), card.preprocessing).eval()
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            rows: np.ndarray = network(torch.from_numpy(pixels)).numpy()
            return rows

    return run


def graph(path: Path, device: str = "cpu") -> Run:
    session = open_session(path, device)
    return lambda pixels: session.run([OUTPUT], {INPUT: pixels})[0]


def spinning(path: Path, threads: int) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A session that is not running must not keep the processors busy for the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda pixels: session.run([OUTPUT], {INPUT: pixels})[0]


def resnet50(folder: Path, size: int) -> Card:
    card = dataclasses.replace(
        CARD,
        architecture="resnet50",
        architecture_args={},
        dim=512,
        heads=(Head("embedding", 512),),
        preprocessing=Preprocessing(size, size),
    )
    return make_model(folder, card)


def write_graphs(folder: Path, card: Card, size: int) -> dict[str, Path]:
    paths = {precision: folder / f"{precision}.onnx" for precision in PRECISIONS}
    write_graph(folder, card, paths["fp32"])
    write_fp16(paths["fp32"], pictures(16, size), paths["fp16"])
    write_int8(paths["fp32"], pictures(16, size), paths["int8"])
    return paths


def on_cpu(model: Path, card: Card, graphs: dict[str, Path], threads: int) -> dict[str, Run]:
    ours = {f"ONNX {precision}": graph(path) for precision, path in graphs.items()}
    theirs = {f"ONNX {name}, spinning": spinning(graphs[name], threads) for name in ("fp32", "int8")}
    return {EAGER: eager(card, model), "eager, channels last": eager(card, model, True), **ours, **theirs}


def on_device(model: Path, graphs: dict[str, Path], device: str) -> dict[str, Run]:
    """Return the runs on a device: torch's forms first, fp32 at their head."""
    found: dict[str, Run] = {name: form.run for name, form in torch_forms(model, device).items()}
    if "CUDAExecutionProvider" in ort.get_available_providers():
        found |= {f"ONNX {name} cuda": graph(graphs[name], "cuda") for name in ("fp32", "fp16")}
    return found


def best(candidates: dict[str, Run], pixels: np.ndarray, repeats: int) -> dict[str, float]:
    """Return the seconds per call: the least of the repeats, after one call that is not counted."""
    seconds = dict.fromkeys(candidates, np.inf)
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run(pixels)
            if repeat:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def compared(candidates: dict[str, Run], batch: int, size: int, repeats: int) -> list[Figure]:
    """Return each run's speed relative to the first."""
    seconds = best(candidates, pictures(batch, size), repeats)
    first = next(iter(seconds))
    return [
        Figure(f"batch {batch}: {who}, {1e3 * took:.2f} ms", seconds[first] / took, f"times {first}", target)
        for who, took in seconds.items()
        for target in [TARGETS.get((batch, who))]
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda", help="device of torch's other rows; without it they are left out")
    parser.add_argument("--device-batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # ONNX Runtime's sessions take the same number
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        card = resnet50(model, args.size)
        graphs = write_graphs(model, card, args.size)
        candidates = on_cpu(model, card, graphs, args.threads)
        figures = [f for batch in args.batches for f in compared(candidates, batch, args.size, args.repeats)]
        if why := unavailable(args.device):
            print(why)
        else:
            candidates = on_device(model, graphs, args.device)
            for batch in args.device_batches:
                figures += compared(candidates, batch, args.size, args.repeats)
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
