"""How columns of numbers go together: correlations as a table whose cells are coloured by sign and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's correlation; None below three pairs, and where one side does not vary.

    A pair of which one is not a number is left out.
    """
    pairs = np.array([a, b], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < 3 or (pairs.min(axis=1) == pairs.max(axis=1)).any():
        return None
    return float(np.corrcoef(pairs[0], pairs[1])[0, 1])


def correlations(columns: Mapping[str, Sequence[float]]) -> str:
    """The lower triangle of the correlations of named columns of one length."""
    names = list(columns)
    head = "".join(f"<th>{number}</th>" for number in range(1, len(names)))
    rows = []
    for i, name in enumerate(names):
        cells = "".join(_cell(pearson(columns[other], columns[name])) for other in names[:i])
        rows.append(f"<tr><th>{i + 1} {escape(name)}</th>{cells}{'<td></td>' * (len(names) - 1 - i)}</tr>")
    table = f'<table class="heat"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _cell(value: float | None) -> str:
    if value is None:
        return "<td>-</td>"
    hue = "var(--dot)" if value > 0 else "var(--bad)"
    return f'<td style="--hue:{hue};--share:{abs(value):.3f}">{value:+.2f}</td>'
