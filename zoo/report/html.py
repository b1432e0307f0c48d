"""HTML pages in one file: blocks, sections and the page, which Jinja templates render with one stylesheet.

A page asks nothing of the network: its style and its pictures are inside it, and its policy forbids everything else.
Every value that a template prints is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from zoo.console import interval_text
from zoo.render import Table, environment
from zoo.report.figures import COLOURS

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SVG = "image/svg+xml"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Legend:
    """Names, each after a dot in its colour; names beyond the last colour are left out."""

    names: Iterable[str]
    colours: Sequence[str]

    def entries(self) -> Iterator[tuple[str, str]]:
        """Return the pairs (colour, name)."""
        return zip(self.colours, self.names, strict=False)


@dataclass(frozen=True)
class NumberedList:
    """Names with their numbers, from 1."""

    names: Iterable[str]


@dataclass(frozen=True)
class Picture:
    """An image of the page's width.

    Attributes:
        data: The file's bytes.
        media_type: The type of the data, as image/png.
        caption: What the picture shows, for readers who cannot see it.
    """

    data: bytes
    media_type: str
    caption: str

    def uri(self) -> str:
        """Return the image as a data URI."""
        return _data_uri(self.data, self.media_type)


@dataclass(frozen=True)
class ImageTile:
    """A small JPEG with a caption. mark: "good" or "bad" for a green or a dashed red border."""

    data: bytes
    caption: str
    mark: str = ""

    def uri(self) -> str:
        """Return the image as a data URI."""
        return _data_uri(self.data, "image/jpeg")


@dataclass(frozen=True)
class Thumbnails:
    """A row of thumbnails, the first of which is the query."""

    images: Sequence[ImageTile]


@dataclass(frozen=True)
class _StripPositions:
    """Positions on the strip of a forest plot in percent of its width: bar and band as (left, width)."""

    bar: tuple[float, float]
    dot: float
    band: tuple[float, float] | None
    reference: float | None


@dataclass(frozen=True)
class ForestLine:
    """A mean of a forest plot with its interval.

    Attributes:
        label: The text before the strip.
        mean: The mean.
        interval: Its interval, None if it has no interval.
        note: Small text below the label.
        mark: The text after the strip.
        tone: "good" for green, "bad" for red, else neither.
        band: a range that is marked in grey.
    """

    label: str
    mean: float
    interval: tuple[float, float] | None
    note: str = ""
    mark: str = ""
    tone: str = ""
    band: tuple[float, float] | None = None

    def values(self) -> str:
        """Return the mean and the interval as text."""
        return ", ".join(filter(None, (f"{self.mean:.4f}", interval_text(self.interval))))

    def positions(self, low: float, high: float, reference: float | None) -> _StripPositions:
        """Return the positions of the line's parts on an axis from `low` to `high`."""

        def share(value: float) -> float:
            return 100 * (value - low) / (high - low)

        def span(bounds: tuple[float, float]) -> tuple[float, float]:
            return share(bounds[0]), share(bounds[1]) - share(bounds[0])

        return _StripPositions(
            bar=span(self.interval or (self.mean, self.mean)),
            dot=share(self.mean),
            band=None if self.band is None else span(self.band),
            reference=None if reference is None else share(reference),
        )


@dataclass(frozen=True)
class ForestPlot:
    """Means with their intervals on one axis, one row each. reference: a value that every row marks, as 0."""

    lines: Sequence[ForestLine]
    reference: float | None = None

    def axis(self) -> tuple[float, float]:
        """Return the ends of the axis: everything that is drawn, and a twentieth of its range on each side."""
        values = [value for line in self.lines for value in (line.mean, *(line.interval or ()), *(line.band or ()))]
        values += [] if self.reference is None else [self.reference]
        low, high = min(values), max(values)
        margin = (high - low) / 20 or 0.01
        return low - margin, high + margin


@dataclass(frozen=True)
class HeatMap:
    """The lower triangle of a matrix of correlations, coloured by sign and size.

    Attributes:
        names: The n names of rows and columns.
        cells: For each name its values with all names before it; None where there is no correlation.
    """

    names: Sequence[str]
    cells: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Details:
    """Blocks that are shown when their heading is opened."""

    heading: str
    blocks: Sequence[Block]


Block: TypeAlias = Paragraph | Table | Legend | NumberedList | Picture | Thumbnails | ForestPlot | HeatMap | Details


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading.

    size: where there is room for two columns, "whole" takes both, "half" one, "tall" one with two others beside it.
    """

    heading: str
    blocks: Sequence[Block]
    size: str = "whole"


def figure_section(heading: str, image: bytes, names: Iterable[str], text: str = "") -> Section:
    """Return a section with a drawing (SVG), the names of its lines in their colours, and a text.

    Args:
        heading: The heading, which also says what the drawing shows.
        image: The drawing.
        names: The names, in the order of `COLOURS`; the text says where there are more names than colours.
        text: What the reader must know.
    """
    names = list(names)
    left = f"The first {len(COLOURS)} of {len(names)}." if len(names) > len(COLOURS) else ""
    blocks: list[Block] = [Picture(image, SVG, heading), Legend(names, COLOURS)]
    blocks += [Paragraph(" ".join(filter(None, (text, left))))] if text or left else []
    return Section(heading, blocks, "half")


def page(title: str, sections: Iterable[Section]) -> str:
    """Return the whole HTML document.

    Args:
        title: Title and first heading.
        sections: The sections in their order.
    """
    template = environment("zoo.report", markup=True).get_template("page.html.j2")
    return template.render(title=title, sections=list(sections), policy=POLICY)


def _data_uri(data: bytes, media_type: str) -> str:
    """Return bytes as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
