"""Networks of cards: the length of pooled features, heads, and trunks that do not pool."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from tests.models import CARD, make_model
from tests.raising import raises
from zoo.data.preprocessing import Preprocessing
from zoo.errors import ModelFolderError, RecipeError
from zoo.files import sha256_of
from zoo.models.card import Head
from zoo.models.network import Network, create_heads, create_trunk, feature_count, load_network, save_network

SIDE = 64
SMALL = {"img_size": SIDE}

TRUNKS = {
    "mobilenetv3_small_050": {},
    "mobilenetv2_050": {},
    "vgg11_bn": {},
    "ghostnet_050": {},
    "hardcorenas_a": {},
    "efficientvit_b0": {},
    "fasternet_t0": {},
    "repghostnet_050": {},
    "rexnet_100": {},
    "resnet10t": {},
    "regnety_002": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": SMALL,
    "pit_ti_224": SMALL,
    "mobilevit_xxs": {},
    "conv4": {},
}
WIDENED = {"mobilenetv3_small_050": 1024, "vgg11_bn": 4096, "ghostnet_050": 1280, "efficientvit_b0": 1280}
"""From timm's pages of these models, and VGG's paper (section 2.1: 4096 channels in the last hidden layer)."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TRUNKS)
def test_feature_count_is_the_length_of_the_pooled_features(architecture: str) -> None:
    with torch.device("meta"):  # shapes alone: nothing is computed
        trunk = create_trunk(architecture, 3, TRUNKS[architecture]).eval()
        features = trunk(torch.zeros(2, 3, SIDE, SIDE))
    assert features.shape == (2, feature_count(trunk))
    assert feature_count(trunk) == WIDENED.get(architecture, features.shape[1])


@pytest.mark.parametrize("with_heads", [True, False])
def test_a_trunk_that_widens_its_features_is_saved_and_loaded(tmp_path: Path, with_heads: bool) -> None:
    trunk = create_trunk("mobilenetv3_small_050", 3)
    heads = CARD.heads if with_heads else ()
    card = dataclasses.replace(
        CARD,
        architecture="mobilenetv3_small_050",
        architecture_args={},
        heads=heads,
        dim=CARD.dim if with_heads else 1024,
        preprocessing=Preprocessing(32, 32),
    )
    network = Network(trunk, create_heads(heads, feature_count(trunk))).eval()
    files = save_network(network, card, tmp_path)
    card = dataclasses.replace(card, files={name: sha256_of(tmp_path / name) for name in files})
    images = torch.rand(2, 3, 32, 32)
    loaded = load_network(card, tmp_path)
    assert torch.equal(loaded(images), network(images))
    assert loaded(images).shape == (2, card.dim)
    if not with_heads:
        with raises(ModelFolderError, "invalid-value") as caught:
            load_network(dataclasses.replace(card, dim=288), tmp_path)
        assert "288" in str(caught.value)
        assert "1024" in str(caught.value)


@pytest.mark.parametrize("heads", [(), CARD.heads])
def test_a_trunk_that_does_not_pool_is_refused(heads: tuple[Head, ...]) -> None:
    small = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
    pooled = create_trunk("vit_tiny_patch16_224", 3, {**small, "global_pool": "avg"})
    tokens = create_trunk("vit_tiny_patch16_224", 3, {**small, "global_pool": ""})
    images = torch.zeros(2, 3, 32, 32)
    modules = create_heads(heads, 12)
    assert Network(pooled, modules)(images).ndim == 2
    with raises(RecipeError, "unsupported-model") as caught:
        Network(tokens, modules)(images)
    assert "[2, 5, 12]" in str(caught.value)


@pytest.mark.parametrize(
    ("heads", "name"),
    [((Head("type", 8), Head("second", 4)), "'type'"), ((Head("second", 8), Head("training", 4)), "'training'")],
)
def test_a_head_whose_name_torch_reserves_is_refused(tmp_path: Path, heads: tuple[Head, ...], name: str) -> None:
    with raises(RecipeError, "conflicting-settings") as caught:
        create_heads(heads, 16)
    assert name in str(caught.value)
    card = make_model(tmp_path / "model")
    with raises(ModelFolderError, "unsupported-model") as refused:
        load_network(dataclasses.replace(card, heads=heads), tmp_path / "model")
    assert name in str(refused.value)


def test_two_heads_of_one_name_are_refused_and_keywords_are_names() -> None:
    with raises(RecipeError, "conflicting-settings"):
        create_heads([Head("a", 8), Head("a", 8)], 16)
    modules = create_heads([Head("class", 8), Head("lambda", 4), Head("nce-2", 4)], 16)  # MIC has a head `class`
    assert list(modules.state_dict())[:2] == ["class.weight", "class.bias"]


def test_embeddings_of_another_dimension_than_the_cards_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    model = zoo.load(tmp_path / "model", device="cpu")
    other = dataclasses.replace(model, card=dataclasses.replace(CARD, heads=(), dim=24))
    with raises(ModelFolderError, "invalid-value"):
        other.embed(np.zeros((2, 40, 40, 3), np.uint8))
