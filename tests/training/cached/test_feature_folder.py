"""Folders of cached features: written whole, memory-mapped, and refused if damaged."""

from __future__ import annotations

import dataclasses
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import CARD
from tests.raising import raises
from training.cached.feature_folder import FeatureLabels, FeatureOrigin, read_features, writing_features
from zoo.errors import UsageError

ABOUT = FeatureOrigin(
    "toy", CARD.fingerprint, "noise", "train", {"crop": 20}, {"flip": 0.5}, 3, "2020-01-01", {"numpy": "2"}
)
DRAW = np.random.default_rng(0)
PLAIN = DRAW.standard_normal((5, 7)).astype(np.float32)
VIEWS = DRAW.standard_normal((2, 5, 7)).astype(np.float32)
SUBJECT = FeatureLabels(
    np.array([0, 0, 1, 2, 2]),
    ("a", "b", "ü"),
    [f"noise/{i}\n.png" for i in range(5)],
    [DRAW.integers(0, 256, (3, 4, 3), np.uint8), DRAW.integers(0, 256, (9, 2, 3), np.uint8)],
)


def write(path: Path, dtype: str = "float32", views: np.ndarray = VIEWS, plain: np.ndarray = PLAIN) -> Path:
    with writing_features(path, ABOUT, SUBJECT, (len(views), 7), dtype) as (kept, kept_views):
        kept[...] = plain
        kept_views[...] = views
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_written_features_are_read_and_mapped(tmp_path: Path, dtype: str) -> None:
    found = read_features(write(tmp_path / "f", dtype))
    assert isinstance(found.plain, np.memmap)
    assert isinstance(found.views, np.memmap)
    np.testing.assert_array_equal(found.plain, PLAIN.astype(dtype))
    np.testing.assert_array_equal(found.views, VIEWS.astype(dtype))
    np.testing.assert_array_equal(found.labels, SUBJECT.labels)
    assert (found.classes, list(found.sources)) == (SUBJECT.classes, SUBJECT.sources)
    assert found.about == ABOUT
    assert all(np.array_equal(a, b) for a, b in zip(found.golden, SUBJECT.golden, strict=True))
    assert len(found) == 5


def test_numpy_reads_the_arrays(tmp_path: Path) -> None:
    folder = write(tmp_path / "f")
    np.testing.assert_array_equal(np.load(folder / "views.npy"), VIEWS)
    np.testing.assert_array_equal(np.load(folder / "labels.npy"), SUBJECT.labels)
    assert json.loads((folder / "record.json").read_text())["classes"] == ["a", "b", "ü"]


def test_a_folder_may_have_no_views(tmp_path: Path) -> None:
    found = read_features(write(tmp_path / "f", views=VIEWS[:0]))
    assert found.views.shape == (0, 5, 7)
    np.testing.assert_array_equal(found.plain, PLAIN)


def test_another_model_is_refused(tmp_path: Path) -> None:
    found = read_features(write(tmp_path / "f"))
    found.check_model(CARD)
    other = dataclasses.replace(CARD, preprocessing=dataclasses.replace(CARD.preprocessing, interpolation="bicubic"))
    with raises(UsageError, "other-model"):
        found.check_model(other)


@pytest.mark.parametrize("value", [1e6, np.nan])
def test_infinite_features_leave_nothing(tmp_path: Path, value: float) -> None:
    views = VIEWS.copy()
    views[1, 4, 6] = value
    with np.errstate(over="ignore"), raises(UsageError, "not-finite") as caught:
        write(tmp_path / "f", "float16", views)
    assert "float32" in str(caught.value)
    assert not list(tmp_path.iterdir())
    with raises(UsageError, "invalid-value"):
        write(tmp_path / "f", "int8")


def test_an_array_that_is_cut_off_or_missing_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "f")
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            with raises(UsageError, "damaged-file"):
                read_features(folder)
        file.unlink()
        with raises(UsageError, "damaged-file"):
            read_features(folder)
        file.write_bytes(whole)
    assert read_features(folder).about == ABOUT


def test_other_folders_and_files_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "not-found"):
        read_features(tmp_path / "none")
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    for other in (tmp_path, tmp_path / "weights.safetensors"):
        with raises(UsageError, "damaged-file"):
            read_features(other)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": "a shopping list"}, "damaged-file"),
        ({"schema": 2}, "other-schema"),
        ({"about": {}}, "damaged-file"),
        ({"about": 5}, "damaged-file"),
        ({"golden": "two"}, "damaged-file"),
        ({"sources": ["x"]}, "damaged-file"),
        ({"sources": 5}, "damaged-file"),
        ({"classes": ["a", "b"]}, "damaged-file"),
    ],
)
def test_other_records_are_refused(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    file = write(tmp_path / "f") / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with raises(UsageError, code):
        read_features(tmp_path / "f")


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"labels": np.array([0, 0, 1, 2, 3])}, "labels from 0 to 3, 3 classes"),
        ({"labels": np.array([0, 0, 1, 2, -1])}, "labels from -1 to 2, 3 classes"),
        ({"labels": np.arange(4) % 3}, "plain [5, 7], views [2, 5, 7], 4 labels"),
        ({"labels": np.zeros((5, 1), np.int64)}, "labels are int64 [5, 1]"),
        ({"labels": np.zeros(5, np.float32)}, "labels are float32 [5]"),
        ({"labels": np.zeros(0, np.int64)}, "labels are int64 [0]"),
        ({"plain": PLAIN[:4]}, "plain [4, 7]"),
        ({"plain": PLAIN[0]}, "plain [7]"),
        ({"plain": PLAIN.astype(np.int64)}, "plain is int64"),
        ({"views": VIEWS[:, :, :6]}, "views [2, 5, 6]"),
        ({"plain": np.array([{}] * 5)}, "object"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path: Path, change: dict[str, Any], value: str) -> None:
    folder = write(tmp_path / "f")
    for name, array in change.items():
        np.save(folder / f"{name}.npy", array)
    with raises(UsageError, "damaged-file") as caught:
        read_features(folder)
    assert value in str(caught.value)


def test_space_is_taken_before_the_first_feature(tmp_path: Path) -> None:
    with writing_features(tmp_path / "f", ABOUT, SUBJECT, (2000, 7), "float32") as (_, views):
        assert isinstance(views, np.memmap)
        facts = Path(str(views.filename)).stat()
        assert 512 * facts.st_blocks >= facts.st_size > views.nbytes


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system itself refuses to make the file larger, as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, allowed[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write(tmp_path / "f", views=VIEWS.repeat(50, axis=0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert not list(tmp_path.iterdir())
