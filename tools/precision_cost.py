"""Tables of what fp16 and int8 cost trained models, in docs/precision-cost.md and .json.

    python tools/precision_cost.py MODEL...            one row per model, from the records of zoo export --precision all
    python tools/precision_cost.py --pool MODEL...     measure models of one recipe (one per seed) and average them
    python tools/precision_cost.py                     write the page from the kept figures

The queries of one model are too few to measure a loss of R@1 to within 0.2 points: int8 changes the answers of some
queries in a hundred, nearly as many for the better as for the worse. The mean over models varies less by chance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tools.export_families import DOCS, hardware
from training.studies.statistics import interval_over_seeds
from zoo.data import load_dataset
from zoo.errors import UsageError, ZooError
from zoo.evaluation.remeasure import measure_retrieval, precision_cost
from zoo.evaluation.retrieval import PerQuery
from zoo.files import read_json, write_bytes, write_json
from zoo.models.card import read_card
from zoo.models.load import find_model, load
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import COST_METRICS, cost_verdict, read_parity
from zoo.render import Table, replace_parts

MEBI = 2**20
FIGURES, PAGE = "precision-cost.json", "precision-cost.md"
PRECISIONS = ("fp16", "int8")


def row(folder: Path) -> dict[str, Any]:
    """Return a model folder's records of itself and its variants.

    Raises:
        UsageError: If no cost was measured (code "no-precision-cost").
    """
    card, parity = read_card(folder), read_parity(folder)
    costs = {name: entry["cost"] for name, entry in parity.items() if "recall_at_1" in (entry.get("cost") or {})}
    if not costs:
        raise UsageError(
            f"{folder} holds no cost of a precision. Measure it: zoo export {folder} --precision all",
            code="no-precision-cost",
        )
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
        "bytes": {
            name: (folder / file).stat().st_size for name, file in GRAPH_FILES.items() if (folder / file).is_file()
        },
        "int8": {key: parity.get("int8", {}).get("details", {}).get(key) for key in ("quantised", "calibrated_on")},
        "cosines": {name: parity[name]["min_cosine"] for name in costs},
        "costs": costs,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table with one row per model and variant."""
    head = ["model", "architecture", "variant", "MiB", "least cosine", *_heads("R@1"), *_heads("MAP@R")]
    lines = [_line(row, name, cost) for row in rows for name, cost in row["costs"].items()]
    return Table(head, lines, head[3:]).markdown()


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
    """Return the table with one row per pool of models and variant, and the dates below it."""
    head = ["architecture", "models", "variant", *_heads("R@1"), "95 % over seeds", *_heads("MAP@R")]
    lines = []
    for pool in known:
        for name, cost in pool["costs"].items():
            cells, seeds = _changes(cost), _judged(pool["over_seeds"][name]["interval"], 2)
            size = f"{pool['architecture']}, {pool['input']} px"
            lines.append([size, str(len(pool["seeds"])), name, *cells[:4], seeds, *cells[4:]])
    dates = " ".join(f"{pool['architecture']}: {pool['date']}, {pool['hardware']}." for pool in known)
    return f"{Table(head, lines, head[3:]).markdown()}\n\n{dates}"


def _changes(cost: Mapping[str, Any]) -> list[str]:
    cells = []
    for metric in COST_METRICS:
        change = cost[metric]
        digits = 2 if metric == "recall_at_1" else 3
        cells.append(f"{change['fp32']:.{digits + 1}f}")
        cells.append(f"{100 * change['difference']:+.{digits}f}")
        over_queries = change.get("over_queries", {})  # older packages did not write it
        cells += [_judged(record.get("interval"), digits) for record in (change, over_queries)]
    return cells


def _judged(interval: Sequence[float] | None, digits: int) -> str:
    if interval is None:
        return "-"
    low, high = (100 * bound for bound in interval)
    return f"{low:+.{digits}f} to {high:+.{digits}f}, {cost_verdict(interval)}"


def models(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the list of models, with the scope of their int8 graphs."""
    return "\n".join(
        f"- {row['model']}: {row['architecture']} {json.dumps(row['args'])}, {row['dim']} dimensions, {row['steps']:,} "
        f"steps, seed {row['seed']}; {row['bytes']['fp32'] / MEBI:.2f} MiB in fp32; int8: {row['int8']['quantised']}, "
        f"calibrated on {row['int8']['calibrated_on']}."
        for row in rows
    )


def page(text: str, known: Mapping[str, Any]) -> str:
    """Return the page with new parts between `<!-- name -->` and `<!-- end -->`."""
    dates = [row["date"] for row in known["rows"]]
    versions = ", ".join(f"{name} {number}" for name, number in known["rows"][0]["versions"].items())
    origin = f"Measured {min(dates)} to {max(dates)} on {known['hardware']}; {versions}."
    parts = {"costs": table(known["rows"]), "models": models(known["rows"]), "origin": origin}
    return replace_parts(text, {**parts, "pools": pools(known.get("pools", ()))})


def write_page(docs: Path, known: Mapping[str, Any]) -> None:
    """Write the figures, and the page made from them."""
    shown = docs / PAGE
    text = page(shown.read_text(encoding="utf-8"), known)
    write_json(docs / FIGURES, known)
    write_bytes(shown, text.encode())


def pooled(folders: Sequence[Path], data: str | None = None) -> dict[str, Any]:
    """Return each precision's mean change over the models, judged like one model's (`zoo.evaluation.remeasure`).

    Raises:
        UsageError: If there are not several models of one recipe, each with its own seed (code "not-one-recipe").
    """
    cards, recipes = [read_card(folder) for folder in folders], [_recipe(folder) for folder in folders]
    seeds = [int(recipe.pop("seed")) for recipe in recipes]
    if len(set(seeds)) < max(2, len(seeds)) or any(recipe != recipes[0] for recipe in recipes):
        raise UsageError(
            "--pool takes two or more models of one recipe, each trained with its own seed.", code="not-one-recipe"
        )
    dataset = load_dataset(cards[0].dataset, "test", data)
    measured: dict[str, list[PerQuery]] = {}
    for folder in folders:
        for precision in ("fp32", *PRECISIONS):
            print(f"{folder.name}, {precision}", file=sys.stderr)
            model = load(folder, runtime="onnx", precision=precision)
            measured.setdefault(precision, []).append(measure_retrieval(dataset, model, progress=sys.stderr.isatty()))
    fp32 = mean_of(measured["fp32"])
    return {
        "method": cards[0].method,
        "dataset": dataset.name,
        "architecture": cards[0].architecture,
        "input": cards[0].preprocessing.crop,
        "seeds": seeds,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "costs": {name: precision_cost(dataset, fp32, mean_of(measured[name]), name) for name in PRECISIONS},
        "over_seeds": {name: _over_seeds(measured["fp32"], measured[name]) for name in PRECISIONS},
    }


def _kind(pool: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(pool[key]) for key in ("architecture", "method", "dataset", "input"))


def mean_of(measured: Sequence[PerQuery]) -> PerQuery:
    """Return each query's mean over models that were measured on the same queries."""
    first = measured[0]
    values = {name: np.mean([scores.values[name] for scores in measured], axis=0) for name in first.values}
    return replace(first, values=values)


def _over_seeds(before: Sequence[PerQuery], after: Sequence[PerQuery]) -> dict[str, Any]:
    """Return each model's change of R@1, and the interval of the mean over models of the recipe on these images."""
    pairs = zip(before, after, strict=True)
    changes = [b.means()["recall_at_1"] - a.means()["recall_at_1"] for a, b in pairs]
    return {"changes": changes, "interval": list(interval_over_seeds(changes))}


def _recipe(folder: Path) -> dict[str, Any]:
    recipe: dict[str, Any] = read_json(folder / "recipe.json")["recipe"]
    return {key: value for key, value in recipe.items() if key != "name"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python tools/precision_cost.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or folders of exported models")
    parser.add_argument("--pool", action="store_true", help="measure the models and keep their mean")
    parser.add_argument("--data", metavar="DIR", help="the folder of the data set (with --pool)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the two files (default: docs)")
    args = parser.parse_args(arguments)
    try:
        store = args.docs / FIGURES
        known = read_json(store) if store.is_file() or not args.models else {}
        if args.pool:
            new = pooled([find_model(name) for name in args.models], args.data)
            others = [pool for pool in known.get("pools", ()) if _kind(pool) != _kind(new)]
            known |= {"pools": sorted([*others, new], key=_kind)}
        elif args.models:
            known |= {"hardware": hardware(), "rows": [row(find_model(name)) for name in args.models]}
        write_page(args.docs, known)
    except (ZooError, OSError) as error:
        raise SystemExit(f"precision_cost: error: {error}") from None


if __name__ == "__main__":
    main()
