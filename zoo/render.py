"""Table model with its renderings, and the Jinja environment of reports."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from io import StringIO
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
"""Beginning of a text that a spreadsheet takes for a formula, perhaps after the marks of earlier writers."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def flatten_numbers(record: Mapping[str, Any], between: str = "/") -> dict[str, float]:
    """Return the numbers of an epoch's record; those of a group, as its terms, have names such as terms/NAME."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            numbers |= {f"{name}{between}{key}": number for key, number in flatten_numbers(value, between).items()}
        elif isinstance(value, int | float) and name != "epoch":
            numbers[name] = value
    return numbers


def write_csv(file: IO[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV, with a mark (') before each text that a spreadsheet would run as a formula.

    Numbers, also in texts, are unchanged. `read_cell` removes the mark.
    """
    plain, quoted = (csv.writer(file, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in rows:
        cells = [_as_text(value) for value in row]
        # Python before 3.13 does not quote a carriage return, and readers take it for the end of the row.
        (quoted if any("\r" in str(cell) for cell in cells) else plain).writerow(cells)


def read_cell(text: str) -> str:
    """Return the text of a cell that `write_csv` wrote."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _as_text(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\n": " ",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
"""Character -> what LaTeX writes it by."""


@dataclass(frozen=True)
class Table:
    """A table that is rendered as Markdown, CSV, LaTeX, terminal text (`zoo.console`) or HTML (`zoo.report`).

    Attributes:
        columns: Headings.
        rows: One sequence of cells per row, as long as `columns`.
        numbers: Columns that are aligned to the right, by heading or by index from 0.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numbers: Collection[str | int] = ()

    def markdown(self) -> str:
        """Return the table in Markdown, without a line break at its end."""
        rule = ["---:" if right else "---" for right in self.aligned()]
        return "\n".join(map(_markdown_row, (self.columns, rule, *self.rows)))

    def csv(self) -> str:
        """Return the table as CSV with a header line; None is an empty cell."""
        text = StringIO()
        write_csv(text, [self.columns, *self.rows])
        return text.getvalue()

    def latex(self, caption: str = "", label: str = "") -> str:
        """Return the table in LaTeX, with the rules of the package booktabs; in a float if there is a caption.

        Args:
            caption: What the table shows.
            label: The name by which the text refers to the table.
        """
        sides = "".join("r" if right else "l" for right in self.aligned())
        head, *rows = (" & ".join(map(_latex_text, cells)) + r" \\" for cells in (self.columns, *self.rows))
        lines = [
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if caption:
            names = [rf"\caption{{{_latex_text(caption)}}}", *([rf"\label{{{label}}}"] if label else [])]
            lines = [r"\begin{table}", r"\centering", *names, *lines, r"\end{table}"]
        return "\n".join(lines)

    def html(self, caption: str = "") -> str:
        """Return the table as HTML, with its caption, as a notebook shows it."""
        head, *rows = (_html_row(cells, self.aligned()) for cells in (self.columns, *self.rows))
        body = f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
        return f"<table><caption>{escape(caption)}</caption>{body}</table>"

    def aligned(self) -> list[bool]:
        """Return for each column whether it is aligned to the right."""
        return [column in self.numbers or index in self.numbers for index, column in enumerate(self.columns)]


def replace_parts(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with new content between `<!-- name -->` and `<!-- end -->`.

    Args:
        text: The page.
        parts: The new content of each part by its name. A name that the page lacks changes nothing.
    """

    def replacement(match: re.Match[str]) -> str:
        return f"{match['start']}\n{parts[match['name']]}\n{match['end']}"

    names = "|".join(map(re.escape, parts)) or "(?!)"
    pattern = rf"(?P<start><!-- (?P<name>{names}) -->).*?(?P<end><!-- end -->)"
    return re.sub(pattern, replacement, text, flags=re.DOTALL)


@cache
def environment(package: str, markup: bool = False) -> Environment:
    """Return the Jinja environment of the templates in a package's folder `templates`.

    Args:
        package: The full name of the package.
        markup: Whether the templates make HTML, in which every value is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(str(files(package) / "templates")),
        autoescape=markup,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _html_row(cells: Sequence[Any], right: Sequence[bool]) -> str:
    sides = ("right" if is_right else "left" for is_right in right)
    texts = [f'<td align="{side}">{escape(str(cell))}</td>' for cell, side in zip(cells, sides, strict=True)]
    return f"<tr>{''.join(texts)}</tr>"


def _latex_text(cell: Any) -> str:
    """Return a cell with the characters that steer LaTeX escaped."""
    return "" if cell is None else "".join(_LATEX.get(character, character) for character in str(cell))


def _markdown_row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
