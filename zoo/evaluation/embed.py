"""Embeddings of a folder or table of images, with their names and labels, and their files: `zoo.embed`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.console import note, note_left_out, write_errors
from zoo.data import table
from zoo.data.formats import table_of
from zoo.data.listing import FolderFiles, left_out_lines, list_files
from zoo.data.names import canonical, escaped
from zoo.errors import ImageError, UsageError, none_readable_message
from zoo.evaluation.embeddings import check_outputs_free, output_files, write_embeddings
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import ModelLike
from zoo.paths import expand


@dataclass(frozen=True, repr=False)
class ImageEmbeddings:
    """The embeddings of images.

    Attributes:
        rows: float32 [n, dim], unit rows.
        images: Of each row the path and the label of its image ("" for none), and further columns of a table.
        model: The model that gave the rows.
        left_out: What was left out of a folder by its kind, and the images that could not be read, with reasons.
        files: The files that were written: the rows, the table of their images and, beside .npy, their record.
    """

    rows: np.ndarray
    images: Sequence[Mapping[str, str]]
    model: Embedder
    left_out: Mapping[str, Any]
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        return f"ImageEmbeddings({len(self.rows):,} images, {self.model.dim} numbers of {self.model.card.name})"

    @property
    def labels(self) -> list[str]:
        """The labels of the rows, as `zoo.evaluate(rows, labels=...)` takes them."""
        return [image[table.LABEL] for image in self.images]


def embed(
    model: ModelLike,
    images: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    runtime: str = AUTO,
    precision: str = "fp32",
    device: str | None = None,
    batch_size: int = 64,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    progress: bool = False,
) -> ImageEmbeddings:
    """Embed all images of a folder or a table, and write the rows to a file if one is named.

    >>> embedded = zoo.embed("photos", "birds/", "birds.npy", replace=True)
    >>> zoo.evaluate(embedded.rows, labels=embedded.labels)

    The label of an image of a folder is its subfolder. Images that cannot be read are left out, and named on stderr.
    For images in memory there is `Embedder.embed`.

    Args:
        model: The model: a name, a folder, or a loaded one.
        images: A folder, a table, one image file, or a data set as `zoo.train` takes it.
        out: A file for the rows, .npy or .safetensors; a .csv of the same name gets the table of their images.
        replace: Overwrite files that exist.
        runtime: As in `zoo.load`.
        precision: As in `zoo.load`.
        device: As in `zoo.load`.
        batch_size: Images per batch.
        exclude: As in `zoo.index`.
        follow_links: Follow links that lead out of the folder.
        progress: Show a progress bar.

    Raises:
        UsageError: If there are no images, a file exists (`already-exists`), or has another format.
        ModelNotFoundError: If there is no such model.
        ImageError: If no image can be read.
    """
    source = expand(table_of(images))
    file = None if out is None else expand(out)
    files = () if file is None else tuple(output_files(file))  # before anything takes time
    if file is not None:
        _check_files(file, files[1], source, replace)
    paths, facts, left_out = _image_list(source, follow_links, exclude)
    embedder = model if isinstance(model, Embedder) else load(model, runtime, precision, device, images=len(paths))
    rows, errors = embedder.embed_readable(paths, batch_size, progress)
    note_left_out(errors.values())
    if not len(rows):
        raise ImageError(none_readable_message(len(paths), errors[0]))
    unreadable = [(escaped(str(paths[index])), str(error)) for index, error in errors.items()]
    left_out = {**left_out, "unreadable": [*left_out["unreadable"], *unreadable]}
    facts = [fact for index, fact in enumerate(facts) if index not in errors]
    if file is not None:
        with write_errors(file):
            write_embeddings(file, rows, facts, embedder)
    return ImageEmbeddings(rows, facts, embedder, left_out, files)


def _check_files(file: Path, written_table: Path, source: Path, replace: bool) -> None:
    """Check that no file is overwritten that must not be.

    Raises:
        UsageError: If the table of images would be, or another file without `replace`.
    """
    if written_table.exists() and source.exists() and written_table.samefile(source):
        raise UsageError(
            f"{written_table} is the table of images, and would be overwritten; name another --out.",
            code="overwrites-input",
        )
    if not replace:
        check_outputs_free(file)


def _image_list(
    images: Path, follow_links: bool, exclude: Sequence[str]
) -> tuple[list[Path], list[dict[str, str]], dict[str, Any]]:
    """Return the images, what the table of rows says of each, and what was left out of a folder."""
    if table.is_table(images):
        rows = table.read_image_rows(images)
        names = [row[table.IMAGE] for row in rows]
        return (
            table.image_paths(table.as_text(images), names),
            [_row_facts(row) for row in rows],
            FolderFiles().left_out(images),
        )
    if images.is_file():
        return [images], [_path_facts(Path(images.name))], FolderFiles().left_out(images)
    files = list_files(images, follow_links, exclude)
    left_out = files.left_out(images)
    for line in left_out_lines(**left_out):
        note(line)
    if not files.images:
        raise UsageError(f"{images} holds no images.", code="no-images")
    return files.images, [_path_facts(path.relative_to(images)) for path in files.images], left_out


def _row_facts(row: Mapping[str, str]) -> dict[str, str]:
    return {table.PATH: escaped(row[table.IMAGE]), **{key: cell for key, cell in row.items() if key != table.IMAGE}}


def _path_facts(path: Path) -> dict[str, str]:
    """Return the path and the label: the image's folder, if it has one."""
    label = "" if path.parent == Path() else path.parent.as_posix()
    return {table.PATH: escaped(path.as_posix()), table.LABEL: canonical(escaped(label))}
