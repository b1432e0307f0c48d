"""A matrix of correlations as a table whose cells are coloured by sign and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def correlations(names: Sequence[str], found: Mapping[tuple[str, str], float | None]) -> str:
    """The lower triangle. found: (earlier name, later name) -> -1 to 1, None or absent where there is none."""
    head = "".join(f"<th>{number}</th>" for number in range(1, len(names)))
    rows = []
    for i, name in enumerate(names):
        cells = "".join(_cell(found.get((other, name))) for other in names[:i])
        rows.append(f"<tr><th>{i + 1} {escape(name)}</th>{cells}{'<td></td>' * (len(names) - 1 - i)}</tr>")
    table = f'<table class="heat"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _cell(value: float | None) -> str:
    if value is None:
        return "<td>-</td>"
    hue = "var(--dot)" if value > 0 else "var(--bad)"
    return f'<td style="--hue:{hue};--share:{abs(value):.3f}">{value:+.2f}</td>'
