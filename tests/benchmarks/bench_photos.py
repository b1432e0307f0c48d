"""Embedding of a folder of photographs with the shipped model photos, compared with other ways and with the limit.

    python tests/benchmarks/bench_photos.py                                 without fastembed, unless it is installed
    python tests/benchmarks/bench_photos.py --fastembed VENV/bin/python     an interpreter that has fastembed
    taskset -c 0 python tests/benchmarks/bench_photos.py --images 64 --rounds 3

The photographs are those of scikit-image, cut, scaled to 1024 x 768, mirrored and written as JPEGs of quality 90.

- "PIL + timm" is the loop that people write by hand: full decoding, timm's evaluation transform, torch.
- "fastembed" runs the same ONNX file. The graph takes bytes, so that fastembed has nothing to normalise.
- "graph alone" is the same session on pixels in memory: ONNX Runtime's limit. "decoding alone" is all the rest.

All take turns, after one run that is not counted. Figures are medians; on one core, of processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from tests.benchmarks.bench_embed import SIDES, plain_loop
from tests.benchmarks.figures import Figure, clock, print_conditions, print_figures, write_figures
from zoo.data.decode import decode_batches
from zoo.models.load import Embedder, load

SOURCES = ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina")
"""Photographs in colour within scikit-image's wheel."""

DIFFERENT = 48
"""Number of different JPEGs; further images are copies of them."""

PLAIN, FASTEMBED, LIMIT = 2.0, 1.0, 0.9
"""Targets: speed of embed() over the loop of PIL and timm, over fastembed, and over the graph alone."""

EMBED, LOOP, PEER, GRAPH, DECODING = "embed()", "PIL + timm", "fastembed", "graph alone", "decoding alone"

Run = Callable[[], float]
"""Run over all images that returns its seconds."""


def photographs(folder: Path, count: int) -> list[Path]:
    """Write JPEGs of about 130 kB."""
    from skimage import data

    folder.mkdir()
    draw = np.random.default_rng(0)
    pictures = [Image.fromarray(getattr(data, name)()) for name in SOURCES]
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if number < DIFFERENT:
            _cut(pictures[number % len(pictures)], draw).save(path, quality=90)
        else:
            path.write_bytes(paths[number % DIFFERENT].read_bytes())
    return paths


def _cut(picture: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Return a random part of a picture, at full size, mirrored or not."""
    proportions = SIDES[0] / SIDES[1]
    width = min(picture.width, picture.height * proportions) * draw.uniform(0.7, 1)
    height = width / proportions
    left, top = draw.uniform(0, picture.width - width), draw.uniform(0, picture.height - height)
    part = picture.resize(SIDES, Image.Resampling.LANCZOS, (left, top, left + width, top + height))
    return ImageOps.mirror(part) if draw.random() < 0.5 else part


def timed(function: Callable[[], object]) -> Run:
    now = clock()

    def run() -> float:
        began = now()
        function()
        return now() - began

    return run


@contextmanager
def fastembed(python: str, model: Embedder, folder: Path, batch: int) -> Iterator[Run | None]:
    """Start fastembed in a process of its own; None if the interpreter does not have it."""
    how, graph = model.preprocessing, model.folder / "onnx/model.onnx"
    worker = Path(__file__).with_name("fastembed_worker.py")
    command = [python, worker, graph, folder, *map(str, (how.resize, how.crop, batch))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def run() -> float:
            print(file=questions, flush=True)
            seconds: float = json.loads(answers.readline())["seconds"]
            return seconds

        versions = answers.readline()
        print(f"fastembed's process: {versions.strip() or 'left out, this interpreter has no fastembed'}")
        yield run if versions else None
        questions.close()


def rates(forms: dict[str, Run], images: int, rounds: int) -> dict[str, list[float]]:
    """Return the images per second of each form in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds + 1):
        for name, run in forms.items():
            taken = run()
            if number:
                seconds[name].append(taken)
    return {name: [images / value for value in values] for name, values in seconds.items()}


def ratio(measured: dict[str, list[float]], other: str) -> float:
    """Return the median over the rounds of the speed of embed() over another form's."""
    return statistics.median(a / b for a, b in zip(measured[EMBED], measured[other], strict=True))


def speed(measured: dict[str, list[float]]) -> list[Figure]:
    figures = [Figure(name, statistics.median(values), "images/s") for name, values in measured.items()]
    for name, unit, target in ((LOOP, "times", PLAIN), (PEER, "times", FASTEMBED), (GRAPH, "share", LIMIT)):
        if name in measured:
            figures.append(Figure(f"{EMBED} to {name}", ratio(measured, name), unit, target))
    both = [1 / (1 / a + 1 / b) for a, b in zip(measured[GRAPH], measured[DECODING], strict=True)]
    figures.append(Figure(f"{EMBED} to graph and decoding in turn", ratio(measured | {"both": both}, "both"), "share"))
    return figures


def agreement(rows: np.ndarray, model: Embedder, paths: list[Path]) -> list[Figure]:
    """Compare embeddings with those of fully decoded images: Pillow's own image of a JPEG is decoded at full size."""
    lost = 1e3 * (1 - (rows * model.embed([Image.open(path) for path in paths])).sum(1))
    name = "cosine lost by decoding at half size"
    return [Figure(f"{name}, mean", float(lost.mean()), "/1000"), Figure(f"{name}, most", float(lost.max()), "/1000")]


def measure(args: argparse.Namespace, temporary: Path) -> list[Figure]:
    paths = photographs(temporary / "images", args.images)
    model = load("photos", "onnx")
    pixels = list(decode_batches(paths, model.preprocessing, args.batch))
    with fastembed(args.fastembed, model, temporary / "images", args.batch) as peer:
        forms = {
            EMBED: timed(lambda: model.embed(paths, args.batch)),
            LOOP: timed(plain_loop(model.folder, paths, args.batch)),
            **({PEER: peer} if peer else {}),
            GRAPH: timed(lambda: [model.embed_pixels(batch) for batch in pixels]),
            DECODING: timed(lambda: list(decode_batches(paths, model.preprocessing, args.batch))),
        }
        figures = speed(rates(forms, len(paths), args.rounds))
    different = paths[:DIFFERENT]
    return [*figures, *agreement(model.embed(different), model, different)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fastembed", default=sys.executable, metavar="PYTHON", help="an interpreter with fastembed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args(argv)
    print_conditions()
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure(args, Path(temporary))
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
