"""Records of the model that made embeddings: they survive a round trip, and changed rows or tables are refused."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.raising import raises
from zoo.cli.main import main, run
from zoo.errors import ModelNotFoundError, UsageError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.embeddings import (
    KIND,
    EmbeddingRecord,
    Embeddings,
    check_table,
    names_sha256,
    read_embeddings,
    read_record,
    record_from_metadata,
    record_path,
    record_to_metadata,
    rows_sha256,
    write_embeddings,
    write_record,
)
from zoo.models.card import read_card
from zoo.models.load import Embedder, load
from zoo.paths import SHIPPED

MODEL, OTHER = "margin-conv4-glyphs", "r-margin-conv4-glyphs"  # both of 64 dimensions
CARD = read_card(SHIPPED / MODEL)
ROWS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
NAMES = ["a/0.png", "a/1.png", "b/ä, 0.png", "b/1.png", "c.png"]
RECORD = EmbeddingRecord(
    model=CARD.identity,
    runtime="onnx",
    precision="int8",
    preprocessing={"crop": 32},
    rows=5,
    dim=3,
    sha256=rows_sha256(ROWS),
    names_sha256=names_sha256(NAMES),
    date="2026-01-01T00:00:00+00:00",
    versions={"numpy": "2.0"},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A folder with the rows of two models, as .npy and as .safetensors."""
    folder = tmp_path_factory.mktemp("made")
    for model, name in ((MODEL, "rows.npy"), (OTHER, "others.npy"), (MODEL, "tensors.safetensors")):
        assert main(["embed", model, str(pictures), "--out", str(folder / name), "--runtime", "onnx"]) == 0
    return folder


@pytest.fixture(scope="module")
def model() -> Embedder:
    return load(MODEL, runtime="onnx")


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def score(folder: Path, name: str = "rows", *more: str) -> int:
    return run(["score", str(folder / f"{name}.npy"), "--labels", str(folder / f"{name}.csv"), *more])


def table_of(folder: Path, name: str = "rows") -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_zoo_embed_writes_a_record(made: Path) -> None:
    record = json.loads((made / "rows.json").read_text())
    rows = np.load(made / "rows.npy")
    numbers = struct.pack(f"<{rows.size}f", *rows.ravel().tolist())
    names = "\0".join(row["path"] for row in table_of(made))
    assert record["model"] == {"name": MODEL, "fingerprint": CARD.fingerprint}
    assert (record["runtime"], record["precision"]) == ("onnx", "fp32")
    assert (record["rows"], record["dim"]) == rows.shape
    assert record["sha256"] == hashlib.sha256(numbers).hexdigest()
    assert record["names_sha256"] == hashlib.sha256(names.encode()).hexdigest()
    assert record["preprocessing"]["crop"] == CARD.preprocessing.crop
    assert "onnxruntime" in record["versions"] or "onnxruntime-gpu" in record["versions"]


def test_tensors_hold_the_same(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows, labels as numbers of the classes that the metadata name, and the same record; scored by itself."""
    path = made / "tensors.safetensors"
    tensors = load_file(path)
    np.testing.assert_array_equal(tensors["embeddings"], np.load(made / "rows.npy"))
    labels = [row["label"] for row in table_of(made)]
    with safe_open(path, framework="np") as file:
        classes = json.loads(file.metadata()["classes"])
    assert [classes[code] for code in tensors["labels"]] == labels
    assert not (made / "tensors.json").exists()
    npy, tensors_record = (read_embeddings(made / name).record for name in ("rows.npy", "tensors.safetensors"))
    assert npy is not None
    assert tensors_record is not None
    assert replace(npy, date="") == replace(tensors_record, date="")
    capsys.readouterr()
    assert main(["score", str(path), "--model", MODEL, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    expected = retrieval_metrics(tensors["embeddings"], labels, k=(1,))["recall_at_1"]
    assert (output["model"], output["metrics"]["recall_at_1"]) == (MODEL, pytest.approx(expected))


def test_images_without_a_folder_have_no_labels_in_tensors(tmp_path: Path, model: Embedder) -> None:
    rows = np.eye(2, 64, dtype=np.float32)
    about = [{"path": "0.png", "label": ""}, {"path": "a/1.png", "label": "a"}]
    write_embeddings(tmp_path / "rows.safetensors", rows, about, model)
    assert read_embeddings(tmp_path / "rows.safetensors").labels is None


def test_an_evaluation_names_the_model_of_the_rows(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(made, "others", "--model", OTHER, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    other = read_card(SHIPPED / OTHER).fingerprint
    assert [output[key] for key in ("model", "fingerprint", "runtime", "precision")] == [OTHER, other, "onnx", "fp32"]
    assert score(made, "others") == 0
    assert capsys.readouterr().out.startswith(f"{OTHER} (onnx, fp32) on others.csv (")


def test_rows_of_another_model_are_refused_by_name(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with raises(UsageError, "other-model") as caught:
        score(made, "others", "--model", str(SHIPPED / MODEL))
    assert capsys.readouterr().out == ""
    assert all(name in str(caught.value) for name in ("others.npy", f" {OTHER} ", f" {MODEL} "))
    with pytest.raises(ModelNotFoundError) as missing:
        score(made, "others", "--model", "no-such-model")
    assert "no-such-model" in str(missing.value)


def test_rows_without_a_record_are_scored(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no rows.json, or it is a file of another program."""
    for other in (None, "", "{}", "[1]", "nothing", '{"kind": "rows"}', '{"a": 1}\n{"a": 2}\n'):
        (copy / "rows.json").unlink(missing_ok=True)
        if other is not None:
            (copy / "rows.json").write_text(other)
        assert score(copy, "rows", "--json") == 0
        output = capsys.readouterr()
        assert [json.loads(output.out)[key] for key in ("model", "fingerprint", "runtime")] == [None] * 3
        assert output.err == ""
        with raises(UsageError, "other-model"):
            score(copy, "rows", "--model", MODEL)


def _fewer(folder: Path) -> None:
    np.save(folder / "rows.npy", np.load(folder / "rows.npy")[:-1])


def _narrower(folder: Path) -> None:
    np.save(folder / "rows.npy", np.load(folder / "rows.npy")[:, :-1])


def _exchanged(folder: Path) -> None:
    shutil.copy(folder / "others.npy", folder / "rows.npy")


def _in_another_order(folder: Path) -> None:
    np.save(folder / "rows.npy", np.load(folder / "rows.npy")[::-1])


def _wider_numbers(folder: Path) -> None:
    np.save(folder / "rows.npy", np.load(folder / "rows.npy").astype(np.float64))


def _of_another(folder: Path) -> None:
    shutil.copy(folder / "others.json", folder / "rows.json")


def _cut_record(folder: Path) -> None:
    (folder / "rows.json").write_bytes((folder / "rows.json").read_bytes()[:200])


def _newer(folder: Path) -> None:
    record = json.loads((folder / "rows.json").read_text())
    (folder / "rows.json").write_text(json.dumps({**record, "schema": 2}))


def _sorted_table(folder: Path) -> None:
    head, *lines = (folder / "rows.csv").read_text().splitlines()
    (folder / "rows.csv").write_text("\n".join([head, *lines[::-1]]))


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        (_fewer, "hash-mismatch", " x 64 of margin-conv4-glyphs "),
        (_narrower, "hash-mismatch", " x 63 "),
        (_exchanged, "hash-mismatch", " margin-conv4-glyphs "),
        (_in_another_order, "hash-mismatch", "rows.npy"),
        (_wider_numbers, "hash-mismatch", "rows.npy"),
        (_of_another, "hash-mismatch", " r-margin-conv4-glyphs "),
        (_cut_record, "damaged-file", "rows.json"),
        (_newer, "other-schema", "schema 2"),
        (_sorted_table, "hash-mismatch", "rows.csv"),
    ],
)
def test_rows_and_tables_that_contradict_the_record_are_refused(
    copy: Path, change: Callable[[Path], None], code: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(copy)
    with raises(UsageError, code) as caught:
        score(copy)
    assert capsys.readouterr().out == ""
    assert value in str(caught.value)


def test_labels_may_be_corrected_and_columns_added(copy: Path) -> None:
    """Only names and order are compared with the record; a table without names, or of another name, is not."""
    labels = [f"{row['path']},one,{place % 2}" for place, row in enumerate(table_of(copy))]
    (copy / "rows.csv").write_text("\n".join(["path,label,query", *labels]))
    assert score(copy, "rows", "--queries", str(copy / "rows.csv")) == 0
    (copy / "rows.csv").write_text("\n".join(["label", *("one" for _ in labels)]))
    assert score(copy) == 0


def test_changed_tensors_are_refused(copy: Path) -> None:
    path = copy / "tensors.safetensors"
    tensors = load_file(path)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    save_file({**tensors, "embeddings": np.load(copy / "others.npy")}, path, metadata)
    with raises(UsageError, "hash-mismatch"):
        run(["score", str(path)])
    save_file(tensors, path, {**metadata, "record": metadata["record"][:-1]})
    with raises(UsageError, "damaged-file"):
        run(["score", str(path)])
    save_file(tensors, path, {"kind": KIND})
    with raises(UsageError, "damaged-file"):
        run(["score", str(path)])
    save_file(tensors, path, {"by": "another program"})
    assert main(["score", str(path)]) == 0


def test_an_evaluation_does_not_overwrite_the_record(copy: Path) -> None:
    before = (copy / "rows.json").read_bytes()
    with raises(UsageError, "overwrites-input"):
        score(copy, "rows", "--out", str(copy / "rows.json"))
    assert (copy / "rows.json").read_bytes() == before
    assert main(["score", str(copy / "tensors.safetensors"), "--out", str(copy / "tensors.json")]) == 0
    (copy / "rows.json").unlink()
    for _ in range(2):  # the evaluation that it wrote there is not a record
        assert score(copy, "rows", "--out", str(copy / "rows.json")) == 0


def test_an_existing_record_is_overwritten_only_with_replace(copy: Path, pictures: Path) -> None:
    for name in ("rows.npy", "rows.csv"):
        (copy / name).unlink()
    words = ["embed", OTHER, str(pictures), "--out", str(copy / "rows.npy"), "--runtime", "onnx"]
    with raises(UsageError, "already-exists") as caught:
        run(words)
    assert "rows.json" in str(caught.value)
    assert main([*words, "--replace"]) == 0
    assert score(copy, "rows", "--model", OTHER) == 0


def test_a_flipped_byte_of_the_rows_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    write_record(path, RECORD)
    whole = path.read_bytes()
    assert read_embeddings(path).record == RECORD
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            same = read_embeddings(path).rows
        except UsageError:
            continue
        np.testing.assert_array_equal(same, ROWS)  # a space of the header


def test_a_truncated_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    whole = record_path(path).read_bytes()
    for end in range(1, len(whole) - 1):  # the last byte ends the line; an empty file is not a record
        record_path(path).write_bytes(whole[:end])
        with raises(UsageError, "damaged-file"):
            read_record(path)


WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.sampled_from([*RECORD.to_json(), "name", "fingerprint"]), VALUES, st.booleans())
def test_any_change_of_a_record_is_valid_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, absent: bool
) -> None:
    """The values of a valid record are safe to print: names are names."""
    values: dict[str, Any] = json.loads(json.dumps(RECORD.to_json()))
    where = values["model"] if key in ("name", "fingerprint") else values
    where[key] = value
    if absent:
        del where[key]
    path = tmp_path_factory.mktemp("record") / "rows.npy"
    record_path(path).write_text(json.dumps(values))
    both: list[Callable[[], EmbeddingRecord | None]] = [
        lambda: read_record(path),
        lambda: record_from_metadata({"kind": KIND, "record": json.dumps(values)}, path),
    ]
    if key == "kind":
        both.pop()
        if value != KIND or absent:
            assert read_record(path) is None
            return
    for read in both:
        try:
            record = read()
        except UsageError:
            continue
        assert record is not None
        assert re.fullmatch(r"[a-z0-9._-]+", record.name + record.runtime + record.precision)
        assert re.fullmatch(r"[0-9a-f]{192}", record.fingerprint + record.sha256 + record.names_sha256)


@given(st.text())
def test_metadata_of_any_text_are_refused(text: str) -> None:
    with raises(UsageError, "damaged-file"):
        record_from_metadata({"kind": KIND, "record": text}, Path("rows.safetensors"))
    assert (
        record_from_metadata({"kind": text, "record": json.dumps(RECORD.to_json())}, Path("rows.safetensors")) is None
    )


def test_a_record_survives_in_metadata() -> None:
    assert record_from_metadata(record_to_metadata(RECORD), Path("rows.safetensors")) == RECORD


NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=9).filter(
    lambda name: name not in (".", "..")
)


@settings(max_examples=50)
@given(st.lists(NAME | st.just("\udcfe.png"), min_size=1, max_size=5))
def test_any_names_of_images_survive_in_the_table(
    tmp_path_factory: pytest.TempPathFactory, model: Embedder, names: list[str]
) -> None:
    """Names may have quotes, commas, line breaks and half characters: the table that was written fits its rows."""
    folder = tmp_path_factory.mktemp("names")
    rows = np.ones((len(names), 64), np.float32)
    for path in (folder / "rows.npy", folder / "rows.safetensors"):
        about = [{"path": (Path("a") / name).as_posix(), "label": "a"} for name in names]
        write_embeddings(path, rows, about, model)
        embeddings = read_embeddings(path)
        assert isinstance(embeddings, Embeddings)
        assert embeddings.record is not None
        check_table(path, embeddings.record, folder / "rows.csv")
