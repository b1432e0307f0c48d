"""Speed of embedding many images and of training on a CPU: torch's forms, timm alone and ONNX Runtime.

    python tests/benchmarks/bench_bulk.py --model DIR                      idle, and beside other processes
    python tests/benchmarks/bench_bulk.py --model DIR --images PICTURES    also decoding alone, and embed() of files

The forms run in turn, and rates are medians. "busy": one process per core multiplies matrices meanwhile. Each way of
waiting of OpenMP's threads (`zoo.cli.main.wait_without_spinning`) has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.benchmarks.figures import Figure, print_figures, write_figures

WAITING = {"spinning": {}, "sleeping": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}}
COMPUTE = "import numpy as np\na = np.random.rand(500, 500)\nwhile True: a @ a"


@contextmanager
def other_processes(busy: bool) -> Iterator[None]:
    """Let one process per core compute."""
    count = len(os.sched_getaffinity(0)) if busy else 0
    single = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", COMPUTE], env=single) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def forward_forms(folder: Path, batch: int) -> dict[str, Callable[[], object]]:
    import timm
    import torch

    from zoo.models.card import read_card
    from zoo.models.load import load
    from zoo.models.network import load_network

    card = read_card(folder)
    shape = card.preprocessing.shape
    pixels = np.random.default_rng(0).integers(0, 256, (batch, *shape), np.uint8)
    images = torch.randn(batch, shape[2], *shape[:2])
    plain = timm.create_model(card.architecture, in_chans=shape[2], num_classes=0, **card.architecture_args).eval()
    channels_last = load_network(card, folder).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours, graph = load(folder, "torch", device="cpu"), load(folder, "auto", device="cpu", images=10**9)

    def inference(network: torch.nn.Module, inputs: torch.Tensor) -> None:
        with torch.inference_mode():
            network(inputs)

    return {
        "timm": lambda: inference(plain, images),
        "torch channels_last": lambda: inference(channels_last, images.contiguous(memory_format=torch.channels_last)),
        "torch": lambda: ours.embed_pixels(pixels),
        graph.runtime: lambda: graph.embed_pixels(pixels),
    }


def training_forms(folder: Path, batch: int) -> dict[str, Callable[[], object]]:
    import torch

    from training.execution import MEMORY_FORMATS, one_pass
    from zoo.models.card import read_card
    from zoo.models.network import load_network

    card = read_card(folder)
    images = torch.randn(batch, card.preprocessing.channels, card.preprocessing.crop, card.preprocessing.crop)
    forms: dict[str, Callable[[], object]] = {}
    for name, layout in MEMORY_FORMATS.items():
        trunk = load_network(card, folder).trunk.train().to(memory_format=layout)  # type: ignore[call-overload]
        inputs = images.contiguous(memory_format=layout)
        for precision in ("fp32", "bf16"):
            forms[f"training {precision} {name}"] = lambda t=trunk, i=inputs, p=precision: one_pass(t, i, p)  # type: ignore[misc]
    return forms


def file_forms(folder: Path, files: list[Path]) -> dict[str, Callable[[], object]]:
    from zoo.data.decode import decode_batches
    from zoo.models.load import load

    model = load(folder, "auto", device="cpu", images=10**9)
    return {
        "decoding": lambda: list(decode_batches(files, model.preprocessing, 64)),
        "embed() of files": lambda: model.embed(files),
    }


def rates(forms: dict[str, Callable[[], object]], images: int, rounds: int) -> dict[str, float]:
    """Return images per second."""
    for run in forms.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, run in forms.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: images / statistics.median(values) for name, values in times.items()}


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the rates of this process's way of waiting, idle and busy."""
    files = sorted(args.images.rglob("*.jpg"))[:256] if args.images else []
    groups = [(forward_forms(args.model, args.batch), args.batch), (training_forms(args.model, args.batch), args.batch)]
    if files:
        groups.append((file_forms(args.model, files), len(files)))
    found = {}
    for busy in (False, True):
        with other_processes(busy):
            for forms, images in groups:
                measured = rates(forms, images, args.rounds)
                found |= {f"{'busy' if busy else 'idle'}: {name}": rate for name, rate in measured.items()}
                print(measured, file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a model folder")
    parser.add_argument("--images", type=Path, metavar="DIR", help="JPEGs")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.here:
        print(json.dumps(measure(args)))
        return
    figures = []
    for waiting, settings in WAITING.items():
        command = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv), "--here"]
        ended = subprocess.run(command, env={**os.environ, **settings}, check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(ended.stdout.splitlines()[-1])
        figures += [Figure(f"{waiting}, {name}", rate, "images/s") for name, rate in measured.items()]
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
