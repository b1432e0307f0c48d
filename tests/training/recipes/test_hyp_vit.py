"""Recipes of spherical Hyp-ViT: the paper's constants, its loss, and a step of a small transformer."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training import toys
from tests.training.losses.batches import batch
from training.losses.supcon import SupConLoss
from training.recipe import Backbone, Batch, Recipe
from training.recipes import RECIPES
from training.recipes.hyp_vit import recipes
from training.trainer import Trainer, fit

NAMES = [name for name, _ in recipes()]
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


def made(name: str) -> Recipe:
    recipe = RECIPES[name]()
    assert isinstance(recipe, Recipe)
    return recipe


@pytest.mark.parametrize("name", NAMES)
def test_the_constants_are_those_of_the_published_code(name: str) -> None:
    """Compare with the commands of the README of github.com/htdt/hyp_metric, for ViT-S and DINO."""
    recipe = made(name)
    assert (recipe.dim, recipe.backbone.frozen_stages) == (128, 1)
    assert (recipe.optimizer.name, recipe.optimizer.weight_decay) == ("adamw", 0.01)
    assert recipe.optimizer.lr == (3e-5 if "vits16" in name else 1e-5)
    assert recipe.schedule.epochs == {"cub": 50, "cars": 300, "sop": 200}[recipe.data.dataset]
    assert recipe.batch.size == {"cub": 900, "cars": 9 * 98, "sop": 900}[recipe.data.dataset]
    assert recipe.preprocessing.mean == ((0.5,) * 3 if "vits16" in name else (0.485, 0.456, 0.406))


@pytest.mark.parametrize("seed", range(3))
def test_supcon_is_the_pairwise_cross_entropy_of_pairs(seed: int) -> None:
    """Two samples of each of N classes: the mean of l_ij over the 2N ordered positive pairs, temperature .1."""
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    embeddings, y = batch(seed, labels)
    z, terms = embeddings.numpy(), []
    for i in range(8):
        j = i ^ 1
        every = sum(math.exp(z[i] @ z[k] / 0.1) for k in range(8) if k != i)
        terms.append(-math.log(math.exp(z[i] @ z[j] / 0.1) / every))
    assert SupConLoss(0.1)(embeddings, y).item() == pytest.approx(float(np.mean(terms)), abs=1e-12)


def test_a_step_freezes_the_patch_embedding(tmp_path: Path) -> None:
    recipe = made("sph-vits16-cub")
    small = replace(
        recipe,
        data=replace(recipe.data, side=40),
        backbone=Backbone("vit", "vit_small_patch16_224", SMALL, frozen_stages=1),
        preprocessing=replace(recipe.preprocessing, resize=36, crop=32),
        batch=Batch(24, "spc", 3),
        schedule=replace(recipe.schedule, epochs=1, steps=1),
    )
    data = toys.noise(48, 8, side=40)
    before = Trainer(small, data, toys.CPU).network.state_dict()
    after = fit(small, data, tmp_path, toys.CPU, progress=False).network.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert "trunk.blocks.0.attn.qkv.weight" in changed
    assert "heads.embedding.weight" in changed
    assert not any(name.startswith(("trunk.patch_embed", "trunk.pos_embed", "trunk.cls_token")) for name in changed)
