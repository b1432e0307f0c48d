"""`zoo duplicates`: copies of one picture in a folder or a gallery."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
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
from zoo.console import count, print_json, show
from zoo.errors import UsageError

if TYPE_CHECKING:
    from serving.duplicates.move import MovedCopies
    from serving.duplicates.report import DuplicateReport


app = typer.Typer()

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
    from serving.duplicates.find import duplicates as find
    from serving.gallery.image_files import report_left_out

    if yes and move_to is None:
        raise UsageError("--yes is for --move-to.", code="option-without-effect")
    found = find(
        images,
        model,
        gallery,
        mirrored=mirrored,
        out=out or (),
        move_to=move_to,
        confirm=lambda folders: yes or _may_move(images, folders),
        exclude=exclude or (),
        follow_links=follow_links,
        runtime=runtime,
        precision=precision,
        batch_size=batch_size,
        progress=True,
    )
    report, indexed, moved = found.report, found.indexed, found.moved
    if as_json:
        names = ("unreadable", "excluded", "other_files", "links_left_out")
        left_out = {name: getattr(indexed, name) if indexed else [] for name in names}
        print_json({**report.to_json(), **left_out, "moved": moved and asdict(moved)})
    else:
        show(*(report_left_out(indexed) if indexed else ()), *_lines(report, moved, bool(out)))
    return strict_status(strict, indexed and indexed.unreadable)


def _may_move(gallery: str, folders: Sequence[Path]) -> bool:
    """Ask whether files may be moved out of folders that a gallery names: it may be of somebody else.

    Raises:
        UsageError: If nobody can answer (code "not-confirmed").
    """
    names = ", ".join(map(str, folders)) or "no folder"
    question = f"{gallery} was indexed from {names}. Move copies out of there?"
    if not sys.stdin.isatty():
        message = f"{question} Add --yes, or name the folder itself: zoo duplicates DIR --gallery {gallery}."
        raise UsageError(message, code="not-confirmed")
    return confirm(question)


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
