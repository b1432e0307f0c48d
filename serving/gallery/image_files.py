"""The image files of a folder or table that go into a gallery, and the report on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from serving.gallery.types import check_key, check_metadata, folder_path, folder_uri, name_as_source
from zoo.console import count
from zoo.data.columns import Column
from zoo.data.images import SUFFIXES
from zoo.data.listing import leads_out, left_out_lines, list_files, shortened
from zoo.data.names import canonical
from zoo.data.table import (
    PLAIN,
    LabelFile,
    LabelRow,
    TableFormat,
    as_text,
    image_paths,
    is_table,
    read_label_file,
    read_table,
)
from zoo.errors import UsageError
from zoo.paths import expand

FEW = 5
"""Notes about images that are printed."""


@dataclass(frozen=True)
class ImageFile:
    """An image file to index.

    Attributes:
        source: Its name in the gallery, such as the path below the indexed folder.
        key: The user's own name of it.
        folder: URI of the folder that `source` is below (`folder_uri`).
        listed: Whether the table has a row for it, if there is a table; of other files it says nothing.
    """

    path: Path
    source: str
    label: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    folder: str = ""
    listed: bool = True

    @property
    def place(self) -> str:
        """Full path of the file."""
        return os.path.join(folder_path(self.folder), self.source)  # noqa: PTH118


@dataclass
class IndexingReport:
    """Result of indexing a folder or a table.

    Attributes:
        gallery: The gallery.
        found: Number of image files.
        added: Number of new items.
        replaced: Number of items whose place or key has another image now.
        already_there: Number of items with the same image as before.
        copies: Source of every file that has the content of an earlier file of the run, and that file's source.
        moved: Number of items that got another source, label, key or metadata.
        kept: Number of items that keep a label other than their folder's.
        differing: Source, id and label of items whose file asks for another label or other metadata.
        updated: How many of these got it.
        renamed: The former and the new key of every item whose row has another key.
        facts_kept: Source of every file whose camera wrote something else than its item has, and the names of that.
        unreadable: Source and reason of every image that was left out.
        refused: Source and reason of every image that did not get its key.
        stay_out: Sources of images whose items somebody has removed.
        not_in_folder: Sources of items that are not among the images.
        pruned: Key, or source if it has none, of each of these that was removed.
        other_folder: Another folder that was indexed into the gallery, so that pruning is refused.
        links_left_out: Sources of links that lead out of the folder.
        other_files: Source of every file that is not an image, and how that is known.
        excluded: Source of every file and folder whose name is excluded, and the pattern.
        notes: Source of images about which something was assumed, and what.
        unlabelled: Number of images that the file of labels does not name.
        labels_unused: Paths in the file of labels that the folder does not hold.
        metadata: Columns that are kept as metadata.
        columns: What these hold, and cells that do not fit.
        items: Number of items in the gallery.
    """

    gallery: str
    found: int
    added: int = 0
    replaced: int = 0
    already_there: int = 0
    copies: list[tuple[str, str]] = field(default_factory=list)
    moved: int = 0
    kept: int = 0
    differing: list[tuple[str, int, str | None]] = field(default_factory=list)
    updated: int = 0
    renamed: list[tuple[str, str]] = field(default_factory=list)
    facts_kept: list[tuple[str, list[str]]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    stay_out: list[str] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    other_folder: str | None = None
    links_left_out: list[str] = field(default_factory=list)
    other_files: list[tuple[str, str]] = field(default_factory=list)
    excluded: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    unlabelled: int = 0
    labels_unused: list[str] = field(default_factory=list)
    metadata: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    items: int = 0


def report_left_out(report: IndexingReport) -> Iterator[str]:
    """Yield a line for each file and folder that was left out; those of one kind together where they are many."""
    yield from left_out_lines(report.unreadable, report.excluded, report.other_files, report.links_left_out)
    yield from report_notes(report)


def report_notes(report: IndexingReport) -> Iterator[str]:
    """Yield a line for each image about which something was assumed; of many, the number of the others."""
    for source, note in report.notes[:FEW]:
        yield f"{source}: {note}"
    if (more := len(report.notes) - FEW) > 0:
        yield f"{count(more, 'more note')} about images; --json has all"


def find_images(
    folder: Path, own: Sequence[Path] = (), follow_links: bool = False, exclude: Sequence[str] = ()
) -> tuple[list[ImageFile], IndexingReport]:
    """List the image files below a folder, as `zoo.data.listing` does.

    The label is the folder part of the path below `folder`; files at the top have none.

    Args:
        folder: The folder.
        own: Files and folders that do not count as other files.
        follow_links: Whether to follow links that lead out of the folder.
        exclude: Patterns of names that are left out.

    Returns:
        The images, and a report with everything that was left out.

    Raises:
        UsageError: There are no images.
    """
    folder = folder.expanduser()
    found = list_files(folder, follow_links, exclude)
    kept = {path.expanduser().absolute() for path in own}
    found.others = [pair for pair in found.others if kept.isdisjoint((pair[0].absolute(), *pair[0].absolute().parents))]
    report = IndexingReport("", len(found.images), **found.left_out(folder))
    if not found.images:
        lines = "".join(f"\n  {line}" for line in report_left_out(report))
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).{lines}", code="no-images")
    sources = [_below(path, folder) for path in found.images]
    files = [ImageFile(path, source, folder_label(source)) for path, source in zip(found.images, sources, strict=True)]
    return files, report


def listed_images(table: Path, rows: LabelFile) -> list[ImageFile]:
    """Return the images of a table in its order, with their labels and metadata.

    An image's source is its path below the table's folder, or its full path if it is elsewhere.
    """
    table = expand(table)
    root = without_dots(table.parent)
    if not rows.rows:
        raise UsageError(f"{table} lists no images.", code="no-images")
    files = []
    paths = image_paths(table, [row.path for row in rows.rows])
    for path, row in zip(map(without_dots, paths), rows.rows, strict=True):
        source = path.relative_to(root) if path.is_relative_to(root) else path
        described = row.label, row.metadata, _checked_key(table, row.key)
        files.append(ImageFile(path, name_as_source(source.as_posix()), *described))
    return files


def _checked_key(table: Path, key: str | None) -> str | None:
    try:
        return None if key is None else check_key(key)
    except UsageError as error:
        raise UsageError(f"{table}: {error}", code=error.code) from None


def source_root(images: Path) -> Path:
    """Return the folder that sources are relative to: the indexed folder, or the folder of a table."""
    return as_text(images).parent if is_table(images) else images


def folder_label(source: str) -> str | None:
    """Return the folder part of a source, which is its label; None for a file at the top."""
    return canonical(source.rpartition("/")[0]) or None


def named_images(paths: Sequence[Path], label: str | None, metadata: Mapping[str, Any]) -> list[ImageFile]:
    """Return files given by name, all with one label and one metadata.

    Raises:
        UsageError: If some are not files, which the message names, or the metadata cannot be stored.
    """
    wrong = [
        f"{path} ({'a folder, which zoo index takes' if path.is_dir() else 'no such file'})"
        for path in paths
        if not path.is_file()
    ]
    if wrong:
        message = f"{len(wrong):,} of {len(paths):,} names are not image files: {shortened(wrong, 20)}."
        raise UsageError(message, code="not-found")
    check_metadata(metadata)
    return [ImageFile(path, name_as_source(path.as_posix()), label, metadata) for path in paths]


def placed_below(files: Sequence[ImageFile], folders: Sequence[Path]) -> list[ImageFile]:
    """Return files with their paths below the first of the folders that holds each, or their full paths."""
    placed = []
    for file in files:
        path = without_dots(file.path)
        resolved = path.parent.resolve() / path.name  # as the folders are
        folder = next((folder for folder in folders if resolved.is_relative_to(folder)), None)
        source = path if folder is None else resolved.relative_to(folder)
        uri = folder_uri(folder or path.parent)
        placed.append(replace(file, source=name_as_source(source.as_posix()), folder=uri))
    return placed


def _below(path: Path, folder: Path) -> str:
    """Return the source of a file below a folder."""
    return name_as_source(path.relative_to(folder).as_posix())


def without_dots(path: Path) -> Path:
    """Return a path without dots; symbolic links stay, because the user knows those names."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def list_images(
    images: Path, out: str | Path, labels: Path | None, follow_links: bool, exclude: Sequence[str], how: TableFormat
) -> tuple[list[ImageFile], LabelFile, IndexingReport]:
    """Return the image files, those with a row of a table first, the table's rows, and a report so far."""
    if is_table(images):
        if labels is not None:
            raise UsageError(
                f"{images} is a table and holds labels itself; --labels goes with a folder of images.",
                code="option-without-effect",
            )
        table = as_text(images)
        rows = read_table(images, how)
        files, links = _without_links(listed_images(table, rows), table.parent, follow_links)
        if not files:
            message = f"the images of {table} are links out of its folder, as {links[0]}; --follow-links follows such."
            raise UsageError(message, code="no-images")
        report = IndexingReport(str(out), len(files), links_left_out=links)
    else:
        files, report = find_images(images, [Path(out), *([labels] if labels else [])], follow_links, exclude)
        report.gallery = str(out)
        rows = LabelFile()
        if labels is not None:
            rows = read_label_file(labels, {file.source for file in files}, images, how)
            files = _described(files, rows, labels, report)
        elif how != PLAIN:
            message = "how cells are written is for a table; name it with --labels, or in place of the folder."
            raise UsageError(message, code="option-without-effect")
    report.columns, report.metadata = rows.columns, tuple(column.name for column in rows.columns)
    folder = folder_uri(source_root(images))
    return [replace(file, folder=folder) for file in files], rows, report


def _without_links(files: Sequence[ImageFile], root: Path, follow_links: bool) -> tuple[list[ImageFile], list[str]]:
    """Return the files of a table, and the sources of those below its folder that are links out of it."""
    real, folders = root.resolve(), dict[Path, bool]()

    def is_outside(path: Path) -> bool:
        if path.parent not in folders:
            folders[path.parent] = leads_out(path.parent, real)
        return folders[path.parent] or (path.is_symlink() and leads_out(path, real))

    links: list[str] = []
    kept: list[ImageFile] = []
    for file in files:
        with suppress(OSError, RuntimeError, ValueError):  # is reported where it is read
            if not follow_links and not Path(file.source).is_absolute() and is_outside(file.path):
                links.append(file.source)
                continue
        kept.append(file)
    return kept, links


def _described(files: Sequence[ImageFile], rows: LabelFile, path: Path, report: IndexingReport) -> list[ImageFile]:
    """Return the files with labels and metadata from a file of labels, one for each row, and then the other files."""
    by_source: dict[str, list[LabelRow]] = {}
    for row in rows.rows:
        by_source.setdefault(row.path, []).append(row)
    unlisted = [file for file in files if file.source not in by_source]
    report.unlabelled = len(unlisted)
    report.labels_unused = sorted(by_source.keys() - {file.source for file in files})
    if len(unlisted) == len(files):
        example = files[0].source
        raise UsageError(
            f"{path} names none of the {len(files)} images; paths are below the folder, as {example}.", code="no-images"
        )
    listed = [
        replace(
            file,
            label=row.label if rows.labelled else file.label,
            metadata=row.metadata,
            key=_checked_key(path, row.key),
        )
        for file in files
        for row in by_source.get(file.source, ())
    ]
    others = [replace(file, listed=False) for file in unlisted]
    return listed + [replace(file, label=None) if rows.labelled else file for file in others]
