"""`zoo index --vectors rows.npy --table rows.csv`: embeddings that the same model computed elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import copy_gallery, verify_gallery
from serving.gallery.parquet import export_gallery, import_gallery
from serving.gallery.types import NO_PICTURE
from tests.commandline import run_here as run
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import ModelMismatchError, UsageError
from zoo.evaluation.embeddings import write_embeddings
from zoo.models.load import Embedder

Capture = pytest.CaptureFixture[str]


def unit_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def contents(gallery: Path) -> dict[str | None, tuple[str | None, dict[str, object]]]:
    with VectorGallery.open(gallery) as opened:
        return {item.key: (item.label, item.metadata) for item in opened.store.items(0, 100)}


def test_rows_of_zoo_embed_are_put_by_key(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    rows, gallery = unit_rows(4, model.dim), tmp_path / "g"
    table = [{"path": f"{n}.png", "label": f"l{n % 2}"} for n in range(4)]
    write_embeddings(tmp_path / "rows.npy", rows, table, model)
    words = ("index", model.folder, "--vectors", tmp_path / "rows.npy", "--out", gallery)
    assert run(*words, "--table", tmp_path / "rows.csv") == 0
    assert contents(gallery) == {f"{n}.png": (f"l{n % 2}", {}) for n in range(4)}
    with VectorGallery.open(gallery) as opened:
        assert [hits[0].key for hits in opened.search(rows, 1)] == [f"{n}.png" for n in range(4)]
        np.testing.assert_array_equal(opened.store.embedding(1), rows[0])
    capsys.readouterr()
    own = write(tmp_path / "own.csv", "key,path,year", "a/1,0.png,1908", "a/2,,1909", "a/3,2.png,", "a/4,3.png,")
    assert run(*words, "--table", own, "--json") == 0
    assert json.loads(capsys.readouterr().out)["created"] == 4
    assert contents(gallery)["a/1"] == (None, {"year": 1908})
    assert run(*words, "--table", own, "--json") == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == 4
    assert [check for check in verify_gallery(gallery) if check.ok is False] == []
    export_gallery(gallery, tmp_path / "out")
    import_gallery(tmp_path / "out", tmp_path / "imported")
    copy_gallery(gallery, tmp_path / "copied")
    for other in ("imported", "copied"):
        assert contents(tmp_path / other) == contents(gallery)
        with VectorGallery.open(tmp_path / other) as opened:
            assert opened.store.thumbnail(1) == NO_PICTURE


def test_rows_of_another_program_need_the_fingerprint(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    rows = unit_rows(5, model.dim).astype(np.float64) * 7
    rows[1], rows[2, 3], rows[3, 0] = 0, np.nan, np.inf
    np.save(tmp_path / "rows.npy", rows)
    table = write(tmp_path / "t.csv", "key,label", *[f"k{n},x" for n in range(5)])
    words = ("index", model.folder, "--vectors", tmp_path / "rows.npy", "--table", table, "--out", tmp_path / "g")
    with raises(UsageError, "missing-value"):
        run(*words)
    with raises(UsageError, "other-model"):
        run(*words, "--fingerprint", "0" * 64)
    assert not (tmp_path / "g").exists()
    words = (*words, "--fingerprint", model.card.fingerprint)
    assert run(*words) == 1, "rows were refused"
    said = capsys.readouterr().out
    assert all(f"k{n} was refused" in said for n in (1, 2, 3))
    assert set(contents(tmp_path / "g")) == {"k0", "k4"}
    with VectorGallery.open(tmp_path / "g") as opened:
        np.testing.assert_allclose(opened.store.embedding(1), unit_rows(5, model.dim)[0], atol=1e-6)
    assert run(*words, "--strict") == 1
    capsys.readouterr()
    np.save(tmp_path / "rows.npy", unit_rows(5, model.dim, seed=1))
    assert run(*words, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["replaced"], report["created"]) == (2, 3)
    assert set(contents(tmp_path / "g")) == {f"k{n}" for n in range(5)}


def test_files_that_do_not_fit_are_refused(
    model: Embedder, other_model: Embedder, gallery_folder: Path, tmp_path: Path
) -> None:
    rows, table = tmp_path / "rows.npy", write(tmp_path / "t.csv", "key", "a", "b")
    given = ("--fingerprint", model.card.fingerprint, "--out", tmp_path / "g")

    def refused(code: str, *words: object, array: np.ndarray | None = None) -> None:
        np.save(rows, unit_rows(2, model.dim) if array is None else array)
        with raises(UsageError, code):
            run("index", model.folder, *words)

    both = ("--vectors", rows, "--table", table, *given)
    refused("invalid-embedding", *both, array=unit_rows(2, model.dim + 1))
    refused("invalid-embedding", *both, array=unit_rows(2, model.dim)[0])
    refused("invalid-table", *both, array=unit_rows(3, model.dim))
    refused("no-images", "--vectors", rows, *given)
    refused("no-images", "--out", tmp_path / "g")
    refused("conflicting-options", tmp_path, *both)
    refused("option-without-effect", *both, "--update")
    for code, lines in (
        ("invalid-table", ("key", "a", "a")),
        ("invalid-table", ("key,label", "a,x", ",y")),
        ("invalid-table", ("label", "a", "b")),
        ("invalid-table", ("key,key", "a,b", "c,d")),
    ):
        write(table, *lines)
        refused(code, *both)
    assert not (tmp_path / "g").exists()
    write(table, "key", "a", "b")
    np.save(rows, unit_rows(2, other_model.dim))
    words = ("--vectors", rows, "--table", table, "--fingerprint", other_model.card.fingerprint)
    with raises(ModelMismatchError):
        run("index", other_model.folder, *words, "--out", gallery_folder)


def test_an_index_without_an_accepted_row_is_an_error(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    gallery, table = tmp_path / "g", write(tmp_path / "t.csv", "key", "a", "b")
    words = ["index", model.folder, "--vectors", tmp_path / "rows.npy", "--table", table, "--out", gallery]
    words += ["--fingerprint", model.card.fingerprint]

    def index(rows: np.ndarray) -> int:
        np.save(tmp_path / "rows.npy", rows)
        return run(*words)

    bad = np.full((2, model.dim), np.nan, np.float32)
    for none in (bad, np.zeros_like(bad)):
        with raises(UsageError, "no-images"):
            index(none)
    assert main([str(word) for word in words]) == 2
    assert "a" in capsys.readouterr().err
    assert not gallery.exists()
    good = unit_rows(2, model.dim)
    assert index(np.stack([bad[0], good[1]])) == 1, "one row is written, and one is refused"
    assert index(good) == 0
    with raises(UsageError, "no-images"):
        index(bad)
    with VectorGallery.open(gallery) as opened:
        for key in ("a", "b"):
            opened.describe_key(key, key=f"{key}{key}")
    assert index(good) == 0, "the items of these rows have other keys now, and the rows are new ones"
    assert set(contents(gallery)) == {"a", "aa", "b", "bb"}
    write(table, "key")
    with raises(UsageError, "no-images"):
        index(good[:0])
