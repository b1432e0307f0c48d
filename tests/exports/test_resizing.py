"""Resizing inside the graph, compared with Pillow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

import zoo
from exports.resizing import FILTERS, IMAGES, resizing_graph
from tests.exports.toys import picture
from tests.raising import raises
from zoo.cli.main import main
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import ExportError
from zoo.models.card import read_card
from zoo.models.verify import verify

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
    with raises(ExportError, "unknown-interpolation"):
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
