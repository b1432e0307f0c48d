"""`backbone.pretrained=PLACE`: architecture, mean and deviation come from the weights, before any image is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import CARD, make_model
from tests.raising import raises
from training.overrides import resolve
from training.recipe import Recipe
from zoo.errors import RecipeError


def made(*settings: str, name: str = "margin-r50-cub") -> Recipe:
    recipe = resolve(name, settings)
    assert isinstance(recipe, Recipe)
    return recipe


def test_a_folder_and_a_package_state_the_backbone_and_the_normalisation(tmp_path: Path) -> None:
    make_model(tmp_path / "own")
    recipe = made(f"backbone.pretrained={tmp_path / 'own'}")
    assert (recipe.backbone.architecture, recipe.backbone.name) == ("conv4", "conv4")
    assert recipe.backbone.args == CARD.architecture_args
    assert recipe.preprocessing.mean == CARD.preprocessing.mean
    assert recipe.preprocessing.std == CARD.preprocessing.std
    lite = made("backbone.pretrained=lite0")
    assert lite.backbone.architecture == "tf_efficientnet_lite0"
    assert lite.preprocessing.mean == pytest.approx([127 / 255] * 3)
    assert lite.preprocessing.std == pytest.approx([128 / 255] * 3)


def test_all_contradictions_are_named_at_once(tmp_path: Path) -> None:
    make_model(tmp_path / "own")
    given = ("backbone.architecture=resnet50", "preprocessing.mean=[0.1,0.1,0.1]", "preprocessing.std=[0.9,0.9,0.9]")
    with raises(RecipeError, "weights-mismatch", "resnet50", "0.1", "0.9", "conv4"):
        made(f"backbone.pretrained={tmp_path / 'own'}", *given)
    same = "preprocessing.mean=[0.5,0.4,0.3]"
    assert made(f"backbone.pretrained={tmp_path / 'own'}", same).preprocessing.std == CARD.preprocessing.std


def test_grey_images_keep_their_normalisation(tmp_path: Path) -> None:
    make_model(tmp_path / "own")
    grey = made(name="margin-conv4-omniglot").preprocessing
    assert made(f"backbone.pretrained={tmp_path / 'own'}", name="margin-conv4-omniglot").preprocessing == grey


@pytest.mark.parametrize("name", ["./none", "../none/model.pth", "no such model", "none.safetensors"])
def test_weights_that_are_not_there_are_reported_before_any_image_is_read(name: str) -> None:
    with raises(RecipeError, "weights-not-found"):
        made(f"backbone.pretrained={name}")
