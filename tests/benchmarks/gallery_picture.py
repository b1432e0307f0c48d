"""Picture of the kinds of index as a gallery grows: build time, size, recall and latency."""

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
    """Draw the figures of `bench_gallery.py --json`; a kind that cannot hold the recall has no point there."""
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
    """Return the rows of each kind in the order of their sizes, with all `bytes` of a vector.

    A build that took almost no time is drawn at one millisecond, since the axis is logarithmic.
    """
    exact, out = 4 * found["setting"]["dim"], dict[str, list[dict[str, Any]]]()
    for row in sorted(found["kinds"], key=lambda one: one["rows"]):
        built = max(row["build_seconds"], 1e-3)
        drawn = {**row, "build_seconds": built, "bytes": exact + row["bytes_beside_exact"]}
        out.setdefault(row["kind"], []).append(drawn)
    return out
