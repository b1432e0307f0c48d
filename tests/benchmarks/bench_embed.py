"""A folder of JPEGs to embeddings, end to end, beside the network alone and a plain loop; and a cold start.

    python tests/benchmarks/bench_embed.py                     ResNet-50 in ONNX, 2,000 photographs of 1024 x 768
    python tests/benchmarks/bench_embed.py --images 300 --batch 16
    python tests/benchmarks/bench_embed.py --cold              only the time to a cold process's first embedding

"model alone" is the same session on pixels that lie ready, at the same batch size: what embed() would reach if
decoding and resizing cost nothing. The plain loop is what one writes by hand: PIL's full decoding, timm's transform,
torch eager, one batch after another. Weights are random; they do not change the time. Repetitions of all take turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIDES = 1024, 768


def photographs(folder: Path, count: int, different: int = 40) -> list[Path]:
    """JPEGs of about 150 kB: clouds of three scales with some grain. `different` of them, each under several names."""
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
    from zoo.cards import Card, Head, Preprocessing

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


def export_all(folder: Path, precisions: list[str]) -> None:
    for precision in precisions:
        subprocess.run(
            [sys.executable, "-m", "zoo.cli.main", "export", str(folder), "--precision", precision, "--force"],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def plain_loop(folder: Path, paths: list[Path], batch: int) -> Callable[[], None]:
    """Full decoding, timm's evaluation transform, torch in float32."""
    import torch
    from timm.data import create_transform

    from zoo.cards import read_card
    from zoo.network import load_network

    network = load_network(read_card(folder), folder).eval()
    transform = create_transform((3, 224, 224), is_training=False, crop_pct=224 / 256, interpolation="bilinear")

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(paths), batch):
                images = [Image.open(path).convert("RGB") for path in paths[start : start + batch]]
                network(torch.stack([transform(image) for image in images]))

    return run


def throughput(folder: Path, paths: list[Path], batch: int, precision: str, repeats: int) -> dict[str, float]:
    """Images a second: the network alone, embed() and the plain loop on a fifth of the images."""
    import zoo
    from zoo.preprocessing import batches

    model = zoo.load(folder, runtime="onnx", precision=precision)
    few = paths[: max(batch, len(paths) // 5)]
    ready = list(batches(few, model.preprocessing, batch))

    def alone() -> None:
        for pixels in ready:
            model.embed_pixels(pixels)

    forms: dict[str, tuple[Callable[[], object], int]] = {
        "model alone": (alone, len(few)),
        "embed()": (lambda: model.embed(paths, batch_size=batch), len(paths)),
    }
    if precision == "fp32":
        forms["plain loop"] = plain_loop(folder, few, batch), len(few)
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, (run, images) in forms.items():
            started = time.perf_counter()
            run()
            rates[name].append(images / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in rates.items()}


FIRST = "import zoo; zoo.load({folder!r}, runtime={runtime!r}).embed({image!r})"


def cold(folder: Path, image: Path, runtime: str, repeats: int = 5) -> float:
    """Seconds from the start of a process to its first embedding, its imports compiled and in the page cache."""
    command = [sys.executable, "-c", FIRST.format(folder=str(folder), runtime=runtime, image=str(image))]
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", default="fp32,int8")
    parser.add_argument("--cold", action="store_true", help="measure the cold start alone")
    args = parser.parse_args()
    precisions = args.precisions.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        resnet50(folder)
        export_all(folder, ["fp32"] if args.cold else precisions)
        paths = photographs(Path(temporary) / "images", 1 if args.cold else args.images)
        onnx, torch = (cold(folder, paths[0], runtime) for runtime in ("onnx", "torch"))
        print(f"cold process to its first embedding: ONNX {onnx:.2f} s, torch {torch:.2f} s ({onnx / torch:.2f})")
        for precision in [] if args.cold else precisions:
            rates = throughput(folder, paths, args.batch, precision, args.repeats)
            alone, ours = rates["model alone"], rates["embed()"]
            line = f"{precision}: model alone {alone:.1f} images/s, embed() {ours:.1f} ({ours / alone:.2f} of it)"
            if "plain loop" in rates:
                line += f", plain loop {rates['plain loop']:.1f} ({ours / rates['plain loop']:.1f}x)"
            print(line, flush=True)


if __name__ == "__main__":
    main()
