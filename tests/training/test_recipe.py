from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from tests.raising import raises
from tests.training.methods.batches import FEATURES, method
from training.build import create_sampler
from training.data import TrainingData
from training.execution import Execution
from training.methods.base import Method
from training.named import resolve_run
from training.overrides import override, resolve
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import RECIPES, summary
from training.trainer import Trainer
from zoo.cli.main import main
from zoo.errors import RecipeError, ZooError
from zoo.files import write_json
from zoo.models.backbones import register
from zoo.models.card import Head, read_origin
from zoo.models.network import create_trunk
from zoo.models.results import training_facts

RECIPE = RECIPES["margin-conv4-glyphs"]()


CLASSES = {
    "cub": 100,
    "cars": 98,
    "sop": 11318,
    "glyphs": 362,
    "omniglot": 136 * 4,
    "cifar100": 50,
    "cub2010": 90,
    "cars-half": 88,
}
"""Of the training splits, as published."""


def build(recipe: Recipe, classes: int = 50) -> Method:
    """Return the recipe's method on a small trunk, for 20 samples per class."""
    labels = [i // 20 for i in range(20 * classes)]
    net = create_trunk("conv4", 3, {"widths": [4, 4, 4, FEATURES]})
    return method(recipe.objective, labels, {head.name: head.dim for head in recipe.heads}, net)


def members(recipe: Recipe | EnsembleRecipe) -> list[Recipe]:
    return [recipe] if isinstance(recipe, Recipe) else list(recipe.members)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", sorted(CLASSES))
def test_every_recipe_is_named_as_its_parts_and_can_be_built(dataset: str) -> None:
    names = [name for name in RECIPES if name.endswith(f"-{dataset}")]
    assert len(names) >= 29
    objectives = []
    for name in names:
        recipe = RECIPES[name]()
        assert recipe.name == name == f"{recipe.method}-{recipe.backbone.name}-{recipe.data.dataset}"
        for member in members(recipe):
            register()
            assert timm.is_model(member.backbone.architecture)
            create_sampler(member, np.arange(16 * CLASSES[dataset]) // 16)
            if member.objective not in objectives:  # one data set's are much like another's
                build(member, classes=10)
                objectives.append(member.objective)
        json.dumps(recipe.to_json())


def test_recipes_of_the_papers_by_their_tables() -> None:
    """Names that users rely on, and constants copied by hand from the papers' tables."""
    r = {name: RECIPES[name]() for name in ("margin-r50-cub", "diva-r50-sop", "mic-r50-cars", "group-ibn-cub")}
    recipe = r["margin-r50-cub"]
    assert isinstance(recipe, Recipe)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.batch.size, recipe.dim) == (1e-5, 4e-4, 112, 128)
    assert (recipe.schedule.epochs, recipe.backbone.freeze_norm, recipe.data.validation) == (150, "all", 0)
    diva = r["diva-r50-sop"]
    assert diva.dim == 512
    assert diva.objective.method_args == {"alpha": 0.2, "rho": 300.0, "auxiliary": {"dance": {"queue_batches": 70}}}
    assert (diva.schedule.milestones, diva.schedule.gamma) == ((70,), 0.3)
    assert r["mic-r50-cars"].objective.method_args["groups"] == 150
    assert r["group-ibn-cub"].batch.size == 54
    # Group, table 3; it prints the counts of CUB (100 training classes) and of CARS (98) the other way round.
    counts = {"cub": (100, 10_846_240), "cars": (98, 10_845_216), "sop": (11_318, 16_589_856)}
    for dataset, (classes, count) in counts.items():
        assert summary(RECIPES[f"group-ibn-{dataset}"]())["parameters"] + 512 * classes == count
    assert summary(RECIPES["group-d121-cub"]())["parameters"] + 1025 * 100 == 7_056_356
    assert {head.dim for head in RECIPES["diva-dsi-r50-cub"]().heads} == {170}
    arcface = RECIPES["reality-arcface-ibn-cub"]().objective.loss_args
    assert arcface == {"margin": 23.22, "scale": 100.0, "start": "normal"}
    assert RECIPES["r-margin-r50-sop"]().objective.miner_args["probability"] == 0.15
    for name, crop in {"shared-r50-cub": 224, "shared-gn-cub": 227, "shared-npair-disc-gn-sop": 227}.items():
        assert RECIPES[name]().preprocessing.crop == crop  # Sharing, section 4
        assert RECIPES[name]().augmentation.window == crop / 256
    for loss in ("contrastive", "margin06", "margin", "triplet-d", "snr"):
        objective = RECIPES[f"r-{loss}-r50-cub"]().objective
        assert objective.miner_args["published"] is True
        assert objective.loss_args.get("squared", False) is (loss == "triplet-d")
    assert len(RECIPES["group5-ibn-cars"]().members) == 5
    assert [len(member.heads) for member in RECIPES["diva-separate-r50-cub"]().members] == [1, 1, 1, 1]


def test_override() -> None:
    changed = override(
        RECIPE,
        [
            "optimizer.lr=1e-5",
            "schedule.epochs=3",
            "objective.loss_args.beta=0.6",
            "objective.miner=none",
            'heads=[{"name": "a", "dim": 3}]',
            "preprocessing.mean=[0, 0, 1]",
            "augmentation.flip=1",
            "name=other",
        ],
    )
    assert changed.optimizer.lr == 1e-5
    assert changed.schedule.epochs == 3
    assert changed.objective.loss_args == {"beta": 0.6, "margin": 0.2}
    assert changed.objective.miner is None
    assert changed.heads == (Head("a", 3),)
    assert changed.preprocessing.mean == (0, 0, 1)
    assert changed.augmentation.flip == 1.0
    assert changed.name == "other"
    assert RECIPES["margin-conv4-glyphs"]() == RECIPE
    assert changed.digest != RECIPE.digest


def test_no_miner_is_written_in_one_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is null in JSON, and none in every text; null as a text is the name of no miner."""
    changed = resolve("contrastive-conv4-glyphs", ["objective.miner=none"])
    assert changed.to_json()["objective"]["miner"] is None
    write_json(tmp_path / "recipe.json", {"origin": "contrastive-conv4-glyphs", "settings": {"objective.miner": None}})
    assert "--set objective.miner=none" in training_facts(tmp_path)["command"]
    assert read_origin(tmp_path).text == "contrastive-conv4-glyphs, changed: objective.miner=none"
    cut = ["train", "contrastive-conv4-glyphs", "--set", "objective.miner_args.nonzero_loss_cutoff=none", "--show"]
    assert main(cut) == 0
    assert json.loads(capsys.readouterr().out)["objective"]["miner_args"]["nonzero_loss_cutoff"] is None
    with raises(RecipeError, "unknown-name"):
        resolve("contrastive-conv4-glyphs", ["objective.miner=null"])


@pytest.mark.parametrize(
    ("setting", "code", "value"),
    [
        ("optimiser.lr=1", "unknown-setting", "'optimizer'"),
        ("optimizer.learning=1", "unknown-setting", "'optimizer.learning'"),
        ("optimizer.lrr=1", "unknown-setting", "'optimizer.lr'"),
        ("optimizer.lr=fast", "invalid-value", "optimizer.lr=0.001"),
        ("schedule.epochs=1.5", "invalid-value", "schedule.epochs=8"),
        ("schedule.epochs=true", "invalid-value", "schedule.epochs"),
        ("data.skip_unreadable=3", "invalid-value", "true or false"),
        ("schedule.milestones=3", "invalid-value", "schedule.milestones=[10,20]"),
        ("objective.loss_args=3", "invalid-value", "JSON object"),
        ("preprocessing.mean=[a]", "invalid-value", "numbers in brackets"),
        ("optimizer=adam", "invalid-value", "optimizer.name"),
        ("optimizer.lr.x=1", "unknown-setting", "optimizer.lr.x"),
        ("lr=0.3", "unknown-setting", "'optimizer.lr'"),
        ("lr", "unknown-setting", "key=value"),
        ("objective.loss_args.beta.foo=0.6", "unknown-setting", "objective.loss_args"),
        ("objective.miner.x=1", "unknown-setting", "objective.miner.x"),
        ("optimizer.lr=-1", "invalid-value", "optimizer.lr must be 0 or more"),
        ("optimizer.lr=NaN", "invalid-value", "optimizer.lr must be 0 or more"),
        ("augmentation.scale=0", "invalid-value", "a factor from 1"),
        ("augmentation.oversample=0", "invalid-value", "from 1 to 8"),
        ("augmentation.flip=2", "invalid-value", "from 0 to 1"),
        ("schedule.average=2", "invalid-value", "from 0 to below 1"),
        ("schedule.warmup=1", "invalid-value", "below 1"),
        ("schedule.name=onecycle", "invalid-value", "constant or one-cycle"),
        ("data.turns=3", "invalid-value", "1 or 4"),
        ("batch.size=0", "invalid-value", "1 or more"),
        ("seed=-1", "invalid-value", "seed must be 0 or more"),
        ("backbone.name=resnet50", "missing-value", "backbone.architecture=resnet50"),
        ("precision=fp8", "invalid-value", "fp32 or bf16"),
        ("schedule.milestones=[3]", "option-without-effect", "multi-step"),
        ("optimizer.momentum=0.9", "option-without-effect", "adamw"),
        ("augmentation.crop=middle", "invalid-value", "none, window, squeezed, resized"),
        ("name=../x", "invalid-value", "name"),
        ("preprocessing.mode=XYZ", None, "XYZ"),
        ("heads.0.dim=3", "unknown-setting", 'heads=[{"name": "embedding", "dim": 64}]'),
        ("batch.per_class=1", "invalid-value", "batch.per_class must be 2 or more"),
        ('heads=[{"name": "a", "dim": "x"}]', "invalid-value", "heads must be"),
        ('heads=[{"dim": 3}]', "invalid-value", "heads must be"),
        ('heads=[{"name": "a", "dim": 8}, {"name": "a", "dim": 8}]', "conflicting-settings", "'a'"),
        ('heads=[{"name": "a.b", "dim": 8}]', None, "'a.b'"),
        ('heads=[{"name": "a", "dim": 10000000000000}]', None, "65536"),
        ('heads=[{"name": "a", "dim": 40000}, {"name": "b", "dim": 40000}]', "conflicting-settings", "80000"),
        ("preprocessing.std=[1,NaN,1]", None, "preprocessing.std"),
        ("preprocessing.std=[1e-300,1,1]", None, "preprocessing.std"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, code: str | None, value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        override(RECIPE, [setting])
    assert code in (None, caught.value.code)
    assert value in str(caught.value)


def test_arguments_without_their_part_are_refused() -> None:
    with raises(RecipeError, "option-without-effect"):
        build(override(RECIPE, ["objective.miner=none", "objective.miner_args.cutoff=0.5"]))


def test_settings_that_are_valid_only_together() -> None:
    grey = override(RECIPE, ["preprocessing.mode=L", "preprocessing.mean=[0.5]", "preprocessing.std=[0.5]"])
    assert grey.preprocessing.channels == 1
    with raises(RecipeError, "conflicting-settings"):
        override(RECIPE, ["optimizer=adam", "optimizer.lr=1"])


def test_another_loss_or_miner_drops_the_arguments_of_the_old_one() -> None:
    other = override(RECIPE, ["objective.loss=triplet", "objective.miner=semihard"]).objective
    assert (other.loss, other.loss_args, other.miner, other.miner_args) == ("triplet", {}, "semihard", {})
    build(dataclasses.replace(RECIPE, objective=other))
    with_own = override(RECIPE, ["objective.loss_args.margin=0.3", "objective.loss=triplet"]).objective
    assert with_own.loss_args == {"margin": 0.3}
    same = override(RECIPE, ["objective.loss=margin"]).objective
    assert same == RECIPE.objective


@pytest.mark.parametrize("name", ["My Model", "../x", "/x", ""])
def test_an_invalid_model_name_is_refused_at_once(name: str) -> None:
    with raises(RecipeError, "invalid-value"):
        resolve("margin-conv4-glyphs", rename=name)


def test_resolve() -> None:
    recipe = resolve("margin-conv4-glyphs", ["batch.size=64"], seed=7, rename="mine")
    assert (recipe.batch.size, recipe.seed, recipe.name) == (64, 7, "mine")
    with raises(RecipeError, "unknown-name") as caught:
        resolve("margin-conv4-glyps")
    assert "'margin-conv4-glyphs'" in str(caught.value)


def test_all_misspelt_names_and_settings_are_reported_at_once() -> None:
    wrong = ["optimizer.lrr=1", "objective.loss=margn", "batch.size=big", "backbone.architecture=resnet5O"]
    reported = ("'optimizer.lrr'", "'margn'", "'big'", "'resnet5O'")
    with raises(RecipeError, "unknown-name", "'margin-conv4-glyphs'", *reported):
        resolve("margin-conv4-glyps", wrong)
    with raises(RecipeError, "unknown-setting", *reported):
        resolve("margin-conv4-glyphs", wrong)
    with raises(RecipeError, "unknown-setting", *reported):
        resolve("group2-ibn-cub", wrong)  # an ensemble
    with raises(RecipeError, "unknown-name") as caught:
        resolve("margin-conv4-glyps", ["optimizer.lr=1e-4", "objective.loss=arcface"])
    assert "arcface" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "code", "near"),
    [
        ("NONSENSE", "unknown-name", "NONSENSE"),
        ("resnet5", "unknown-name", "'resnet50'"),
        ("resnet50.tv_in", "unknown-name", "'resnet50.tv_in1k'"),
    ],
)
def test_an_architecture_that_does_not_exist_is_refused_when_the_recipe_is_resolved(
    architecture: str, code: str, near: str
) -> None:
    for name in ("margin-r50-cub", "margin-conv4-glyphs"):
        with raises(RecipeError, code, near):
            resolve(name, [f"backbone.architecture={architecture}"])
    assert main(["train", "margin-conv4-glyphs", "--show", "--set", f"backbone.architecture={architecture}"]) == 2


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50.a1_in1k", "conv4", "bn_inception", "gem"])
def test_architectures_of_timm_and_our_own_resolve(architecture: str) -> None:
    recipe = resolve("margin-conv4-glyphs", [f"backbone.architecture={architecture}"])
    assert isinstance(recipe, Recipe)
    assert recipe.backbone.architecture == architecture


@pytest.mark.parametrize(
    ("setting", "code", "value"),
    [
        ("objective.loss=margn", "unknown-name", "'margin'"),
        ("objective.miner=distance-weighed", "unknown-name", "'distance-weighted'"),
        ("objective.method=plane", "unknown-name", "'plain'"),
        ("objective.loss_args.beta=abc", "invalid-value", "'abc'"),
        ('heads=[{"name": "a", "dim": 3}, {"name": "b", "dim": 3}]', None, "2"),
        ("objective.loss=none", "conflicting-settings", "objective.loss"),
        ("objective.loss_args.alpha=1", "unknown-name", "'alpha'"),
        ("objective.miner_args.cutof=1", "unknown-name", "'cutoff'"),
    ],
)
def test_unknown_parts_of_the_objective_are_named(setting: str, code: str | None, value: str) -> None:
    recipe = override(RECIPE, [setting])
    with pytest.raises(RecipeError) as caught:
        build(recipe)
    assert code in (None, caught.value.code)
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("preprocessing.crop=4", "unsupported-model"),
        ("backbone.args.global_pool=", "unsupported-model"),
        ("optimizer.name=adamm", "unknown-name"),
    ],
)
def test_parts_that_cannot_be_built_are_refused_before_training(setting: str, code: str) -> None:
    data = TrainingData(torch.zeros(6, 40, 40, 3, dtype=torch.uint8), np.arange(6) // 2, 3, 1, None, [])
    with raises(RecipeError, code):
        Trainer(override(RECIPE, [setting]), data, Execution(torch.device("cpu")))


EXCHANGE = "objective.miner_args.published=false"


def test_the_exchange_of_rho_brings_the_distance_that_fits_it() -> None:
    """Revisiting: (a, a, p) of squared distances in the code, (a, p, p) of the distances of A.1 in the paper."""
    for settings, squared in (
        ([], True),
        ([EXCHANGE], False),
        (["objective.miner_args.published=true"], True),
        (['objective.miner_args={"probability": 0.4, "published": false}'], False),
        (["objective.miner_args.published=0"], False),
        ([EXCHANGE, "objective.loss_args.squared=true"], True),
    ):
        recipe = resolve("r-triplet-d-r50-cub", settings)
        assert isinstance(recipe, Recipe)
        assert recipe.objective.loss_args["squared"] is squared
    margin = resolve("r-margin-r50-cub", [EXCHANGE])
    assert isinstance(margin, Recipe)
    assert "squared" not in margin.objective.loss_args


def test_a_departure_is_left_out_if_the_setting_that_it_names_has_another_value() -> None:
    def named(*settings: str) -> set[str]:
        recipe = resolve("r-triplet-d-r50-cub", settings)
        assert isinstance(recipe, Recipe)
        return set(re.findall(r"\(([\w.]+)=", " ".join(recipe.departures)))

    form, distance = "objective.miner_args.published", "objective.loss_args.squared"
    assert named() == named(f"{form}=true") == named("optimizer.lr=1e-4") == {form, distance}
    assert named(EXCHANGE) == set()
    assert named(f"{distance}=false") == {form}
    assert named("objective.miner=semihard") == {distance}
    assert named("objective.loss=contrastive") == {form}


def test_no_recipe_loses_a_departure_without_settings() -> None:
    for name, create in RECIPES.items():
        made = create()
        for recipe in made.members if isinstance(made, EnsembleRecipe) else (made,):
            assert override(recipe, []).departures == recipe.departures, name


@pytest.mark.parametrize(
    ("name", "end", "rename", "fitting"),
    [
        ("margin-conv4-glyphs", "lda", None, "margin-conv4-glyphs-lda"),
        ("margin2-conv4-glyphs", "pca", None, "margin2-conv4-glyphs-pca"),
        ("margin-lite0-cub2010-lda", "trained", None, "margin-lite0-cub2010"),
        ("margin-conv4-glyphs", "trained", "ms-lda", "ms"),
        ("margin-conv4-glyphs", "lda", "margin-conv4-glyphs-lda-seed1", None),
        ("margin-conv4-glyphs", "lda", "mine", None),
    ],
)
def test_a_method_s_name_tells_which_heads_a_model_has(
    name: str, end: str, rename: str | None, fitting: str | None
) -> None:
    settings = [f"head_end={end}"]
    if fitting is not None:
        with raises(RecipeError, "unknown-name", f" {fitting}"):
            resolve_run(name, settings=settings, name=rename)
        rename = fitting
    made = resolve_run(name, settings=settings, name=rename)
    for recipe in members(made):
        assert any(f"(head_end={end})" in departure for departure in recipe.departures) == (end != "trained")
    for recipe in members(resolve(name, settings)):  # as an arm of a study, which has a label
        assert recipe.head_end == end


def test_members_of_an_ensemble_take_settings_seeds_and_names() -> None:
    ensemble = resolve("margin2-conv4-glyphs", ["schedule.epochs=1"], seed=3, rename="pair")
    assert isinstance(ensemble, EnsembleRecipe)
    assert [(m.name, m.seed, m.schedule.epochs) for m in ensemble.members] == [("pair.0", 6, 1), ("pair.1", 7, 1)]


@pytest.mark.parametrize(
    "setting",
    ["objective.loss=tripelt", "objective.miner=nope", "batch.sampler=spcc", "optimizer.name=lion", "data.dataset=cup"],
)
def test_names_are_checked_before_any_image_is_read(setting: str) -> None:
    with pytest.raises(ZooError):
        resolve("margin-conv4-glyphs", [setting])


def test_all_wrong_settings_are_named_at_once() -> None:
    wrong = ["schedule.epohs=3", "optimizer.lr=fast", "batch.sise=8"]
    with raises(RecipeError, "unknown-setting") as caught:
        resolve("margin-conv4-glyphs", wrong)
    assert all(part in str(caught.value) for part in ("'schedule.epohs'", "optimizer.lr", "'batch.sise'"))
    with raises(RecipeError, "unknown-name") as caught:
        resolve("margin-conv4-glyphs", ["objective.loss=tripelt", "objective.miner=nope", "optimizer.name=lion"])
    assert all(part in str(caught.value) for part in ("'tripelt'", "'nope'", "'lion'"))


def test_an_impossible_head_is_refused_before_any_image_is_read() -> None:
    with pytest.raises(RecipeError):
        resolve("margin-conv4-glyphs", ['heads=[{"name": "type", "dim": 8}]'])


def test_the_task_within_classes_needs_three_samples_per_class() -> None:
    with raises(RecipeError, "conflicting-settings"):
        resolve("diva-conv4-glyphs", ["batch.per_class=2"])
    assert resolve("diva-conv4-glyphs", ["batch.per_class=4"]).batch.per_class == 4  # type: ignore[union-attr]


def test_a_memory_has_positives_of_earlier_batches() -> None:
    one = ["batch.per_class=1", "objective.miner=random"]
    assert resolve("xbm-conv4-glyphs", [*one, "objective.loss=margin"]).batch.per_class == 1  # type: ignore[union-attr]
    with raises(RecipeError, "invalid-value"):
        resolve("margin-conv4-glyphs", ["batch.per_class=1", "batch.args.together=2"])
