"""Measurement of views: recalls, reduced features compared with scikit-learn, and factors of constructed rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.raising import raises
from tests.training import toys
from tests.training.studies.test_study import data_of
from training.build import create_parts
from training.studies.measure import Splits, class_singular_values, embed_views, factor_metrics, measure_views
from training.studies.papers import find_study
from training.studies.study import (
    CATEGORICAL_FACTORS,
    NUMERIC_FACTORS,
    R1,
    Measure,
    resolve_recipes,
)
from training.trainer import Trainer
from zoo.data.dataset import Dataset
from zoo.errors import DatasetError, RecipeError


def test_any_recall_can_be_measured() -> None:
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(size=(40, 8)).astype(np.float32), np.repeat(np.arange(8), 5)
    data = Dataset(
        "inshop", "test", [np.zeros((2, 2), np.uint8)] * 40, labels, tuple("abcdefgh"), [str(i) for i in range(40)]
    )
    study = dataclasses.replace(find_study("diva/table-3"), measures=(R1, Measure("recall_at_17")), claims=())
    (measurement,) = measure_views(
        {("test", "embedding"): rows}, study, Splits(None, {("inshop", "test"): data}), "inshop"
    )
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = np.argsort(-(unit @ unit.T - 9 * np.eye(40)), axis=1)[:, :17]
    assert measurement["metrics"]["recall_at_17"] == np.mean((labels[near] == labels[:, None]).any(axis=1))
    assert {f"recall_at_{k}" for k in (1, 2, 4, 8, 17)} <= set(measurement["metrics"])
    with raises(RecipeError, "unknown-name"):
        Measure("recall_at_0")


def test_reduced_features_are_scikit_learns() -> None:
    study = find_study("reality/pretrained")
    recipe = resolve_recipes(study, study.arms[0], "glyphs", seed=0)[0]
    network, _ = create_parts(recipe, data_of(recipe, "glyphs"))
    pixels = np.random.default_rng(0).integers(0, 256, (30, *recipe.preprocessing.shape), np.uint8)
    views = embed_views(
        network, recipe, pixels, ["features reduced to 5", "features reduced to 512"], torch.device("cpu")
    )
    with torch.inference_mode():
        mean, std = (
            255 * torch.tensor(of).reshape(1, -1, 1, 1) for of in (recipe.preprocessing.mean, recipe.preprocessing.std)
        )
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        features = network.eval().trunk((images - mean) / std).numpy()
    expected = PCA(5, svd_solver="full").fit_transform(features.astype(np.float64))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = views["features reduced to 5"]
    assert rows @ rows.T == pytest.approx(expected @ expected.T, abs=1e-4)
    assert views["features reduced to 512"].shape == (30, 30)  # no more components than images


def test_networks_with_equal_frozen_layers_share_their_maps() -> None:
    toy = toys.recipe(backbone=dataclasses.replace(toys.SMALL, frozen_stages=2))
    pixels = np.random.default_rng(0).integers(0, 256, (30, *toy.preprocessing.shape), np.uint8)
    maps: dict[str, torch.Tensor] = {}
    digests, calls = [], [0, 0, 0]
    for run, seed in enumerate((0, 0, 1)):  # another seed has other frozen layers, as these start at random
        network = Trainer(dataclasses.replace(toy, seed=seed), toys.noise(), toys.CPU).network
        with torch.no_grad():
            for parameter in network.trunk.parameters():
                parameter.add_(0.1 * run * parameter.requires_grad)
        expected = embed_views(network, toy, pixels, ["embedding", "features"], toys.CPU.device)

        def count(*_: object, run: int = run) -> None:
            calls[run] += 1

        with network.trunk.get_submodule("blocks.0").register_forward_pre_hook(count):
            rows = embed_views(network, toy, pixels, ["embedding", "features"], toys.CPU.device, maps)
        for view, found in rows.items():
            assert found == pytest.approx(expected[view], abs=1e-5)
        digests += maps
    assert digests[0] == digests[1] != digests[2]
    assert calls[0] == calls[1] + 1 == calls[2]  # the images pass once, examples always


def test_layers_that_all_learn_have_no_maps() -> None:
    toy, maps = toys.recipe(), dict[str, torch.Tensor]()
    network = Trainer(toy, toys.noise(), toys.CPU).network
    pixels = np.zeros((2, *toy.preprocessing.shape), np.uint8)
    assert embed_views(network, toy, pixels, ["embedding"], toys.CPU.device, maps)["embedding"].shape[0] == 2
    assert not maps


CLASSES, EACH = 4, 6


LABELS = np.repeat(np.arange(CLASSES), EACH)


def dataset(**factors: Any) -> Dataset:
    image = np.zeros((2, 2, 3), np.uint8)
    sources = [str(i) for i in range(len(LABELS))]
    return Dataset("toy", "test", [image] * len(LABELS), LABELS, tuple("abcd"), sources, factors)


def test_each_factor_is_measured_where_it_was_constructed() -> None:
    draw = np.random.default_rng(0)
    angle = np.tile(np.array([0, 1, 4, 10, 12, 17]) / 17, CLASSES)  # no two differences alike
    ink = np.tile(np.arange(EACH), CLASSES)
    # The rows are points of an arc at the angle: it orders them, and the same angle is the same ink.
    rows = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    noise = {name: draw.integers(0, 1000, len(LABELS)) for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)}
    metrics = factor_metrics(rows, dataset(**{**noise, "ink": ink, "angle": angle}))
    assert set(metrics) == {f"factor_{name}" for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS)}
    assert metrics["factor_ink"] == 1
    assert metrics["factor_angle"] == pytest.approx(1)
    assert metrics["factor_face"] < 0.2
    assert abs(metrics["factor_scale"]) < 0.6


def test_a_data_set_without_factors_is_refused() -> None:
    with raises(DatasetError, "unknown-name") as caught:
        factor_metrics(np.eye(len(LABELS), dtype=np.float32), dataset())
    assert "'ink'" in str(caught.value)


def test_studies_know_the_metrics() -> None:
    assert Measure("factor_ink", "test", "intra").groups == ("factors",)


def test_class_spectra_against_eigenvalues_of_each_class() -> None:
    """The singular values of rows are the roots of the eigenvalues of their products (Revisiting, appendix C)."""
    rows = np.random.default_rng(0).normal(size=(10, 3))
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 3, 3, 3])
    expected = np.zeros(3)
    for own in ([0, 1, 2, 3], [4, 5], [7, 8, 9]):  # class 2 has one sample
        products = [[sum(rows[i, k] * rows[j, k] for k in range(3)) for j in own] for i in own]
        roots = np.sqrt(np.clip(np.linalg.eigvalsh(np.array(products))[::-1], 0, None))[:3]
        expected[: len(roots)] += roots / roots.sum() / 3
    assert class_singular_values(rows, labels) == pytest.approx(expected, abs=1e-7)
    assert class_singular_values(rows[:3], np.arange(3)) == []
