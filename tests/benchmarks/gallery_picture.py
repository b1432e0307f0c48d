"""Kinds of index as a gallery grows: what they take to build and to keep, what they find, how long a search takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

PANELS = {
    "build_seconds": ("to build", "s"),
    "bytes": ("to keep, the exact vectors among it", "bytes a vector"),
    "recall": ("found of the 10 nearest", "recall"),
    "milliseconds": ("to search", "ms in the median"),
}


def draw(path: Path, found: dict[str, Any]) -> None:
    """found: as `bench_gallery.py --json` writes it. A kind that holds the recall at no setting has no point there."""
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    for axes, (key, (title, unit)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for kind, rows in by_kind(found).items():
            shown = [row for row in rows if key != "build_seconds" or kind != "flat"]
            axes.plot([row["rows"] for row in shown], [row[key] for row in shown], "o-", markersize=3, label=kind)
        axes.set(title=title, xlabel="vectors", ylabel=unit, xscale="log")
        if key in ("build_seconds", "milliseconds"):
            axes.set_yscale("log")
    figure.axes[1].set_ylim(0, None)
    figure.axes[2].axhline(found["setting"]["recall"], linestyle=":", color="grey")
    figure.axes[2].yaxis.set_major_locator(MaxNLocator(5))
    figure.axes[3].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{found['setting']['dim']} numbers a vector, {found['setting']['threads']} threads", fontsize=9)
    figure.savefig(path, dpi=120)


def by_kind(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of `kinds` of each kind, in the order of their sizes, with all `bytes` that a vector takes.

    Building that took no time to speak of is drawn as a millisecond, as the axis has no zero.
    """
    exact, out = 4 * found["setting"]["dim"], dict[str, list[dict[str, Any]]]()
    for row in sorted(found["kinds"], key=lambda one: one["rows"]):
        built = max(row["build_seconds"], 1e-3)
        drawn = {**row, "build_seconds": built, "bytes": exact + row["bytes_beside_exact"]}
        out.setdefault(row["kind"], []).append(drawn)
    return out
