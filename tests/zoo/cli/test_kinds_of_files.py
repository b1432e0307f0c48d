"""Photographs of every kind of file, through every command: equal to Pillow's own conversion, or left out by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image, ImageOps
from skimage import data

from serving.gallery import VectorGallery
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import serving
from zoo.cli.main import main, run
from zoo.errors import DatasetError
from zoo.models.load import load

pytestmark = pytest.mark.slow

PHOTOGRAPHS = (data.chelsea, data.coffee, data.astronaut, data.rocket)
DAMAGED = ("truncated.jpg", "truncated.png", "empty.jpg", "text.jpg")


def deep(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits whose low bytes hold noise."""
    grey = np.asarray(image.convert("L")).astype(np.uint16)
    return Image.fromarray(grey * 256 + np.random.default_rng(0).integers(0, 256, grey.shape).astype(np.uint16))


def translucent(image: Image.Image) -> Image.Image:
    """Return the image with an alpha channel that grows from left to right."""
    alpha = np.tile(np.linspace(0, 255, image.width).astype(np.uint8), (image.height, 1))
    return Image.merge("RGBA", [*image.split(), Image.fromarray(alpha)])


def rotated(image: Image.Image, file: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, exif=exif, quality=95)


def animated(image: Image.Image, file: Path) -> None:
    image.quantize(64).save(file, save_all=True, append_images=[Image.new("P", image.size)], duration=50)


WRITERS: dict[str, Callable[[Image.Image, Path], None]] = {
    "plain.jpg": lambda image, file: image.save(file, quality=95),
    "grey.jpg": lambda image, file: image.convert("L").save(file),
    "cmyk.jpg": lambda image, file: image.convert("CMYK").save(file),
    "cmyk.tif": lambda image, file: image.convert("CMYK").save(file),
    "deep.png": lambda image, file: deep(image).save(file),
    "deep.tif": lambda image, file: deep(image).save(file),
    "rotated.jpg": rotated,
    "palette.png": lambda image, file: image.quantize(32).save(file),
    "alpha.png": lambda image, file: translucent(image).save(file),
    "alpha.webp": lambda image, file: translucent(image).save(file, lossless=True),
    "animated.gif": animated,
}


def converted(file: Path) -> Image.Image:
    """Return a file's first frame upright in RGB over white, by Pillow's own conversions."""
    with Image.open(file) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):
            image = Image.fromarray(np.rint(np.asarray(image) / 65535 * 255).astype(np.uint8))
        if image.mode == "RGBA":
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("RGB")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photographs, each as a class of files of all kinds, one of them damaged."""
    root = tmp_path_factory.mktemp("photographs")
    for read, name in zip(PHOTOGRAPHS, DAMAGED, strict=True):
        folder = root / read.__name__
        folder.mkdir()
        image = Image.fromarray(read()).resize((60, 45))
        for kind, write in WRITERS.items():
            write(image, folder / kind)
        whole = (folder / ("deep.png" if name.endswith("png") else "plain.jpg")).read_bytes()
        content = {"empty.jpg": b"", "text.jpg": b"not an image"}.get(name, whole[: len(whole) // 2])
        (folder / name).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")


@pytest.fixture(scope="module")
def expected(photographs: Path, model: Path) -> dict[str, np.ndarray]:
    """Source -> the row of the file that Pillow converted."""
    files = [file for file in sorted(photographs.rglob("*.*")) if file.name not in DAMAGED]
    rows = load(model, runtime="onnx").embed([np.asarray(converted(file)) for file in files])
    return {file.relative_to(photographs).as_posix(): row for file, row in zip(files, rows, strict=True)}


def damaged(photographs: Path) -> set[str]:
    return {f"{read.__name__}/{name}" for read, name in zip(PHOTOGRAPHS, DAMAGED, strict=True)}


def test_index_and_search(
    photographs: Path,
    model: Path,
    expected: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["index", str(model), str(photographs), "--out", str(tmp_path / "g"), "--json"]) == 0
    assert {source for source, _ in json.loads(capsys.readouterr().out)["unreadable"]} == damaged(photographs)
    with VectorGallery.open(tmp_path / "g") as gallery:
        sources = {item.id: item.source for item in gallery.store.items(limit=100)}
        block = toys.content(gallery)
    rows = {sources[item]: row for item, row in zip(block[0].tolist(), block[1], strict=True)}
    assert rows.keys() == expected.keys()
    for source, row in expected.items():
        np.testing.assert_allclose(rows[source], row, atol=2e-3, err_msg=source)
    with serving(tmp_path / "g") as service, httpx.Client(base_url=service.url) as client:
        for source in expected:
            answer = client.post("/search?k=1", files={"image": (photographs / source).read_bytes()}).json()
            assert answer["results"][0]["similarity"] == pytest.approx(1, abs=1e-4), source
            assert answer["results"][0]["label"] == source.partition("/")[0]
        for source in damaged(photographs):
            answer = client.post("/search?k=1", files={"image": (photographs / source).read_bytes()})
            code = "no_image" if source.endswith("empty.jpg") else "unreadable_image"
            assert (answer.status_code, answer.json()["error"]["code"]) == (422 if code != "no_image" else 400, code)


def test_embed_and_evaluate(
    photographs: Path,
    model: Path,
    expected: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["embed", str(model), str(photographs), "--out", str(tmp_path / "rows.npy")]) == 0
    printed = capsys.readouterr()
    assert all(source in printed.err for source in damaged(photographs))
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), np.stack(list(expected.values())), atol=2e-3)
    arguments = ["--dataset", "folder", "--data", str(photographs), "--json"]
    assert main(["evaluate", str(model), *arguments]) == 0
    printed = capsys.readouterr()
    outcome = json.loads(printed.out)
    assert (outcome["queries"], outcome["unreadable"]) == (len(expected), len(DAMAGED))
    assert all(source in printed.err for source in damaged(photographs))
    rows, labels = np.stack(list(expected.values())), [source.partition("/")[0] for source in expected]
    similarity = rows @ rows.T - 2 * np.eye(len(rows))
    right = [labels[i] == labels[j] for i, j in enumerate(similarity.argmax(1))]
    assert outcome["metrics"]["recall_at_1"] == pytest.approx(np.mean(right))
    assert main(["evaluate", str(model), *arguments, "--strict"]) == 1


@pytest.mark.slow
def test_train(photographs: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = ["margin-conv4-cifar100", "--dataset", "folder", "--data", str(photographs), "--as", "mine", "--no-eval"]
    settings = ["--set", "schedule.epochs=1", "--set", "data.validation=0", "--set", "batch.size=8"]
    with raises(DatasetError, "unreadable-image", "astronaut/empty.jpg", "data.skip_unreadable=true"):
        run(["train", *recipe, *settings])
    assert main(["train", *recipe, *settings, "--set", "data.skip_unreadable=true", "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads((own_zoo / "models" / "mine" / "recipe.json").read_text())
    assert all(source in printed.err + json.dumps(record) for source in damaged(photographs))
