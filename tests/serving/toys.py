"""A tiny model folder and a folder of pictures whose classes that model tells apart."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save_file

from serving.gallery import VectorGallery
from serving.gallery.index import Index
from serving.gallery.types import Block, Thumbnail, make_thumbnail
from zoo.data.preprocessing import Preprocessing
from zoo.files import sha256_of
from zoo.models.card import Card

SIDE, DIM = 32, 16
HTML_LABEL = '<img src=x onerror="window.hacked = 1">'
CLASSES = ("red stripes", "blue checks", "green disc", HTML_LABEL)
PER_CLASS = 6


def content(of: VectorGallery | Index) -> Block:
    """All ids and their vectors, as the index has them now."""
    index = of.index.current() if isinstance(of, VectorGallery) else of
    return index.vectors_of(index.ids())


def write_model(folder: Path, seed: int = 0, name: str = "toy-pool") -> Path:
    """A model: 4 x 4 means of the picture, projected at random to 16 numbers, to unit length. Made without torch."""
    rng = np.random.default_rng(seed)
    weights = {"projection": rng.normal(size=(3 * (SIDE // 4) ** 2, DIM)).astype(np.float32)}
    (folder / "onnx").mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    onnx.save(_graph(weights["projection"]), folder / "onnx" / "model.onnx")
    files = {file: sha256_of(folder / file) for file in ("model.safetensors", "onnx/model.onnx")}
    Card(
        name=name,
        method="none",
        backbone="pool",
        dataset="toys",
        architecture="pool",
        dim=DIM,
        preprocessing=Preprocessing(SIDE, SIDE, "RGB", "bilinear", (0.5,) * 3, (0.5,) * 3),
        files=files,
    ).write(folder)
    return folder


def _graph(projection: np.ndarray) -> onnx.ModelProto:
    constants = {
        "half": np.array(127.5, np.float32),
        "flat": np.array([0, projection.shape[0]], np.int64),
        "projection": projection,
        "bias": np.full(DIM, 0.01, np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["pixels"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["float", "half"], ["centred"]),
        helper.make_node("Div", ["centred", "half"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("AveragePool", ["planes"], ["means"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Reshape", ["means", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "projection"], ["projected"]),
        helper.make_node("Add", ["projected", "bias"], ["biased"]),
        helper.make_node("LpNormalization", ["biased"], ["embeddings"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["n", DIM])],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def picture(kind: int, rng: np.random.Generator, side: int = 28) -> Image.Image:
    """A picture of class number `kind`, a little different each time."""
    y, x = np.mgrid[0:side, 0:side] * (28 / side)
    shift, width = rng.uniform(0, 2), rng.uniform(6, 8)
    shape = (
        (y + shift) % (2 * width) < width,
        ((y + shift) // width + (x + shift) // width) % 2 < 1,
        (y - 14) ** 2 + (x - 14 + shift) ** 2 < (width + 2) ** 2,
        x + y + 4 * shift < 28,
    )[kind]
    colours = np.array([[200, 30, 30], [30, 60, 200], [20, 160, 70], [120, 60, 160]])
    pixels = np.where(shape[..., None], colours[kind], 245) + rng.normal(0, 6, (side, side, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write_pictures(folder: Path) -> Path:
    """PER_CLASS pictures of each class in a folder named as the class; the last of each is a larger JPEG."""
    rng = np.random.default_rng(1)
    for kind, label in enumerate(CLASSES):
        (folder / label).mkdir(parents=True)
        for i in range(PER_CLASS - 1):
            picture(kind, rng).save(folder / label / f"{i}.png")
        picture(kind, rng, side=300).save(folder / label / "large.jpg")
    return folder


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = BytesIO()
    image.save(out, kind)
    return out.getvalue()


def query(kind: int) -> bytes:
    """A PNG of a class, of which no gallery holds the very same."""
    return encoded(picture(kind, np.random.default_rng(100 + kind)))


@cache
def thumbnail(number: int) -> Thumbnail:
    """A picture of one pixel whose colour is the number."""
    return make_thumbnail(Image.new("RGB", (1, 1), (number >> 16 & 255, number >> 8 & 255, number & 255)))
