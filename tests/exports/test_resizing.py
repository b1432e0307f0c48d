"""Resizing inside the graph, compared with Pillow."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

import zoo
from exports.export import Exporter
from exports.resizing import FILTERS, IMAGES, resizing_graph, write_resizing_graph
from serving.gallery.types import decode_image
from tests.exports.toys import make_toy, picture
from tests.models import CARD
from tests.raising import raises
from zoo.cli.main import main
from zoo.cli.models import _card_facts
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import ExportError
from zoo.models.card import read_card
from zoo.models.verify import verify

pytestmark = pytest.mark.slow

SIZES = ((30, 41), (133, 200), (200, 133), (32, 32), (1, 1), (7, 300), (300, 7))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("resize", "crop"), [(32, 32), (36, 32)])
def test_pixels_are_pillows(interpolation: str, resize: int, crop: int) -> None:
    preprocessing = Preprocessing(resize, crop, interpolation=interpolation)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(resizing_graph(preprocessing).SerializeToString(), options)
    for seed, (height, width) in enumerate(SIZES):
        images = np.stack([picture(seed, height, width), picture(seed + 50, height, width)])
        got = session.run(None, {IMAGES: images})[0]
        assert got.dtype == np.uint8
        same = np.abs(got.astype(int) - np.stack([resize_width_first(image, preprocessing) for image in images]))
        whole = np.abs(got.astype(int) - np.stack([to_pixels(image, preprocessing) for image in images]))
        # A tie that rounds the other way in the first pass may bring about one in the second. The weights of box jump:
        # a tap at the very edge of its support is in or out.
        assert np.median(same) == 0 if interpolation == "box" else same.max() <= 2
        assert interpolation == "box" or same.mean() < 0.2
        assert np.median(whole) == 0


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_of_squeezed_images_are_pillows(interpolation: str) -> None:
    preprocessing = Preprocessing(36, 32, interpolation=interpolation, squeeze=True)
    session = ort.InferenceSession(resizing_graph(preprocessing).SerializeToString())
    for seed, (height, width) in enumerate(SIZES):
        image = picture(seed, height, width)
        got = session.run(None, {IMAGES: image[None]})[0][0].astype(int)
        kind, x, y = Image.Resampling[interpolation.upper()], width * 2 / 36, height * 2 / 36
        narrow = Image.fromarray(image).resize((32, height), kind, box=(x, 0, width - x, height))
        expected = np.asarray(narrow.resize((32, 32), kind, box=(0, y, 32, height - y))).astype(int)
        assert np.abs(got - expected).max() <= 2
        assert np.median(np.abs(got - to_pixels(image, preprocessing))) == 0


def test_every_runtime_squeezes_alike(tmp_path: Path) -> None:
    """torch, ONNX Runtime, the graph that resizes, and an item of a gallery; `zoo info` names both sides."""
    squeezed = dataclasses.replace(CARD, preprocessing=dataclasses.replace(CARD.preprocessing, squeeze=True))
    folder = tmp_path / CARD.name
    make_toy(folder, squeezed)
    Exporter(folder, None).export("fp32")
    image = picture(5, 30, 60)
    torch_row, onnx_row = (zoo.load(folder, runtime=runtime).embed([image])[0] for runtime in ("torch", "onnx"))
    assert onnx_row == pytest.approx(torch_row, abs=1e-4)
    write_resizing_graph(folder / "onnx" / "model.onnx", squeezed.preprocessing, tmp_path / "resizing.onnx")
    (row,) = ort.InferenceSession(tmp_path / "resizing.onnx").run(None, {IMAGES: image[None]})[0]
    assert float(row @ torch_row) == pytest.approx(1, abs=1e-3)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    pixels, *_ = decode_image(file.getvalue(), read_card(folder).preprocessing)
    assert np.array_equal(pixels, to_pixels(image, squeezed.preprocessing))
    side = squeezed.preprocessing.resize
    assert np.array_equal(
        to_pixels(Image.fromarray(image).resize((side, side)), CARD.preprocessing).shape, pixels.shape
    )
    assert not np.array_equal(pixels, to_pixels(image, CARD.preprocessing))
    assert json.loads((folder / "config.json").read_text())["pretrained_cfg"]["crop_mode"] == "squash"
    assert "both sides to" in _card_facts(read_card(folder))["input"]


def resize_width_first(image: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Resize by Pillow's two passes in the graph's order; Pillow takes some tall images the other way round."""
    height, width = image.shape[:2]
    side = min(height, width) * preprocessing.crop / preprocessing.resize
    left, top = (width - side) / 2, (height - side) / 2
    kind = Image.Resampling[preprocessing.interpolation.upper()]
    narrow = Image.fromarray(image).resize((preprocessing.crop, height), kind, box=(left, 0, left + side, height))
    return np.asarray(
        narrow.resize((preprocessing.crop, preprocessing.crop), kind, box=(0, top, preprocessing.crop, top + side))
    ).astype(int)


def test_grey_images() -> None:
    preprocessing = Preprocessing(20, 16, "L", mean=(0.5,), std=(0.2,))
    image = picture(0, 50, 40)[..., :1]
    got = ort.InferenceSession(resizing_graph(preprocessing).SerializeToString()).run(None, {IMAGES: image[None]})[0]
    assert np.abs(got[0].astype(int) - to_pixels(image, preprocessing)).max() <= 1


def test_nearest_is_refused() -> None:
    with raises(ExportError, "unknown-name"):
        resizing_graph(Preprocessing(20, 16, interpolation="nearest"))


def test_a_graph_that_resizes_beside_the_one_that_does_not(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(copy), "--precision", "fp16", "--resize"]) == 0
    assert "model_fp16_resize.onnx" in capsys.readouterr().out
    file = "onnx/model_fp16_resize.onnx"
    assert file in read_card(copy).files
    assert json.loads((copy / "onnx" / "parity.json").read_text())["fp16-resize"]["holds"]
    session = ort.InferenceSession(copy / file)
    for height, width in ((20, 20), (55, 31), (31, 90)):
        images = np.stack([picture(seed, height, width) for seed in range(3)])
        got = session.run(None, {IMAGES: images})[0]
        assert (got * zoo.load(copy, runtime="onnx", precision="fp16").embed(images)).sum(1).min() > 0.999
    assert {check.ok for check in verify(copy)} == {True}
