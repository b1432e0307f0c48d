"""Fit the line of relevance of a whitened baseline: python -m tools.fit_relevance photos --data DIR --features CACHE

Searches of several subjects are drawn, each embedded by whitening that was fitted on the other subjects alone, as for
the pictures of a user. Of each subject the curve of the other subjects is measured; the one of all subjects is written
to the model's relevance.json. Labels are used to tell which results show what the query shows, and for nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from zoo.data import load_dataset
from zoo.data.dataset import Dataset, subset
from zoo.evaluation.relevance import SAMPLE, RelevanceCurve, Spread, spread_of
from zoo.files import read_json, write_json
from zoo.models.baseline_folder import pooled_features
from zoo.models.card import read_card
from zoo.models.folder import RELEVANCE_FILE
from zoo.models.names import find_model
from zoo.models.network import load_network
from zoo.models.torch_runtime import run_trunk
from zoo.models.whitening import fit_whitening

SUBJECTS = {"cub2010": (40, 40), "cars-half": (20, 20), "cifar100": (30, 25), "omniglot": (10, 10)}
"""Images of each class, at most: of the training classes and of the test classes."""

GALLERIES, QUERIES, RESULTS = 40, 60, 10
"""Galleries drawn of a subject, queries of each (a third of them without relatives there), and results of a query."""

FEWEST_CLASSES, MOST_IMAGES = 20, 30
LINES, MOST_ALONE = (0.75, 0.8, 0.85, 0.9), 0.1
"""Lines to choose from, and the share of queries without relatives that may show results above the line."""


@dataclass(frozen=True)
class Searches:
    """Results of searches, the best first.

    Attributes:
        contrasts: float64 [q, RESULTS].
        same: Whether each result has the query's class, bool [q, RESULTS].
        answerable: Whether the gallery has the query's class, bool [q].
    """

    contrasts: np.ndarray
    same: np.ndarray
    answerable: np.ndarray

    @classmethod
    def drawn(cls, rows: np.ndarray, labels: np.ndarray, seed: int) -> Searches:
        """Search random galleries of a subject's unit rows [n, d]: 20 classes or more, of 1 to 2 to 30 images each."""
        rng, classes = np.random.default_rng(seed), np.unique(labels)
        parts = [_search_once(rows, labels, classes, rng) for _ in range(GALLERIES)]
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _search_once(
    rows: np.ndarray, labels: np.ndarray, classes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of `Searches` for one random gallery."""
    number = int(rng.integers(FEWEST_CLASSES, max(FEWEST_CLASSES, len(classes) * 3 // 4) + 1))
    most, chosen = int(rng.integers(2, MOST_IMAGES + 1)), set(rng.choice(classes, number, replace=False).tolist())
    shuffled = {label: rng.permutation(np.flatnonzero(labels == label)) for label in classes.tolist()}
    gallery = np.concatenate([shuffled[label][1 : 1 + most] for label in classes.tolist() if label in chosen])
    within = rng.permutation([shuffled[label][0] for label in classes.tolist() if label in chosen])
    others = rng.permutation([shuffled[label][0] for label in classes.tolist() if label not in chosen])
    queries = np.concatenate([within[: QUERIES * 2 // 3], others[: QUERIES // 3]]).astype(np.int64)
    sample = rows[rng.permutation(gallery)[:SAMPLE]]
    similarities = rows[queries] @ rows[gallery].T
    best = np.argsort(-similarities, axis=1, kind="stable")[:, :RESULTS]
    near = np.take_along_axis(similarities, best, axis=1)
    asked, own = spread_of(rows[queries] @ sample.T), spread_of(rows[gallery] @ sample.T)
    assert asked is not None
    assert own is not None
    contrasts = np.minimum(
        Spread(asked.mean[:, None], asked.deviation[:, None]).contrasts(near),
        Spread(own.mean[best], own.deviation[best]).contrasts(near),
    )
    same = labels[gallery][best] == labels[queries][:, None]
    return contrasts, same, np.isin(labels[queries], list(chosen))


def fit_curve(searches: Sequence[Searches], line: float = LINES[0]) -> RelevanceCurve:
    """Return the logistic curves of first and later results; each subject has the same weight."""
    pairs = []
    for ranks in (slice(0, 1), slice(1, None)):
        contrasts = [part.contrasts[:, ranks].ravel() for part in searches]
        same = [part.same[:, ranks].ravel() for part in searches]
        weights = [np.full(len(part), 1 / len(part)) for part in contrasts]
        pairs.append(_logistic_regression(*map(np.concatenate, (contrasts, same, weights))))
    return RelevanceCurve(pairs[0], pairs[1], line)


def choose_line(left_out: Sequence[tuple[RelevanceCurve, Searches]]) -> float:
    """Return the lowest line above which few queries without relatives show results, for every subject left out."""
    for line in LINES:
        shown = [probabilities(curve, part)[~part.answerable, 0] >= line for curve, part in left_out]
        if max(float(rows.mean()) for rows in shown) <= MOST_ALONE:
            return line
    return LINES[-1]


def _logistic_regression(values: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return a and b of the most likely curve 1 / (1 + exp(-(a + b z)))."""
    fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(values[:, None], outcomes, weights)
    return round(float(fitted.intercept_[0]), 4), round(float(fitted.coef_[0, 0]), 4)


def probabilities(curve: RelevanceCurve, searches: Searches) -> np.ndarray:
    """Return the probabilities of all results, float64 [q, RESULTS]."""
    return np.array([curve.probabilities(row) for row in searches.contrasts])


def describe(curve: RelevanceCurve, searches: Searches) -> str:
    """Return a row of the table in docs/lab/shipped-models.md: error, precision above the line, queries with some."""
    chances = probabilities(curve, searches)
    above, order = chances >= curve.line, np.argsort(chances, axis=None)
    groups = np.array_split(order, 10)
    errors = [abs(chances.flat[group].mean() - searches.same.flat[group].mean()) * len(group) for group in groups]
    precision = f"{searches.same[above].mean():.2f} ({above.sum():,})" if above.any() else "none are above"
    shown, alone = (above[rows, 0].mean() for rows in (searches.answerable, ~searches.answerable))
    return f"{sum(errors) / chances.size:.3f} | {precision} | {shown:.2f} | {alone:.2f}"


def _features(name: str, split: str, most: int, model: Path, data: Path | None, cache: Path) -> tuple[np.ndarray, ...]:
    """Return the trunk's features [n, f] and the labels of a data set, from the cache if it has them."""
    file = cache / f"{name}-{split}.npz"
    if not file.is_file():
        dataset = _few_of_each(load_dataset(name, split, data), most)
        card = read_card(model)
        features = pooled_features(run_trunk(load_network(card, model).trunk), card, dataset.images, progress=True)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, f=features, y=dataset.labels)
    with np.load(file) as stored:
        return stored["f"], stored["y"]


def _few_of_each(dataset: Dataset, most: int) -> Dataset:
    kept = np.concatenate([np.flatnonzero(dataset.labels == label)[:most] for label in range(len(dataset.classes))])
    return subset(dataset, np.isin(np.arange(len(dataset)), kept), dataset.split)


def _unit_rows(features: np.ndarray, others: Mapping[str, np.ndarray], how: Mapping[str, float]) -> np.ndarray:
    """Return unit embeddings by whitening that is fitted on other features."""
    weight, bias = fit_whitening(np.concatenate([*others.values()]), int(how["dim"]), how["shrink"], how["power"])
    rows = features @ weight.T + bias
    result: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and fit; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a whitened baseline: a name, or a model folder, which gets the curve")
    parser.add_argument("--data", type=Path, help="the folder that holds the data sets (default: in ZOO_DATA)")
    parser.add_argument("--features", type=Path, required=True, help="folder that keeps the features of the trunk")
    options = parser.parse_args(argv)
    model = find_model(options.model)
    how = read_json(model / "recipe.json")["whitening"]
    sets = {
        (name, split): _features(name, split, most, model, options.data, options.features)
        for name, numbers in SUBJECTS.items()
        for split, most in zip(("train", "test"), numbers, strict=True)
    }
    trained = {name: sets[name, "train"][0] for name in SUBJECTS}
    searches = {}
    for name in SUBJECTS:
        features, labels = sets[name, "train"]
        others = {other: rows for other, rows in trained.items() if other != name}
        searches[name] = Searches.drawn(_unit_rows(features, others, how), labels, seed=1)
    curves = {name: fit_curve([part for other, part in searches.items() if other != name]) for name in SUBJECTS}
    line = choose_line([(curves[name], searches[name]) for name in SUBJECTS])
    curve = fit_curve([*searches.values()], line)
    tests = {
        name: Searches.drawn(_unit_rows(sets[name, "test"][0], trained, how), sets[name, "test"][1], 2)
        for name in SUBJECTS
    }
    print(
        "line | subject left out | error | precision above the line | queries with relatives that show some | without"
    )
    for each in LINES:
        for name in SUBJECTS:
            print(f"{each} | {name} | {describe(replace(curves[name], line=each), searches[name])}")
        for name in SUBJECTS:
            print(f"{each} | test classes of {name} | {describe(replace(curve, line=each), tests[name])}")
    write_json(model / RELEVANCE_FILE, curve.to_json())
    print(f"{model / RELEVANCE_FILE}: {curve}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
