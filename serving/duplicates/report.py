"""Report on the near-duplicates of a gallery: groups of copies as CSV, JSON and one HTML page with pictures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from serving.duplicates.comparison import compare
from serving.duplicates.groups import Member, group, measure, rank_of
from serving.duplicates.lookup import SAME_IMAGE
from serving.duplicates.pictures import Measures, PictureTable
from serving.duplicates.rule import Evidence
from serving.gallery.gallery import VectorGallery
from serving.gallery.originals import Originals
from serving.gallery.types import Item
from zoo.console import count
from zoo.errors import ImageError
from zoo.render import Table
from zoo.report.html import ImageTile, Paragraph, Section, Thumbnails, page

SHOWN = 500
"""Groups on the HTML page, whose pictures take about 5 kB each."""

TILE = 200
"""Longest side, in pixels, of the pictures on the HTML page."""


@dataclass(frozen=True)
class ReportedCopy:
    """One file of a group.

    Attributes:
        source: The item's source.
        item: Id in the gallery.
        best: Whether it is the best copy of the group.
        identical: Whether the file has the bytes of another file of the group.
        width, height: Sides of the image in pixels; None if they are not known.
        sharpness: See `serving.duplicates.groups.sharpness`.
        similarity, distance, mirrored, part: Evidence against the best copy; None for the best copy.
        label: The item's label.
    """

    source: str
    item: int
    best: bool
    identical: bool
    width: int | None
    height: int | None
    sharpness: float | None
    similarity: float | None
    distance: int | None
    mirrored: bool | None
    part: bool | None
    label: str | None

    @property
    def caption(self) -> str:
        """Return the copy in words, for the HTML page."""
        size = f"{self.width} x {self.height}" if self.width else "size unknown"
        return f"{self.source} ({size}): {self.verdict}"

    @property
    def verdict(self) -> str:
        """Return why the file is in the group, in words."""
        if self.best:
            return "best copy"
        if self.identical:
            return "identical file"
        kind = f"{'mirrored' if self.mirrored else 'copy'}{', in part' if self.part else ''}"
        return f"{kind}, cosine {self.similarity:.2f}, {self.distance} of 256 bits differ"


@dataclass(frozen=True)
class DuplicateReport:
    """Groups of copies of one gallery.

    Attributes:
        gallery: The gallery, or the folder that was searched.
        model: Name of the model of the embeddings.
        items: Number of items that were compared.
        groups: The groups, the best copy of each first.
        without_picture: Number of items that have no picture, so that nothing can confirm a copy of them.
    """

    gallery: str
    model: str
    items: int
    groups: list[list[ReportedCopy]]
    without_picture: int = 0

    @property
    def copies(self) -> int:
        """Return the number of files that are not the best of their group."""
        return sum(len(members) - 1 for members in self.groups)

    @property
    def summary(self) -> str:
        """Return the counts as a sentence."""
        rest = f"; {count(self.without_picture, 'item')} without a picture could not be compared"
        return (
            f"{self.gallery}: {count(self.items, 'image')}, {count(len(self.groups), 'group')} with "
            f"{count(self.copies, 'copy', 'copies')} beside the best ones{rest if self.without_picture else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        facts = {"gallery": self.gallery, "model": self.model, "items": self.items, "copies": self.copies}
        facts["without_picture"] = self.without_picture
        return {**facts, "groups": [[asdict(copy) for copy in members] for members in self.groups]}

    def table(self) -> Table:
        """Return one row per file, the number of its group first."""
        columns = [field.name for field in fields(ReportedCopy)]
        rows = [
            [number, *(getattr(copy, column) for column in columns)]
            for number, members in enumerate(self.groups, 1)
            for copy in members
        ]
        return Table(("group", *columns), rows)


def report_duplicates(
    gallery: VectorGallery,
    table: PictureTable,
    name: str,
    mirrored: bool = False,
    absent: Collection[str] = (),
    progress: bool = False,
) -> DuplicateReport:
    """Compare the new images of a gallery with all images, and return all groups of copies.

    Args:
        gallery: The open gallery, in a folder.
        table: Its tables.
        name: What the report calls it.
        mirrored: Whether mirror images are copies.
        absent: Sources of items to leave out.
        progress: Whether to show progress bars.
    """
    compare(table, progress)
    store, left_out = table.store, set(absent)
    pairs = table.pairs(mirrored)
    shared = store.shared_contents()
    paired = {content for pair in pairs for content in (pair.first, pair.second)}
    shown = {
        content: files
        for content, items in store.items_of(sorted({*paired, *shared})).items()
        if (files := _different_files([item for item in items if item.source not in left_out]))
    }
    alone = [content for content in shared if len(shown.get(content, ())) > 1]
    measures = measure(
        table,
        {content: shown[content] for content in sorted({*paired, *alone} & shown.keys())},
        Originals.of(gallery),
        progress,
    )
    pairs = [pair for pair in pairs if pair.first in shown and pair.second in shown]
    groups = group(pairs, {content: rank_of(one) for content, one in measures.items()})
    grouped = {member.content for members in groups for member in members}
    groups += [[Member(content, None)] for content in alone if content not in grouped]
    reported = [_reported(members, shown, measures) for members in groups]
    reported.sort(key=lambda copies: copies[0].item)
    return DuplicateReport(name, gallery.card.name, store.count() - len(left_out), reported, table.unknown())


def _different_files(items: Sequence[Item]) -> list[Item]:
    """Return items of one image by id, without those at the source of an earlier one: products may share a picture."""
    by_source: dict[str, Item] = {}
    for item in sorted(items, key=lambda item: item.id):
        by_source.setdefault(item.source, item)
    return list(by_source.values())


def _reported(
    members: Sequence[Member], shown: Mapping[int, Sequence[Item]], measures: Mapping[int, Measures]
) -> list[ReportedCopy]:
    copies = []
    for member in members:
        (item, *others), evidence = shown[member.content], member.evidence
        copies.append(_copy(item, evidence, measures[member.content], evidence is None, False))
        same = evidence or SAME_IMAGE
        copies += [_copy(other, same, measures[member.content], False, True) for other in others]
    return copies


def _copy(item: Item, evidence: Evidence | None, sides: Measures, best: bool, identical: bool) -> ReportedCopy:
    similarity, distance, mirrored, part = evidence.row() if evidence else (None,) * 4
    return ReportedCopy(
        source=item.source,
        item=item.id,
        best=best,
        identical=identical,
        width=sides.width,
        height=sides.height,
        sharpness=None if sides.sharpness is None else round(sides.sharpness, 4),
        similarity=None if similarity is None else round(similarity, 4),
        distance=distance,
        mirrored=mirrored,
        part=part,
        label=item.label,
    )


def html_page(report: DuplicateReport, table: PictureTable) -> str:
    """Return the report as one HTML page with pictures; it holds the first `SHOWN` groups."""
    facts = [Paragraph(f"{report.summary}. Embeddings: {report.model}.")]
    if len(report.groups) > SHOWN:
        facts.append(Paragraph(f"The first {SHOWN:,} groups are shown; the CSV and JSON reports hold all of them."))
    if not report.groups:
        facts.append(Paragraph("No two pictures are copies."))
    sections = [Section("Near-duplicates", facts)]
    for number, members in enumerate(report.groups[:SHOWN], 1):
        contents = table.store.contents_of([copy.item for copy in members])
        tiles = [
            ImageTile(_tile(table, contents.get(copy.item, 0)), copy.caption, "good" if copy.best else "")
            for copy in members
        ]
        sections.append(Section(f"Group {number}: {count(len(members), 'file')}", [Thumbnails(tiles)]))
    return page(f"Near-duplicates in {Path(report.gallery).name}", sections)


def _tile(table: PictureTable, content: int) -> bytes:
    """Return the thumbnail of an image as a small JPEG; grey if it cannot be decoded."""
    try:
        small = ImageOps.contain(table.thumbnail(content).convert("RGB"), (TILE, TILE))
    except ImageError:
        small = Image.new("RGB", (TILE, TILE), "grey")
    out = BytesIO()
    small.save(out, "JPEG", quality=80)
    return out.getvalue()
