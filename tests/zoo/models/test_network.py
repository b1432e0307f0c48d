"""The network of a card: what a trunk gives is as long as we say, for models that widen their pooled features too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from tests.models import CARD, make_model
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


@pytest.mark.parametrize("architecture", TRUNKS)
def test_the_pooled_features_are_as_long_as_we_say(architecture: str) -> None:
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
        with pytest.raises(ModelFolderError, match="says dim 288; mobilenetv3_small_050 gives 1024"):
            load_network(dataclasses.replace(card, dim=288), tmp_path)


@pytest.mark.parametrize("heads", [(), CARD.heads])
def test_a_trunk_that_does_not_pool_is_refused(heads: tuple[Head, ...]) -> None:
    small = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
    pooled = create_trunk("vit_tiny_patch16_224", 3, {**small, "global_pool": "avg"})
    tokens = create_trunk("vit_tiny_patch16_224", 3, {**small, "global_pool": ""})
    images = torch.zeros(2, 3, 32, 32)
    made = create_heads(heads, 12)
    assert Network(pooled, made)(images).ndim == 2
    with pytest.raises(RecipeError, match=r"VisionTransformer gives \[2, 5, 12\] for 2 images.*global_pool=avg"):
        Network(tokens, made)(images)


@pytest.mark.parametrize(
    ("heads", "says"),
    [
        ((Head("type", 8), Head("second", 4)), "a head cannot be called 'type', a name that torch has taken"),
        ((Head("second", 8), Head("training", 4)), "a head cannot be called 'training'"),
    ],
)
def test_a_head_whose_name_torch_has_taken_is_refused(tmp_path: Path, heads: tuple[Head, ...], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        create_heads(heads, 16)
    card = make_model(tmp_path / "model")
    with pytest.raises(ModelFolderError, match=f"describes no network: {says}"):
        load_network(dataclasses.replace(card, heads=heads), tmp_path / "model")


def test_two_heads_of_one_name_are_refused_and_words_of_python_are_names() -> None:
    with pytest.raises(RecipeError, match="several heads are called 'a'"):
        create_heads([Head("a", 8), Head("a", 8)], 16)
    made = create_heads([Head("class", 8), Head("lambda", 4), Head("nce-2", 4)], 16)  # MIC has a head `class`
    assert list(made.state_dict())[:2] == ["class.weight", "class.bias"]


def test_a_model_that_gives_others_than_its_card_says_is_refused_when_it_embeds(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    model = zoo.load(tmp_path / "model", device="cpu")
    other = dataclasses.replace(model, card=dataclasses.replace(CARD, heads=(), dim=24))
    with pytest.raises(ModelFolderError, match=r"gives \[2, 12\] for 2 images, and its card says dim 24"):
        other.embed(np.zeros((2, 40, 40, 3), np.uint8))
