"""Byte-identical images are counted by label, and classes are recognised by their images."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.commandline import run_here
from zoo.data.content import (
    DIGEST,
    IMAGES_OF_CLASS,
    IdenticalPairs,
    count_identical_pairs,
    digests_of_classes,
    image_sha256,
    telling_digests,
)
from zoo.data.dataset import Dataset
from zoo.files import write_bytes


def dataset(root: Path, contents: list[tuple[str, bytes]], queries: list[int] | None = None) -> Dataset:
    """Files of these classes and contents, which need not be images."""
    files = []
    for number, (name, content) in enumerate(contents):
        path = root / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(path)
    classes, labels = np.unique([name for name, _ in contents], return_inverse=True)
    factors = {} if queries is None else {"query": np.array(queries)}
    return Dataset("folder", "all", files, labels, tuple(classes.tolist()), list(map(str, files)), factors)


def test_pairs_are_counted_as_by_comparing_all_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    contents = [(f"c{draw.integers(3)}", bytes([draw.integers(97, 100)] * draw.integers(1, 4))) for _ in range(60)]
    queries = draw.integers(0, 2, 60).tolist()
    for marks in (None, queries):
        same = different = 0
        for i, j in combinations(range(60), 2):
            if contents[i][1] == contents[j][1] and (marks is None or marks[i] != marks[j]):
                same += contents[i][0] == contents[j][0]
                different += contents[i][0] != contents[j][0]
        assert same > 0 < different
        assert count_identical_pairs(dataset(tmp_path, contents, marks)) == IdenticalPairs(same, different)


def test_equal_sizes_are_not_equal_files_and_missing_ones_are_none(tmp_path: Path) -> None:
    images = dataset(tmp_path, [("a", b"ab"), ("a", b"ba"), ("b", b"xyz"), ("b", b"xyz")])
    Path(str(images.images[3])).unlink()
    assert count_identical_pairs(images) == IdenticalPairs(0, 0)
    pixels = np.zeros((4, 4, 3), np.uint8)
    in_memory = Dataset("folder", "all", [pixels, pixels], np.array([0, 0]), ("a",), ["1", "2"])
    assert count_identical_pairs(in_memory) == IdenticalPairs(0, 0)


def test_the_smallest_hashes_tell_a_class(tmp_path: Path) -> None:
    contents = [("many", str(n).encode()) for n in range(20)] + [("few", b"one"), ("few", b"two")]
    digests = digests_of_classes(dataset(tmp_path, contents))
    expected = {
        name: sorted(hashlib.sha256(data).hexdigest()[:16] for of, data in contents if of == name)
        for name in ("many", "few")
    }
    assert {name: sorted(values) for name, values in digests.items()} == expected
    assert DIGEST == 16
    assert telling_digests(digests) == {name: " ".join(values[:IMAGES_OF_CLASS]) for name, values in expected.items()}


def test_the_hash_of_an_image_is_that_of_its_bytes(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.png", b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert [image_sha256(image) for image in (tmp_path / "a.png", str(tmp_path / "a.png"), b"abc")] == [expected] * 3
    assert image_sha256(np.zeros((2, 2, 3), np.uint8)) == ""


@pytest.fixture
def copies(pictures: Path, tmp_path: Path) -> Path:
    """The toy pictures with one copied within its class and one into another class."""
    pictures = Path(shutil.copytree(pictures, tmp_path / "copies"))
    first, second = sorted(path for path in pictures.iterdir() if path.is_dir())[:2]
    (first / "copy.png").write_bytes((first / "0.png").read_bytes())
    (second / "other.png").write_bytes((first / "1.png").read_bytes())
    return pictures


@pytest.mark.slow
def test_evaluate_and_score_report_identical_pairs(
    copies: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = count_identical_pairs_by_hand(copies)
    assert before[0] >= 1
    assert before[1] >= 1
    expected = {"same_label": before[0], "different_labels": before[1]}
    measure = ["evaluate", str(toy), "--runtime", "onnx", "--dataset", "folder", "--data", str(copies)]
    run_here(*measure, "--json")
    assert json.loads(capsys.readouterr().out)["identical"] == expected
    run_here(*measure)
    assert f"byte-identical pairs: {before[0]} with one label" in capsys.readouterr().out
    run_here("embed", toy, copies, "--out", tmp_path / "rows.npy", "--runtime", "onnx", "--json")
    capsys.readouterr()
    score = ["score", tmp_path / "rows.npy", "--json"]
    run_here(*score, "--dataset", "folder", "--data", copies)
    assert json.loads(capsys.readouterr().out)["identical"] == expected
    run_here(*score, "--labels", tmp_path / "rows.csv")
    assert json.loads(capsys.readouterr().out)["identical"] is None, "the files are not known"


def count_identical_pairs_by_hand(root: Path) -> tuple[int, int]:
    pairs = [
        (a.parent == b.parent, a.read_bytes() == b.read_bytes())
        for a, b in combinations([path for path in root.rglob("*") if path.is_file()], 2)
    ]
    return sum(own and equal for own, equal in pairs), sum(equal and not own for own, equal in pairs)
