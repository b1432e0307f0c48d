"""Glyphs: reproducible pictures, correct factors, and no look-alikes within a split or between splits."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.children import run_python
from tests.raising import raises
from zoo.cli.main import main
from zoo.data import glyphs, load_dataset
from zoo.data.dataset import Dataset
from zoo.data.glyphs import COLOURS, FACES, MAX_ANGLE, PALETTE, PATTERNS, SIZE, Style, ink_coverage
from zoo.errors import DatasetError, MissingDependencyError

PLAIN = Style(0, 0.0, 0.6, (0.0, 0.0), 0, 5, False, 0, 5.0)


@pytest.fixture(scope="module")
def test_split() -> Dataset:
    return load_dataset("glyphs", "test")


def digest(pictures: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(picture.tobytes() for picture in pictures)).hexdigest()


def test_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with raises(DatasetError, "conflicting-options", "--dataset folder", "--set data.dataset=folder"):
        load_dataset("glyphs", "test", tmp_path)
    assert main(["train", "margin-conv4-glyphs", "--data", str(tmp_path), "--as", "mine"]) == 2
    assert "--set data.dataset=folder" in capsys.readouterr().err
    assert main(["evaluate", "margin-conv4-glyphs", "--data", str(tmp_path)]) == 2


# -- what is in it


def test_splits_hold_whole_scripts() -> None:
    split_of = {}
    for split in ("train", "test"):
        for character in glyphs.characters(split):
            assert split_of.setdefault(character.script, split) == split
            assert character.text not in split_of
    assert {script for script, split in split_of.items() if split == "test"} == {
        "Greek",
        "Armenian",
        "Georgian",
        "Lao",
        "Hebrew",
    }
    assert len(glyphs.characters("train")) >= 350
    assert len(glyphs.characters("test")) >= 120


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_classes_have_their_own_readable_names(split: str) -> None:
    dataset = load_dataset("glyphs", split)
    assert len(set(dataset.classes)) == len(dataset.classes) == len(dataset) // 20
    for name, character in zip(dataset.classes, glyphs.characters(split), strict=True):
        assert name.replace("-", "").isalnum()
        assert name.isascii()
        assert name.startswith(character.script.lower().removesuffix("s"))
    np.testing.assert_array_equal(dataset.labels, np.arange(len(dataset)) // 20)


def test_names_and_sources_say_which_character(test_split: Dataset) -> None:
    at = test_split.classes.index("armenian-capital-za")
    assert test_split.sources[at * 20 + 7] == f"glyphs/test/U+{ord('Զ'):04X}/07"
    assert len(set(test_split.sources)) == len(test_split)


# -- the same pictures always


@pytest.mark.slow
def test_a_picture_does_not_depend_on_earlier_ones(test_split: Dataset) -> None:
    order = np.random.default_rng(0).permutation(len(test_split))[:60]
    alone = {int(i): load_dataset("glyphs", "test").images[int(i)] for i in order[:5]}
    drawn = {int(i): test_split.images[int(i)] for i in order}
    for i, picture in alone.items():
        np.testing.assert_array_equal(picture, drawn[i])
    with ThreadPoolExecutor(8) as pool:
        for i, picture in zip(drawn, pool.map(lambda i: test_split.images[i], drawn), strict=True):
            np.testing.assert_array_equal(picture, drawn[i])


def test_another_process_draws_the_same(test_split: Dataset) -> None:
    code = (
        "import hashlib, sys; from zoo.data import load_dataset; images = load_dataset('glyphs', 'test').images;"
        "print(hashlib.sha256(b''.join(images[i].tobytes() for i in range(0, 2000, 41))).hexdigest());"
        "print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    )
    words = run_python(code).split()
    assert words == [digest(test_split.images[0:2000:41]), "False", "False"]


def test_pictures_depend_on_seed_character_and_instance_alone(test_split: Dataset) -> None:
    few, other = glyphs.load("test", instances=3), glyphs.load("test", seed=1)
    for label in (0, 40, len(few.classes) - 1):
        assert digest(few.images[label * 3 : label * 3 + 3]) == digest(test_split.images[label * 20 : label * 20 + 3])
        assert digest([other.images[label * 20]]) != digest([test_split.images[label * 20]])
    assert len({digest([picture]) for picture in test_split.images[:60]}) == 60


def test_images_are_a_sequence(test_split: Dataset) -> None:
    images = test_split.images
    assert len(images) == len(test_split) == 20 * len(test_split.classes)
    assert images[0].shape == (SIZE, SIZE, 3)
    assert images[0].dtype == np.uint8
    np.testing.assert_array_equal(images[-1], images[len(images) - 1])
    assert len(images[-3:]) == 3
    with pytest.raises(IndexError):
        images[len(images)]
    assert glyphs.load("test", size=64).images[5].shape == (64, 64, 3)


# -- factors that are true


def test_factors_span_their_ranges_evenly() -> None:
    factors = load_dataset("glyphs", "train").factors
    n = len(factors["face"])
    for name, size in {"face": len(FACES), "ink": 8, "background": 8, "inverted": 2, "pattern": len(PATTERNS)}.items():
        counts = np.bincount(factors[name], minlength=size)
        assert counts.min() > 0
        if name != "face":  # faces lack characters, the others are uniform: 5 standard deviations
            assert abs(counts - n / size).max() < 5 * np.sqrt(n / size)
    assert (factors["ink"] != factors["background"]).all()
    assert abs(factors["angle"]).max() <= MAX_ANGLE
    assert abs(factors["angle"].mean()) < 1
    assert 0.55 <= factors["scale"].min() < 0.56 < 0.79 < factors["scale"].max() <= 0.8


def test_faces_are_ones_that_have_the_character(test_split: Dataset) -> None:
    for i, character in enumerate(glyphs.characters("test")):
        assert set(test_split.factors["face"][i * 20 : i * 20 + 20]) <= set(character.faces)
        assert len(character.faces) >= 4
        assert glyphs.scripts()[test_split.factors["script"][i * 20]] == character.script


def test_colours_are_the_ones_named(test_split: Dataset) -> None:
    f = test_split.factors
    for i in range(0, len(test_split), 53):
        style = test_split.images.style(i)  # type: ignore[attr-defined]
        cover = ink_coverage(glyphs.characters("test")[i // 20].text, style)
        picture = test_split.images[i].astype(np.float64)
        inverted = int(f["inverted"][i])
        ink = PALETTE[COLOURS[f["ink"][i]]][inverted]
        background = PALETTE[COLOURS[f["background"][i]]][1 - inverted]
        full = picture[cover > 0.99]
        # Noise averages out over n pixels; clipping at 0 and 255 moves a channel by a few grey levels.
        np.testing.assert_allclose(full.mean(0), ink, atol=6 + 3 * 14 / np.sqrt(len(full)))
        np.testing.assert_allclose(picture[cover == 0].mean(0), background, atol=21)


def test_the_angle_is_counter_clockwise_and_in_degrees() -> None:
    for angle in (-15.0, -4.0, 0.0, 9.0, 15.0):
        cover = ink_coverage("ǀ", replace(PLAIN, angle=angle), size=200)
        y, x = np.nonzero(cover > 0.5)
        axis = np.linalg.eigh(np.cov(x, -y))[1][:, 1]
        turned = np.degrees(np.arctan2(axis[1], axis[0])) % 180 - 90
        assert turned == pytest.approx(angle, abs=0.5)


@pytest.mark.parametrize("character", ["Ж", "ᐁ", "Ա", "ǀ"])
def test_scale_is_the_longer_side_and_nothing_is_ever_cut(character: str) -> None:
    for angle in (-15.0, 0.0, 15.0):
        for shift in ((0.0, 0.0), (1.0, 1.0), (-1.0, 1.0)):
            style = replace(PLAIN, scale=0.8, angle=angle, shift=shift)
            cover = ink_coverage(character, style, size=120)
            middle = ink_coverage(character, replace(style, shift=(0.0, 0.0)), size=120)
            assert cover.sum() == pytest.approx(middle.sum(), rel=0.01)
            if angle == 0:
                y, x = np.nonzero(cover > 0.5)
                assert max(np.ptp(x), np.ptp(y)) + 1 == pytest.approx(0.8 * 120, abs=12)


def test_ink_stands_out_in_grey(test_split: Dataset) -> None:
    for tones in PALETTE.values():
        dark, light = (np.array(tone) @ (0.299, 0.587, 0.114) for tone in tones)
        assert dark < 100
        assert light > 190


# -- fonts


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises(MissingDependencyError, None, "dml-zoo[glyphs]"):
        load_dataset("glyphs", "test")


def test_another_font_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for face in FACES:
        shutil.copyfile(glyphs.font_file(face), tmp_path / f"{face}.ttf")
    monkeypatch.setattr(glyphs, "font_folder", lambda: tmp_path)
    assert len(load_dataset("glyphs", "test")) > 0
    with (tmp_path / "DejaVuSerif-Bold.ttf").open("ab") as file:
        file.write(b"\0")
    with raises(DatasetError, "hash-mismatch", "DejaVuSerif-Bold.ttf"):
        load_dataset("glyphs", "test")
    (tmp_path / "DejaVuSerif-Bold.ttf").unlink()
    with raises(DatasetError, "missing-file", "DejaVuSerif-Bold.ttf"):
        load_dataset("glyphs", "test")


def test_a_glyph_is_framed_by_two_empty_pixels() -> None:
    ink = glyphs.glyph_image("Ж", "STIXGeneral")
    assert ink.mode == "L"
    assert ink.getbbox() == (2, 2, ink.width - 2, ink.height - 2)
