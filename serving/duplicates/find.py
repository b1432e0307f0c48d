"""Copies of one picture in a folder, a table or a gallery, found, reported and moved: `zoo.duplicates`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from serving.duplicates.lookup import folder_store
from serving.duplicates.move import MovedCopies, check_target, move_copies
from serving.duplicates.pictures import PictureTable
from serving.duplicates.report import DuplicateReport, html_page, report_duplicates
from serving.galleries import index
from serving.gallery.gallery import VectorGallery, is_gallery, model_at
from serving.gallery.image_files import IndexingReport, source_root
from serving.gallery.indexing import BATCH_SIZE
from serving.gallery.originals import indexed_folders
from zoo.console import note, write_text
from zoo.data.formats import table_of
from zoo.errors import UsageError
from zoo.models.load import AUTO
from zoo.models.registry import ModelLike
from zoo.paths import expand

FORMATS = (".csv", ".json", ".html")

ConfirmMove = Callable[[Sequence[Path]], bool]
"""Function that tells whether files may be moved out of the folders that a gallery names."""


@dataclass(frozen=True, repr=False)
class Duplicates:
    """The result of a search for copies.

    Attributes:
        report: The groups of copies, the best copy of each first.
        indexed: What was done to embed a folder or a table; None for a gallery.
        moved: The files that were moved; None if none were to be.
    """

    report: DuplicateReport
    indexed: IndexingReport | None = None
    moved: MovedCopies | None = None

    def __repr__(self) -> str:
        return f"Duplicates({self.report.summary})"


def duplicates(
    images: Any,
    model: ModelLike | None = None,
    gallery: str | os.PathLike[str] | None = None,
    *,
    mirrored: bool = False,
    out: Sequence[str | os.PathLike[str]] = (),
    move_to: str | os.PathLike[str] | None = None,
    confirm: ConfirmMove | None = None,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    runtime: str = AUTO,
    precision: str = "fp32",
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
) -> Duplicates:
    """Find copies of one picture in a folder, a table or a gallery.

    >>> for best, *copies in zoo.duplicates("pictures/").report.groups:
    ...     print(best.source, [copy.source for copy in copies])

    No file is ever deleted.

    Args:
        images: A folder or a table of images, as for `zoo.index`, or a gallery folder.
        model: The model that embeds a folder (default: that of `gallery`, else photos).
        gallery: A gallery to make of the folder, or to add its new images to; the next call compares only what is new
            (default: a temporary one).
        mirrored: Mirror images are copies, too.
        out: Files for reports, by their suffix .csv, .json or .html.
        move_to: A folder, to which all but the best copy of each group are moved.
        confirm: Called before files are moved out of the folders that a gallery names, with these folders; nothing is
            moved without it, or if it returns False. A folder that is named here needs none.
        exclude: As in `zoo.index`.
        follow_links: As in `zoo.index`.
        runtime: As in `zoo.load`.
        precision: As in `zoo.load`.
        batch_size: Images per batch.
        progress: Show progress bars.

    Raises:
        UsageError: If arguments exclude one another, a report has another suffix (`unknown-format`), or files may not
            be moved (`not-confirmed`; `already-exists` or `not-writable` in the target).
        ZooError: As `zoo.index`.
    """
    place, files = os.fspath(table_of(images)), [expand(file) for file in out]
    _check_suffixes(files)
    is_folder = not is_gallery(place)
    if not is_folder and (model is not None or gallery is not None):
        raise UsageError(
            f"{place} is a gallery, whose images are embedded already; leave --model and --gallery out.",
            code="option-without-effect",
        )
    if (follow_links or exclude) and not is_folder:
        raise UsageError(
            "--follow-links and --exclude are for a folder, not for a gallery.", code="option-without-effect"
        )
    roots = [source_root(expand(place))] if is_folder else []
    target = None if move_to is None else check_target(expand(move_to), [root for root in roots if root.is_dir()])
    with ExitStack() as stack:
        address, indexed = place, None
        if is_folder:
            address = stack.enter_context(_own_or_temporary(gallery))
            name = model or (model_at(address)[1] if is_gallery(address) else "photos")
            with index(
                name,
                place,
                address,
                runtime=runtime,
                precision=precision,
                batch_size=batch_size,
                follow_links=follow_links,
                exclude=exclude,
                progress=progress,
            ) as filled:
                indexed = filled.report
        opened = stack.enter_context(VectorGallery.open(address))
        if target is not None and not is_folder:
            roots = indexed_folders(opened)
            if confirm is None or not confirm(roots):
                raise UsageError("nothing was moved.", code="not-confirmed")
        table = PictureTable(folder_store(opened))
        absent = indexed.not_in_folder if indexed else []
        report = report_duplicates(opened, table, place, mirrored, absent, progress)
        for file in files:
            _write_report(file, report, table)
        moved = None if target is None else move_copies(report, opened, roots, target)
    return Duplicates(report, indexed, moved)


def _check_suffixes(files: Sequence[Path]) -> None:
    for path in files:
        if path.suffix.lower() not in FORMATS:
            raise UsageError(f"--out takes files that end in {', '.join(FORMATS)}, not {path}.", code="unknown-format")


@contextmanager
def _own_or_temporary(gallery: str | os.PathLike[str] | None) -> Iterator[str]:
    """Give the place of a gallery; without one that of a gallery which is deleted at the end."""
    if gallery is not None:
        yield os.fspath(gallery)
        return
    with TemporaryDirectory(prefix="zoo-duplicates-") as folder:
        yield str(Path(folder) / "gallery")


def _write_report(path: Path, report: DuplicateReport, table: PictureTable) -> None:
    suffix = path.suffix.lower()
    if suffix == ".csv":
        write_text(path, report.table().csv())
    elif suffix == ".json":
        write_text(path, json.dumps(report.to_json(), indent=2) + "\n")
    else:
        write_text(path, html_page(report, table))
    note(f"{path} written")
