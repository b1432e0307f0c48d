"""Tables of images and labels read as data sets."""

from __future__ import annotations

import csv
import json
import unicodedata
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.raising import raises
from tests.zoo.data.test_folder import fill
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.dataset import export_folder, subset
from zoo.data.folder import check_splits, list_unlabelled
from zoo.data.labels import merge_spellings
from zoo.data.table import load_unlabelled, read_table, training_images
from zoo.errors import DatasetError, EvaluationError, UsageError, ZooError
from zoo.evaluation import evaluate

ROWS = """\
image,label,split,photographer
a/1.png,wren,train,Ada
a/2.png,"wren, winter",train,
b/1.png,owl,test,Bob
b/2.png,wren,test,Bob
b/3.png,owl,test,Bob
"""


def write(folder: Path, text: str) -> Path:
    (folder / "birds.csv").write_text(text, encoding="utf-8")
    return folder / "birds.csv"


def test_a_table_gives_classes_and_splits(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS)
    train, test = load_dataset("folder", "train", table), load_dataset("folder", "test", table)
    assert (train.split, test.split) == ("train", "test")
    assert train.classes == ("wren", "wren, winter")
    assert test.classes == ("owl", "wren")
    assert test.labels.tolist() == [0, 1, 0]
    assert list(test.images) == [tmp_path / "b/1.png", tmp_path / "b/2.png", tmp_path / "b/3.png"]
    assert list(test.sources) == ["b/1.png", "b/2.png", "b/3.png"]
    with raises(DatasetError, "invalid-table", "wren"):
        check_splits(table)
    check_splits(write(tmp_path, ROWS.replace("b/2.png,wren", "b/2.png,kite")))
    with raises(DatasetError, "wrong-split", "split"):
        load_dataset("folder", "all", table)


def test_without_a_column_split_all_rows_are_the_data_set(tmp_path: Path) -> None:
    table = write(tmp_path, "path,label\n/elsewhere/1.png,wren\n~/2.png,owl\n")
    for split in ("train", "test", "all"):
        dataset = load_dataset("folder", split, table)
        assert dataset.split == "all"
        assert list(dataset.images) == [Path("/elsewhere/1.png"), Path.home() / "2.png"]
    with raises(DatasetError, "wrong-split", "split"):
        check_splits(table)


def test_queries_search_the_others_where_they_are_measured(tmp_path: Path) -> None:
    rows = "image,label,split,query\n1.png,a,train,0\n2.png,b,train,0\n3.png,c,test,1\n4.png,d,test,FALSE\n"
    table = write(tmp_path, rows)
    assert load_dataset("folder", "test", table).factors["query"].tolist() == [1, 0]
    assert load_dataset("folder", "train", table).factors["query"].tolist() == [0, 0]
    one_sided = load_dataset("folder", "test", write(tmp_path, rows.replace("FALSE", "true")))
    with pytest.raises(EvaluationError):
        evaluate(np.eye(2), one_sided)
    with raises(UsageError, "invalid-table", "line 3", "'no'"):
        load_dataset("folder", "test", write(tmp_path, rows.replace("b,train,0", "b,train,no")))


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("", "invalid-table", ()),
        ("file,label\na.png,a\n", "invalid-table", ("image (or path)", "file, label")),
        ("image,label\n", "no-images", ()),
        ("image,label\na.png,\n", "invalid-table", ("line 2",)),
        ("image,label\na.png\n", "invalid-table", ("line 2",)),
        ('image,label\n"a\n.png",a\na.png,a\na.png,b\n', "invalid-table", ("line 5", "a.png")),
        ("image,label\na.png,a,,\nb.png,Smith, John\n", "invalid-table", ("line 3", "2")),
        ("image,label,label\na.png,a,b\n", "invalid-table", ("label",)),
        ("image,label,split\na.png,a,val\n", "invalid-table", ("line 2", "'val'")),
        ("image,label,split\na.png,a\n", "invalid-table", ("line 2", "''")),
        ("image,label,split\na.png,a,train\n", "no-images", ("test",)),
        ("image,label\na.png,a\nb.png,a\n", "too-few-classes", ("'a'",)),
        ('image,label\n"a.png,a\n', "invalid-table", ()),
        ("image;label\na.png;a\n", "invalid-table", ("';'", "commas")),
        ("image\tlabel\na.png\ta\n", "invalid-table", ("commas",)),
    ],
)
def test_a_malformed_table_is_refused_with_its_line(
    text: str, code: str, values: tuple[str, ...], tmp_path: Path
) -> None:
    with raises(ZooError, code, *values):
        load_dataset("folder", "test", write(tmp_path, text))


def test_a_missing_table_and_one_that_is_not_utf8(tmp_path: Path) -> None:
    with raises(DatasetError, "not-found", tmp_path / "none.csv"):
        load_dataset("folder", "test", tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("image,label\nä.png,a\n".encode("latin-1"))
    with raises(UsageError, "invalid-table", "utf-8"):
        load_dataset("folder", "test", tmp_path / "latin.csv")
    with raises(UsageError, "invalid-table", "utf-8"):
        read_table(tmp_path / "latin.csv")


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.xlsx", b"any"), ("b.csv", b"PK\x03\x04rest"), ("c.csv", b"\xd0\xcf\x11\xe0rest"), ("d.ods", b"PK\x03\x04")],
)
def test_a_spreadsheet_is_refused_as_one(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with raises(UsageError, "invalid-table", name, "CSV"):
        read_table(tmp_path / name)


def test_labels_may_be_missing_if_they_are_not_needed(tmp_path: Path) -> None:
    bare = write(tmp_path, "image\na/1.png\n~/2.png\n")
    images = [tmp_path / "a/1.png", Path.home() / "2.png"]
    assert training_images(bare) == [(image, "") for image in images]
    assert list_unlabelled(bare) == images
    dataset = load_unlabelled("all", bare)
    assert (dataset.split, dataset.classes, list(dataset.sources)) == ("all", ("",), ["a/1.png", "~/2.png"])
    with raises(UsageError, "invalid-table", "image (or path)", "label"):
        load_dataset("folder", "test", bare)
    parted = write(tmp_path, ROWS.replace("a/1.png,wren", "a/1.png,"))
    assert training_images(parted) == [(tmp_path / "a/1.png", ""), (tmp_path / "a/2.png", "wren, winter")]
    assert load_unlabelled("train", parted).classes == ("", "wren, winter")
    with raises(UsageError, "invalid-table", "line 2", "label"):
        load_dataset("folder", "test", parted)
    with raises(UsageError, "invalid-table", "line 3"):
        training_images(write(tmp_path, "image,label\na.png,\n,x\n"))
    with raises(UsageError, "invalid-table", "image (or path)"):
        training_images(write(tmp_path, "file\na.png\n"))
    with raises(DatasetError, "no-images", "birds.csv"):
        list_unlabelled(write(tmp_path, "image,split\na.png,test\n"))


def test_a_folder_may_be_named_like_a_table(tmp_path: Path) -> None:
    assert load_dataset("folder", "test", fill(tmp_path / "x.csv", "a/1.png", "b/1.png")).classes == ("a", "b")


def test_other_data_sets_are_not_read_from_tables(tmp_path: Path) -> None:
    with raises(DatasetError, "not-found", "birds.csv"):
        load_dataset("cub", "test", write(tmp_path, ROWS))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0~"), min_size=1),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=2,
    )
)
def test_any_names_and_labels_are_read(tmp_path: Path, rows: dict[str, str]) -> None:
    text = StringIO()
    csv.writer(text).writerows([("image", "label"), *rows.items()])
    table = tmp_path / "t.csv"
    table.write_text(text.getvalue(), encoding="utf-8", newline="")
    if len({unicodedata.normalize("NFC", label) for label in rows.values()}) == 1:
        with raises(DatasetError, "too-few-classes"):
            load_dataset("folder", "test", table)
        return
    dataset = load_dataset("folder", "test", table)
    assert list(dataset.sources) == list(rows)
    labels = [unicodedata.normalize("NFC", label) for label in rows.values()]
    assert [dataset.classes[code] for code in dataset.labels] == labels


def scores(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    changes = ["data.dataset=folder", "data.validation=0", "schedule.epochs=1", "schedule.steps=2", "batch.size=16"]
    options = [word for change in changes for word in ("--set", change)]
    train = ["train", "margin-conv4-glyphs", *options, "--as", name]
    assert main([*train, "--data", str(data), "--device", "cpu", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", name, "--data", str(data), "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["metrics"]


@pytest.mark.slow
def test_a_model_is_trained_and_measured_by_a_table_as_by_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, lines = tmp_path / "pictures", ["image,label,split"]
    for split in ("train", "test"):
        whole = load_dataset("glyphs", split)
        export_folder(subset(whole, whole.labels < 6, split), pictures / split)
    for path in sorted(pictures.rglob("*.png")):
        split, label, name = path.relative_to(pictures).parts
        lines.append(f"{split}/{label}/{name},{label},{split}")
    table = tmp_path / "pictures" / "table.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    assert scores("by-folders", pictures, capsys) == scores("by-table", table, capsys)


@pytest.mark.parametrize("other", ["./a/1.png", "a//1.png", "b/../a/1.png", "{folder}/a/1.png"])
def test_one_file_under_two_spellings_is_refused(tmp_path: Path, other: str) -> None:
    table = write(tmp_path, f"image,label\na/1.png,wren\na/2.png,owl\n{other.format(folder=tmp_path)},wren\n")
    with raises(UsageError, "invalid-table", "line 4"):
        load_dataset("folder", "test", table)


def test_labels_that_differ_by_their_spelling_alone_are_named_and_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spaces and letter case; the two Unicode forms of an accent are one."""
    labels = ["caf\u00e9", "cafe\u0301", "Grey  owl", "grey owl", "grey owl ", "gray owl"]
    fill(tmp_path, *(f"all/{number}.png" for number in range(6)))
    rows = "".join(f"all/{number}.png,{label}\n" for number, label in enumerate(labels))
    table = write(tmp_path, f"image,label\n{rows}")
    dataset = load_dataset("folder", "all", table)
    assert len(dataset.classes) == 5
    told = capsys.readouterr().err
    assert repr("Grey  owl") in told
    assert "gray owl" not in told
    assert told.count("--merge-labels") == 1
    load_dataset("folder", "all", table)
    assert capsys.readouterr().err == "", "it is said once"
    merged = merge_spellings(dataset)
    groups = [merged.labels.tolist().index(label) for label in merged.labels]
    assert groups == [0, 0, 2, 2, 2, 5]
    assert set(merged.classes) <= set(labels)
    out = tmp_path / "merged"
    assert main(["data", "folder", "--data", str(table), "--split", "all", "--merge-labels", "--out", str(out)]) == 0
    assert len(load_dataset("folder", "all", out).classes) == 3
