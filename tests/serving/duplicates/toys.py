"""Galleries of smooth random pictures, some of which are copies, with embeddings that know it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from serving.gallery import schema
from serving.gallery.indexing import index_folder
from serving.gallery.store import Store
from serving.gallery.types import NewItem, make_thumbnail
from tests.serving.clients import KEY
from tests.serving.running import Running, serving
from zoo.models.load import load

DIM = 16


def picture(seed: int, size: tuple[int, int] = (200, 150)) -> Image.Image:
    """A random picture in colour with the spectrum of photographs: amplitudes fall with the frequency."""
    width, height = size
    noise = np.random.default_rng(seed).normal(size=(3, height, width))
    across, down = np.fft.rfftfreq(width), np.fft.fftfreq(height)[:, None]
    frequency = np.maximum(1 / width, np.hypot(across, down))
    planes = np.fft.irfft2(np.fft.rfft2(noise) / frequency**1.2, (height, width))
    pixels = 128 + 45 * (planes - planes.mean()) / planes.std()
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0).copy())


def new_item(number: int, image: Image.Image, of: int, noise: float = 0.3) -> NewItem:
    """An item whose embedding is near that of all other items `of` one picture."""
    centre = np.random.default_rng([of, 1]).normal(size=DIM)
    vector = centre / np.linalg.norm(centre)
    vector = vector + noise * np.random.default_rng([number, 2]).normal(size=DIM) / DIM**0.5
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return NewItem(f"{number}.png", vector, make_thumbnail(image), f"{number:064x}")


def copies(first: int, of: int) -> list[NewItem]:
    """A picture, a smaller copy, a mirrored one and a crop, numbered from `first`."""
    image = picture(of)
    variants = [
        image,
        image.resize((100, 75)),
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        image.crop((30, 20, 180, 132)),
    ]
    return [new_item(first + number, variant, of) for number, variant in enumerate(variants)]


def open_store(folder: Path, items: Sequence[NewItem] = ()) -> Store:
    """Return a new store with these items."""
    schema.create(folder / "gallery.sqlite", DIM, "fingerprint")
    store = Store(folder / "gallery.sqlite")
    if items:
        store.add(items)
    return store


@contextmanager
def service_of_copies(folder: Path) -> Iterator[Running]:
    """Serve a picture (item 1), its mirror image (2), a crop (3) and two others (4, 5); `KEY` may write."""
    original = picture(7, (320, 240))
    images = [original, ImageOps.mirror(original), original.crop((20, 20, 290, 220)), picture(8), picture(9)]
    (folder / "images").mkdir()
    for number, image in enumerate(images, 1):
        image.save(folder / "images" / f"{number}.png")
    index_folder(load("photos", "onnx"), "photos", folder / "images", folder / "gallery")
    with serving(folder / "gallery", environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as running:
        yield running
