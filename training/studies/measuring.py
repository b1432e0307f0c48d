"""What a finished training is worth: every view of its network, on the splits that a study measures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.recipe import Recipe
from training.studies.factors import factor_metrics
from training.studies.study import Study
from training.studies.views import embed_views
from zoo import data as datasets
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode
from zoo.data.preprocessing import Preprocessing
from zoo.evaluation import evaluate
from zoo.evaluation.retrieval import DEFAULT_K
from zoo.models.network import Network

Rows = Mapping[tuple[str, str], np.ndarray]
"""Embeddings by split and view."""


@dataclass
class Splits:
    """The splits of data sets with their pixels as networks take them, read when they are first asked for.

    Those of the last preprocessing are kept, since the arms of a study mostly share one.
    """

    root: str | Path | None
    known: dict[tuple[str, str], Dataset] = field(default_factory=dict)
    pixels: dict[tuple[str, str, Preprocessing], np.ndarray] = field(default_factory=dict)
    digests: dict[tuple[str, str, Preprocessing], str] = field(default_factory=dict)

    def dataset(self, name: str, split: str) -> Dataset:
        if (name, split) not in self.known:
            self.known[name, split] = datasets.load(name, split, self.root)
        return self.known[name, split]

    def images(self, name: str, split: str, how: Preprocessing) -> np.ndarray:
        """uint8 [n, crop, crop, c]. Raises `DatasetError` where an image cannot be read: no score leaves one out."""
        if (name, split, how) not in self.pixels:
            self.pixels = {key: value for key, value in self.pixels.items() if key[2] == how}
            dataset = self.dataset(name, split)
            self.pixels[name, split, how] = decode(dataset, np.arange(len(dataset)), Squares(how), split).pixels
        return self.pixels[name, split, how]

    def digest(self, name: str, split: str, how: Preprocessing) -> str:
        """Eight hexadecimal digits that differ for other pixels or labels of a split."""
        if (name, split, how) not in self.digests:
            total = hashlib.sha256()
            for array in (self.images(name, split, how), self.dataset(name, split).labels):
                total.update(f"{array.dtype} {array.shape}".encode())
                total.update(np.ascontiguousarray(array).data)
            self.digests[name, split, how] = total.hexdigest()[:8]
        return self.digests[name, split, how]


def embed(networks: Sequence[Network], recipes: Sequence[Recipe], study: Study, splits: Splits, device: Any) -> Rows:
    """Every split once through every network; the views of several networks are joined."""
    rows = {}
    for split in dict.fromkeys(split for split, _ in study.views):
        views = [view for place, view in study.views if place == split]
        members = []
        for network, recipe in zip(networks, recipes, strict=True):
            pixels = splits.images(recipe.data.dataset, split, recipe.preprocessing)
            members.append(embed_views(network, recipe, pixels, views, torch.device(device)))
        for view in views:
            joined = np.concatenate([member[view] for member in members], axis=1)
            rows[split, view] = joined / np.float32(len(members)) ** np.float32(0.5)
    return rows


def measure(rows: Rows, study: Study, splits: Splits, dataset: str) -> list[dict[str, Any]]:
    """One measurement a split and view, each as in a model's results.json with `view` added, and its spectrum."""
    found = []
    for (split, view), embedded in rows.items():
        data, groups = splits.dataset(dataset, split), study.groups(split)
        named = ("retrieval", *(name for name in groups if name != "factors"))
        outcome = evaluate(embedded, data, k=sorted({*DEFAULT_K, *study.recalls(split)}), metrics=named)
        facts = {**outcome.to_json(), "view": view}
        if "factors" in groups:
            facts["metrics"] = {**facts["metrics"], **factor_metrics(embedded, data)}
        if study.spectrum:
            facts["spectrum"] = spectrum_of(embedded)
        found.append(facts)
    return found


def spectrum_of(rows: np.ndarray) -> list[float]:
    """The singular values of uncentred rows [n, d] over their sum, the largest first (Revisiting, section 5)."""
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    return [float(value) for value in values / values.sum()]
