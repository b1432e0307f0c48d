"""Parts of a paper's text: table rows, printed numbers and references."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from zoo.errors import ZooError

UNEXPECTED = "unexpected-text"

BEST_EPOCH = "the authors' code keeps the best epoch on the test classes; the paper does not say which was measured"
"""Protocol of a paper whose published code selects on test classes; its own scores have `best_on_test`."""

Score = dict[str, Any]
"""A score under the keys of zoo/published; its numbers are decimals with the printed digits."""

NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?")
REFERENCE = re.compile(r"\s*\[(\d+)\]")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")

MARKUP = (
    (re.compile(r"</?(?:b|math)>"), ""),
    (re.compile(r"\\(?:textbf|text)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\pm"), "±"),
    (re.compile(r"\\mathcal\{T\}_\{\\mathcal\{X\}\}\^\{(?:G_i|\\mathcal\{G\}_i)\}"), "T^G"),
    (re.compile(r"\\mathcal\{T\}_\{\\mathcal\{X\}\}\^\*"), "T*"),
    (re.compile(r"\\mathcal\{N\}"), "N"),
    (re.compile(r"\\phi\^\*"), "phi*"),
    (re.compile(r"\\phi"), "phi"),
    (re.compile(r"\\(min|gamma)\b"), r"\1"),
    (re.compile(r"\$"), ""),
)


@dataclass(frozen=True)
class PrintedTable:
    """Table as its paper prints it; the attributes are those of `zoo.models.published.PublishedTable`."""

    name: str
    place: str
    title: str
    protocol: str
    scores: Sequence[Score]
    runs: int | None = None


@dataclass(frozen=True)
class PrintedPaper:
    """Paper with its tables.

    Attributes:
        facts: Keys of its `[paper]`.
        tables: The tables.
        absent: Pairs (what, why) of the numbers that its text does not hold.
        counts: The number of scores by table.
    """

    facts: Mapping[str, str]
    tables: Sequence[PrintedTable]
    absent: Sequence[tuple[str, str]]
    counts: Mapping[str, int]

    def check_counts(self) -> None:
        """Raise `ZooError` (`unexpected-text`) if a table has another number of scores than its paper prints."""
        found = {table.name: len(table.scores) for table in self.tables}
        for name in sorted(found.keys() | self.counts.keys()):
            expected, read = self.counts.get(name, 0), found.get(name, 0)
            if expected != read:
                raise unexpected(f"the table {name} has {read} scores; its paper prints {expected}")


def unexpected(problem: str) -> ZooError:
    return ZooError(f"published scores: {problem}.", code=UNEXPECTED)


def plain(cell: str) -> str:
    """Return a cell without its markup and without spaces at its ends."""
    for pattern, replacement in MARKUP:
        cell = pattern.sub(replacement, cell)
    return cell.strip()


def label(cell: str) -> str:
    """Return the name in a cell, without markup and references to the literature."""
    return " ".join(REFERENCE.sub("", plain(cell)).split()).replace("( ", "(").replace(" )", ")")


def number(cell: str) -> tuple[Decimal, Decimal | None] | None:
    """Return the number in a cell and its spread, if it has one; None for a dash.

    Raises:
        ZooError: `unexpected-text`.
    """
    text = plain(cell)
    if text == "-":
        return None
    match = NUMBER.fullmatch(text)
    if match is None:
        raise unexpected(f"the cell {cell!r} is not a number")
    return Decimal(match[1]), None if match[2] is None else Decimal(match[2])


def scores(row: str, dataset: str, metrics: Sequence[str], cells: Sequence[str], **facts: Any) -> list[Score]:
    """Return the scores of a row on a data set; cells with a dash have none.

    Args:
        row: The name of the row.
        dataset: The data set.
        metrics: One per cell.
        cells: The printed cells.
        facts: Further keys of each score; None is left out. `spread` names the key of a number's spread, "sd" by
            default.
    """
    spread = facts.pop("spread", "sd")
    if len(metrics) != len(cells):
        raise unexpected(f"the row {row!r} has {len(cells)} cells on {dataset}, not {len(metrics)}")
    kept = {key: fact for key, fact in facts.items() if fact is not None}
    rows: list[Score] = []
    for metric, cell in zip(metrics, cells, strict=True):
        if (printed := number(cell)) is not None:
            value, width = printed
            numbers = {"value": value} | ({} if width is None else {spread: width})
            rows.append({"row": row, "dataset": dataset, "metric": metric, **numbers, **kept})
    return rows


def lines_before(text: str, caption: str, header: str) -> list[str]:
    """Return the lines between the last header before a caption and the caption."""
    lines = text.splitlines()
    end = line_of(lines, caption)
    starts = [index for index, line in enumerate(lines[:end]) if line.startswith(header)]
    if not starts:
        raise unexpected(f"there is no line {header!r} before {caption!r}")
    return [line for line in lines[starts[-1] + 1 : end] if line.strip()]


def block_after(text: str, caption: str, separator: str) -> list[list[str]]:
    """Return the cells of the first lines that hold the separator after a caption, up to the first that does not."""
    lines = text.splitlines()
    return list(_cells(lines[line_of(lines, caption) + 1 :], separator))


def block_before(text: str, caption: str, separator: str) -> list[list[str]]:
    """Return the cells of the last lines that hold the separator before a caption."""
    lines = text.splitlines()
    return list(_cells(lines[: line_of(lines, caption)][::-1], separator))[::-1]


def line_of(lines: Sequence[str], start: str) -> int:
    """Return the index of the only line that begins with a text, apart from spaces."""
    found = [index for index, line in enumerate(lines) if line.strip().startswith(start)]
    if len(found) != 1:
        raise unexpected(f"{len(found)} lines begin with {start!r}; expected one")
    return found[0]


def _cells(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    begun = False
    for line in lines:
        if separator in line:
            begun = True
            yield [cell.strip() for cell in line.strip("\n").split(separator)]
        elif begun:
            return


def citation(cell: str, references: Mapping[str, str]) -> str:
    """Return the work that a cell refers to by number.

    Raises:
        ZooError: `unexpected-text` without a number, or if the references lack it.
    """
    match = REFERENCE.search(cell)
    if match is None or match[1] not in references:
        raise unexpected(f"the cell {cell!r} refers to none of {len(references)} works")
    return references[match[1]]


def springer_references(text: str, marker: str) -> dict[str, str]:
    """Return the works by number: "Wu, C.Y., Smola, A.J.: Title. In: ... (2017)".

    Args:
        text: The paper's text.
        marker: Pattern of a line's beginning, with the number as its group.
    """
    works = {}
    for match in re.finditer(rf"^{marker}(.+)$", text, re.MULTILINE):
        authors, _, rest = match[2].partition(".: ")
        years = re.findall(r"\((?:[A-Z][a-z]+ )?((?:19|20)\d\d)\)", rest)
        if rest:
            surnames = re.findall(r"([^,]+), (?:[A-Za-z]\.[- ]?)+(?:,|$)", authors + ".")
            title = re.split(r"\. | \(\d{4}\)", rest)[0]
            works[match[1]] = work(surnames or [authors.split(",")[0]], years[-1] if years else "", title)
    return works


def ieee_references(text: str) -> dict[str, str]:
    """Return the works by number: "- [3] C.-Y. Wu and A. J. Smola, “Title,” in ..., 2017."."""
    works = {}
    for match in re.finditer(r"^- \[(\d+)\] (.+?),? [“\"](.+?),[”\"] ?(.*)$", text, re.MULTILINE):
        years = YEAR.findall(match[4])
        if years:
            works[match[1]] = work(surnames_after_initials(match[2]), years[-1], match[3])
    return works


def surnames_after_initials(authors: str) -> list[str]:
    """Return the surnames of "C.-Y. Wu, R. Manmatha, and P. Krahenbuhl"."""
    names = [name for name in re.split(r",? and |, ", authors) if name and name != "*et al.*"]
    return [re.sub(r"^(?:[A-Z]\.[- ]?)+", "", name).strip() for name in names]


def work(surnames: Sequence[str], year: str, title: str) -> str:
    """Return a work as "Wu et al. 2017, Sampling matters in deep embedding learning"; year may be empty."""
    names = [name.strip() for name in surnames]
    authors = names[0] + (" et al." if len(names) > 2 else f" & {names[1]}" if len(names) == 2 else "")
    return f"{authors} {year}".strip() + f", {title.strip(' *,.')}"
