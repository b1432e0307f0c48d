"""Converted weights by backbone: `zoo benchmark run STUDY --weights ibn=DIR --weights r50=DIR`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.test_compare import evaluation, save
from training.api import origin_facts
from training.overrides import resolve
from training.recipe import Recipe
from training.studies import papers
from training.studies.compare import compare_tables, find_runs, runs_of_recipe
from training.studies.plan import Plan, RunSchedule, read_plan, weights_by_study, write_plan
from training.studies.report import published_score
from training.studies.runner import create_study_context, perform_runs
from training.studies.study import Arm, Measure, Study
from zoo.errors import RecipeError, TrainingError, UsageError
from zoo.models.backbones.caffe import MEAN, STD
from zoo.models.card import Card
from zoo.models.network import create_trunk
from zoo.models.pretrained.weights import PUBLIC_WEIGHTS
from zoo.models.published import published_table

WIDTHS = {"widths": [8, 8, 12, 16]}
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def weights(folder: Path, architecture: str, tag: str = "", public: bool = True) -> Path:
    """Write what timm's config.json says of weights, and the record of `zoo convert`, with no real weights."""
    folder.mkdir()
    mean, std = (MEAN, STD) if architecture == "bn_inception" else IMAGENET
    images = {"input_size": [3, 224, 224], "mean": mean, "std": std, "interpolation": "bilinear", "tag": tag}
    (folder / "config.json").write_text(json.dumps({"architecture": architecture, "pretrained_cfg": images}))
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    if architecture in PUBLIC_WEIGHTS:
        digest = PUBLIC_WEIGHTS[architecture].sha256 if public else "0" * 64
        (folder / "recipe.json").write_text(json.dumps({"baseline": {"weights": digest}}))
    return folder


@pytest.fixture
def both(tmp_path: Path) -> dict[str, Path]:
    return {
        "ibn": weights(tmp_path / "bn_inception", "bn_inception"),
        "r50": weights(tmp_path / "resnet50", "resnet50", "tv_in1k"),
    }


def options(places: dict[str, Path]) -> tuple[str, ...]:
    return tuple(f"{name}={place}" for name, place in places.items())


def test_each_arm_starts_from_the_weights_of_its_backbone(both: dict[str, Path]) -> None:
    """A study with several backbones runs in one command; a single setting would be refused by the other backbones."""
    study = papers.STUDIES["diva/backbones"]
    plan = Plan(study, "cub", 1, weights=options(both))
    starts = {(r.backbone.name, r.backbone.pretrained) for arm in study.arms for r in plan.recipes(arm)}
    assert starts == {(name, str(place)) for name, place in both.items()}
    assert not any(plan.changes(plan.recipes(arm)) for arm in study.arms)
    contradicting = (f"backbone.pretrained={both['ibn']}", "backbone.architecture=resnet50")
    with raises(RecipeError, "weights-mismatch"):
        Plan(study, "cub", 1, settings=contradicting).recipes(study.arms[0])


def test_arms_of_other_backbones_keep_their_own_weights(both: dict[str, Path]) -> None:
    study = papers.STUDIES["group/table-3"]
    plan = Plan(study, "cub", 1, weights=options({"ibn": both["ibn"]}))
    starts = {arm.label: plan.recipes(arm)[0].backbone.pretrained for arm in study.arms}
    assert starts == {"ibn": str(both["ibn"]), **dict.fromkeys(("d121", "d161", "d169", "d201"), True)}


def test_public_weights_keep_the_papers_numbers_beside_the_arm_and_others_do_not(
    both: dict[str, Path], tmp_path: Path
) -> None:
    study, measure = papers.STUDIES["group/table-3"], Measure("recall_at_1")
    arm = study.arms[0]
    public = Plan(study, "cub", 1, weights=options(both))
    other = Plan(study, "cub", 1, weights=(f"ibn={weights(tmp_path / 'own', 'bn_inception', public=False)}",))
    assert published_score(Plan(study, "cub", 1), arm, measure) is not None
    assert published_score(public, arm, measure) == published_score(Plan(study, "cub", 1), arm, measure)
    assert published_score(other, arm, measure) is None
    assert other.changes(other.recipes(arm)) == [f"backbone.pretrained={tmp_path / 'own'}"]


def test_the_studies_of_one_command_share_the_weights(both: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    studies = papers.find_studies("revisiting/figure-2", "cub")
    shared = weights_by_study(options(both), studies, "cub")
    assert shared["revisiting/figure-2-dimension"] == options({"r50": both["r50"]})
    assert set(shared["revisiting/figure-2-published"]) == set(options(both))
    monkeypatch.chdir(both["ibn"].parent)
    relative = weights_by_study(["ibn=bn_inception"], studies, "cub")
    assert relative["revisiting/figure-2-published"] == (f"ibn={both['ibn']}",)
    assert weights_by_study([], studies, "cub") == {study.name: () for study in studies}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["ibn"], "invalid-value"),
        (["=here"], "invalid-value"),
        (["ibn=a", "ibn=b"], "invalid-value"),
        (["d121=here"], "unknown-name"),
    ],
)
def test_unusable_weights_are_refused(given: list[str], code: str) -> None:
    with raises(UsageError, code):
        weights_by_study(given, papers.find_studies("diva/backbones", "cub"), "cub")


def test_a_model_trained_from_converted_weights_counts_as_its_recipes(both: dict[str, Path], own_zoo: Path) -> None:
    """A folder of public weights has another path on every machine; models from it are seeds of one recipe."""
    name = "diva-ibn-cub"
    for seed, place in enumerate((str(both["ibn"]), None)):
        settings = [] if place is None else [f"backbone.pretrained={place}"]
        recipe = resolve(name, settings, seed)
        assert isinstance(recipe, Recipe)
        own = name if seed == 0 else f"{name}-seed{seed}"
        folder = own_zoo / "models" / own
        folder.mkdir(parents=True)
        Card(own, "diva", "ibn", "cub", "bn_inception", 512, recipe.preprocessing).write(folder)
        record = {**origin_facts(recipe, name), "recipe": {**recipe.record, "name": own}, "best_epoch": None}
        (folder / "recipe.json").write_text(json.dumps(record))
        result = dataclasses.replace(evaluation(own, recall_at_1=0.6 + 0.02 * seed), dim=512)
        save(folder, result)
    assert [run.seed for run in runs_of_recipe(name, find_runs())] == [0, 1]
    table = published_table("diva-3")
    measured = [row for row in compare_tables([table], "cub") if row.status == "measured"]
    assert [row.ours.value for row in measured if row.ours and row.score.metric == "recall_at_1"] == [
        pytest.approx(0.61)
    ]


def test_runs_start_from_the_weights_and_the_plan_remembers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without training the features are those of the weights with every seed."""
    data, folder = toys.images(tmp_path / "images"), tmp_path / "weights"
    folder.mkdir()
    trunk = create_trunk("conv4", 3, WIDTHS)
    save_file(trunk.state_dict(), folder / "model.safetensors")
    images = {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3}
    config = {"architecture": "conv4", "model_args": WIDTHS, "pretrained_cfg": images}
    (folder / "config.json").write_text(json.dumps(config))
    features = Measure("recall_at_1", "test", "features")
    study = Study("toys/start", "Features", "nowhere", (Arm("margin", "margin-$backbone-$dataset"),), (features,))
    study = dataclasses.replace(study, spectrum=True)
    monkeypatch.setitem(papers.STUDIES, study.name, study)
    pixels = ("preprocessing.mean=[0.5,0.5,0.5]", "preprocessing.std=[0.5,0.5,0.5]")
    settings = (*toys.SETTINGS, "schedule.epochs=0", *pixels)
    spectra = {}
    for given in ((), (f"conv4={folder}",)):
        plan = Plan(study, "glyphs", 2, settings=settings, data=str(data), weights=given)
        out = tmp_path / f"study-{len(given)}"
        schedule = RunSchedule(plan, out).begin()
        tally = perform_runs(schedule, schedule.runs, create_study_context(torch.device("cpu"), str(data)), str)
        assert not tally.failed
        spectra[given] = [run.result()["evaluations"][0]["spectrum"] for run in schedule.runs]
        assert read_plan(out) == plan
        changes = [setting for setting in schedule.runs[0].result()["settings"] if "pretrained" in setting]
        assert changes == [f"backbone.pretrained={folder}"] * len(given)  # conv4 has no public weights
    (random, other), (first, second) = spectra.values()
    assert random != pytest.approx(other)
    assert first == pytest.approx(second, abs=1e-6)
    with raises(TrainingError, "other-study"):
        write_plan(Plan(study, "glyphs", 2, settings=settings, data=str(data)), tmp_path / "study-1")
