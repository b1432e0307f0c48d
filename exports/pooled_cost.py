"""What fp16 and int8 cost models of one recipe on average: `python -m exports.pooled_cost MODEL...`, one a seed.

The queries of one model are too few to know a loss of R@1 to within 0.2 points: int8 answers some of a hundred
otherwise, nearly as many for the better as for the worse. Which of them is chance; the mean over models has less of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from exports.cost_page import FIGURES, write_page
from exports.families import DOCS, hardware
from zoo.cards import read_card
from zoo.comparison.compare import interval_over_seeds
from zoo.datasets import load as load_dataset
from zoo.errors import UsageError, ZooError
from zoo.evaluation.metrics import PerQuery
from zoo.files import read_json
from zoo.loading import load
from zoo.precision_cost import precision_cost, retrieval
from zoo.registry import find

PRECISIONS = ("fp16", "int8")


def pooled(folders: Sequence[Path], data: str | None = None) -> dict[str, Any]:
    """What each precision changes on average of the models, judged as one model's changes are (`zoo.precision_cost`).

    Raises `UsageError` unless there are several, of one architecture and data set and of a seed each.
    """
    cards, recipes = [read_card(folder) for folder in folders], [_recipe(folder) for folder in folders]
    seeds = [int(recipe.pop("seed")) for recipe in recipes]
    if len(set(seeds)) < max(2, len(seeds)) or any(recipe != recipes[0] for recipe in recipes):
        raise UsageError("what is pooled are models of one recipe, two or more, each trained with a seed of its own.")
    dataset = load_dataset(cards[0].dataset, "test", data)
    measured: dict[str, list[PerQuery]] = {}
    for folder in folders:
        for precision in ("fp32", *PRECISIONS):
            print(f"{folder.name}, {precision}", file=sys.stderr)
            model = load(folder, runtime="onnx", precision=precision)
            measured.setdefault(precision, []).append(retrieval(dataset, model, progress=sys.stderr.isatty()))
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


def _what(pool: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(pool[key]) for key in ("architecture", "method", "dataset", "input"))


def mean_of(measured: Sequence[PerQuery]) -> PerQuery:
    """Each query's mean over models that were measured on the same queries."""
    first = measured[0]
    values = {name: np.mean([each.values[name] for each in measured], axis=0) for name in first.values}
    return replace(first, values=values)


def _over_seeds(before: Sequence[PerQuery], after: Sequence[PerQuery]) -> dict[str, Any]:
    """Each model's change of R@1, and the interval of the mean over further models of the recipe, on these images."""
    pairs = zip(before, after, strict=True)
    changes = [b.means()["recall_at_1"] - a.means()["recall_at_1"] for a, b in pairs]
    return {"changes": changes, "interval": list(interval_over_seeds(changes))}


def _recipe(folder: Path) -> dict[str, Any]:
    recipe: dict[str, Any] = read_json(folder / "recipe.json")["recipe"]
    return {key: value for key, value in recipe.items() if key != "name"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m exports.pooled_cost", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names or folders of exported models")
    parser.add_argument("--data", metavar="DIR", help="where the data set lies")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where precision-cost.json and .md are (default: docs)")
    args = parser.parse_args(arguments)
    try:
        known = read_json(args.docs / FIGURES)
        found = pooled([find(name) for name in args.models], args.data)
        others = [pool for pool in known.get("pools", ()) if _what(pool) != _what(found)]
        write_page(args.docs, {**known, "pools": sorted([*others, found], key=_what)})
    except (ZooError, OSError) as error:
        raise SystemExit(f"exports.pooled_cost: error: {error}") from None


if __name__ == "__main__":
    main()
