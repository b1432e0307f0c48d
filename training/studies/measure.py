"""Measurement of trained networks: views of a network, the splits of a data set, metrics and singular values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.cached.maps import frozen_inputs
from training.health.held_out import embed_held_out
from training.recipe import Recipe
from training.studies.study import (
    CATEGORICAL_FACTORS,
    EMBEDDING,
    FEATURES,
    NUMERIC_FACTORS,
    RANDOM_HEAD,
    REDUCED_FEATURES,
    Study,
    lacks_view,
)
from training.trainer import Trainer, published, training_features
from zoo import data as datasets
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DatasetError, RecipeError
from zoo.evaluation import evaluate
from zoo.evaluation.retrieval import DEFAULT_K, retrieval_metrics
from zoo.evaluation.structure import neighbours_across_classes, order_within_classes
from zoo.models.network import Network, PixelNetwork, feature_count

Embeddings = Mapping[tuple[str, str], np.ndarray]
"""Unit rows float32 [n, d] by split and view."""

ViewFunction = Callable[[Tensor], Tensor]
"""From pooled features [n, f] to the rows of a view."""


@dataclass
class Splits:
    """The splits of data sets and their pixels as networks take them, read on first use.

    Only pixels of the last preprocessing are kept, because the arms of a study mostly share one. `maps` has what frozen
    layers gave for them, see `embed_views`.
    """

    root: str | Path | None
    datasets: dict[tuple[str, str], Dataset] = field(default_factory=dict)
    pixels: dict[tuple[str, str, Preprocessing], np.ndarray] = field(default_factory=dict)
    maps: dict[tuple[str, str, Preprocessing], dict[str, Tensor]] = field(default_factory=dict)
    digests: dict[tuple[str, str, Preprocessing], str] = field(default_factory=dict)

    def dataset(self, name: str, split: str) -> Dataset:
        """Return a split of a data set."""
        if (name, split) not in self.datasets:
            self.datasets[name, split] = datasets.load_dataset(name, split, self.root)
        return self.datasets[name, split]

    def images(self, name: str, split: str, preprocessing: Preprocessing) -> np.ndarray:
        """Return the pixels of a split, uint8 [n, crop, crop, c].

        Raises:
            DatasetError: If an image cannot be read; no score leaves one out.
        """
        key = name, split, preprocessing
        if key not in self.pixels:
            self.pixels = {old: value for old, value in self.pixels.items() if old[2] == preprocessing}
            self.maps = {old: value for old, value in self.maps.items() if old[2] == preprocessing}
            dataset = self.dataset(name, split)
            self.pixels[key] = decode(dataset, np.arange(len(dataset)), Squares(preprocessing), split).pixels
        return self.pixels[key]

    def digest(self, name: str, split: str, preprocessing: Preprocessing) -> str:
        """Return eight hexadecimal digits that differ for other pixels or labels of a split."""
        key = name, split, preprocessing
        if key not in self.digests:
            total = hashlib.sha256()
            for array in (self.images(*key), self.dataset(name, split).labels):
                total.update(f"{array.dtype} {array.shape}".encode())
                total.update(np.ascontiguousarray(array).data)
            self.digests[key] = total.hexdigest()[:8]
        return self.digests[key]


def embed_splits(
    networks: Sequence[Network],
    recipes: Sequence[Recipe],
    study: Study,
    splits: Splits,
    device: torch.device,
) -> Embeddings:
    """Embed every split of a study once with every network, and join the views that all of several networks have.

    Args:
        networks: The networks of a run, several for an ensemble.
        recipes: The recipe of each network.
        study: The study, whose views are embedded.
        splits: The images.
        device: Where to embed.
    """
    embeddings = {}
    for split in dict.fromkeys(split for split, _ in study.views):
        views = [view for view_split, view in study.views if view_split == split]
        views = [view for view in views if not any(lacks_view(network.heads, view) for network in networks)]
        members = []
        for network, recipe in zip(networks, recipes, strict=True):
            key = recipe.data.dataset, split, recipe.preprocessing
            pixels = splits.images(*key)
            members.append(embed_views(network, recipe, pixels, views, device, splits.maps.setdefault(key, {})))
        for view in views:
            joined = np.concatenate([member[view] for member in members], axis=1)
            embeddings[split, view] = joined / np.float32(len(members)) ** np.float32(0.5)
    return embeddings


def embed_views(
    network: Network,
    recipe: Recipe,
    pixels: np.ndarray,
    views: Sequence[str],
    device: torch.device,
    maps: dict[str, Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Embed images by every view in one pass through the trunk.

    Args:
        network: The network.
        recipe: Its recipe.
        pixels: uint8 [n, crop, crop, c].
        views: `EMBEDDING`, `FEATURES`, reduced features, `RANDOM_HEAD` or the name of a head.
        device: Where to embed.
        maps: What the frozen layers of the last trunk gave for these images, by the digest of the layers. They are read
            and replaced here, so that successive networks with equal frozen layers share them.

    Returns:
        Unit rows float32 [n, d] by view.

    Raises:
        RecipeError: If the network lacks a head.
    """
    functions = {view: _view_function(network, view, recipe.seed) for view in views}
    normalised = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    rows: dict[str, list[Tensor]] = {view: [] for view in views}
    with torch.inference_mode():
        inputs, forward = frozen_inputs(normalised, pixels, device, maps)
        for chunk in inputs:
            pooled = forward(chunk)
            for view, function in functions.items():
                rows[view].append(function(pooled).float().cpu())
    return {view: _reduce(torch.cat(chunks), view).numpy() for view, chunks in rows.items()}


def measure_views(embeddings: Embeddings, study: Study, splits: Splits, dataset: str) -> list[dict[str, Any]]:
    """Return one measurement per split and view: as in results.json, with `view` and, if wanted, `spectrum` added.

    Args:
        embeddings: Unit rows float32 [n, d] by split and view.
        study: The study, for its measures.
        splits: The splits of data sets.
        dataset: The name of the data set.
    """
    measurements = []
    for (split, view), rows in embeddings.items():
        data, groups = splits.dataset(dataset, split), study.groups(split)
        metrics = ("retrieval", *(name for name in groups if name != "factors"))
        evaluation = evaluate(rows, data, k=sorted({*DEFAULT_K, *study.recalls(split)}), metrics=metrics)
        measurement = {**evaluation.to_json(), "view": view}
        if "factors" in groups:
            measurement["metrics"] = {**measurement["metrics"], **factor_metrics(rows, data)}
        if study.spectrum:
            measurement["spectrum"] = _singular_values(rows)
            measurement["spectrum_by_class"] = class_singular_values(rows, data.labels)
        measurements.append(measurement)
    return measurements


def curve_scores(run: Trainer) -> dict[str, float]:
    """Return R@1 of a run: of the training images, not augmented, and of each of several heads.

    Returns:
        `training_recall_at_1`, and `validation_recall_at_1_of_HEAD` on the held-out classes if there are some.
    """
    network = published(run)
    with torch.no_grad():
        rows = network.embed(training_features(run, network)).float().cpu().numpy()
    scores = {"training_recall_at_1": retrieval_metrics(rows, run.data.labels, k=(1,))["recall_at_1"]}
    if run.data.validation is None or len(network.heads) < 2:
        return scores
    labels = run.data.validation[1]
    for name, head in network.heads.items():
        single = Network(network.trunk, nn.ModuleDict({name: head}))
        rows = embed_held_out(single, run.data, run.recipe.preprocessing, run.execution.device)
        scores[f"validation_recall_at_1_of_{name}"] = retrieval_metrics(rows, labels, k=(1,))["recall_at_1"]
    return scores


def factor_metrics(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    """Return `factor_NAME` of each factor: how much embeddings tell about what varies within a class (glyphs).

    Args:
        rows: Unit rows [n, d].
        dataset: The data set with its factors.

    Returns:
        Of categorical factors the precision of the nearest neighbour of another class, of numeric factors the rank
        correlation with distances within a class (`zoo.evaluation.structure`).

    Raises:
        DatasetError: If the data set lacks a factor.
    """
    for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS):
        if name not in dataset.factors:
            raise DatasetError(
                f"{dataset.name} has no factor {name!r}; only glyphs has all that are measured.", code="unknown-name"
            )
    factors = dataset.factors
    across = {
        name: neighbours_across_classes(rows, dataset.labels, factors[name])["precision"]
        for name in CATEGORICAL_FACTORS
    }
    within = {name: order_within_classes(rows, dataset.labels, factors[name]) for name in NUMERIC_FACTORS}
    return {f"factor_{name}": value for name, value in {**across, **within}.items()}


def _singular_values(rows: np.ndarray) -> list[float]:
    """Return the singular values of uncentred rows [n, d] over their sum, largest first (Revisiting, section 5)."""
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    return [float(value) for value in values / values.sum()]


def class_singular_values(rows: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return the singular values of each class's rows over their sum, averaged over classes (Revisiting, appendix C).

    Args:
        rows: Rows [n, d], not centred.
        labels: Classes, int64 [n]; those of one sample are left out.

    Returns:
        As many values as the largest class has samples, at most d; a smaller class has zeros at the end. [] if no class
        has two samples.
    """
    own = [rows[labels == label] for label in np.unique(labels)]
    spectra = [_singular_values(members) for members in own if len(members) > 1]
    length = max(map(len, spectra), default=0)
    padded = [spectrum + [0.0] * (length - len(spectrum)) for spectrum in spectra]
    return [float(value) for value in np.mean(padded, axis=0)] if padded else []


def _view_function(network: Network, view: str, seed: int) -> ViewFunction:
    """Return the function from pooled features [n, f] to the rows of a view, of unit length unless reduced later."""
    if view == EMBEDDING:
        return network.embed
    if view == FEATURES:
        return lambda features: normalize(features, dim=1)
    if REDUCED_FEATURES.fullmatch(view):
        return lambda features: features
    if view == RANDOM_HEAD:
        return _random_head(network, seed)
    if view not in network.heads:
        raise RecipeError(
            f"the network has no head {view!r} to measure; its heads: {', '.join(network.heads) or 'none'}.",
            code="unknown-name",
        )
    head = network.heads[view]
    return lambda features: normalize(head(features), dim=1)


def _random_head(network: Network, seed: int) -> ViewFunction:
    """Return a linear map with the first head's dimension, drawn as PyTorch draws a head's first weights."""
    width = feature_count(network.trunk)
    dims = [int(head.out_features) for head in network.heads.values()]  # type: ignore[arg-type]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        weights = nn.Linear(width, dims[0] if dims else width).weight.detach()
    return lambda features: normalize(features @ weights.T.to(features), dim=1)


def _reduce(rows: Tensor, view: str) -> Tensor:
    """Project the rows [n, f] of a reduced view on their principal components; return other views unchanged.

    Reality reduces the features of untrained backbones to the dimension of trained models in this way.
    """
    match = REDUCED_FEATURES.fullmatch(view)
    if match is None:
        return rows
    centred = rows.double() - rows.double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[: int(match[1])]
    return normalize(centred @ directions.T, dim=1).float()
