"""What fp16 and int8 cost trained models: `python -m exports.cost_page MODEL...` writes docs/precision-cost.*.

The figures are those that `zoo export MODEL --precision all` wrote into each model's folder; nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exports.families import DOCS, hardware
from zoo import markdown
from zoo.cards import read_card
from zoo.errors import UsageError, ZooError
from zoo.files import read_json, write_bytes, write_json
from zoo.onnx_runtime import FILES
from zoo.parity import COST_METRICS, read_parity, verdict
from zoo.registry import find

MEBI = 2**20
FIGURES, PAGE = "precision-cost.json", "precision-cost.md"


def row(folder: Path) -> dict[str, Any]:
    """What a model folder says of itself and of its variants. Raises `UsageError` where no cost was measured."""
    card, parity = read_card(folder), read_parity(folder)
    costs = {name: entry["cost"] for name, entry in parity.items() if "recall_at_1" in (entry.get("cost") or {})}
    if not costs:
        raise UsageError(f"{folder} holds no cost of a precision. Measure it: zoo export {folder} --precision all")
    recipe = read_json(folder / "recipe.json")["recipe"]
    return {
        "model": card.name,
        "architecture": card.architecture,
        "args": dict(card.architecture_args),
        "input": card.preprocessing.crop,
        "dim": card.dim,
        "steps": recipe["schedule"]["epochs"] * recipe["schedule"]["steps"],
        "seed": recipe["seed"],
        "date": max(parity[name]["date"] for name in costs),
        "versions": next(parity[name]["versions"] for name in costs),
        "bytes": {name: (folder / file).stat().st_size for name, file in FILES.items() if (folder / file).is_file()},
        "int8": {key: parity.get("int8", {}).get("details", {}).get(key) for key in ("quantised", "calibrated_on")},
        "cosines": {name: parity[name]["min_cosine"] for name in costs},
        "costs": costs,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each model and variant."""
    head = ["model", "architecture", "variant", "MiB", "least cosine", *_heads("R@1"), *_heads("MAP@R")]
    lines = [_line(row, name, cost) for row in rows for name, cost in row["costs"].items()]
    return "\n".join(markdown.table(head, lines, range(3, len(head))))


def _heads(metric: str) -> list[str]:
    return [f"{metric} fp32", "change", "95 % over classes", "95 % over queries"]


def _line(row: Mapping[str, Any], name: str, cost: Mapping[str, Any]) -> list[str]:
    cells = [
        row["model"],
        f"{row['architecture']}, {row['input']} px",
        name,
        f"{row['bytes'][name] / MEBI:.2f}",
        f"{row['cosines'][name]:.5f}",
    ]
    return cells + _changes(cost)


def pools(known: Sequence[Mapping[str, Any]]) -> str:
    """A line for each recipe of which several models were measured, and variant."""
    head = ["architecture", "models", "variant", *_heads("R@1"), "95 % over seeds", *_heads("MAP@R")]
    lines = []
    for pool in known:
        for name, cost in pool["costs"].items():
            cells, seeds = _changes(cost), _judged(pool["over_seeds"][name]["interval"], 2)
            size = f"{pool['architecture']}, {pool['input']} px"
            lines.append([size, str(len(pool["seeds"])), name, *cells[:4], seeds, *cells[4:]])
    dates = " ".join(f"{pool['architecture']}: {pool['date']}, {pool['hardware']}." for pool in known)
    return "\n".join([*markdown.table(head, lines, range(3, len(head))), "", dates])


def _changes(cost: Mapping[str, Any]) -> list[str]:
    cells = []
    for metric in COST_METRICS:
        change = cost[metric]
        digits = 2 if metric == "recall_at_1" else 3
        cells.append(f"{change['fp32']:.{digits + 1}f}")
        cells.append(f"{100 * change['difference']:+.{digits}f}")
        over_queries = change.get("over_queries", {})  # older packages did not write it
        cells += [_judged(each.get("interval"), digits) for each in (change, over_queries)]
    return cells


def _judged(interval: Sequence[float] | None, digits: int) -> str:
    if interval is None:
        return "-"
    low, high = (100 * bound for bound in interval)
    return f"{low:+.{digits}f} to {high:+.{digits}f}, {verdict(interval)}"


def models(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the models are, and how each was made int8."""
    return "\n".join(
        f"- {row['model']}: {row['architecture']} {json.dumps(row['args'])}, {row['dim']} dimensions, {row['steps']:,} "
        f"steps, seed {row['seed']}; {row['bytes']['fp32'] / MEBI:.2f} MiB in fp32; int8: {row['int8']['quantised']}, "
        f"calibrated on {row['int8']['calibrated_on']}."
        for row in rows
    )


def page(text: str, known: Mapping[str, Any]) -> str:
    """The page with its parts, which stand between `<!-- name -->` and `<!-- end -->`, anew."""
    dates = [row["date"] for row in known["rows"]]
    versions = ", ".join(f"{name} {number}" for name, number in known["rows"][0]["versions"].items())
    origin = f"Measured {min(dates)} to {max(dates)} on {known['hardware']}; {versions}."
    parts = {"costs": table(known["rows"]), "models": models(known["rows"]), "origin": origin}
    return markdown.with_parts(text, {**parts, "pools": pools(known.get("pools", ()))})


def write_page(docs: Path, known: Mapping[str, Any]) -> None:
    """Keep the figures, and make the page of them anew."""
    shown = docs / PAGE
    text = page(shown.read_text(encoding="utf-8"), known)
    write_json(docs / FIGURES, known)
    write_bytes(shown, text.encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m exports.cost_page", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or folders; none: the page alone, anew")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the two files are (default: docs)")
    args = parser.parse_args(arguments)
    try:
        store = args.docs / FIGURES
        known = read_json(store) if store.is_file() or not args.models else {}
        if args.models:
            known |= {"hardware": hardware(), "rows": [row(find(name)) for name in args.models]}
        write_page(args.docs, known)
    except (ZooError, OSError) as error:
        raise SystemExit(f"exports.cost_page: error: {error}") from None


if __name__ == "__main__":
    main()
