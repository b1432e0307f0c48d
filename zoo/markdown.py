"""Markdown: tables, and the parts of a page that are made anew from figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """The lines of a table; the columns at the places `numbers`, from 0, stand to the right."""
    rule = ["---:" if place in numbers else "---" for place in range(len(head))]
    return [_line(cells) for cells in (head, rule, *rows)]


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """A page whose parts, which stand between `<!-- name -->` and `<!-- end -->`, are these."""
    for name, part in parts.items():
        whole = f"<!-- {name} -->\n{part}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, whole=whole: whole, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
