"""Both clients with images that lie in memory: PIL images and uint8 arrays, against the real service."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.client import images as client_images
from tests.raising import raises
from tests.serving import toys
from tests.serving.clients import KEY
from tests.serving.running import Running
from zoo.errors import ImageError, ImageTooLargeError, ServiceError, UsageError, ZooError
from zoo.models.load import Embedder

PIXELS = np.array(Image.open(BytesIO(toys.query(0))).convert("RGB"))
SLOPE = (np.arange(48 * 40).reshape(48, 40) * 34).astype(np.uint16)  # to 65,246 of 65,535, the greatest at the bottom


def turned() -> Image.Image:
    """A photograph that was taken with the camera on its side, opened and not yet decoded."""
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter, clockwise
    Image.fromarray(PIXELS[:20]).save(file, "JPEG", quality=95, exif=exif, comment=b"secret")
    return Image.open(file)


def palette() -> Image.Image:
    image = Image.fromarray(PIXELS).quantize(8)
    image.info["transparency"] = 0
    return image


def in_every_mode() -> dict[str, Image.Image | np.ndarray]:
    alpha = np.linspace(0, 255, PIXELS.shape[0]).astype(np.uint8)[:, None].repeat(PIXELS.shape[1], 1)
    rgba = np.dstack([PIXELS, alpha])
    colour = Image.fromarray(PIXELS)
    modes = {mode: colour.convert(mode) for mode in ("RGB", "L", "1", "P", "CMYK", "YCbCr", "HSV", "F", "I")}
    pictures = {"RGBA": Image.fromarray(rgba), "LA": Image.fromarray(rgba).convert("LA"), "palette": palette()}
    sixteen = Image.frombytes("I;16", (40, 48), SLOPE.tobytes())
    arrays = {"HWC": PIXELS, "HW": PIXELS[..., 0], "HW1": PIXELS[..., :1], "HW4": rgba, "strided": PIXELS[::-1, ::2]}
    return {**modes, **pictures, "I;16": sixteen, "turned": turned(), **arrays}


def test_they_are_embedded_as_if_they_were_here(kind: Any, server: Running, model: Embedder) -> None:
    client, images = kind(server.url), in_every_mode()
    expected = model.embed(images.values())
    np.testing.assert_allclose(client.embed(list(images.values())), expected, atol=1e-6)
    for name, row in zip(images, expected, strict=True):
        (found,) = client.embed(images[name])
        np.testing.assert_allclose(found, row, atol=1e-6, err_msg=name)


def test_what_is_sent_are_the_upright_pixels_and_nothing_else() -> None:
    image = turned()
    ((_, (name, data, _)),) = client_images.files_of([image])
    sent = Image.open(BytesIO(data))
    np.testing.assert_array_equal(np.asarray(sent), np.rot90(np.asarray(turned()), -1))
    assert (sent.format, sent.mode, sent.info) == ("PNG", "RGB", {})
    assert len(name) == 16
    assert image.size == (PIXELS.shape[1], 20), "the image itself stays as it is"
    ((_, (_, grey, _)),) = client_images.files_of([Image.frombytes("I;16", (40, 48), SLOPE.tobytes())])
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(grey))), np.rint(SLOPE * (255 / 65535)))


def test_searching_by_one_and_by_several(kind: Any, server: Running) -> None:
    client = kind(server.url)
    by_file = client.search(toys.query(0), k=3)
    for image in (PIXELS, Image.fromarray(PIXELS)):
        found = client.search(image, k=3)
        assert [one.id for one in found] == [one.id for one in by_file]
        np.testing.assert_allclose([m.similarity for m in found], [m.similarity for m in by_file], atol=1e-6)
    half = client.search(PIXELS, k=1, crop=(0, 0, 0.5, 1))
    assert half == client.search(PIXELS[:, : PIXELS.shape[1] // 2], k=1)
    answers = client.search_many([PIXELS, toys.query(1), Image.fromarray(PIXELS)], k=3)
    assert [answer.name for answer in answers] == ["", "", ""]
    assert answers[0].matches == answers[2].matches == tuple(client.search(PIXELS, k=3))
    assert client.search_many(np.stack([PIXELS] * 2), k=3) == [answers[0]] * 2


def test_a_batch_is_an_array_of_four_dimensions(
    kind: Any, server: Running, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = np.random.default_rng(0).integers(0, 256, (37, 20, 16, 3), np.uint8)
    client, expected = kind(server.url), model.embed(batch)
    np.testing.assert_allclose(client.embed(batch), expected, atol=1e-6)
    monkeypatch.setattr(client_images, "MOST_BYTES", 5 * batch[0].size)
    assert [len(part) for _, part in client_images.groups(batch)] == [5] * 7 + [2]
    np.testing.assert_allclose(client.embed(batch), expected, atol=1e-6)
    assert client.embed(batch[:1]).shape == (1, toys.DIM)


def test_the_same_pixels_are_the_same_content(kind: Any, writable: Running) -> None:
    client = kind(writable.url, key=KEY)
    fresh = np.random.default_rng(len(kind.name)).integers(0, 256, (24, 24, 3), np.uint8)
    added = client.add([fresh, Image.fromarray(fresh)], label="noise")
    assert (added.new, len(added.items), added.refused) == (1, 2, {})
    (item,) = {one.id for one in added.items}
    assert client.search(fresh, k=1)[0].id == item
    assert client.add(fresh, label="noise").new == 0
    (named,) = client.add(Image.fromarray(fresh[:20]), key=f"key-{kind.name}", source="made here").items
    assert (named.source, client.item(item).source) == ("made here", client.item(item).content_sha256[:16])
    assert client.mark(fresh, 1, False).query.content_sha256 == client.item(item).content_sha256


class Tensor:
    """As others have them."""


@pytest.mark.parametrize(
    ("image", "error", "code", "value"),
    [
        (PIXELS.astype(np.float32), ImageError, "not-an-image", "float32 [28, 28, 3]"),
        (PIXELS[None, None], ImageError, "not-an-image", "[1, 1, 28, 28, 3]"),
        (np.zeros((3, 8, 8), np.uint8), ImageError, "not-an-image", "uint8 [3, 8, 8]"),
        (np.zeros((0, 8), np.uint8), ImageError, "not-an-image", "uint8 [0, 8]"),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000)), ImageTooLargeError, "image-too-large", "10000 x 10000 pixels"),
        (Image.fromarray(np.full((4, 4), np.nan, np.float32)), ImageError, "not-finite", "NaN"),
        (Tensor(), UsageError, "usage", "Tensor"),
    ],
)
def test_what_is_no_image_is_refused_before_it_is_sent(
    kind: Any, server: Running, image: Any, error: type[ZooError], code: str, value: str
) -> None:
    client = kind(server.url)
    for call in (client.search, client.embed, lambda image: client.search_many([PIXELS, image])):
        with raises(error, code, value):
            call(image)


def test_a_closed_image_and_one_that_the_service_finds_too_large(kind: Any, server: Running) -> None:
    client, image = kind(server.url), turned()
    image.close()
    with pytest.raises(ImageError, match="cannot be decoded"):
        client.search(image)
    with pytest.raises(ServiceError, match="24,000,000") as refused:
        client.search(np.zeros((5000, 5000), np.uint8))
    assert refused.value.code == "image_too_large"
