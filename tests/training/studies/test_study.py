"""Every study can be run: its recipes exist, take its settings, and can be built and drawn for."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from tests.raising import raises
from training.build import create_parts, create_sampler
from training.data import TrainingData
from training.recipe import Recipe
from training.studies.measure import embed_views
from training.studies.papers import STUDIES, find_study
from training.studies.plan import Plan, adapt_to_dataset
from training.studies.search import SearchPlan
from training.studies.search_spaces import find_space
from training.studies.study import SMALL_BACKBONES, Arm, Study, lacks_view, resolve_recipes, supports
from zoo.errors import RecipeError, UsageError

pytestmark = pytest.mark.slow

SMALL = {"glyphs": (362, 20), "omniglot": (136, 20), "cifar100": (50, 500)}
"""Training classes, and images of each."""


def arms(dataset: str) -> dict[Arm, Study]:
    """Every different arm that can be run on the data set, with a study that has it."""
    return {
        dataclasses.replace(arm, label="-", x=None): study
        for study in STUDIES.values()
        if not study.datasets or dataset in study.datasets
        for arm in study.arms
    }


def data_of(recipe: Recipe, dataset: str) -> TrainingData:
    classes, images = SMALL[dataset]
    turns, preprocessing = recipe.data.turns, recipe.preprocessing
    labels = np.repeat(np.arange(classes * turns), images)
    squares = torch.zeros(1, preprocessing.crop, preprocessing.crop, preprocessing.channels, dtype=torch.uint8)
    return TrainingData(squares, labels, classes * turns, turns, None, [])


@pytest.mark.parametrize("dataset", SMALL)
def test_every_arm_has_a_batch_sampler(dataset: str) -> None:
    drawn = set()
    for arm, study in arms(dataset).items():
        recipe = resolve_recipes(study, arm, dataset, seed=0)[0]
        assert recipe.data.validation == 0
        assert recipe.data.dataset == dataset
        key = str((recipe.batch, recipe.dim))
        if key not in drawn:
            drawn.add(key)
            create_sampler(recipe, data_of(recipe, dataset).labels)


@pytest.mark.slow  # several hundred networks
def test_every_arm_can_be_built_and_has_the_measured_views() -> None:
    for arm, study in arms("glyphs").items():
        recipe = resolve_recipes(study, arm, "glyphs", seed=0)[0]
        network, _ = create_parts(recipe, data_of(recipe, "glyphs"))
        pixels = np.random.default_rng(0).integers(0, 256, (2, *recipe.preprocessing.shape), np.uint8)
        for view in {view for _, view in study.views if not lacks_view(network.heads, view)}:
            rows = embed_views(network, recipe, pixels, [view], torch.device("cpu"))[view]
            assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dataset", SMALL)
@pytest.mark.parametrize("backbone", SMALL_BACKBONES)
def test_every_small_backbone_can_be_built_for_every_small_data_set(dataset: str, backbone: str) -> None:
    for method in ("group", "diva"):
        arm = Arm("-", f"{method}-$backbone-$dataset", SMALL_BACKBONES[backbone])
        recipe = resolve_recipes(find_study("diva/backbones-small"), arm, dataset, seed=0)[0]
        network, _ = create_parts(recipe, data_of(recipe, dataset))
        pixels = np.random.default_rng(0).integers(0, 256, (2, *recipe.preprocessing.shape), np.uint8)
        (rows,) = embed_views(network, recipe, pixels, ["embedding"], torch.device("cpu")).values()
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["group/convergence-published", "reality/table-1"])
def test_studies_of_the_papers_data_sets_can_be_built_and_sampled(name: str) -> None:
    study, classes = find_study(name), 100
    for arm in study.arms:
        # Random weights, because ImageNet's are not available in tests.
        (recipe,) = resolve_recipes(study, arm, "cub", 0, study.selections[0], ("backbone.pretrained=false",))
        squares = torch.zeros(1, 224, 224, 3, dtype=torch.uint8)
        data = TrainingData(squares, np.repeat(np.arange(classes), 58), classes, 1, None, [])
        create_parts(recipe, data)
        create_sampler(recipe, data.labels)


def test_plain_regularisers_differ_from_margin_only_in_the_regulariser() -> None:
    """Twice the epochs, as the plain method has one step where the other has two."""
    study = find_study("sharing/table-6")
    margin, *others = (resolve_recipes(study, arm, "cars", 0)[0] for arm in study.arms[:4])
    assert margin.dim == 128
    assert margin.objective.method_args["arm"] == "discriminative"
    schedule = dataclasses.replace(margin.schedule, epochs=2 * margin.schedule.epochs)
    given = ({"dropout": 0.2}, {"input_noise": 0.1}, {"output_noise": 0.05})
    for other, args in zip(others, given, strict=True):
        objective = dataclasses.replace(margin.objective, method="plain", method_args=args)
        assert other == dataclasses.replace(margin, objective=objective, schedule=schedule)


def test_studies_of_any_data_set_have_recipes_for_those_of_the_papers() -> None:
    for arm, study in arms("cub").items():
        recipe = resolve_recipes(study, arm, "cub", seed=0)[0]
        assert recipe.backbone.name != "conv4"
    (recipe,) = resolve_recipes(find_study("claims/sharing"), find_study("claims/sharing").arms[1], "cub", seed=3)
    assert [(head.name, head.dim) for head in recipe.heads] == [("joint", 256)]
    assert recipe.seed == 3


def test_placeholders_in_settings_are_replaced() -> None:
    study = find_study("revisiting/figure-3")
    arm = Arm("x", "margin-$backbone-$dataset", ("batch.size=$batch", 'heads=[{"name": "e", "dim": $dim}]'))
    (recipe,) = resolve_recipes(study, arm, "glyphs", 0)
    assert (recipe.batch.size, recipe.dim) == (96, 64)
    with raises(RecipeError, "unknown-name") as caught:
        resolve_recipes(study, Arm("x", "margin-$backbone-$dataset", ("$speed=1",)), "glyphs", 0)
    assert "'$speed=1'" in str(caught.value)


def test_members_of_an_ensemble_have_successive_seeds() -> None:
    study = find_study("claims/rho")
    for arm in (Arm("two", "margin2-$backbone-$dataset"), Arm("two", "margin-$backbone-$dataset", copies=2)):
        assert [recipe.seed for recipe in resolve_recipes(study, arm, "glyphs", 2)] == [4, 5]


def test_selection_by_validation_holds_training_classes_out() -> None:
    study = find_study("claims/rho")
    for selection, share in (("last", 0), ("validation", 0.1)):
        assert resolve_recipes(study, study.arms[0], "glyphs", 0, selection)[0].data.validation == share


def test_an_unsupported_data_set_is_refused() -> None:
    with raises(UsageError, "not-available") as caught:
        resolve_recipes(find_study("claims/close"), find_study("claims/close").arms[0], "cub", 0)
    assert "glyphs, omniglot, cifar100" in str(caught.value)


def test_a_refusal_names_the_study_to_run_instead() -> None:
    for study in STUDIES.values():
        if study.datasets:
            other = next(name for name in ("cub", "omniglot") if not supports(study, name))
            with pytest.raises(UsageError) as error:
                resolve_recipes(study, study.arms[0], other, 0)
            assert f"not on {other}. {study.elsewhere}" in str(error.value)
            (instead,) = re.findall(r"[a-z]+/[a-z0-9-]+", study.elsewhere)
            assert supports(find_study(instead), other)


@pytest.mark.parametrize(
    ("dataset", "owner", "backbone"),
    [("folder", "cifar100", "conv4"), ("inshop", "sop", "r50"), ("cub2010", "cub2010", "lite0")],
)
def test_data_sets_without_recipes_use_those_of_a_substitute(dataset: str, owner: str, backbone: str) -> None:
    for study in STUDIES.values():
        if supports(study, dataset):
            for arm in study.arms:
                own, substitute = (resolve_recipes(study, arm, name, 0)[0] for name in (dataset, owner))
                assert own.data.dataset == dataset
                assert dataclasses.replace(own, data=dataclasses.replace(own.data, dataset=owner)) == substitute
    (recipe,) = resolve_recipes(find_study("claims/rho"), find_study("claims/rho").arms[0], dataset, 0)
    assert recipe.backbone.name == backbone
    assert supports(find_study("claims/close"), "folder")
    assert not supports(find_study("claims/close"), "inshop")
    assert SearchPlan(("margin",), dataset).recipe(find_space("margin"), MARGIN).data.dataset == dataset


def test_studies_on_photographs_measure_the_trained_heads() -> None:
    for study in STUDIES.values():
        if supports(study, "cars-half"):
            for arm in study.arms:
                for recipe in resolve_recipes(study, arm, "cars-half", 0):
                    assert (recipe.backbone.name, recipe.head_end) == ("lite0", "trained")
    claims = find_study("claims/all")
    recipes = [recipe for arm in claims.arms for recipe in resolve_recipes(claims, arm, "cars-half", 0)]
    assert len({(recipe.schedule.epochs, recipe.schedule.steps) for recipe in recipes}) == 1


MARGIN = {parameter.key: parameter.low for parameter in find_space("margin").parameters}


def test_recalls_are_adapted_to_the_data_set() -> None:
    def recalls(dataset: str, *settings: str) -> list[str]:
        plan = adapt_to_dataset(Plan(find_study("diva/table-3"), dataset, 1, settings=settings))
        return [measure.metric for measure in plan.study.measures if measure.recall_at]

    assert recalls("cub") == recalls("glyphs") == ["recall_at_1", "recall_at_2"]
    assert recalls("sop") == ["recall_at_1", "recall_at_10", "recall_at_100", "recall_at_1000"]
    assert recalls("inshop") == ["recall_at_1", "recall_at_10", "recall_at_20", "recall_at_30"]
    assert recalls("cars", "data.dataset=inshop") == recalls("inshop")


def test_contradictory_studies_are_refused() -> None:
    two = (Arm("a", "margin-$backbone-$dataset"), Arm("b", "ms-$backbone-$dataset"))
    with raises(RecipeError, "invalid-value"):
        Study("nothing", "", "", two)
    with raises(RecipeError, "invalid-value"):
        Study("a/b", "", "", (two[0], dataclasses.replace(two[1], label="A")))
    with raises(RecipeError, "unknown-name"):
        Study("a/b", "", "", two, baseline="c")
    with raises(UsageError, "unknown-name") as caught:
        find_study("claims/rh")
    assert "'claims/rho'" in str(caught.value)


@pytest.mark.parametrize("dataset", ["cars", "sop"])
def test_studies_of_the_papers_data_sets_have_their_recipes(dataset: str) -> None:
    for study in STUDIES.values():
        if dataset in study.datasets:
            assert all(resolve_recipes(study, arm, dataset, 0) for arm in study.arms)
