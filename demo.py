"""The main job, end to end, without network: train, measure, export, index, search, serve. Run by `make demo`.

It ends with a search of real photographs by the shipped model `photos`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SAMPLES = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
    "text.png",
)
"""Freely licensed photographs of scikit-image's wheel."""

MODEL, UNTRAINED = "demo-margin-conv4-glyphs", "demo-untrained"
HOME = Path(__file__).parent / ".demo"
ZOO = Path(sys.executable).with_name("zoo")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int, default=1, help="1: serve the page until Ctrl-C; 0: end after the table")
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--photos", type=Path, help="index and serve this folder of your photographs, and do no more")
    args = parser.parse_args()
    # The demo writes everything into one folder beside this file and leaves the user's own zoo unchanged.
    os.environ["ZOO_HOME"] = str(HOME)
    shutil.rmtree(HOME, ignore_errors=True)
    gallery = HOME / "gallery"
    if args.photos:
        step(f"Index {args.photos} with the shipped model photos")
        run("index", "photos", str(args.photos), "--out", str(gallery))
    else:
        rows = main_job(HOME / "unseen", gallery)
        print_table([*rows, *photo_search(HOME / "photographs", HOME / "photo-gallery")])
    print_lines(args.photos)
    return serve(gallery, args.port) if args.serve else 0


def main_job(images: Path, gallery: Path) -> list[tuple[str, str]]:
    """Run every step through the command line; return the rows of the closing table."""
    step("Train margin loss with distance-weighted mining on rendered characters (glyphs)")
    run("train", "margin-conv4-glyphs", "--as", UNTRAINED, "--set", "schedule.epochs=0", "--quiet")
    trained = run("train", "margin-conv4-glyphs", "--as", MODEL)
    step("Evaluate on scripts that it never saw, before and after training")
    before, after = run("evaluate", UNTRAINED), run("evaluate", MODEL)
    step("Export to ONNX and prove it equal")
    parity = run("export", MODEL)["parity"]["fp32"]
    step("Index the unseen scripts' images")
    run("data", "glyphs", "--out", str(images))
    started = time.perf_counter()
    indexed = run("index", MODEL, str(images), "--out", str(gallery))
    index_seconds = time.perf_counter() - started
    step("Search one of them")
    query = sorted(images.rglob("*.png"))[0]
    subprocess.run([ZOO, "search", gallery, query, "-k", "5"], check=True)
    return [
        ("trained", f"{MODEL}: margin loss, distance-weighted mining, {trained['epochs']} epochs"),
        ("training time", f"{trained['seconds']:.0f} s on {os.cpu_count()} cores"),
        ("unseen classes", f"{after['classes']} characters, {after['queries']:,} images"),
        ("R@1 before / after", compare(before, after, "recall_at_1")),
        ("MAP@R before / after", compare(before, after, "map_at_r")),
        ("ONNX parity", f"cosine at least {parity['min_cosine']:.7f} on {parity['images']} images"),
        ("index", f"{indexed['items']:,} images, {after['dim']} dimensions, made in {index_seconds:.1f} s"),
        ("search", search_latency(gallery, query)),
    ]


def photo_search(images: Path, gallery: Path) -> list[tuple[str, str]]:
    """Search distorted photographs among the originals with the shipped model `photos`; return a row of the table."""
    from serving.gallery import VectorGallery
    from zoo.models.load import load

    step("Search photographs by crops and distortions of them, with the shipped model photos")
    images.mkdir(parents=True)
    for name in SAMPLES:
        shutil.copy(sample_folder() / name, images)
    run("index", "photos", str(images), "--out", str(gallery))
    queries = [(name, query) for name in SAMPLES for query in distort(images / name)]
    rows = load("photos", runtime="onnx").embed([query for _, query in queries])
    found = [hits[0].source for hits in VectorGallery.open(gallery).search(rows, k=1)]
    right = sum(first == name for first, (name, _) in zip(found, queries, strict=True))
    return [("photographs", f"R@1 {right / len(queries):.3f}: {right} of {len(queries)} distorted ones find theirs")]


def sample_folder() -> Path:
    """Return the folder of scikit-image's photographs."""
    import skimage

    return Path(skimage.__file__).parent / "data"


def distort(path: Path) -> list[Any]:
    """Return a crop, a turned, a mirrored, a dark and a blurred grey version of a photograph, as Pillow images."""
    from PIL import Image, ImageEnhance, ImageFilter, ImageOps

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    crop = image.crop((width // 8, height // 5, 6 * width // 8, 9 * height // 10))
    turned = image.rotate(10, Image.Resampling.BICUBIC, fillcolor=(128, 128, 128))
    dark = ImageEnhance.Brightness(image).enhance(0.4)
    grey = ImageOps.grayscale(image).filter(ImageFilter.GaussianBlur(2)).convert("RGB")
    return [crop, turned, ImageOps.mirror(image), dark, grey]


def run(*command: str) -> Any:
    """Run a `zoo` command and return its JSON output; its progress goes to the terminal."""
    outcome = subprocess.run([ZOO, *command, "--json"], stdout=subprocess.PIPE, check=False)
    if outcome.returncode:
        raise SystemExit(outcome.returncode)
    return json.loads(outcome.stdout)


def search_latency(gallery: Path, query: Path) -> str:
    """Return the median and the slowest of 200 searches in one process: decode, embed, find, as the service does."""
    from serving.gallery import VectorGallery
    from zoo.models.load import load

    model, opened, data = load(MODEL, runtime="onnx"), VectorGallery.open(gallery), query.read_bytes()
    times = []
    for _ in range(220):
        started = time.perf_counter()
        opened.search(model.embed(data), k=10)
        times.append(1000 * (time.perf_counter() - started))
    middle, slowest = statistics.median(times[20:]), max(times[20:])
    return f"decode, embed, find: {middle:.1f} ms median, {slowest:.1f} ms slowest of 200"


def compare(before: Any, after: Any, metric: str) -> str:
    low, high = after["intervals"][metric]
    return f"{before['metrics'][metric]:.3f} / {after['metrics'][metric]:.3f}  (95 % interval {low:.3f} to {high:.3f})"


def print_table(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The main job", show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    Console(width=max(100, Console().width)).print(table)


def print_lines(photos: Path | None) -> None:
    """Print the commands that do the same with the user's own photographs, to be copied."""
    folder, zoo = shlex.quote(str(photos or "PHOTOS")), shlex.quote(os.path.relpath(ZOO))
    query = '{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,..."}}'
    step(f"To copy, with a folder {folder} of your own photographs")
    print(f"{zoo} index photos {folder} --out gallery", f"{zoo} search gallery PHOTO.jpg", sep="\n")
    print(f"{zoo} serve gallery                    # the page and the API", f"{zoo} mcp gallery", sep="\n")
    print(f"{zoo} serve --embed photos             # or embeddings alone, as OpenAI's API:")
    print("curl -H 'Content-Type: application/json' http://127.0.0.1:3000/v1/embeddings \\")
    print(f"    -d '{{\"input\": [{query}]}}'")
    print("Next: docs/search.md; docs/production.md leads to a service for others.", flush=True)


def serve(gallery: Path, port: int) -> int:
    step("Serve the page (Ctrl-C ends)")
    try:
        return subprocess.run([ZOO, "serve", gallery, "--port", str(free_port(port))], check=False).returncode
    except KeyboardInterrupt:
        return 0


def free_port(port: int) -> int:
    """Return the port, or 0 if it is taken: the system then chooses one, and the server prints it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            print(f"Port {port} is not available; the service uses another one.", flush=True)
            return 0
    return port


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
