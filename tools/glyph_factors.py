"""Scores of what each head of a model knows of the factors of glyphs: python tools/glyph_factors.py MODEL... [--json]

For models named NAME-seed0, NAME-seed1 and so on, it also prints means and paired differences with 95 % intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from training.functional import Decorrelation
from training.studies.compare import SEEDED
from training.studies.measure import factor_metrics
from training.studies.statistics import Seeds, Summary, metric_bounds, paired_difference, summarise
from training.studies.study import CATEGORICAL_FACTORS
from zoo import data
from zoo.console import print_json
from zoo.data.decode import decode_batches
from zoo.errors import ZooError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.structure import neighbours_across_classes, predictability
from zoo.models.card import read_card
from zoo.models.load import find_model
from zoo.models.network import PixelNetwork, load_network

Figures = Mapping[tuple[str, str], Seeds]
"""Values by head and figure."""


def embed_heads(folder: Path, images: Any) -> dict[str, np.ndarray]:
    """Return the unit embeddings float32 [n, dim] of every head of the model in `folder`, by the head's name."""
    card = read_card(folder)
    network = load_network(card, folder).eval()
    pixels = PixelNetwork(network, card.preprocessing)
    embeddings: dict[str, list[torch.Tensor]] = {name: [] for name in network.heads}
    with torch.inference_mode():
        for chunk in decode_batches(images, card.preprocessing, 256):
            features = network.trunk(pixels.images(torch.from_numpy(chunk)))
            for name, head in network.heads.items():
                embeddings[name].append(normalize(head(features), dim=1))
    return {name: torch.cat(rows).numpy() for name, rows in embeddings.items()}


def correlation(a: np.ndarray, b: np.ndarray, labels: np.ndarray, steps: int = 300) -> float:
    """Return the correlation that decorrelation minimises, measured by a new regressor on finished embeddings.

    It is the mean of (a_s p(b)_s)^2 over samples and dimensions (Sharing, section 3.3). The regressor p is trained on
    every other class to maximise it and measured on the rest. The result is multiplied by the squared dimension, so
    that constant directions give 1.
    """
    torch.manual_seed(0)
    even = torch.from_numpy(np.isin(labels, np.unique(labels)[::2]))
    rows, others = torch.from_numpy(a), torch.from_numpy(b)
    pair = Decorrelation(rows.shape[1], others.shape[1])
    optimizer = torch.optim.Adam(pair.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        pair(rows[even], others[even]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(-pair(rows[~even], others[~even])) * rows.shape[1] ** 2


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of each head on the test split of glyphs, whose classes no model has seen.

    They are R@1, the precision of each category across classes, the order of each measure within classes and, for all
    heads after the first, how well the first head predicts them and correlates with them.
    """
    dataset = data.load_dataset("glyphs", "test")
    heads = embed_heads(folder, dataset.images)
    first = next(iter(heads))
    report: dict[str, Any] = {}
    for name, rows in heads.items():
        report[name] = {
            "recall_at_1": retrieval_metrics(rows, dataset.labels, k=(1,))["recall_at_1"],
            **{name.removeprefix("factor_"): value for name, value in factor_metrics(rows, dataset).items()},
        }
        if name != first:
            report[name][f"predicted_by_{first}"] = predictability(heads[first], rows, dataset.labels)
            report[name][f"correlation_with_{first}"] = correlation(heads[first], rows, dataset.labels)
    chance = {
        f: neighbours_across_classes(rows, dataset.labels, dataset.factors[f])["chance"] for f in CATEGORICAL_FACTORS
    }
    return {"model": folder.name, "heads": report, "chance": chance}


def by_model(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Figures]:
    """Return the figures of reports of `measure` by model, without its seed; models without a seed are left out."""
    models: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for report in reports:
        if match := SEEDED.fullmatch(report["model"]):
            figures = models.setdefault(match["name"], {})
            for head, values in report["heads"].items():
                for name, value in values.items():
                    figures.setdefault((head, name), {})[int(match["seed"])] = value
    return models


def lines(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield, for each model of several seeds, the figures of every head.

    They follow again minus those of the model's first head, and minus those of the first model's same head: means with
    95 % Student-t intervals, differences paired by seed.
    """
    models = by_model(reports)
    reference = next(iter(models), "")
    for model, figures in models.items():
        first = next(iter(figures))[0]
        yield f"{model}, {max(len(seeds) for seeds in figures.values())} seeds"
        yield from _lines(figures, "")
        yield f"{model}: less its head {first!r}"
        yield from _lines(_less(figures, {key: figures.get((first, key[1]), {}) for key in figures}), "+", but=first)
        if model != reference:
            yield f"{model} less {reference}"
            yield from _lines(_less(figures, models[reference]), "+")


def metric(name: str) -> str:
    """Return the metric of a figure's name."""
    return name if name == "recall_at_1" else f"factor_{name}"


def _less(figures: Figures, others: Figures) -> dict[tuple[str, str], Summary]:
    differences = {key: paired_difference(seeds, others.get(key, {}), metric(key[1])) for key, seeds in figures.items()}
    return {key: difference for key, difference in differences.items() if difference is not None}


def _lines(figures: Mapping[tuple[str, str], Seeds | Summary], sign: str, but: str = "") -> Iterator[str]:
    for (head, name), values in figures.items():
        if head != but:
            seeds = () if isinstance(values, Summary) else list(values.values())
            mean = values if isinstance(values, Summary) else summarise(seeds, metric_bounds(metric(name)))
            bounds = "" if mean.interval is None else f" ({mean.interval[0]:{sign}.3f} to {mean.interval[1]:{sign}.3f})"
            yield f"  {head:15s} {name:32s} {mean.mean:{sign}.3f}{bounds}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/glyph_factors.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names or folders of models with several heads")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(arguments)
    try:
        reports = [measure(find_model(name)) for name in args.models]
    except ZooError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json:
        print_json(reports)
        return 0
    for report in reports:
        print(report["model"], "(chance:", ", ".join(f"{k} {v:.3f}" for k, v in report["chance"].items()) + ")")
        for head, figures in report["heads"].items():
            print(f"  {head:15s}", "  ".join(f"{k} {v:.3f}" for k, v in figures.items()))
    for line in lines(reports):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
