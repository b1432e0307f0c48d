"""Indexing over many machines: its parts without Ray, and all of it on a real local Ray (slow)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backends import ray
from serving.gallery.backends.ray import FILES, EmbeddingWorker, has_hash, on_ray, sorted_hashes, tables, write
from serving.gallery.image_files import ImageFile, IndexingReport, find_images
from serving.gallery.indexing import IndexingRun, index_folder
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import ROOT
from zoo.errors import GalleryError, MissingDependencyError, ModelMismatchError, UsageError
from zoo.models.load import Embedder

Content = list[tuple[object, ...]]


@pytest.fixture
def folder(tmp_path: Path, pictures: Path) -> Path:
    """24 pictures, of which one has a name that is not UTF-8; one more is a copy, and three cannot be read."""
    path = Path(shutil.copytree(pictures, tmp_path / "pictures"))
    shutil.copy(path / "red stripes" / "0.png", path / "green disc" / "twin.png")
    (path / "red stripes" / "1.png").rename(path / os.fsdecode(b"caf\xe9.png"))
    (path / "empty.png").touch()
    (path / "text.jpg").write_text("no image")
    (path / "cut.png").write_bytes(toys.query(0)[:200])
    return path


class Workers:
    """In place of a cluster: one worker, called here. `embedded` counts what it put through the network."""

    def __init__(self, model: Embedder, folder: Path, stop_after: int | None = None) -> None:
        self.model, self.folder, self.stop_after, self.embedded = model, folder, stop_after, 0

    def __call__(
        self, run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool
    ) -> None:
        known = ray.known_hashes(run)
        worker = EmbeddingWorker(str(self.model.folder), "fp32", embedder.card, str(self.folder), known)
        write(run, files, self._outcomes(worker, tables(files, batch_size)), progress)

    def _outcomes(self, worker: EmbeddingWorker, handed: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for number, table in enumerate(handed):
            if number == self.stop_after:
                raise KeyboardInterrupt
            outcome = worker(table)
            self.embedded += len(outcome) - outcome["embedding"].null_count
            yield outcome


def content(path: Path) -> Content:
    """All that a gallery holds, but the embeddings and the time."""
    with VectorGallery.open(path) as gallery:
        items = gallery.store.items(limit=1000)
        return [(i.id, i.source, i.label, i.metadata, i.content_sha256, gallery.store.thumbnail(i.id)) for i in items]


def embeddings(path: Path) -> np.ndarray:
    with VectorGallery.open(path) as gallery:
        return gallery.store.embeddings([item.id for item in gallery.store.items(limit=1000)])[1]


def outcome_of(report: IndexingReport) -> dict[str, object]:
    """A report without the names of places that differ between runs."""
    values = asdict(report)
    reasons = sorted((source, reason.partition(":")[0]) for source, reason in report.unreadable)
    return {**values, "gallery": None, "unreadable": reasons}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [4, 7, 64])
def test_workers_make_the_gallery_of_one_process(
    model: Embedder, folder: Path, tmp_path: Path, batch_size: int
) -> None:
    alone = index_folder(model, "toy", folder, tmp_path / "alone", batch_size)
    together = index_folder(model, "toy", folder, tmp_path / "g", batch_size, embed=Workers(model, folder))
    assert outcome_of(together) == outcome_of(alone)
    assert (together.added, len(together.copies), len(together.unreadable)) == (25, 1, 3)
    assert content(tmp_path / "g") == content(tmp_path / "alone")
    np.testing.assert_allclose(embeddings(tmp_path / "g"), embeddings(tmp_path / "alone"), rtol=0, atol=1e-6)


def test_what_the_gallery_has_is_not_embedded_again(model: Embedder, folder: Path, tmp_path: Path) -> None:
    workers = Workers(model, folder)
    index_folder(model, "toy", folder, tmp_path / "g", 5, embed=workers)
    assert workers.embedded in (24, 25), "a copy is embedded once more unless it was known"
    (folder / "green disc").rename(folder / "green")
    (folder / "blue checks" / "0.png").unlink()
    toys.picture(0, np.random.default_rng(55)).save(folder / "new.png")
    shutil.copytree(tmp_path / "g", tmp_path / "alone")
    workers = Workers(model, folder)
    together = index_folder(model, "toy", folder, tmp_path / "g", 5, embed=workers)
    alone = index_folder(model, "toy", folder, tmp_path / "alone", 5)
    assert workers.embedded == 1
    assert outcome_of(together) == outcome_of(alone)
    assert (together.added, together.moved, len(together.not_in_folder)) == (1, 7, 1)
    assert content(tmp_path / "g") == content(tmp_path / "alone")


def test_a_run_that_was_broken_off_is_taken_up(model: Embedder, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        index_folder(model, "toy", folder, tmp_path / "g", 5, embed=Workers(model, folder, stop_after=3))
    kept = len(content(tmp_path / "g"))
    assert 10 <= kept <= 15
    workers = Workers(model, folder)
    report = index_folder(model, "toy", folder, tmp_path / "g", 5, embed=workers)
    assert (report.added, report.items) == (25 - kept, 25), "a copy is an item of its own"
    assert workers.embedded <= 25 - kept


def test_what_is_removed_while_workers_know_it_stays_removed(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    index_folder(model, "toy", pictures, tmp_path / "g")

    def embed(
        run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool
    ) -> None:
        known = ray.known_hashes(run)
        worker = EmbeddingWorker(str(model.folder), "fp32", model.card, str(pictures), known)
        run.gallery.remove([3])
        write(run, files, map(worker, tables(files, batch_size)), progress)

    report = index_folder(model, "toy", pictures, tmp_path / "g", embed=embed)
    assert (report.added, report.already_there, report.items) == (0, 24, 23)


def test_a_worker_has_a_row_for_every_file(model: Embedder, folder: Path) -> None:
    files, *_ = find_images(folder)
    worker = EmbeddingWorker(str(model.folder), "fp32", model.card, str(folder), sorted_hashes([]))
    (table,) = tables(files, 64)
    outcome = worker(table)
    assert outcome["number"].to_pylist() == list(range(len(files)))
    for file, row in zip(files, outcome.to_pylist(), strict=True):
        if file.source in ("cut.png", "empty.png", "text.jpg"):
            assert row["reason"]
            assert row["embedding"] is None
        else:
            assert row["content_sha256"] == hashlib.sha256(file.path.read_bytes()).hexdigest()
            assert row["reason"] is None
            found = np.frombuffer(row["embedding"], "<f4")
            np.testing.assert_allclose(found, model.embed(file.path)[0], atol=1e-6)
    assert worker(FILES.empty_table()).num_rows == 0


def test_hashes_are_looked_up_whole() -> None:
    rng = np.random.default_rng(0)
    hashes = [bytes(rng.integers(0, 256, 32, np.uint8)).hex() for _ in range(500)]
    hashes += ["00" * 32, "ff" * 32, "ab" * 31 + "00", "00" * 31 + "ab"]
    there = set(hashes[::2])
    found = sorted_hashes(list(there))
    assert (found.itemsize, len(found)) == (32, len(there))
    assert {one for one in hashes if has_hash(found, one)} == there
    assert not has_hash(sorted_hashes([]), hashes[0])


def test_long_lists_are_handed_out_in_few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "_TABLES", 3)
    files = [ImageFile(Path(f"{number}.png"), str(number), None) for number in range(50)]
    found = list(tables(files, 4))
    assert [len(table) for table in found] == [16, 16, 16, 2]
    rows = [row for table in found for row in table.to_pylist()]
    assert [row["number"] for row in rows] == list(range(50))
    assert rows[7]["path"] == os.fsencode(Path("7.png").absolute())


def test_workers_that_lack_something_say_so(model: Embedder, other_model: Embedder, pictures: Path) -> None:
    with raises(GalleryError, "not-found") as caught:
        EmbeddingWorker(str(model.folder), "fp32", model.card, "/no/where", sorted_hashes([]))
    assert "/no/where" in str(caught.value)
    with raises(ModelMismatchError):
        EmbeddingWorker(str(other_model.folder), "fp32", model.card, str(pictures), sorted_hashes([]))


def test_what_a_worker_says_is_told_without_its_traceback() -> None:
    said = "ray::Worker()\n  File 'x.py', line 1\nzoo.errors.GalleryError: a host has no folder /x.\n\n"
    assert ray._reason(RuntimeError(said)) == "GalleryError: a host has no folder /x."
    assert ray._reason(RuntimeError()) == "RuntimeError."


def test_a_worker_loads_no_torch() -> None:
    code = "import sys, serving.gallery.backends.ray; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises(MissingDependencyError) as caught:
        on_ray("toy", tmp_path)
    assert "'dml-zoo[ray]'" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--ray-workers", "2"], "option-without-effect"),
        (["--ray-address", "auto"], "option-without-effect"),
        (["--on", "ray", "--runtime", "torch"], "invalid-value"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    model: Embedder, pictures: Path, tmp_path: Path, words: list[str], code: str
) -> None:
    with raises(UsageError, code):
        run_here("index", model.folder, pictures, "--out", tmp_path / "g", *words)
    assert not (tmp_path / "g").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_workers_of_a_real_ray_finish_what_was_broken_off(model: Embedder, folder: Path, tmp_path: Path) -> None:
    """On a Ray of this machine, or on the cluster whose address ZOO_TEST_RAY names."""
    alone = index_folder(model, str(model.folder), folder, tmp_path / "alone", 4)
    with pytest.raises(KeyboardInterrupt):
        index_folder(model, str(model.folder), folder, tmp_path / "g", 4, embed=Workers(model, folder, stop_after=2))
    kept = len(content(tmp_path / "g"))
    # Paths of its sockets have to be short; and its token must not get into the user's own home.
    with tempfile.TemporaryDirectory(prefix="r") as short:
        address = os.environ.get("ZOO_TEST_RAY")
        own = {"HOME": short, "RAY_TMPDIR": short} if address is None else {"RAY_AUTH_MODE": "token"}
        words = ["--batch-size", "4", "--json", "--on", "ray", "--ray-workers", "2"]
        words += ["--ray-address", address] if address else []
        words = ["index", str(model.folder), str(folder), "--out", str(tmp_path / "g"), *words]
        outcome = subprocess.run(
            [sys.executable, "-m", "zoo.cli.main", *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **own},
            timeout=1000,
            check=False,
        )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert (report["added"], report["items"]) == (alone.items - kept, alone.items)
    assert 0 < kept < alone.items
    assert len(report["unreadable"]) == len(alone.unreadable)
    assert content(tmp_path / "g") == content(tmp_path / "alone")
    np.testing.assert_allclose(embeddings(tmp_path / "g"), embeddings(tmp_path / "alone"), rtol=0, atol=1e-6)
