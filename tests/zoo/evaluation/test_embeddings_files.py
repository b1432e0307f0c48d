"""`zoo embed` and `zoo score`: files of embeddings, their labels and tables, and invalid files."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.raising import raises
from zoo.cli.main import main, run
from zoo.errors import EvaluationError, ImageError, UsageError, ZooError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.embeddings import read_embeddings, read_labels
from zoo.models.load import load

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
NAMES = [f"class {i % 8}" for i in range(40)]
# By hand: the nearest by cosine has the query's class.
UNIT = ROWS.astype(np.float64) / np.linalg.norm(ROWS, axis=1, keepdims=True)
NEAREST = (UNIT @ UNIT.T - 2 * np.eye(40)).argmax(axis=1)
EXPECTED = np.mean([NAMES[i] == NAMES[j] for i, j in enumerate(NEAREST)])


def written(folder: Path, kind: str) -> list[str]:
    """Arguments that name the same rows and labels in files of one kind."""
    rows, labels = folder / "rows.npy", folder / f"labels.{kind}"
    np.save(rows, ROWS)
    if kind == "safetensors":
        save_file({"embeddings": ROWS, "labels": np.array([int(name[-1]) for name in NAMES])}, labels)
        return [str(labels)]
    if kind == "npz":
        np.savez_compressed(labels, embeddings=ROWS, labels=np.array(NAMES))
        return [str(labels)]
    if kind == "npy":
        np.save(labels, np.array(NAMES))
    elif kind == "csv":
        labels.write_text("image,label\n" + "".join(f'{i}.png,"{name}"\n' for i, name in enumerate(NAMES)))
    else:
        labels.write_text("\n".join(NAMES) + "\n", encoding="utf-8-sig")
    return [str(rows), "--labels", str(labels)]


@pytest.mark.parametrize("kind", ["npy", "csv", "txt", "safetensors", "npz"])
def test_rows_and_labels_of_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["score", *written(tmp_path, kind), "-k", "1,5", "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("seconds") > 0  # of this run: no part of the record
    assert printed["metrics"]["recall_at_1"] == pytest.approx(EXPECTED)
    assert (printed["queries"], printed["classes"], printed["dim"]) == (40, 8, 6)
    assert (printed["model"], printed["dataset"]) == (None, None)
    assert json.loads(out.read_text()) == printed


def test_the_scores_are_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *written(tmp_path, "txt"), "--metrics", "clustering"]) == 0
    output = capsys.readouterr().out
    heading, origin = output.splitlines()[:2]
    assert heading.startswith("6 dimensions on labels.txt (")
    assert origin.startswith("40 queries of 8 classes; leave-one-out, cosine, exact; model not recorded; ")
    values = dict(line.split()[:2] for line in output.splitlines()[4:])
    assert values["recall_at_1"] == f"{EXPECTED:.4f}"
    assert "nmi" in values


def test_one_image_alone_in_its_class_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _, labels = written(tmp_path, "txt")
    Path(labels).write_text("\n".join(["none of the others", *NAMES[1:]]))
    assert main(["score", rows, "--labels", labels]) == 0
    assert "1 image is alone in its class and was left out as a query\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["npy", "csv", "txt"])
def test_queries_search_the_gallery_alone(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Query a finds a of the gallery first; query b finds a before b, because its nearest row is a query."""
    rows = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.3, 0.9], [1, 0.2]], np.float32)
    labels, asks = ["a", "a", "b", "b", "b"], [0, 1, 0, 0, 1]
    np.save(tmp_path / "rows.npy", rows)
    table, queries = tmp_path / "t.csv", tmp_path / f"q.{kind}"
    table.write_text("label\n" + "\n".join(labels))
    if kind == "npy":
        np.save(queries, np.array(asks, bool))
    else:
        queries.write_text(
            ("query\n" if kind == "csv" else "") + "\n".join(["False", "True"][uniform] for uniform in asks)
        )
    words = ["score", str(tmp_path / "rows.npy"), "--labels", str(table), "--queries", str(queries), "-k", "1,2"]
    assert main([*words, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["queries"], output["protocol"]) == (2, "queries to gallery, cosine, exact")
    assert output["metrics"]["recall_at_1"] == 0.5
    assert output["metrics"]["recall_at_2"] == 1
    assert output["metrics"]["map_at_r"] == pytest.approx((1 + (0 + 1 / 2) / 2) / 2)  # b's two relatives: ranks 2, 3
    queries.with_suffix(".txt").write_text("1\n0\nperhaps\n")
    words = [*words[:-3], str(queries.with_suffix(".txt"))]
    with raises(UsageError, "invalid-value") as caught:
        run(words)
    assert "row 3 of 3" in str(caught.value)
    assert "'perhaps'" in str(caught.value)
    queries.with_suffix(".txt").write_text("1\n" * 5)
    with raises(EvaluationError, "evaluation"):
        run(words)
    queries.with_suffix(".txt").write_text("1\n0\n")
    with raises(UsageError, "invalid-value") as caught:
        run(words)
    assert re.search(r"rows\.npy has 5 rows, and .*q\.txt 2 ", str(caught.value))


def test_a_data_set_gives_the_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zoo import data as datasets

    known = datasets.load_dataset("glyphs", "test")
    rows = np.random.default_rng(1).normal(size=(len(known), 8)).astype(np.float32)
    save_file({"embeddings": rows, "labels": np.zeros(len(known), np.int64)}, tmp_path / "rows.safetensors")
    assert main(["score", str(tmp_path / "rows.safetensors"), "--dataset", "glyphs", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["dataset"], printed["split"]) == ("glyphs", "test")
    expected = retrieval_metrics(rows, known.labels, k=(1,))["recall_at_1"]
    assert printed["metrics"]["recall_at_1"] == pytest.approx(expected)


def test_rows_are_not_read_before_they_are_needed(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert isinstance(read_embeddings(tmp_path / "rows.npy")[0], np.memmap)


def test_a_folder_is_embedded_into_a_file_that_can_be_scored(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "with, comma", tmp_path / "rows.npy"
    shutil.copytree(pictures, folder)
    model = load("margin-conv4-glyphs", runtime="onnx")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    assert main(["embed", "margin-conv4-glyphs", str(folder), "--out", str(out), "--runtime", "onnx", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output.pop("seconds") >= 0
    assert output == {
        "embeddings": str(out),
        "table": str(tmp_path / "rows.csv"),
        "record": str(tmp_path / "rows.json"),
        "model": model.card.identity,
        "runtime": "onnx",
        "images": len(paths),
        "dim": 64,
        "unreadable": [],
        "links_left_out": [],
        "excluded": [],
        "other_files": [],
    }
    with (tmp_path / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert {(row["path"], row["label"]) for row in table} == {
        (path.relative_to(folder).as_posix(), path.parent.relative_to(folder).as_posix()) for path in paths
    }
    rows = np.load(out)
    np.testing.assert_array_equal(rows, model.embed([folder / row["path"] for row in table]))
    assert main(["score", str(out), "--labels", str(tmp_path / "rows.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == len(paths)
    image = folder / table[3]["path"]
    for taken, left in (("rows.npy", "rows.csv"), ("rows.csv", "rows.npy")):
        (tmp_path / left).rename(tmp_path / "aside")
        with raises(UsageError, "already-exists") as caught:
            run(["embed", "margin-conv4-glyphs", str(image), "--out", str(out), "--runtime", "onnx"])
        assert taken in str(caught.value)
        (tmp_path / "aside").rename(tmp_path / left)
    assert main(["embed", "margin-conv4-glyphs", str(image), "--out", str(out), "--runtime", "onnx", "--replace"]) == 0
    assert capsys.readouterr().out.startswith("1 image, 64 dimensions: ")
    np.testing.assert_allclose(np.load(out), rows[3:4], atol=1e-6)
    assert (tmp_path / "rows.csv").read_text().splitlines() == ["path,label", f"{image.name},"]


def test_images_that_cannot_be_read_are_left_out_and_listed(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "folder", tmp_path / "rows.npy"
    shutil.copytree(pictures, folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    bad = [paths[0], paths[5], paths[-1]]
    for path in bad:
        path.write_bytes(b"cut off")
    words = ["embed", "margin-conv4-glyphs", str(folder), "--out", str(out), "--runtime", "onnx", "--batch-size", "1"]
    assert main([*words, "--json"]) == 0
    output = capsys.readouterr()
    assert [path for path, _ in json.loads(output.out)["unreadable"]] == [str(path) for path in bad]
    assert [line.count(str(path)) for path, line in zip(bad, output.err.splitlines(), strict=True)] == [1, 1, 1]
    with (tmp_path / "rows.csv").open(newline="") as file:
        named = [folder / row["path"] for row in csv.DictReader(file)]
    assert named == [path for path in paths if path not in bad]
    model = load("margin-conv4-glyphs", runtime="onnx")
    np.testing.assert_allclose(np.load(out), model.embed(named), atol=1e-6)
    assert main([*words, "--replace", "--strict", "--batch-size", "7"]) == 1
    np.testing.assert_allclose(np.load(out), model.embed(named), atol=1e-6)
    for path in paths:
        path.write_bytes(b"cut off")
    out.unlink()
    with pytest.raises(ImageError) as caught:
        run([*words, "--replace"])
    assert f" {len(paths)} images " in str(caught.value)
    assert not out.exists()


def test_a_table_is_embedded_in_its_order_with_its_columns(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted(pictures.rglob("*.png"), reverse=True)[:8]
    lines = [f'{path.relative_to(pictures).as_posix()},"{i % 2}, of two",{i % 4 // 2}' for i, path in enumerate(paths)]
    lines[3] = lines[3].replace(paths[3].name, "missing.png")
    shutil.copytree(pictures, tmp_path / "folder")
    table, out = tmp_path / "folder" / "birds.csv", tmp_path / "rows.npy"
    table.write_text("\n".join(["image,label,query", *lines, ""]))
    words = ["embed", "margin-conv4-glyphs", str(table), "--runtime", "onnx", "--out"]
    assert main([*words, str(out)]) == 0
    assert capsys.readouterr().err.count("missing.png") == 1
    with (tmp_path / "rows.csv").open(newline="") as file:
        table_rows = [tuple(row.values()) for row in csv.DictReader(file)]
    kept = [i for i in range(8) if i != 3]
    assert table_rows == [
        (paths[i].relative_to(pictures).as_posix(), f"{i % 2}, of two", str(i % 4 // 2)) for i in kept
    ]
    model = load("margin-conv4-glyphs", runtime="onnx")
    np.testing.assert_allclose(np.load(out), model.embed([paths[i] for i in kept]), atol=1e-6)
    beside = str(tmp_path / "rows.csv")
    assert main(["score", str(out), "--labels", beside, "--queries", beside, "-k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 3, "images 2, 6 and 7; 3 cannot be read"
    before = table.read_text()
    with raises(UsageError, "overwrites-input") as caught:
        run([*words, str(table.with_suffix(".npy")), "--replace"])
    assert "birds.csv" in str(caught.value)
    assert table.read_text() == before
    table.write_text("image\n" + "\n".join(path.relative_to(pictures).as_posix() for path in paths[:2]))
    assert main([*words, str(out), "--replace"]) == 0
    assert [line[-1] for line in (tmp_path / "rows.csv").read_text().splitlines()[1:]] == [",", ","]
    table.write_text("file,label\n")
    assert main([*words, str(tmp_path / "new.npy")]) == 2


def test_a_name_that_is_not_utf_8(tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "folder" / "a").mkdir(parents=True)
    shutil.copy(next(path for path in pictures.rglob("*") if path.is_file()), tmp_path / "folder" / "a" / "0\udcfe.png")
    out = tmp_path / "rows.npy"
    assert main(["embed", "margin-conv4-glyphs", str(tmp_path / "folder"), "--out", str(out), "--runtime", "onnx"]) == 0
    assert (tmp_path / "rows.csv").read_text().splitlines()[1:] == ["a/0\\xfe.png,a"]


def test_an_evaluation_does_not_overwrite_its_input(tmp_path: Path) -> None:
    rows, _, labels = written(tmp_path, "txt")
    for taken in (rows, labels):
        before = Path(taken).read_bytes()
        assert main(["score", rows, "--labels", labels, "--out", taken]) == 2
        assert Path(taken).read_bytes() == before


def test_a_failed_embedding_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "0.png").write_bytes(b"no image")
    for folder, out, code in (
        ("no", "rows.npy", None),
        ("empty", "rows.npy", "no-images"),
        ("bad", "rows.npy", None),
        ("bad", "rows.txt", "unknown-format"),
    ):
        arguments = ["margin-conv4-glyphs", str(tmp_path / folder), "--out", str(tmp_path / out), "--runtime", "onnx"]
        with pytest.raises(ZooError) as caught:
            run(["embed", *arguments])
        assert code in (None, caught.value.code)
        assert out in str(caught.value) or folder in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty"]


def mistakes(folder: Path) -> dict[str, tuple[list[str], str, str]]:
    """Return arguments, the code of the error, and a value in it."""
    rows, labels = written(folder, "txt")[::2]
    np.save(folder / "objects.npy", np.array([{}, []], dtype=object))
    np.save(folder / "nan.npy", np.where(np.arange(6) == 2, np.float32(np.nan), ROWS))
    (folder / "cut.npy").write_bytes(Path(rows).read_bytes()[:-9])
    (folder / "empty.npy").write_bytes(b"")
    (folder / "zip.npy").write_bytes(b"PK\x03\x04" + bytes(60))
    np.savez(folder / "features.npz", features=ROWS)
    np.savez(folder / "objects.npz", embeddings=ROWS, labels=np.array([{}, []], dtype=object))
    (folder / "cut.npz").write_bytes((folder / "features.npz").read_bytes()[:-9])
    shutil.copy(rows, folder / "rows.npz")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (40,"
    (folder / "header.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    (folder / "short.txt").write_text("\n".join(NAMES[:-1]))
    (folder / "gap.txt").write_text("a\n\nb\n")
    (folder / "bare.csv").write_text("image,class\n1,2\n")
    (folder / "wide.csv").write_text("image,label\na.png,a\nb.png,b,c\n")
    (folder / "twice.csv").write_text("label,label\na,b\n")
    (folder / "open.csv").write_text('image,label\na.png,"a\n')
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    (folder / "bytes.csv").write_bytes(b"label\n\xff\xfe\xfa\n")
    save_file({"features": ROWS}, folder / "features.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "features.safetensors").read_bytes()[:-9])
    named = {name: str(folder / name) for name in (path.name for path in folder.iterdir())}
    return {
        "no labels": ([rows], "no-labels", "--labels"),
        "both": ([rows, "--labels", labels, "--dataset", "glyphs"], "conflicting-options", ""),
        "of no kind": ([labels, "--labels", labels], "unknown-format", labels),
        "not there": ([str(folder / "no.npy"), "--labels", labels], "unreadable-file", "No such file"),
        "no labels there": ([rows, "--labels", str(folder / "no")], "unreadable-file", "No such file"),
        "pickled": ([named["objects.npy"], "--labels", labels], "unreadable-file", "Python objects"),
        "pickled labels": ([rows, "--labels", named["objects.npy"]], "unreadable-file", "Python objects"),
        "cut": ([named["cut.npy"], "--labels", labels], "unreadable-file", "cut."),
        "empty": ([named["empty.npy"], "--labels", labels], "unreadable-file", "empty.npy"),
        "a zip": ([named["zip.npy"], "--labels", labels], "unreadable-file", "zip.npy"),
        "a cut header": ([named["header.npy"], "--labels", labels], "unreadable-file", "header.npy"),
        "a part of no data set": ([rows, "--labels", labels, "--split", "train"], "missing-value", "--dataset"),
        "NaN": ([named["nan.npy"], "--labels", labels], "not-finite", "row 0 of embeddings"),
        "few labels": ([rows, "--labels", named["short.txt"]], "invalid-value", "39"),
        "an empty label": ([rows, "--labels", named["gap.txt"]], "invalid-labels", "2 of 3"),
        "no column": ([rows, "--labels", named["bare.csv"]], "invalid-table", "image, class"),
        "too many cells": ([rows, "--labels", named["wide.csv"]], "invalid-table", "wide.csv, line 3"),
        "a column twice": ([rows, "--labels", named["twice.csv"]], "invalid-table", "label"),
        "an open quotation": ([rows, "--labels", named["open.csv"]], "invalid-table", "open.csv"),
        "no CSV": ([rows, "--labels", named["bytes.csv"]], "invalid-table", "bytes.csv"),
        "no table there": ([rows, "--labels", str(folder / "no.csv")], "unreadable-file", "No such file"),
        "no text": ([rows, "--labels", named["bytes.txt"]], "unreadable-file", "bytes.txt"),
        "no tensor": ([named["features.safetensors"]], "missing-file", "features"),
        "no array": ([named["features.npz"]], "missing-file", "features"),
        "pickled array": ([named["objects.npz"]], "unreadable-file", "Object arrays"),
        "cut arrays": ([named["cut.npz"]], "unreadable-file", "cut."),
        "no archive": ([named["rows.npz"]], "unreadable-file", "rows.npz"),
        "cut tensors": ([named["cut.safetensors"]], "unreadable-file", "cut."),
        "no group": ([rows, "--labels", labels, "--metrics", "rankin"], "unknown-name", "ranking"),
    }


def test_invalid_files_and_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mistake, (arguments, code, value) in mistakes(tmp_path).items():
        with pytest.raises(ZooError) as caught:
            run(["score", *arguments])
        assert caught.value.code == code, mistake
        assert value in str(caught.value), mistake
        assert capsys.readouterr().out == "", mistake


@settings(max_examples=100)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1), min_size=1))
def test_labels_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, labels: list[str]) -> None:
    path = tmp_path_factory.mktemp("labels") / "labels.txt"
    path.write_text("\n".join(labels), encoding="utf-8")
    expected = [labels[0].removeprefix("\ufeff"), *labels[1:]]
    if "" in expected:
        with raises(UsageError, "invalid-labels"):
            read_labels(path)
    else:
        assert read_labels(path).tolist() == expected


def test_labels_of_another_length_are_refused_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _, labels = written(tmp_path, "txt")
    short = tmp_path / "short.txt"
    short.write_text("a\nb\n")
    with raises(UsageError, "invalid-value") as caught:
        run(["score", rows, "--labels", str(short)])
    assert f"{short} 2 " in str(caught.value)
    beside = Path(rows).with_suffix(".csv")
    beside.write_text("path,label\n")
    with raises(UsageError, "no-labels") as caught:
        run(["score", rows])
    assert f"--labels {beside}" in str(caught.value)
    upper = Path(rows).rename(Path(rows).with_suffix(".NPY"))
    assert main(["score", str(upper), "--labels", labels]) == 0
    capsys.readouterr()
    uniform = tmp_path / "one.txt"
    uniform.write_text("same\n" * len(np.load(upper)))
    assert main(["score", str(upper), "--labels", str(uniform)]) == 0
    assert "this measures nothing" in capsys.readouterr().out
