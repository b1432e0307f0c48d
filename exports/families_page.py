"""The table of exported architectures as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.floors import EXPORT_FLOORS

MEBI = 2**20
FLOORS = ", ".join(f"{name} {floor}" for name, floor in EXPORT_FLOORS.items())

SATURATION = """\
On x86 without VNNI, plain ONNX Runtime adds pairs of 8-bit products in 16 bits, which overflow. This package sets
`session.x64quantprecision` to 1; do the same if you open an int8 graph without it, and you get what was measured."""


def page(table: Mapping[str, Any]) -> str:
    """docs/exports.md from what docs/exports.json holds."""
    rows = table["rows"]
    machines = " and ".join(f"{name} ({count})" for name, count in Counter(row["hardware"] for row in rows).items())
    versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
    of_recipes = {row["family"] for row in rows if row["recipe"]}
    families = {row["family"] for row in rows if "fp32" in row["variants"]} - of_recipes
    columns = (
        "architecture | timm module | input | dim | M par. | torch | fp32 | MiB | fp16 | MiB | int8 | MiB | centred | "
        "noise"
    )
    lines = [
        "# Exported architectures",
        "",
        "```sh",
        "zoo export margin-conv4-glyphs      # proves the export of your own model",
        "```",
        "",
        f"Made by `{table['command']}`, {min(row['date'] for row in rows)} to {max(row['date'] for row in rows)}, on "
        f"{machines}; {versions}.",
        "",
        f"{len(rows)} architectures, among them {sum(row['recipe'] for row in rows)} that recipes name and members of "
        f"{len(families)} further families of timm that exported in fp32. Weights are random, parameters that timm "
        "starts at nearly zero drawn again so that every branch contributes, and batch norm's statistics are those of "
        "the calibration images.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| fp32, fp16, int8 | the least cosine between torch's and the graph's embedding of one image, in batches of "
        "1, 2, 7 and 32; on golden images and on noise (fp32, fp16) or held-out images (int8) |",
        "| centred | the mean cosine of int8 after subtracting the mean embedding: with random weights the "
        "embeddings of different images are close together, which flatters a cosine |",
        "| noise | the least cosine between torch's own embeddings of a held-out image and of the same image with each "
        "value changed by at most 1 of 255: random networks may magnify small changes |",
        "| torch | the least cosine between torch's embeddings of the noise in single and in double precision: if this "
        "is no better than fp32, the network magnifies rounding, and the graph is not at fault |",
        "",
        f"A variant below its floor ({FLOORS}) is not written.",
        "",
        "What fp16 and int8 cost trained models in R@1 and MAP@R: [precision-cost.md](precision-cost.md).",
        "",
        f"| {columns} |",
        "|---|---|" + "---:|" * 12,
        *(_line(row) for row in rows),
        "",
    ]
    return "\n".join([*lines, *_scopes(rows), *_failures(rows), *_pending(table["pending"])])


def _line(row: Mapping[str, Any]) -> str:
    cells = [row["architecture"], row.get("family", "-"), str(row["size"]), str(row.get("dim", "-"))]
    cells.append(f"{row['parameters'] / 1e6:.1f}" if "parameters" in row else "-")
    cells.append(f"{row['in_double']:.7f}" if row.get("in_double") else "-")
    for precision, digits in (("fp32", 7), ("fp16", 6), ("int8", 4)):
        variant = row["variants"].get(precision)
        cells += [f"{variant['min_cosine']:.{digits}f}", f"{variant['bytes'] / MEBI:.1f}"] if variant else ["-", "-"]
    int8 = row["variants"].get("int8")
    cells.append(f"{int8['centred_cosine']:.3f}" if int8 else "-")
    cells.append(f"{row['under_noise']:.4f}" if "under_noise" in row else "-")
    return f"| {' | '.join(cells)} |"


def _scopes(rows: Any) -> list[str]:
    """Which architectures keep layers in float to stay exact."""
    scopes: dict[str, list[str]] = {}
    for row in rows:
        if int8 := row["variants"].get("int8"):
            scopes.setdefault(int8["quantised"], []).append(row["architecture"])
    listed = (f"- {scope}: {', '.join(names)}" for scope, names in scopes.items())
    return ["## What int8 quantises", "", SATURATION, "", *listed, ""]


def _failures(rows: Any) -> list[str]:
    found = [(row["architecture"], *item) for row in rows for item in row["failures"].items()]
    if not found:
        return ["Nothing failed.", ""]
    return ["## What failed", "", *(f"- {name}, {what}: {reason}" for name, what, reason in found), ""]


def _pending(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return ["## Not measured yet", "", f"The same command goes on with: {', '.join(names)}.", ""]
