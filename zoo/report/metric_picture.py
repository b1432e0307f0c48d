"""What each metric sees, as a picture: the embeddings with their scores, and below them the rankings with theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from zoo.report.metric_examples import EACH, METRICS, RANKED, RELATIVES, Embedded, Ranked, percent
from zoo.report.pictures import COLOURS, INK, OTHER, STYLE

ABOUT = (
    f"Classes are colours, {EACH} points each. Similarity is the cosine: only the direction from the centre counts.",
    "R@1, NMI and F1 cannot tell the three apart. The points are made for this picture: no paper's.",
)


def draw(embedded: Sequence[Embedded], ranked: Sequence[Ranked], kind: str) -> bytes:
    """A picture on white, in a format that matplotlib writes: png, svg, pdf. Equal input gives equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = BytesIO()
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(embedded), 6.8), facecolor="white", layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(2.4, 1), hspace=0.04)
        upper, lower = halves
        figure.suptitle("\n".join(ABOUT), fontsize=10)
        for axes, each in zip(upper.subplots(1, len(embedded)), embedded, strict=True):
            _draw_points(axes, each)
        _draw_rankings(lower.subplots(), ranked)
        metadata: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}}.get(kind, {"CreationDate": None})
        figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def _draw_points(axes: Any, each: Embedded) -> None:
    for label, colour in zip(sorted(set(each.labels.tolist())), COLOURS, strict=False):
        x, y = each.points[each.labels == label].T
        axes.scatter(x, y, s=9, c=colour, linewidths=0)
    axes.plot(0, 0, "+", color=OTHER)
    axes.set(title=each.name, aspect="equal", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    axes.set_axis_off()
    names = list(METRICS)
    for line, chosen, weight in ((0, names[:3], "normal"), (1, names[3:], "bold")):
        text = "   ".join(f"{METRICS[name]} {percent(each.metrics[name])}" for name in chosen)
        axes.text(0.5, -0.06 - 0.1 * line, text, transform=axes.transAxes, ha="center", weight=weight)


def _draw_rankings(axes: Any, ranked: Sequence[Ranked]) -> None:
    """A row a ranking: a square a rank, full where a relative is found."""
    columns: Mapping[str, float] = {name: RELATIVES + 2.5 + 3 * i for i, name in enumerate(RANKED)}
    for row, each in enumerate(ranked):
        for rank in range(1, RELATIVES + 1):
            filled = rank in each.found
            axes.plot(rank, row, "s", markersize=9, color=COLOURS[0], fillstyle="full" if filled else "none")
        axes.text(0, row, each.name, ha="right", va="center")
        for name, at in columns.items():
            axes.text(at, row, percent(each.metrics[name]), ha="right", va="center")
    axes.text(0, -1, f"of {RELATIVES} relatives found", ha="right", va="center", color=INK, weight="bold")
    for name, at in columns.items():
        axes.text(at, -1, RANKED[name], ha="right", va="center", weight="bold")
    axes.set(xlim=(-6, max(columns.values()) + 1), ylim=(len(ranked) - 0.5, -1.5))
    axes.set_axis_off()
