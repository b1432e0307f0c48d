"""`zoo duplicates`: copies of one picture in a folder or a gallery."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zoo.cli.options import (
    BatchSize,
    Exclude,
    FollowLinks,
    Json,
    Precision,
    Runtime,
    Strict,
    Yes,
    confirm,
    strict_status,
)
from zoo.console import count, note, print_json, show, write_text
from zoo.errors import UsageError

if TYPE_CHECKING:
    from serving.duplicates.move import MovedCopies
    from serving.duplicates.pictures import PictureTable
    from serving.duplicates.report import DuplicateReport
    from serving.gallery.indexing import IndexingReport


app = typer.Typer()

FORMATS = (".csv", ".json", ".html")
NAMED = 20
"""Number of groups that are printed."""


@app.command(
    "duplicates",
    epilog="""\
  zoo duplicates pictures/                                         embed a folder, and print the groups
  zoo duplicates pictures/ --gallery pictures-gallery              the next run compares only what is new
  zoo duplicates pictures/ --out copies.html --out copies.csv      look at them first
  zoo duplicates pictures/ --move-to copies/                       the best copy of each group stays
  zoo duplicates gallery/ --mirrored --json                        the items of a gallery

No file is ever deleted. The exit status is 0, whether there are copies or not; with --strict it is 1 if an image could
not be read.""",
)
def duplicates(
    images: Annotated[
        str, Argument(metavar="DIR|GALLERY", help="folder of images, table of images (CSV), or gallery folder")
    ],
    model: Annotated[
        str | None,
        Option("--model", metavar="MODEL", help="model that embeds a folder (default: that of --gallery, else photos)"),
    ] = None,
    gallery: Annotated[
        str | None,
        Option(
            "--gallery",
            metavar="GALLERY",
            help="gallery to make of the folder, or to add its new images to (default: a temporary one)",
        ),
    ] = None,
    mirrored: Annotated[bool, Option("--mirrored", help="mirror images are copies too")] = False,
    out: Annotated[
        list[Path] | None,
        Option(
            "--out",
            metavar="FILE",
            help="also write a report, by its suffix .csv, .json or .html; repeatable",
        ),
    ] = None,
    move_to: Annotated[
        Path | None,
        Option(
            "--move-to",
            metavar="FOLDER",
            help="also move all but the best copy of each group to this folder; out of the folders that a GALLERY "
            "names it asks first",
        ),
    ] = None,
    yes: Yes = False,
    exclude: Exclude = None,
    follow_links: FollowLinks = False,
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """find copies of one picture in a folder or a gallery"""
    from serving.duplicates.lookup import folder_store
    from serving.duplicates.move import check_target, move_copies
    from serving.duplicates.pictures import PictureTable
    from serving.duplicates.report import report_duplicates
    from serving.gallery import VectorGallery
    from serving.gallery.gallery import is_gallery
    from serving.gallery.indexing import report_left_out, source_root
    from serving.gallery.originals import indexed_folders

    files = out or []
    _check_suffixes(files)
    is_folder = not is_gallery(images)
    if not is_folder and (model is not None or gallery is not None):
        raise UsageError(
            f"{images} is a gallery, whose images are embedded already; leave --model and --gallery out.",
            code="option-without-effect",
        )
    if yes and move_to is None:
        raise UsageError("--yes is for --move-to.", code="option-without-effect")
    if (follow_links or exclude) and not is_folder:
        raise UsageError(
            "--follow-links and --exclude are for a folder, not for a gallery.", code="option-without-effect"
        )
    roots = [source_root(Path(images))] if is_folder else []
    if move_to is not None:
        check_target(move_to, [root for root in roots if root.is_dir()])
    with ExitStack() as stack:
        how = model, runtime, precision, batch_size, follow_links, exclude or ()
        place = _gallery_of(images, gallery, is_folder, how)
        address, indexed = stack.enter_context(place)
        opened = stack.enter_context(VectorGallery.open(address))
        if move_to is not None and not is_folder:
            roots = indexed_folders(opened)
            _confirm_roots(images, roots, yes)
        table = PictureTable(folder_store(opened))
        absent = indexed.not_in_folder if indexed else []
        report = report_duplicates(opened, table, images, mirrored, absent, progress=True)
        for path in files:
            _write_report(path, report, table)
        moved = None if move_to is None else move_copies(report, opened, roots, move_to)
    if as_json:
        names = ("unreadable", "excluded", "other_files", "links_left_out")
        left_out = {name: getattr(indexed, name) if indexed else [] for name in names}
        print_json({**report.to_json(), **left_out, "moved": moved and asdict(moved)})
    else:
        show(*(report_left_out(indexed) if indexed else ()), *_lines(report, moved, bool(files)))
    return strict_status(strict, indexed and indexed.unreadable)


def _check_suffixes(files: list[Path]) -> None:
    for path in files:
        if path.suffix.lower() not in FORMATS:
            raise UsageError(f"--out takes files that end in {', '.join(FORMATS)}, not {path}.", code="unknown-format")


def _confirm_roots(gallery: str, folders: list[Path], yes: bool) -> None:
    """Ask before files are moved out of folders that a gallery names: it may be of somebody else.

    Raises:
        UsageError: If the answer is no, or nobody can answer (code "not-confirmed").
    """
    names = ", ".join(map(str, folders)) or "no folder"
    question = f"{gallery} was indexed from {names}. Move copies out of there"
    if not yes and not sys.stdin.isatty():
        message = f"{question}? Add --yes, or name the folder itself: zoo duplicates DIR --gallery {gallery}."
        raise UsageError(message, code="not-confirmed")
    if not yes and not confirm(f"{question}?"):
        raise UsageError("nothing was moved.", code="not-confirmed")


@contextmanager
def _gallery_of(
    images: str, gallery: str | None, is_folder: bool, how: tuple[str | None, str, str, int, bool, Sequence[str]]
) -> Iterator[tuple[str, IndexingReport | None]]:
    """Give the gallery that is searched, and the report of indexing a folder into it."""
    if not is_folder:
        yield images, None
    elif gallery is not None:
        yield gallery, _index(images, gallery, *how)
    else:
        with TemporaryDirectory(prefix="zoo-duplicates-") as folder:
            address = str(Path(folder) / "gallery")
            yield address, _index(images, address, *how)


def _index(
    images: str,
    gallery: str,
    model: str | None,
    runtime: str,
    precision: str,
    batch_size: int,
    follow_links: bool,
    exclude: Sequence[str],
) -> IndexingReport:
    from serving.galleries import index
    from serving.gallery.gallery import is_gallery, model_at

    name = model or (model_at(gallery)[1] if is_gallery(gallery) else "photos")
    with index(
        name,
        images,
        gallery,
        runtime=runtime,
        precision=precision,
        batch_size=batch_size,
        follow_links=follow_links,
        exclude=exclude,
        progress=True,
    ) as filled:
        return filled.report


def _write_report(path: Path, report: DuplicateReport, table: PictureTable) -> None:
    from serving.duplicates.report import html_page

    suffix = path.suffix.lower()
    if suffix == ".csv":
        write_text(path, report.table().csv())
    elif suffix == ".json":
        write_text(path, json.dumps(report.to_json(), indent=2) + "\n")
    else:
        write_text(path, html_page(report, table))
    note(f"{path} written")


def _lines(report: DuplicateReport, moved: MovedCopies | None, written: bool) -> Iterator[str]:
    for members in report.groups[:NAMED]:
        for copy in members:
            size = f"{copy.width} x {copy.height}" if copy.width else "size unknown"
            yield f"{'' if copy.best else '  '}{copy.source} ({size}): {copy.verdict}"
    if len(report.groups) > NAMED:
        rest = "" if written else "; --out copies.html shows all of them"
        yield f"... and {count(len(report.groups) - NAMED, 'group')} more{rest}"
    if moved:
        for source, reason in moved.left:
            yield f"not moved: {source}: {reason}"
        yield f"{count(len(moved.moved), 'file')} moved to {moved.target}"
    yield report.summary
