"""Identity of measured images: equal for the same images wherever they are, another one for any others."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from zoo.data import load_dataset
from zoo.data.dataset import DataIdentity, Dataset, subset, without

FILES = {"owl/1.png": b"abc", "owl/2.png": b"de", "wren/1.png": b"f", "wren/2.png": b"ghij"}


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """A folder that is only listed here, so that its files need not be images."""
    for name, content in FILES.items():
        path = tmp_path / "birds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "birds"


def table(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("image", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def identity(path: Path, split: str = "all") -> DataIdentity:
    return load_dataset("folder", split, path).identity


def test_the_identity_is_the_documented_hash(birds: Path) -> None:
    rows = [["owl/1.png", "owl", 3], ["owl/2.png", "owl", 2], ["wren/1.png", "wren", 1], ["wren/2.png", "wren", 4]]
    assert identity(birds) == DataIdentity("birds", hashlib.sha256(json.dumps(rows).encode()).hexdigest(), 4, 2)


def test_a_moved_folder_and_a_table_of_it_in_any_order_have_the_same_hash(birds: Path, tmp_path: Path) -> None:
    known = identity(birds).sha256
    rows = [(f"birds/{name}", name.partition("/")[0]) for name in FILES]
    inside = table(birds / "inside.csv", [(name.removeprefix("birds/"), label) for name, label in rows])
    listed = table(tmp_path / "birds.csv", rows[::-1])
    full = table(tmp_path / "full.csv", [(str(tmp_path / name), label) for name, label in rows])
    assert {identity(path).sha256 for path in (inside, listed, full)} == {known}
    assert [identity(path).name for path in (inside, listed)] == ["inside.csv", "birds.csv"]
    moved = Path(shutil.move(birds, tmp_path / "elsewhere" / "vögel"))
    (moved / "inside.csv").unlink()
    assert (identity(moved).sha256, identity(moved).name) == (known, "vögel")


def test_other_sizes_labels_names_and_queries_are_other_data(birds: Path, tmp_path: Path) -> None:
    rows = [(f"birds/{name}", name.partition("/")[0]) for name in FILES]
    relabelled = [(rows[0][0], "wren"), *rows[1:]]
    marked = [(*row, str(number % 2)) for number, row in enumerate(rows)]
    found = {identity(birds).sha256, identity(table(tmp_path / "b.csv", relabelled)).sha256}
    found.add(identity(table(tmp_path / "q.csv", marked, ("image", "label", "query"))).sha256)
    (birds / "owl" / "1.png").write_bytes(b"four")
    found.add(identity(birds).sha256)
    (birds / "owl" / "1.png").rename(birds / "owl" / "3.png")
    found.add(identity(birds).sha256)
    assert len(found) == 5


def test_each_part_has_its_own_hash_and_the_name_of_the_whole(birds: Path) -> None:
    whole = load_dataset("folder", "all", birds)
    part = subset(whole, whole.labels == 0, "test")
    assert part.identity.name == "birds"
    assert (part.identity.images, part.identity.classes) == (2, 1)
    assert part.identity.sha256 != whole.identity.sha256
    assert without(whole, {"wren/1.png", "wren/2.png"}).identity == part.identity
    for name in FILES:
        for split in ("train", "test"):
            (birds.parent / "both" / split / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(birds / name, birds.parent / "both" / split / name)
    assert identity(birds.parent / "both", "test").name == "both"


def test_names_may_be_any_bytes_and_files_may_vanish(birds: Path) -> None:
    (birds / "owl" / "1.png").rename(os.fsdecode(os.fsencode(birds / "owl") + b"/\xff.png"))
    dataset = load_dataset("folder", "all", birds)
    (birds / "wren" / "1.png").unlink()
    assert len(dataset.identity.sha256) == 64


def test_a_published_data_set_is_known_by_sources_and_labels(tmp_path: Path) -> None:
    """The place and the size of its files do not count: loaders check them against the published counts."""
    path = tmp_path / "1.jpg"
    path.write_bytes(b"1")
    rows = np.arange(2, dtype=np.int64)
    on_disk, in_memory = (
        Dataset("cub", "test", images, rows, ("owl", "wren"), ["a/1.jpg", "b/1.jpg"])
        for images in ([path, path], [b"22", b"33"])
    )
    assert on_disk.identity == in_memory.identity
    assert on_disk.identity.name == "cub"


def test_the_glyphs_have_the_hash_that_the_shipped_scores_name() -> None:
    from zoo.models.results import read_results
    from zoo.paths import SHIPPED

    known = {result["data"]["sha256"] for folder in SHIPPED.glob("*-glyphs") for result in read_results(folder)}
    assert known == {load_dataset("glyphs", "test").identity.sha256}
