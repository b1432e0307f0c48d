"""The formats of the field give the data set of the folder that they were made of: same identity, same scores."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import zoo
from tests.raising import raises
from tests.zoo.hub_server import serving
from zoo.data import load_dataset
from zoo.data.dataset import export_folder, subset
from zoo.data.table import load_unlabelled
from zoo.errors import DatasetError

MODEL = "margin-conv4-glyphs"


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in two splits; the classes of the second are others."""
    root = tmp_path_factory.mktemp("images") / "birds"
    for split in ("train", "test"):
        glyphs = load_dataset("glyphs", split)
        export_folder(subset(glyphs, glyphs.labels < 6, split), root / split)
    return root


@pytest.fixture(scope="module")
def expected(birds: Path) -> tuple[str, dict[str, float]]:
    return measured("folder", birds)


def measured(dataset: Any, data: Any = None) -> tuple[str, dict[str, float]]:
    evaluation = zoo.evaluate(MODEL, dataset, data=data)
    assert evaluation.data is not None
    return evaluation.data.sha256, evaluation.metrics


def files(birds: Path, split: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((birds / split).rglob("*.png")):
        yield path, path.parent.relative_to(birds / split).as_posix()


def embedded(birds: Path) -> Mapping[str, Any]:
    """Return the images as a data set of the Hub has them: bytes with the name of their file."""
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("string"), "year": datasets.Value("int64")}
    )

    def part(split: str) -> Any:
        rows = [(path, label) for path, label in files(birds, split)]
        images = [{"path": path.name, "bytes": path.read_bytes()} for path, _ in rows]
        columns = {"image": images, "label": [label for _, label in rows], "year": [1900 + len(images)] * len(rows)}
        return datasets.Dataset.from_dict(columns, features=features)

    return datasets.DatasetDict({split: part(split) for split in ("train", "test")})


def test_a_data_set_in_memory_is_measured_as_the_folder(birds: Path, expected: Any) -> None:
    assert measured(embedded(birds)) == expected


def test_a_data_set_on_disk_is_measured_as_the_folder(birds: Path, expected: Any, tmp_path: Path) -> None:
    embedded(birds).save_to_disk(str(tmp_path / "disk"))  # type: ignore[attr-defined]
    assert measured("folder", tmp_path / "disk") == expected


def test_parquet_is_measured_as_the_folder(birds: Path, expected: Any, tmp_path: Path) -> None:
    parts = embedded(birds)
    for split in parts:
        parts[split].to_parquet(str(tmp_path / f"{split}-00000-of-00001.parquet"))
    assert measured("folder", tmp_path) == expected
    assert measured(None, tmp_path / "test-00000-of-00001.parquet") == expected


def test_metadata_beside_the_images_is_read(birds: Path, expected: Any) -> None:
    written = [birds / split / "metadata.jsonl" for split in ("train", "test")]
    for path in written:
        rows = [{"file_name": str(f.relative_to(path.parent)), "label": c} for f, c in files(birds, path.parent.name)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        assert measured("folder", birds) == expected
    finally:
        for path in written:
            path.unlink()


def test_webdataset_is_measured_as_the_folder(birds: Path, expected: Any, tmp_path: Path) -> None:
    for split in ("train", "test"):
        with tarfile.open(tmp_path / f"{split}-000.tar", "w") as tar:
            for path, label in files(birds, split):
                key = path.relative_to(birds / split).with_suffix("").as_posix()
                for suffix, data in (("png", path.read_bytes()), ("json", json.dumps({"label": label}).encode())):
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    assert measured("folder", tmp_path) == expected


def tar_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_samples_of_webdataset_hold_classes_texts_and_any_kind_of_image(birds: Path, tmp_path: Path) -> None:
    (first, _), (second, _) = list(files(birds, "test"))[:2]
    stream = io.BytesIO()
    Image.open(second).convert("RGB").save(stream, "WEBP", lossless=True)
    members = {
        "d/0.cls": b"4",
        "d/0.png": first.read_bytes(),
        "d/0.seg.png": b"a second image is left out",
        "d/0.txt": b"a first",
        "d/0.bin": b"\xff",
        "d/1.cls": b"7",
        "d/1.webp": stream.getvalue(),
        "d/1.txt": b"a second",
    }
    images = load_dataset("folder", "all", tar_of(tmp_path / "images.tar", members))
    assert [images.classes[label] for label in images.labels] == ["4", "7"]
    for number, path in enumerate((first, second)):
        expected = np.asarray(Image.open(path).convert("RGB"))
        np.testing.assert_array_equal(np.asarray(Image.open(images.images[number]).convert("RGB")), expected)
    for damaged in ({"0.cls": b"four", "0.png": first.read_bytes()}, {"0.json": b"{", "0.png": first.read_bytes()}):
        with raises(DatasetError, "damaged-file"):
            load_dataset("folder", "all", tar_of(tmp_path / "damaged.tar", damaged))
    (tmp_path / "short.tar").write_bytes((tmp_path / "images.tar").read_bytes()[:700])
    with raises(DatasetError, "damaged-file"):
        load_dataset("folder", "all", tmp_path / "short.tar")


INDEX = """
import sys
from zoo.cli.main import main
status = main(["index", sys.argv[1], sys.argv[2], "--out", sys.argv[3]])
print(status, sorted({"torch", "torchvision", "timm"} & sys.modules.keys()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "tars", "jsonl", "parquet", "disk"])
def test_no_format_loads_torch_to_be_indexed(birds: Path, tmp_path: Path, kind: str) -> None:
    images, source = list(files(birds, "test")), tmp_path / kind
    source.mkdir()
    if kind in ("tar", "tars"):
        path = source / "images-000.tar"
        tar_of(
            path,
            {
                f"{n}.{end}": data
                for n, (file, label) in enumerate(images)
                for end, data in (("png", file.read_bytes()), ("json", json.dumps({"label": label}).encode()))
            },
        )
        source = path if kind == "tar" else source
    elif kind == "jsonl":
        for number, (file, _) in enumerate(images):
            (source / f"{number}.png").write_bytes(file.read_bytes())
        rows = [{"file_name": f"{number}.png", "label": label} for number, (_, label) in enumerate(images)]
        (source / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        embedded(birds)["test"].to_parquet(str(source / "test.parquet"))
    else:
        embedded(birds)["test"].save_to_disk(str(source))
    words = [sys.executable, "-c", INDEX, MODEL, str(source), str(tmp_path / "gallery")]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "0 []"
    assert zoo.Gallery(tmp_path / "gallery").search(images[0][0], k=1)[0].label == images[0][1]


def oml_table(birds: Path, path: Path, marks: Any = lambda number: ("True", "True")) -> Path:
    separator = "\t" if path.suffix == ".tsv" else ","
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["label", "path", "split", "is_query", "is_gallery"])
        for split, name in (("train", "train"), ("test", "validation")):
            for number, (image, label) in enumerate(files(birds, split)):
                writer.writerow([label, image, name, *(("", "") if split == "train" else marks(number))])
    return path


@pytest.mark.parametrize("name", ["oml.csv", "oml.tsv"])
def test_a_table_of_oml_is_measured_as_the_folder(birds: Path, expected: Any, tmp_path: Path, name: str) -> None:
    assert measured(None, oml_table(birds, tmp_path / name)) == expected


def test_rows_that_are_query_and_gallery_do_not_find_themselves(birds: Path, tmp_path: Path) -> None:
    kinds = [("True", "False"), ("False", "True"), ("True", "True")]
    table = oml_table(birds, tmp_path / "oml.csv", lambda number: kinds[number % 3])
    metrics = zoo.evaluate(MODEL, data=table, k=(1,)).metrics
    rows = list(files(birds, "test"))
    vectors = zoo.load(MODEL).embed([path for path, _ in rows]).astype(np.float64)
    hits, precisions = [], []
    for query in range(len(rows)):
        if query % 3 == 1:
            continue
        gallery = [i for i in range(len(rows)) if i % 3 != 0 and i != query]
        order = sorted(gallery, key=lambda i: -float(vectors[query] @ vectors[i]))
        same = np.array([rows[i][1] == rows[query][1] for i in order])
        relatives = int(same.sum())
        hits.append(same[0])
        precision = np.cumsum(same) / np.arange(1, len(same) + 1)
        precisions.append((precision * same)[:relatives].sum() / relatives)
    assert metrics["recall_at_1"] == pytest.approx(np.mean(hits))
    assert metrics["map_at_r"] == pytest.approx(np.mean(precisions), abs=1e-9)


def test_a_table_of_parts_of_images_is_refused(birds: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("path,label,x_1,y_1,x_2,y_2\na.png,b,0,0,1,1\n")
    with pytest.raises(zoo.errors.UsageError) as refusal:
        zoo.evaluate(MODEL, data=tmp_path / "boxes.csv")
    assert refusal.value.code == "invalid-table"


class Pictures:
    """A data set as PyTorch has it."""

    def __init__(self, birds: Path, split: str) -> None:
        self.rows = list(files(birds, split))
        self.classes = sorted({label for _, label in self.rows})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        path, label = self.rows[number]
        return Image.open(path), self.classes.index(label)


@pytest.mark.slow
def test_data_sets_of_pytorch_are_trained_on_and_measured(birds: Path, expected: Any, own_zoo: Path) -> None:
    parts = {split: Pictures(birds, split) for split in ("train", "test")}
    assert measured(parts["test"])[1] == expected[1]
    trained = zoo.train(MODEL, data=parts, settings={"schedule.epochs": 1}, name="own")
    assert trained.evaluation is not None
    assert trained.evaluation.queries == len(parts["test"])


def test_tensors_are_refused_with_the_reason(birds: Path) -> None:
    import torch

    with pytest.raises(zoo.errors.UsageError) as refusal:
        zoo.evaluate(MODEL, [(torch.zeros(3, 8, 8), 0)])
    assert refusal.value.code == "unreadable-image"


def test_metadata_reaches_a_gallery(birds: Path, tmp_path: Path) -> None:
    parts = embedded(birds)
    with zoo.index(MODEL, parts["test"], out=tmp_path / "gallery") as gallery:
        path, label = next(files(birds, "test"))
        (hit,) = gallery.search(path, k=1, where={"year": {"gte": 1900}})
    assert hit.label == label


@pytest.mark.slow
def test_a_model_is_finetuned_on_a_data_set(birds: Path, own_zoo: Path) -> None:
    part = embedded(birds)["train"]
    tuned = zoo.finetune(MODEL, part, views=0, settings={"schedule.epochs": 1, "batch.size": 8})
    assert zoo.load(tuned).dim


def test_a_name_on_the_hub_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, own_zoo: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("nosuch/birds", "hf://nosuch/birds", "hf://datasets/nosuch/birds"):
        with pytest.raises(zoo.errors.ZooError) as refusal:
            zoo.evaluate(MODEL, data=name)
        assert refusal.value.code == "offline"


OF_THE_HUB = """
import sys
from zoo.data import load_dataset
images = load_dataset("folder", "test", "org/birds")
names = [images.classes[label] for label in images.labels]
print(sorted(names), "torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "tar", "files"])
def test_a_data_set_of_the_hub_is_read(birds: Path, tmp_path: Path, kind: str) -> None:
    expected = sorted(label for _, label in files(birds, "test"))
    repository: dict[str, bytes] = {}
    for split in ("train", "test"):
        if kind == "parquet":
            embedded(birds)[split].to_parquet(str(tmp_path / "part.parquet"))
            repository[f"data/{split}-00000-of-00001.parquet"] = (tmp_path / "part.parquet").read_bytes()
        elif kind == "tar":
            members = {}
            for number, (file, label) in enumerate(files(birds, split)):
                members[f"{number}.png"] = file.read_bytes()
                members[f"{number}.json"] = json.dumps({"label": label}).encode()
            repository[f"data/{split}-00000.tar"] = tar_of(tmp_path / "part.tar", members).read_bytes()
        else:
            repository |= {
                f"{split}/{label}/{number}.png": file.read_bytes()
                for number, (file, label) in enumerate(files(birds, split))
            }
    with serving({f"org/birds/{name}": data for name, data in repository.items()}) as (url, _):
        homes = {
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "hub"),
            "ZOO_HOME": str(tmp_path / "zoo"),
            "HF_HUB_OFFLINE": "0",
        }
        run = subprocess.run(
            [sys.executable, "-c", OF_THE_HUB], env={**os.environ, **homes}, capture_output=True, text=True, check=True
        )
    assert run.stdout == f"{expected} False\n"


def test_rows_without_labels_can_be_read(birds: Path, own_zoo: Path) -> None:
    part = embedded(birds)["train"].remove_columns("label")
    from zoo.data.formats import table_of

    assert load_unlabelled("all", table_of(part)).classes == ("",)


READ = """
import re, sys
from zoo.data import load_dataset
images = load_dataset("folder", "all", sys.argv[1])
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
print(len(images), len(images.classes), "torch" in sys.modules, peak)
"""
"""Read a table, and print its peak of memory in KiB; that of getrusage would have the process that started this one."""


@pytest.mark.slow
def test_a_hundred_thousand_rows_of_parquet_take_under_500_mb(tmp_path: Path, own_zoo: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcdefgh"))})
    # Bytes behind the end of a picture make it another one.
    images = [{"bytes": stream.getvalue() + number.to_bytes(4), "path": None} for number in range(100_000)]
    table = datasets.Dataset.from_dict(
        {"image": images, "label": [number % 8 for number in range(100_000)]}, features=features
    )
    table.to_parquet(str(tmp_path / "large.parquet"))
    words = [sys.executable, "-c", READ, str(tmp_path / "large.parquet")]
    rows, classes, has_torch, peak = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert (rows, classes, has_torch) == ("100000", "8", "False")
    assert int(peak) < 500_000  # KiB


def written_by_pyarrow(birds: Path, path: Path, kind: str) -> Path:
    """Write the images as a table of Parquet that has no types of the library `datasets`."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [(split, file, label) for split in ("train", "test") for file, label in files(birds, split)]
    contents = [file.read_bytes() for _, file, _ in rows]
    column: Any
    if kind == "paths":
        column = pa.array([os.path.relpath(file, path.parent) for _, file, _ in rows])
    elif kind == "bytes":
        column = pa.array(contents, pa.large_binary())
    elif kind == "bytes and no paths":
        column = pa.array([{"bytes": data, "path": None} for data in contents])
    elif kind == "paths without bytes":
        column = pa.array([{"path": str(file)} for _, file, _ in rows])
    else:
        column = pa.array(
            [{"bytes": data, "path": file.name} for data, (_, file, _) in zip(contents, rows, strict=True)]
        )
    name = {"bytes": "scan", "paths": "img"}.get(kind, "image")
    columns = {
        "thumbnail": pa.array([b"none"] * len(rows)),
        "species": pa.array([label for _, _, label in rows]).dictionary_encode(),
        name: column,
        "split": pa.array([split for split, _, _ in rows]),
    }
    columns["label"] = columns.pop("species")
    parquet.write_table(pa.table(columns), path)
    return path


PYARROW = ["bytes and paths", "bytes and no paths", "paths without bytes", "bytes", "paths"]


@pytest.mark.parametrize("kind", PYARROW)
def test_parquet_by_pyarrow_is_measured_as_the_folder(birds: Path, expected: Any, tmp_path: Path, kind: str) -> None:
    sha256, metrics = measured(None, written_by_pyarrow(birds, tmp_path / "birds.parquet", kind))
    assert metrics == expected[1]
    assert (sha256 == expected[0]) == ("paths" in kind and "no paths" not in kind)  # the identity has the files' names
    assert measured("folder", tmp_path) == (sha256, metrics)


@pytest.mark.parametrize("kind", ["bytes", "paths"])
def test_parquet_by_pyarrow_is_indexed(birds: Path, tmp_path: Path, kind: str) -> None:
    table = written_by_pyarrow(birds, tmp_path / "birds.parquet", kind)
    path, label = next(files(birds, "test"))
    with zoo.index(MODEL, table, out=tmp_path / "gallery") as gallery:
        (hit,) = gallery.search(path, k=1, where={"split": "test"})
    assert hit.label == label


def test_a_mistake_in_parquet_is_named_by_the_users_file_and_row(birds: Path, tmp_path: Path) -> None:
    rows = list(files(birds, "test"))[:3]
    labels = [label if number != 1 else None for number, (_, label) in enumerate(rows)]
    table = datasets.Dataset.from_dict({"path": [str(path) for path, _ in rows], "class": labels})
    table.to_parquet(str(tmp_path / "birds.parquet"))
    table.remove_columns("class").add_column("family", labels).to_parquet(str(tmp_path / "unlabelled.parquet"))
    table.remove_columns("path").to_parquet(str(tmp_path / "blind.parquet"))
    for name, facts in (("birds", "row 2"), ("unlabelled", "family"), ("blind", "class (string)")):
        with pytest.raises(zoo.errors.UsageError) as refusal:
            zoo.evaluate(MODEL, data=tmp_path / f"{name}.parquet")
        assert refusal.value.code == "invalid-table"
        assert facts in str(refusal.value)
        assert "images.csv" not in str(refusal.value)
