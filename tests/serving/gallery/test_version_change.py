"""Galleries across versions of the package: refused without a change, and carried over by export and import."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from serving.gallery import VectorGallery, schema
from serving.gallery.backup import copy_gallery
from serving.gallery.indexing import index_folder
from serving.gallery.parquet import export_gallery, import_gallery
from tests.commandline import run_here
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving.running import local_client
from zoo.errors import GalleryError
from zoo.files import sha256_of
from zoo.models.load import Embedder

KEY = "write-key-of-this-test"
OLD = schema.SCHEMA
FIRST_VERSIONS = {11: (0, 3, 0)}
"""The first version of the package with each schema: a new schema needs a new version, and a line here."""
DESCRIBED = {
    1: {"label": "wren", "metadata": {"price": 9.5, "tags": ["a", {"b": None}]}, "key": "sku/1"},
    2: {"label": None, "metadata": {"year": 1908}, "key": "ü/2"},
}

Version = Callable[[int], None]


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Version:
    """Makes the package one that reads and writes another schema."""
    tables = schema._TABLES

    def become(number: int) -> None:
        monkeypatch.setattr(schema, "SCHEMA", number)
        monkeypatch.setattr(schema, "_TABLES", tables.replace(f"user_version = {OLD}", f"user_version = {number}"))

    return become


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Path:
    """A gallery with keys, labels and metadata."""
    copy = Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))
    with local_client(copy, KEY) as http:
        for number, values in DESCRIBED.items():
            http.patch(f"/items/{number}", json=values).raise_for_status()
        http.delete("/items/3").raise_for_status()
    return copy


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def described(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what people wrote about the items, and their embeddings, by the content of the images."""
    with VectorGallery.open(folder) as gallery:
        return {
            item.content_sha256: (item.source, item.label, item.metadata, item.key, embedding.tobytes())
            for item in gallery.store.items(limit=100)
            for embedding in [gallery.store.embedding(item.id)]
        }


def test_the_version_changes_with_every_schema() -> None:
    assert tuple(map(int, zoo.__version__.split(".")[:3])) >= FIRST_VERSIONS[schema.SCHEMA]
    assert len(set(FIRST_VERSIONS.values())) == len(FIRST_VERSIONS)


@pytest.mark.parametrize("other", [OLD + 1, OLD - 1], ids=["a newer version", "an older version"])
def test_another_version_refuses_a_gallery_unchanged_and_names_the_commands(
    gallery: Path, version: Version, other: int
) -> None:
    before = contents(gallery)
    version(other)
    for use in (VectorGallery.open, lambda path: export_gallery(path, gallery.parent / "export")):
        with raises(GalleryError, "other-schema", "zoo gallery export", "zoo gallery import", OLD, other):
            use(gallery)
    assert contents(gallery) == before


@pytest.mark.parametrize("other", [OLD + 1, OLD - 1], ids=["to a newer version", "to an older version"])
def test_an_export_carries_everything_to_another_version(
    gallery: Path, tmp_path: Path, version: Version, other: int, model_folder: Path, pictures: Path
) -> None:
    before = described(gallery)
    assert len(before) == 23
    export_gallery(gallery, tmp_path / "export")
    version(other)
    import_gallery(tmp_path / "export", tmp_path / "new")
    assert described(tmp_path / "new") == before
    assert run("index", model_folder, pictures, "--out", tmp_path / "new") == 0
    assert described(tmp_path / "new") == before, "the removed item does not come back"
    version(OLD)
    with raises(GalleryError, "other-schema"):
        VectorGallery.open(tmp_path / "new")


@pytest.mark.parametrize("form", ["an export", "a copy"])
def test_what_somebody_removed_does_not_come_back_with_the_next_index(
    model: Embedder, pictures: Path, tmp_path: Path, form: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    index_folder(model, str(model.folder), pictures, first)
    assert run_here("gallery", "remove", first, "2", "5", "--yes") == 0
    with VectorGallery.open(first) as gallery:
        left = {item.source for item in gallery.store.items(limit=100)}
    if form == "an export":
        export_gallery(first, tmp_path / "export")
        import_gallery(tmp_path / "export", second)
    else:
        copy_gallery(first, second)
    assert run_here("index", model.folder, pictures, "--out", second, "--prune", "--yes") == 0
    with VectorGallery.open(second) as gallery:
        assert {item.source for item in gallery.store.items(limit=100)} == left
    assert run_here("index", model.folder, pictures, "--out", second, "--readd") == 0
    with VectorGallery.open(second) as gallery:
        assert gallery.store.count() == len(left) + 2
