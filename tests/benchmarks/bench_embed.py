"""Embedding of a folder of JPEGs from end to end, compared with the network alone and a plain loop; and a cold start.

    python tests/benchmarks/bench_embed.py                     ResNet-50 in ONNX, 2,000 photographs of 1024 x 768
    python tests/benchmarks/bench_embed.py --images 300 --batch 16
    python tests/benchmarks/bench_embed.py --cold              only the time to a cold process's first embedding
    python tests/benchmarks/bench_embed.py --json FILE         write the figures and their conditions to a file

If torch sees a GPU (--device), torch is also measured there in fp32, fp16 and bf16, plain and compiled.

"model alone" is the same session on decoded pixels at the same batch size: the speed of embed() if decoding and
resizing cost nothing. The plain loop is the one that people write by hand: PIL's full decoding, timm's transform, torch
eager, one batch after another. Weights are random, which does not change the time. Repetitions of all forms alternate;
the first batch of each is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tests.benchmarks.figures import Figure, print_figures, write_figures

if TYPE_CHECKING:
    from zoo.models.load import Embedder


SIDES = 1024, 768

SHARES = {"fp32": 0.9, "int8": 0.8}
"""Target of embed(): its share of the speed of the model alone, by precision."""

PLAIN, COLD, COLD_SHARE = 2.0, 0.7, 0.1
"""Targets: speed of embed() over the plain loop, seconds of a cold start with ONNX, and its share of torch's."""

PLAIN_LOOP = "plain loop"


def photographs(folder: Path, count: int, different: int = 40) -> list[Path]:
    """Write JPEGs of about 150 kB, clouds of three scales with grain: `different` ones, each under several names."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    files = []
    for i in range(different):
        pixels = sum(
            np.asarray(Image.fromarray(draw.integers(0, 85, (n * 3, n * 4, 3), np.uint8)).resize(SIDES), np.float64)
            for n in (2, 10, 60)
        )
        grained = np.clip(pixels + draw.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        file = folder / f"{i}.jpg"
        Image.fromarray(grained).save(file, quality=85)
        files.append(file.read_bytes())
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(files[i % different])
    return [folder / f"{i}.jpg" for i in range(count)]


def resnet50(folder: Path) -> None:
    from tests.models import make_model
    from zoo.data.preprocessing import Preprocessing
    from zoo.models.card import Card, Head

    card = Card(
        name="bench-resnet50",
        method="none",
        backbone="resnet50",
        dataset="noise",
        architecture="resnet50",
        dim=512,
        preprocessing=Preprocessing(256, 224),
        heads=(Head("embedding", 512),),
    )
    make_model(folder, card)


def export_command(folder: Path, precisions: Sequence[str], calibration: Path | None = None) -> list[str]:
    """Return the arguments of `zoo` that export the model; its weights are random, so scores are not measured."""
    images = [] if calibration is None else ["--calibration", str(calibration)]
    chosen = [word for precision in precisions for word in ("--precision", precision)]
    return ["export", str(folder), *chosen, "--force", "--no-cost", *images]


def export_all(folder: Path, precisions: Sequence[str], calibration: Path | None = None) -> None:
    command = [sys.executable, "-m", "zoo.cli.main", *export_command(folder, precisions, calibration)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def plain_loop(folder: Path, paths: list[Path], batch: int) -> Callable[[], None]:
    """Return a run of full decoding, timm's evaluation transform and torch in float32."""
    import torch
    from timm.data import create_transform

    from zoo.models.card import read_card
    from zoo.models.network import load_network

    card = read_card(folder)
    network, how = load_network(card, folder).eval(), card.preprocessing
    size, share = (3, how.crop, how.crop), how.crop / how.resize
    settings = {"interpolation": how.interpolation, "mean": how.mean, "std": how.std}
    transform = create_transform(size, is_training=False, crop_pct=share, **settings)

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(paths), batch):
                images = [Image.open(path).convert("RGB") for path in paths[start : start + batch]]
                network(torch.stack([transform(image) for image in images]))

    return run


def throughput(model: Embedder, paths: list[Path], batch: int, repeats: int, plain: bool) -> dict[str, float]:
    """Return images per second: the network alone and the plain loop on a fifth of the images, embed() on all."""
    from zoo.data.decode import decode_batches

    few = paths[: max(batch, len(paths) // 5)]
    ready = list(decode_batches(few, model.preprocessing, batch))

    def alone() -> None:
        for pixels in ready:
            model.embed_pixels(pixels)

    forms: dict[str, tuple[Callable[[], object], int]] = {
        "model alone": (alone, len(few)),
        "embed()": (lambda: model.embed(paths, batch_size=batch), len(paths)),
    }
    model.embed(paths[:batch], batch_size=batch)
    if plain:
        plain_loop(model.folder, paths[:batch], batch)()
        forms[PLAIN_LOOP] = plain_loop(model.folder, few, batch), len(few)
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, (run, images) in forms.items():
            started = time.perf_counter()
            run()
            rates[name].append(images / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in rates.items()}


def speed(name: str, rates: dict[str, float], share: float | None) -> list[Figure]:
    """Measure a model; `share` is the target of embed() as a part of the model alone."""
    figures = [Figure(f"{name}: {form}", rate, "images/s") for form, rate in rates.items()]
    ours = rates["embed()"]
    figures.append(Figure(f"{name}: embed() of model alone", ours / rates["model alone"], "share", share))
    if PLAIN_LOOP in rates:
        figures.append(Figure(f"{name}: embed() to plain loop", ours / rates[PLAIN_LOOP], "times", PLAIN))
    return figures


FIRST = "import time, zoo; zoo.load({folder!r}, runtime={runtime!r}).embed({image!r}); print(time.time())"


def cold(folder: Path, image: Path, runtime: str, repeats: int = 5) -> float:
    """Return the seconds from the start of a process to its first embedding; its imports are compiled and cached."""
    command = [sys.executable, "-c", FIRST.format(folder=str(folder), runtime=runtime, image=str(image))]
    # With this variable, which many containers set, every process would compile all its imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(repeats + 1):
        started = time.time()  # which processes share
        there = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
        times.append(float(there.split()[-1]) - started)
    return statistics.median(times[1:])


def cold_start(folder: Path, image: Path) -> list[Figure]:
    onnx, torch = (cold(folder, image, runtime) for runtime in ("onnx", "torch"))
    return [
        Figure("cold process to its first embedding: ONNX", onnx, "s", COLD, at_most=True),
        Figure("cold process to its first embedding: torch", torch, "s"),
        Figure("cold process to its first embedding: ONNX of torch", onnx / torch, "share", COLD_SHARE, at_most=True),
    ]


def embedding(folder: Path, paths: list[Path], args: argparse.Namespace) -> list[Figure]:
    """Measure every precision with ONNX, and torch's forms if the device exists."""
    from tests.benchmarks.torch_forms import torch_forms, unavailable
    from zoo.models.load import load

    def measured(name: str, model: Embedder, share: float | None, plain: bool) -> list[Figure]:
        return speed(name, throughput(model, paths, args.batch, args.repeats, plain), share)

    figures = []
    for precision in args.precisions.split(","):
        model = load(folder, "onnx", precision)
        figures += measured(f"ONNX {precision}", model, SHARES.get(precision), precision == "fp32")
    if why := unavailable(args.device):
        print(why)
        return figures
    for name, model in torch_forms(folder, args.device).items():
        figures += measured(name, model, None, False)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", default="fp32,int8")
    parser.add_argument("--cold", action="store_true", help="measure only the cold start")
    parser.add_argument("--device", default="cuda", help="device of torch's other rows; without it they are left out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder, images = Path(temporary) / "model", Path(temporary) / "images"
        paths = photographs(images, 1 if args.cold else args.images)
        resnet50(folder)
        export_all(folder, ["fp32"] if args.cold else args.precisions.split(","), images)
        figures = cold_start(folder, paths[0])
        if not args.cold:
            print_figures(figures)
            write_figures(args.json, figures)
            figures += embedding(folder, paths, args)
    print_figures(figures)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
