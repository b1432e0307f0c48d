"""ResNet-50 at 224 x 224 with 2 threads: exported graphs beside torch, as ratios of one process.

    python tests/benchmarks/bench_exports.py [--batches 1 8] [--repeats 7] [--threads 2] [--size 224]

Random weights. Runs are interleaved, and of each the best of the repeats counts, so that what else the machine does
touches all alike. "eager" is torch as `zoo.load` runs it. fp16 is for GPUs and for size: a CPU computes it in float32.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from exports.graph import write_graph
from exports.half import write_half
from exports.quantize import write_int8
from tests.models import CARD, make_model
from zoo.cards import Card, Head, Preprocessing
from zoo.cli.output import print_table
from zoo.network import PixelNetwork, load_network
from zoo.onnx_runtime import INPUT, OUTPUT

Run = Callable[[np.ndarray], np.ndarray]


def pictures(count: int, size: int) -> np.ndarray:
    """Coarse random patterns with grain, uint8 [count, size, size, 3]."""
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


def graph(path: Path, threads: int) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A session that is not running must not keep the processors busy for the next one.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda pixels: session.run([OUTPUT], {INPUT: pixels})[0]


def runs(folder: Path, size: int, threads: int) -> dict[str, Run]:
    card = dataclasses.replace(
        CARD,
        architecture="resnet50",
        architecture_args={},
        dim=512,
        heads=(Head("embedding", 512),),
        preprocessing=Preprocessing(size, size),
    )
    model = folder / "model"
    card = make_model(model, card)
    names = ("fp32", "fp16", "int8")
    fp32, fp16, int8 = (folder / f"{name}.onnx" for name in names)
    write_graph(model, card, fp32)
    write_half(fp32, pictures(16, size), fp16)
    write_int8(fp32, pictures(16, size), int8)
    graphs = {f"ONNX {name}": graph(folder / f"{name}.onnx", threads) for name in names}
    return {"eager": eager(card, model), "eager, channels last": eager(card, model, True), **graphs}


def best(candidates: dict[str, Run], pixels: np.ndarray, repeats: int) -> dict[str, float]:
    """Seconds a call: the least of the repeats, after one call that is not counted."""
    seconds = dict.fromkeys(candidates, np.inf)
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run(pixels)
            if repeat:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as name:
        candidates = runs(Path(name), args.size, args.threads)
        rows = []
        for batch in args.batches:
            seconds = best(candidates, pictures(batch, args.size), args.repeats)
            rows += [
                [str(batch), who, f"{1e3 * took:.0f}", f"{seconds['eager'] / took:.2f}"]
                for who, took in seconds.items()
            ]
    print_table(("batch", "what", "ms", "times eager"), rows, numbers=("batch", "ms", "times eager"))


if __name__ == "__main__":
    main()
