"""Tables of images and labels read as data sets."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.zoo.data.test_folder import fill
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.dataset import export_folder, subset
from zoo.data.folder import check_splits, list_unlabelled
from zoo.data.table import load_unlabelled, training_images
from zoo.errors import DatasetError, EvaluationError, UsageError
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


def test_a_table_says_classes_and_splits(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS)
    train, test = load_dataset("folder", "train", table), load_dataset("folder", "test", table)
    assert (train.split, test.split) == ("train", "test")
    assert train.classes == ("wren", "wren, winter")
    assert test.classes == ("owl", "wren")
    assert test.labels.tolist() == [0, 1, 0]
    assert list(test.images) == [tmp_path / "b/1.png", tmp_path / "b/2.png", tmp_path / "b/3.png"]
    assert list(test.sources) == ["b/1.png", "b/2.png", "b/3.png"]
    with pytest.raises(DatasetError, match=r"has 1 class\(es\) in both splits \(wren\)"):
        check_splits(table)
    check_splits(write(tmp_path, ROWS.replace("b/2.png,wren", "b/2.png,kite")))
    with pytest.raises(DatasetError, match="is no split of its own; name train or test"):
        load_dataset("folder", "all", table)


def test_without_a_column_split_all_of_it_is_the_data_set(tmp_path: Path) -> None:
    table = write(tmp_path, "path,label\n/elsewhere/1.png,wren\n~/2.png,owl\n")
    for split in ("train", "test", "all"):
        found = load_dataset("folder", split, table)
        assert found.split == "all"
        assert list(found.images) == [Path("/elsewhere/1.png"), Path.home() / "2.png"]
    with pytest.raises(DatasetError, match="has no column split"):
        check_splits(table)


def test_queries_search_the_others_where_they_are_measured(tmp_path: Path) -> None:
    rows = "image,label,split,query\n1.png,a,train,0\n2.png,b,train,0\n3.png,c,test,1\n4.png,d,test,FALSE\n"
    table = write(tmp_path, rows)
    assert load_dataset("folder", "test", table).factors["query"].tolist() == [1, 0]
    assert load_dataset("folder", "train", table).factors["query"].tolist() == [0, 0]
    one_sided = load_dataset("folder", "test", write(tmp_path, rows.replace("FALSE", "true")))
    with pytest.raises(EvaluationError, match=r"folder \(test\): some rows must be queries"):
        evaluate(np.eye(2), one_sided)
    with pytest.raises(UsageError, match="line 3: query is 1, true, 0, false, not 'no'"):
        load_dataset("folder", "test", write(tmp_path, rows.replace("b,train,0", "b,train,no")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has: nothing"),
        ("file,label\na.png,a\n", r"columns image \(or path\) and label, .*; it has: file, label"),
        ("image,label\n", "lists no images"),
        ("image,label\na.png,\n", "line 2: an image and a label are needed"),
        ("image,label\na.png\n", "line 2: an image and a label are needed"),
        ('image,label\n"a\n.png",a\na.png,a\na.png,b\n', "line 5: a.png is listed twice"),
        ("image,label\na.png,a,,\nb.png,Smith, John\n", "line 3: the row has more cells than the header, which has 2"),
        ("image,label,label\na.png,a,b\n", "has the column label more than once"),
        ("image,label,split\na.png,a,val\n", "line 2: the split is train or test, not 'val'"),
        ("image,label,split\na.png,a\n", "line 2: the split is train or test, not ''"),
        ("image,label,split\na.png,a,train\n", "lists no images of the split test"),
        ("image,label\na.png,a\nb.png,a\n", "holds the single class 'a'"),
        ('image,label\n"a.png,a\n', "cannot be read as CSV"),
    ],
)
def test_what_is_no_such_table_is_refused_by_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises((DatasetError, UsageError), match=says):
        load_dataset("folder", "test", write(tmp_path, text))


def test_a_table_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"there is no file .*none\.csv; name the one that holds .* or a table"):
        load_dataset("folder", "test", tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("image,label\nä.png,a\n".encode("latin-1"))
    with pytest.raises(UsageError, match="cannot be read as CSV in UTF-8"):
        load_dataset("folder", "test", tmp_path / "latin.csv")


def test_images_need_no_labels_where_nobody_asks_for_them(tmp_path: Path) -> None:
    bare = write(tmp_path, "image\na/1.png\n~/2.png\n")
    assert training_images(bare) == [tmp_path / "a/1.png", Path.home() / "2.png"] == list_unlabelled(bare)
    found = load_unlabelled("all", bare)
    assert (found.split, found.classes, list(found.sources)) == ("all", ("",), ["a/1.png", "~/2.png"])
    with pytest.raises(UsageError, match=r"needs a header with the columns image \(or path\) and label"):
        load_dataset("folder", "test", bare)
    parted = write(tmp_path, ROWS.replace("a/1.png,wren", "a/1.png,"))
    assert training_images(parted) == [tmp_path / "a/1.png", tmp_path / "a/2.png"]
    assert load_unlabelled("train", parted).classes == ("", "wren, winter")
    with pytest.raises(UsageError, match="line 2: an image and a label are needed, both"):
        load_dataset("folder", "test", parted)
    with pytest.raises(UsageError, match="line 3: an image is needed"):
        training_images(write(tmp_path, "image,label\na.png,\n,x\n"))
    with pytest.raises(UsageError, match=r"needs a header with the column image \(or path\), and split"):
        training_images(write(tmp_path, "file\na.png\n"))
    with pytest.raises(DatasetError, match=r"birds\.csv holds no images to learn from"):
        list_unlabelled(write(tmp_path, "image,split\na.png,test\n"))


def test_a_folder_may_be_called_like_a_table(tmp_path: Path) -> None:
    assert load_dataset("folder", "test", fill(tmp_path / "x.csv", "a/1.png", "b/1.png")).classes == ("a", "b")


def test_no_other_data_set_is_a_table(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"birds\.csv is not a folder"):
        load_dataset("cub", "test", write(tmp_path, ROWS))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0~"), min_size=1),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=2,
    )
)
def test_whatever_names_and_labels_a_table_holds(tmp_path: Path, rows: dict[str, str]) -> None:
    text = StringIO()
    csv.writer(text).writerows([("image", "label"), *rows.items()])
    table = tmp_path / "t.csv"
    table.write_text(text.getvalue(), encoding="utf-8", newline="")
    if len(set(rows.values())) == 1:
        with pytest.raises(DatasetError, match="the single class"):
            load_dataset("folder", "test", table)
        return
    found = load_dataset("folder", "test", table)
    assert list(found.sources) == list(rows)
    assert [found.classes[code] for code in found.labels] == list(rows.values())


def scores(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    changes = ["data.dataset=folder", "data.validation=0", "schedule.epochs=1", "schedule.steps=2", "batch.size=16"]
    said = [word for change in changes for word in ("--set", change)]
    train = ["train", "margin-conv4-glyphs", *said, "--as", name]
    assert main([*train, "--data", str(data), "--device", "cpu", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", name, "--data", str(data), "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["metrics"]


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
