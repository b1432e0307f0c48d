"""Reliability of p_same on labels that its curve was not fitted to.

    zoo embed MODEL IMAGES --out rows.npy
    python tests/benchmarks/bench_calibration.py rows.npy [--whiten 128] [--trained] [--bins]

The labels of rows.csv are halved by class, five times at random: the images of one half are the queries of the fit, and
those of the other half search all images and are checked. "other classes" fits with all labels known, "half labelled"
with those of one half alone, as in a gallery whose labels are incomplete. "first half" fits once to the first half of
the classes in the order of their names, which may be easier or harder than the second.

Each line has the mean error of p_same among the first 1, 10 and 100 results, by ten bins, and the mean number of bins
that are off by more than .05 and by more than their 95 % interval over classes (of the bins of 20 pairs and more).
--whiten fits PCA whitening to the rows; --trained trains a linear head (LDA) on half of the classes and measures the
rest. --bins prints the bins of the first 10 results, of the first random half.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from zoo.console import print_table
from zoo.evaluation import nearest_neighbours
from zoo.evaluation.calibration import (
    DEPTH,
    IDENTICAL,
    Bin,
    background,
    calibrate,
    expected_calibration_error,
    pairs_of_searches,
    reliability_bins,
)
from zoo.evaluation.embeddings import read_embeddings, read_labels, table_path
from zoo.render import Table

SHOWN, QUERIES, LEAST, HALVES = (1, 10, 100), 2000, 20, 5


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def whitened(rows: np.ndarray, dim: int) -> np.ndarray:
    centred = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(np.cov(centred.T))
    return centred @ (axes[:, -dim:] / np.sqrt(values[-dim:]))


def trained(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Train linear discriminant analysis on every second class; return the rows and labels of the others."""
    rows, own = whitened(rows, 256), labels % 2 == 1
    within = np.concatenate([rows[labels == one] - rows[labels == one].mean(axis=0) for one in np.unique(labels[own])])
    values, axes = np.linalg.eigh(np.cov(within.T))
    return rows[~own] @ (axes / np.sqrt(values + 0.1 * values.mean())), labels[~own] // 2


@dataclass(frozen=True)
class Searches:
    """Similarities and labels of the nearest others of each row, [n, k]; `labels` are the rows' own."""

    similarities: np.ndarray
    found: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, labels: np.ndarray) -> Searches:
        similarities, found = nearest_neighbours(rows, rows, max(SHOWN), exclude_self=True)
        return cls(similarities, labels[found], labels)

    def measured(self, fitted: np.ndarray, half_labelled: bool) -> list[list[Bin]]:
        """Fit to the queries of some classes; return the bins of the other queries, for each number of results."""
        asks = np.flatnonzero(np.isin(self.labels, fitted))
        asks = np.sort(np.random.default_rng(0).permutation(asks)[:QUERIES])
        found, own = self.found[asks, :DEPTH], self.labels[asks]
        known = np.isin(found, fitted) if half_labelled else np.ones(found.shape, bool)
        outcomes = np.where(known, found == own[:, None], -1)
        curve = calibrate(pairs_of_searches(self.similarities[asks, :DEPTH], outcomes, own))
        rest = np.flatnonzero(~np.isin(self.labels, fitted))
        similarities, own = self.similarities[rest], self.labels[rest][:, None]
        found = [background(row) for row in similarities]
        levels, nearest = (np.array([getattr(one, name) for one in found])[:, None] for name in ("level", "nearest"))
        values = curve.probability(similarities, levels, nearest), self.found[rest] == own, own + 0 * self.found[rest]
        counted = similarities < IDENTICAL
        return [reliability_bins(*(value[:, :k][counted[:, :k]] for value in values)) for k in SHOWN]


def cell(results: list[list[Bin]]) -> str:
    """Return the mean error and the mean number of bins that are off, of several results."""
    errors, offs, counts = [], [], []
    for result in results:
        bins = [part for part in result if part.count >= LEAST]
        off = [part for part in bins if abs(part.probability - part.share) > 0.05]
        errors.append(expected_calibration_error(bins))
        offs.append(sum(not part.low <= part.probability <= part.high for part in off))
        counts.append(len(bins))
    return f"{mean(errors):.3f} ({mean(offs):.1f} of {mean(counts):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how reliable p_same is on other labels.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--whiten", type=int)
    parser.add_argument("--trained", action="store_true")
    parser.add_argument("--bins", action="store_true")
    arguments = parser.parse_args()
    labels = np.unique(read_labels(table_path(arguments.rows)), return_inverse=True)[1]
    rows = read_embeddings(arguments.rows).rows
    if arguments.trained:
        rows, labels = trained(rows, labels)
    elif arguments.whiten:
        rows = whitened(rows, arguments.whiten)
    searches, classes = Searches.of(unit(rows), labels), np.unique(labels)
    halves = [np.random.default_rng(seed).permutation(classes)[: len(classes) // 2] for seed in range(HALVES)]
    results = {
        "other classes": [searches.measured(half, False) for half in halves],
        "half labelled": [searches.measured(half, True) for half in halves],
        "first half": [searches.measured(classes[: len(classes) // 2], False)],
    }
    lines = [(name, *(cell(list(part)) for part in zip(*found, strict=True))) for name, found in results.items()]
    print_table(Table(("fitted to", *(f"first {k}" for k in SHOWN)), lines))
    if arguments.bins:
        lines = [
            (f"{part.probability:.3f}", f"{part.share:.3f}", f"{part.low:.3f} to {part.high:.3f}", f"{part.count:,}")
            for part in results["other classes"][0][SHOWN.index(10)]
        ]
        print()
        print_table(Table(("p_same", "share", "95 % interval", "pairs"), lines))


if __name__ == "__main__":
    main()
