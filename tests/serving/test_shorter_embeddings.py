"""Shorter embeddings: the first numbers of an ordered embedding, from `zoo.load` to a gallery and its search."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import zoo
from demo import SAMPLES, sample_folder
from tests.commandline import run_here as run
from tests.raising import raises
from zoo.errors import ModelMismatchError, UsageError


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for name in SAMPLES[:6]:
        shutil.copy(sample_folder() / name, folder)
    return folder


def expected(files: list[Path], dim: int) -> np.ndarray:
    rows = zoo.load("photos", runtime="onnx").embed(files).astype(np.float64)[:, :dim]
    return np.asarray(rows / np.sqrt((rows**2).sum(1, keepdims=True)))


def test_a_shorter_embedding_is_the_prefix_at_unit_length(photographs: Path) -> None:
    files = sorted(photographs.iterdir())
    short = zoo.load("photos", runtime="onnx", dim=64)
    np.testing.assert_allclose(short.embed(files), expected(files, 64), atol=1e-6)
    assert (short.dim, short.card.dim) == (64, 64)
    assert short.card.fingerprint != zoo.load("photos", runtime="onnx").card.fingerprint
    whole = zoo.load("photos", runtime="onnx")
    assert zoo.load("photos", runtime="onnx", dim=whole.dim).card == whole.card


@pytest.mark.slow
def test_torch_gives_the_same_and_so_does_the_module(photographs: Path) -> None:
    import torch

    from zoo.data.preprocessing import to_pixels
    from zoo.models.trunk_graph import normalised

    files = sorted(photographs.iterdir())
    short = zoo.load("photos", runtime="torch", dim=32)
    np.testing.assert_allclose(short.embed(files), expected(files, 32), atol=1e-4)
    pixels = np.stack([to_pixels(file, short.preprocessing) for file in files])
    with torch.inference_mode():
        rows = short.module(torch.from_numpy(normalised(pixels, short.preprocessing))).numpy()
    np.testing.assert_allclose(rows, expected(files, 32), atol=1e-4)


@pytest.mark.parametrize(
    ("model", "dim", "code"),
    [
        ("photos", 0, "invalid-value"),
        ("photos", 100_000, "invalid-value"),
        ("margin-conv4-glyphs", 8, "not-available"),
        ("diva-lite0-cub2010", 8, "not-available"),
    ],
)
def test_numbers_in_no_order_are_not_cut(model: str, dim: int, code: str) -> None:
    precision = "int8" if model.startswith("diva") else "fp32"  # the graph that it comes with
    with raises(UsageError, code):
        zoo.load(model, runtime="onnx", precision=precision, dim=dim)


@pytest.mark.slow
def test_a_gallery_remembers_its_dimension(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, gallery = sorted(photographs.iterdir()), tmp_path / "g"
    assert run("index", "photos", photographs, "--out", gallery, "--dim", 64) == 0
    assert run("index", "photos", photographs, "--out", gallery) == 0, "the same again, in the gallery's dimension"
    capsys.readouterr()
    assert run("search", gallery, files[0], "-k", 6, "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    rows = expected(files, 64)
    order = np.argsort(-(rows @ rows[0]))
    assert [result["source"] for result in results] == [files[i].name for i in order]
    np.testing.assert_allclose([result["similarity"] for result in results], (rows @ rows[0])[order], atol=1e-5)
    with raises(ModelMismatchError, None, "--dim 32"):
        run("index", "photos", photographs, "--out", gallery, "--dim", 32)
    assert run("gallery add", gallery, sample_folder() / SAMPLES[7]) == 0
    with zoo.Gallery(gallery, zoo.load("photos", runtime="onnx")) as opened:
        assert (len(opened), opened.vectors.card.dim) == (7, 64)
        assert opened.search(files[0], k=1)[0].source == files[0].name
