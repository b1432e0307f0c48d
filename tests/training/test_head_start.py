"""Start of heads: principal directions by scikit-learn's PCA, directions that images do not span, trained heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.decomposition import PCA
from torch import nn

from tests.raising import raises
from tests.training import toys
from tests.training.cached.pictures import make_model
from training.build import base_heads
from training.health.held_out import embed_held_out, validation_scores
from training.recipe import Objective
from training.trainer import Trainer, fit, training_features
from zoo.errors import RecipeError
from zoo.models.card import Head
from zoo.models.network import create_heads, discriminant_directions, principal_directions, start_heads


def correlated(rows: int, width: int = 12) -> torch.Tensor:
    """Return features whose variance differs between directions, with a mean."""
    draw = np.random.default_rng(0)
    mixed = draw.standard_normal((rows, width)) * np.linspace(3, 0.3, width)
    return torch.from_numpy((mixed @ draw.standard_normal((width, width)) + 5).astype(np.float32))


def cosines(rows: np.ndarray) -> np.ndarray:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("dim", [3, 12])
def test_a_head_starts_as_the_projection_of_scikit_learns_pca(dim: int) -> None:
    features = correlated(200)
    heads = create_heads([Head("a", dim), Head("b", 5)], 12)
    start_heads(heads, features)
    for head in heads.values():
        assert isinstance(head, nn.Linear)
        pca = PCA(head.out_features).fit(features.double().numpy())
        expected = pca.transform(features.double().numpy()) / np.sqrt(np.sqrt(pca.explained_variance_))
        embedded = head(features).detach().numpy()
        np.testing.assert_allclose(cosines(embedded), cosines(expected), atol=1e-4)


def test_random_directions_stand_for_those_that_few_images_do_not_span() -> None:
    """Of 12 directions 4 images vary along 3; three random ones stand for the other 9."""
    torch.manual_seed(0)
    few = correlated(4).double()
    directions = principal_directions(few, 6)
    assert directions.shape == (6, 12)
    np.testing.assert_allclose(directions[3:] @ (few - few.mean(0)).T, 0, atol=1e-6)
    variances = PCA(3).fit(few.numpy()).explained_variance_
    lengths = [*variances**-0.25, *[variances[2] ** -0.25] * 3]
    np.testing.assert_allclose(directions @ directions.T, np.diag(np.square(lengths)), atol=1e-8)


def test_more_numbers_than_features_change_cosines_little_and_are_not_dead() -> None:
    features = correlated(200)
    heads = create_heads([Head("a", 20)], 12)
    start_heads(heads, features)
    head = heads["a"]
    assert isinstance(head, nn.Linear)
    embedded = head(features).detach().numpy()
    np.testing.assert_allclose(cosines(embedded), cosines(embedded[:, :12]), atol=0.05)
    assert (embedded[:, 12:].std(0) > 0).all()


def test_trained_heads_are_continued() -> None:
    features = correlated(200)
    base = create_heads([Head("old", 4)], 12)
    old = base["old"]
    assert isinstance(old, nn.Linear)
    heads = create_heads([Head("new", 3)], 12)
    start_heads(heads, features, base)
    expected = old(features).detach()
    pca = PCA(3).fit(expected.numpy())
    wanted = pca.transform(expected.numpy()) / np.sqrt(np.sqrt(pca.explained_variance_))
    np.testing.assert_allclose(cosines(heads["new"](features).detach().numpy()), cosines(wanted), atol=1e-3)


def test_a_single_head_of_the_same_size_is_taken_over() -> None:
    """Four images would not tell the directions; those of the base stay, in rows of mean length 1."""
    base, heads = create_heads([Head("old", 4)], 12), create_heads([Head("new", 4)], 12)
    start_heads(heads, correlated(4), base)
    images = correlated(50)
    expected, embedded = (head(images).detach().numpy() for head in (base["old"], heads["new"]))
    np.testing.assert_allclose(cosines(embedded), cosines(expected), atol=1e-5)
    assert heads["new"].weight.norm(dim=1).mean().item() == pytest.approx(1)
    assert heads["new"].weight.requires_grad


def test_the_heads_of_a_base_model_are_found(own_zoo: Path) -> None:
    card = make_model(own_zoo / "models" / "toy")
    recipe = replace(toys.recipe(), backbone=replace(toys.SMALL, pretrained="toy"))
    found = base_heads(recipe.backbone.pretrained)
    assert found is not None
    assert {name: head.out_features for name, head in found.items()} == {head.name: head.dim for head in card.heads}
    assert base_heads(toys.recipe().backbone.pretrained) is None


@pytest.mark.parametrize("old", [None, 4, 6])
def test_a_head_starts_whitened_within_classes(old: int | None) -> None:
    """Compare with the plain start, whose unit rows are whitened by a loop over the classes."""
    features, labels = correlated(200), np.arange(200) % 10
    base = None if old is None else create_heads([Head("old", old)], 12)
    plain, heads = create_heads([Head("new", 4)], 12), create_heads([Head("new", 4)], 12)
    start_heads(plain, features, base)
    start_heads(heads, features, base, labels)
    outputs = plain["new"](features).detach().double().numpy()
    rows = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    scatter = np.zeros((4, 4))
    for label in range(10):
        own = rows[labels == label]
        for row in own:
            scatter += np.outer(row - own.mean(0), row - own.mean(0))
    scatter /= 200 - 10
    expected = outputs @ sqrtm(np.linalg.inv(scatter + np.trace(scatter) / 4 * np.eye(4)))
    np.testing.assert_allclose(cosines(heads["new"](features).detach().numpy()), cosines(expected), atol=1e-4)
    assert heads["new"].weight.norm(dim=1).mean().item() == pytest.approx(1)
    assert heads["new"].weight.requires_grad


def test_training_that_only_harms_keeps_its_start(tmp_path: Path) -> None:
    """On labels without meaning training cannot help: epoch 0 is the best on classes that the start separates."""
    data = toys.noise()
    classes = np.repeat(np.arange(6), 5)
    noise = np.random.default_rng(1).integers(0, 20, (30, 16, 16, 3))
    pixels = (noise + 36 * classes[:, None, None, None]).astype(np.uint8)
    data = replace(data, validation=(pixels, classes))
    recipe = replace(toys.recipe(), head_start="pca", optimizer=replace(toys.recipe().optimizer, lr=0.3))
    start = Trainer(recipe, data, toys.CPU).network.heads.state_dict()
    trained = fit(recipe, data, tmp_path, toys.CPU, progress=False)
    assert (trained.best_epoch, len(trained.log)) == (0, 2)
    assert trained.validation["map_at_r"] > max(record["validation_map_at_r"] for record in trained.log)
    for name, tensor in trained.network.heads.state_dict().items():
        torch.testing.assert_close(tensor, start[name])
    again = fit(recipe, data, tmp_path, toys.CPU, progress=False)
    assert (again.best_epoch, again.validation) == (0, trained.validation)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_head_ends_as_the_projection_of_the_trained_trunk(tmp_path: Path, average: float) -> None:
    data = toys.noise()
    schedule = replace(toys.recipe().schedule, average=average)
    recipe = replace(toys.recipe(), head_end="pca", heads=(Head("embedding", 8),), schedule=schedule)
    trained = fit(recipe, data, tmp_path, toys.CPU, progress=False)
    (head,) = trained.network.heads.values()
    run = Trainer(recipe, data, toys.CPU)
    features = training_features(run, trained.network)
    pca = PCA(head.out_features).fit(features.double().numpy())
    expected = pca.transform(features.double().numpy()) / np.sqrt(np.sqrt(pca.explained_variance_))
    np.testing.assert_allclose(cosines(head(features).detach().numpy()), cosines(expected), atol=1e-3)
    assert not torch.allclose(features, training_features(run), atol=1e-3)


def test_validation_measures_the_head_that_is_kept(tmp_path: Path) -> None:
    data = toys.noise()
    pixels, classes = np.random.default_rng(1).integers(0, 256, (30, 16, 16, 3), np.uint8), np.repeat(np.arange(6), 5)
    data = replace(data, validation=(pixels, classes))
    trained = fit(replace(toys.recipe(), head_end="pca"), data, tmp_path, toys.CPU, progress=False)
    rows = embed_held_out(trained.network, data, toys.recipe().preprocessing, toys.CPU.device)
    assert trained.validation == validation_scores(rows, classes, 0)


def within_whitened(values: np.ndarray, labels: np.ndarray, dim: int, shrinkage: float) -> np.ndarray:
    """Return rows whitened by the covariance within classes, plus a multiple of the identity, then projected by PCA."""
    covariance = np.zeros((values.shape[1],) * 2)
    for label in np.unique(labels):
        for row in values[labels == label] - values[labels == label].mean(0):
            covariance += np.outer(row, row) / (len(values) - len(np.unique(labels)))
    covariance += shrinkage * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    whitened = values @ np.real(sqrtm(np.linalg.inv(covariance)))
    return PCA(dim).fit_transform(whitened)


@pytest.mark.parametrize("shrinkage", [0.01, 0.3])
def test_discriminant_directions_whiten_the_differences_within_classes(shrinkage: float) -> None:
    values, labels = correlated(90).double(), np.arange(90) % 9
    values += 3 * torch.randn(9, 12, generator=torch.Generator().manual_seed(1)).double()[labels]
    directions = discriminant_directions(values, torch.from_numpy(labels), 5, shrinkage)
    found = ((values - values.mean(0)) @ directions.T).numpy()
    np.testing.assert_allclose(found @ found.T, (e := within_whitened(values.numpy(), labels, 5, shrinkage)) @ e.T)


def test_classes_of_one_image_leave_the_principal_directions() -> None:
    values = correlated(20).double()
    found = (values - values.mean(0)) @ discriminant_directions(values, torch.arange(20), 3).T
    expected = PCA(3).fit_transform(values.numpy())
    np.testing.assert_allclose(cosines(found.numpy()), cosines(expected), atol=1e-6)


def test_several_heads_end_as_one(tmp_path: Path) -> None:
    """Compare with the whitening of the trained trunk's features, in the dimension of both heads together."""
    data = toys.noise()
    objective = Objective("margin", "distance-weighted", method="diva", method_args={"alpha": 0.1, "rho": 0.0})
    heads = Head("discriminative", 4), Head("shared", 3)
    recipe = replace(toys.recipe(), head_end="lda", heads=heads, objective=objective)
    trained = fit(recipe, data, tmp_path, toys.CPU, progress=False)
    assert [(name, head.out_features) for name, head in trained.network.heads.items()] == [("embedding", 7)]
    features = training_features(Trainer(recipe, data, toys.CPU), trained.network)
    expected = within_whitened(features.double().numpy(), data.labels, 7, 0.3)
    found = trained.network.heads["embedding"](features).detach().numpy()
    np.testing.assert_allclose(cosines(found), cosines(expected), atol=1e-3)


def test_a_recipe_without_heads_cannot_end_with_one() -> None:
    with raises(RecipeError, code="invalid-value"):
        replace(toys.recipe(), head_end="pca", heads=())
