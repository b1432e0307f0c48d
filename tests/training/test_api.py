"""Training by name ends with a measurement, the same that `zoo evaluate NAME --save` writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.raising import raises
from tests.training.cached.pictures import write_pictures
from tests.training.toys import recipe
from training import api, recipes, trainer
from training.build import create_sampler
from training.data import held_out_classes
from training.distributed import Processes
from training.overrides import fit_to_classes, override
from training.recipe import Data, EnsembleRecipe, Recipe, Schedule
from training.recipes import RECIPES
from zoo.cli.main import main
from zoo.data import DATASETS, load_dataset
from zoo.data.dataset import Dataset
from zoo.errors import RecipeError, UnreadableImagesError
from zoo.evaluation.split import read_learnt_classes
from zoo.files import sha256_of
from zoo.models.results import few_classes_note, flattery_note

QUICK = Schedule(1, 2)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write the folders train and test: 8 and 5 classes of 4 images."""
    draw = np.random.default_rng(0)
    for split, classes in (("train", 8), ("test", 5)):
        for number in range(classes * 4):
            folder = tmp_path / "pictures" / split / f"{split}{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (20, 20, 3), np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def on_folder(**change: object) -> Recipe:
    return recipe(data=Data("folder", side=16, validation=0), schedule=QUICK, **change)


def saved(folder: Path) -> list[dict[str, object]]:
    results: list[dict[str, object]] = json.loads((folder / "results.json").read_text())
    return [{key: value for key, value in result.items() if key != "date"} for result in results]


def test_training_writes_what_evaluate_saves(pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = api.train(on_folder(), pictures, progress=False)
    assert outcome.evaluation is not None
    assert (outcome.evaluation.dataset, outcome.evaluation.split) == ("folder", "test")
    assert (outcome.evaluation.queries, outcome.evaluation.classes) == (20, 5)
    trained = saved(outcome.folder)
    (outcome.folder / "results.json").unlink()
    assert main(["evaluate", "toy", "--data", str(pictures), "--save", "--json"]) == 0
    assert saved(outcome.folder) == trained
    low, high = outcome.evaluation.intervals["map_at_r"]
    score = f"map_at_r {outcome.evaluation.metrics['map_at_r']:.4f} ({low:.4f} to {high:.4f})"
    assert score in outcome.summary()
    assert outcome.to_json()["evaluation"]["metrics"] == dict(outcome.evaluation.metrics)


def test_a_list_shows_the_score_on_the_folder_that_the_model_learnt_from(
    pictures: Path, own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later measurement on another folder, whose data set is "folder" too, does not stand in its place."""
    outcome = api.train(on_folder(), pictures, progress=False)
    assert outcome.evaluation is not None
    other = shutil.copytree(pictures, tmp_path / "other")
    next((other / "test" / "test0").iterdir()).unlink()
    measure = ["evaluate", "toy", "--dataset", "folder", "--data", str(other), "--save"]
    assert main(measure) == 0
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == "toy")
    assert row["measured_on"]["name"] == "pictures"
    assert row["recall_at_1"] == outcome.evaluation.metrics["recall_at_1"]
    (outcome.folder / "results.json").unlink()
    assert main(measure) == 0
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["name"] == "toy")
    assert row["recall_at_1"] is None


def test_the_kept_epoch_is_stated_with_the_number_of_classes_that_chose_it(pictures: Path, own_zoo: Path) -> None:
    validated = recipe(data=Data("folder", side=16, validation=0.25), schedule=QUICK)
    outcome = api.train(validated, pictures, progress=False, evaluate=False)
    assert outcome.validation_classes == 2  # a quarter of 8
    assert few_classes_note(2) in outcome.summary()


@pytest.mark.slow
def test_scores_on_learnt_classes_are_noted(
    pictures: Path, own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """recipe.json names the training images, so a test split of the same classes is noticed; another is not."""
    outcome = api.train(on_folder(), pictures, progress=False)
    data = json.loads((outcome.folder / "recipe.json").read_text())["training_data"]
    learnt = load_dataset("folder", "train", pictures)
    assert data == {**asdict(learnt.identity), "class_names": list(learnt.classes)}
    assert main(["info", "toy"]) == 0
    assert f"{learnt.identity}, 32 images of 8 classes" in capsys.readouterr().out
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    (swapped / "test").symlink_to(pictures / "train")
    (swapped / "train").symlink_to(pictures / "test")
    for folder, noted in ((pictures, False), (swapped, True), (pictures / "train", True), (pictures / "test", False)):
        assert main(["evaluate", "toy", "--data", str(folder), "--json"]) == 0
        assert ("toy learnt from images of 8 of these classes" in capsys.readouterr().err) == noted
    (own,) = json.loads((outcome.folder / "results.json").read_text())
    assert main(["evaluate", "toy", "--data", str(swapped), "--save", "--json"]) == 0
    model = zoo.info("toy")
    assert [model.learnt(result) for result in model.results] == [False, True]
    capsys.readouterr()
    assert main(["list", "--status", "trained", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["recall_at_1"] == own["metrics"]["recall_at_1"]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_test_score_on_classes_that_were_trained_on_says_so_everywhere(
    pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str], renamed: bool
) -> None:
    """The images of two training classes are also in the test split, under their names or others."""
    for number in range(2):
        target = pictures / "test" / (f"other{number}" if renamed else f"train{number}")
        shutil.copytree(pictures / "train" / f"train{number}", target)
    outcome = api.train(on_folder(), pictures, progress=False)
    assert "images of 2 of these classes" in capsys.readouterr().err
    assert outcome.evaluation is not None
    assert (outcome.evaluation.classes, outcome.evaluation.learnt_classes) == (7, 2)
    note = flattery_note(outcome.evaluation.to_json())
    assert note in outcome.summary()
    assert main(["info", "toy"]) == 0
    assert note in capsys.readouterr().out
    assert main(["list", "--status", "trained", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["recall_at_1"] is None


def test_unreadable_images_of_both_parts_are_named_at_once(pictures: Path, own_zoo: Path) -> None:
    broken = [next((pictures / "train" / f"train{number}").iterdir()) for number in range(8)]
    for file in broken:
        file.write_bytes(b"no image")
    validated = recipe(data=Data("folder", side=16, validation=0.25), schedule=QUICK)
    with raises(UnreadableImagesError, "unreadable-image", *(file.name for file in broken)):
        api.train(validated, pictures, progress=False)


def test_a_missing_test_split_keeps_the_model(pictures: Path, own_zoo: Path) -> None:
    outcome = api.train(on_folder(), pictures / "train", progress=False)
    assert outcome.evaluation is None
    assert str(pictures / "train") in str(outcome.not_evaluated)
    assert "\n" not in str(outcome.not_evaluated)
    assert not (outcome.folder / "results.json").exists()
    assert zoo.load("toy").dim == on_folder().dim


def test_only_the_first_process_measures(pictures: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = api.train(on_folder(), pictures, progress=False, evaluate=False)
    assert (outcome.evaluation, outcome.not_evaluated) == (None, None)
    monkeypatch.setattr(api, "_train_model", lambda *_: outcome)
    monkeypatch.setattr(api, "connect", lambda device: (Processes(1, 2), device))
    assert api.train(on_folder(), pictures, progress=False) is outcome
    monkeypatch.setattr(api, "connect", lambda device: (Processes(0, 2), device))
    assert api.train(on_folder(), pictures, progress=False).evaluation is not None


def test_the_sampler_is_built_once_and_before_images_are_decoded(
    pictures: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    create, prepare = api.create_sampler, api.training_data.prepare

    def created(*arguments: object) -> object:
        steps.append("sampler")
        return create(*arguments)

    monkeypatch.setattr(api, "create_sampler", created)
    monkeypatch.setattr(trainer, "create_sampler", created)
    monkeypatch.setattr(api.training_data, "prepare", lambda *arguments: steps.append("data") or prepare(*arguments))
    api.train(on_folder(), pictures, progress=False, evaluate=False)
    assert steps == ["sampler", "data"]


def test_members_of_an_ensemble_share_decoded_images(
    pictures: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Recipe] = []
    prepare = api.training_data.prepare
    monkeypatch.setattr(api.training_data, "prepare", lambda *args: decoded.append(args[0]) or prepare(*args))
    members = tuple(on_folder(name=f"pair.{seed}", seed=seed) for seed in range(2))
    assert api.train(EnsembleRecipe("pair", "pair", members), pictures, progress=False, evaluate=False).epochs == 2
    assert decoded == [members[0]]


def test_given_images_have_no_test_split(own_zoo: Path) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (16, 20, 20, 3), np.uint8))
    mine = Dataset("mine", "train", images, np.arange(16) % 4, tuple("abcd"), list("0123456789abcdef"))
    outcome = api.train(recipe(schedule=QUICK), progress=False, dataset=mine)
    assert (outcome.evaluation, outcome.not_evaluated) == (None, None)


def test_an_ensemble_is_measured_once_joined(pictures: Path, own_zoo: Path) -> None:
    members = tuple(on_folder(name=f"pair.{seed}", seed=seed) for seed in range(2))
    outcome = api.train(EnsembleRecipe("pair", "pair", members), pictures, progress=False)
    assert outcome.evaluation is not None
    assert (outcome.evaluation.model, outcome.evaluation.dim) == ("pair", sum(member.dim for member in members))
    assert not (own_zoo / "models" / "pair.0" / "results.json").exists()


def test_the_command_prints_the_scores_and_leaves_them_out_on_request(
    pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["data.dataset=folder", "schedule.epochs=1", "schedule.steps=1", "batch.size=8", "data.validation=0"]
    command = ["train", "margin-conv4-glyphs", "--data", str(pictures), "--as", "mine", "--quiet", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    built: list[Recipe] = []
    make = recipes.RECIPES["margin-conv4-glyphs"]
    counting = {**recipes.RECIPES, "margin-conv4-glyphs": lambda: built.append(make()) or built[-1]}
    monkeypatch.setattr(recipes, "RECIPES", counting)
    recipes.standard_recipe.cache_clear()
    assert main(command) == 0
    assert len(built) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["evaluation"]["metrics"].keys() >= {"recall_at_1", "map_at_r"}
    folder = own_zoo / "models" / "mine"
    assert json.loads((folder / "results.json").read_text()) == [answer["evaluation"]]
    assert main([*command, "--no-eval", "--replace", "--restart"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluation"] is None
    assert not (folder / "results.json").exists()


def test_a_folder_of_six_classes_is_trained_on_at_once(
    tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe holds out a tenth of the classes and draws 128 images, 4 of a class; neither fits six classes."""
    root = write_pictures(tmp_path / "pictures", classes=6)
    command = ["train", "margin-conv4-glyphs", "--dataset", "folder", "--data", str(root), "--as", "six", "--quiet"]
    quick = [part for setting in ("schedule.epochs=1", "schedule.steps=1") for part in ("--set", setting)]
    assert main([*command, *quick, "--no-eval", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "changed: data.validation=0, batch.size=24" in err
    assert "six: 1 epoch (1 step, 24 images) in" in out
    recipe = json.loads((own_zoo / "models" / "six" / "recipe.json").read_text())["recipe"]
    assert (recipe["data"]["validation"], recipe["batch"]["size"], recipe["batch"]["per_class"]) == (0, 24, 4)
    # The name is taken now; a setting of the user's is never changed.
    assert main([*command, *quick, "--no-eval"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert main([*command, *quick, "--replace", "--set", "batch.size=128"]) == 2
    assert "needs 32 classes" in capsys.readouterr().err
    assert main(["ensemble", "six", "margin-conv4-glyphs", "--as", "six"]) == 2
    assert "--replace" in capsys.readouterr().err


def test_thumbnails_and_bins_of_other_programs_change_nothing(
    tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder as it came from a NAS is trained on, measured and copied as without what the NAS wrote into it."""
    clean = write_pictures(tmp_path / "clean" / "pictures", classes=4)
    nas = Path(shutil.copytree(clean, tmp_path / "nas" / "pictures"))
    own = sorted(path.relative_to(nas) for path in nas.rglob("*.png"))
    for path in own:
        bins = ("@eaDir", path.name, "SYNOPHOTO_THUMB_M.png"), ("#recycle", path.name), (".@__thumb", path.name)
        for thumbnail in (nas / path.parent / Path(*words) for words in bins):
            thumbnail.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9), "red").save(thumbnail)
    (nas / "lost+found" / "inner").mkdir(parents=True)
    shutil.copy(nas / own[0], nas / "lost+found" / "inner" / "1.png")
    settings = ("data.dataset=folder", "schedule.epochs=1", "schedule.steps=1", "batch.size=8", "data.validation=0")
    words = [part for setting in settings for part in ("--set", setting)]
    made = []
    for root, name in ((clean, "plain"), (nas, "from-nas")):
        train = [
            "train",
            "margin-conv4-glyphs",
            *words,
            "--data",
            str(root),
            "--as",
            name,
            "--quiet",
            "--device",
            "cpu",
        ]
        assert main(train) == 0
        out = tmp_path / f"copy of {name}"
        assert main(["data", "folder", "--data", str(root), "--split", "all", "--out", str(out)]) == 0
        capsys.readouterr()
        assert main(["evaluate", name, "--dataset", "folder", "--data", str(root), "--split", "all", "--json"]) == 0
        measured = json.loads(capsys.readouterr().out)
        copied = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
        scores = measured["metrics"], measured["data"], measured["classes"]
        made.append((sha256_of(own_zoo / "models" / name / "model.safetensors"), scores, copied))
    assert made[0] == made[1]


def test_recipes_fit_few_classes_and_stay_where_they_fit() -> None:
    recipe = RECIPES["margin-conv4-glyphs"]()
    labels = np.repeat(np.arange(40), 5)
    assert fit_to_classes(recipe, labels, ()) == (recipe, ())
    for classes, each, changed in (
        (12, 5, ("data.validation=0.167", "batch.size=40")),
        (6, 3, ("data.validation=0", "batch.per_class=3", "batch.size=18")),
        (25, 9, ("batch.size=92",)),
    ):
        fitted, changes = fit_to_classes(recipe, np.repeat(np.arange(classes), each), ())
        assert changes == changed
        assert isinstance(fitted, Recipe)
        kept = np.flatnonzero(~np.isin(np.arange(classes), held_out_classes(classes, fitted.data, fitted.seed)))
        create_sampler(fitted, np.repeat(np.arange(len(kept)), each))
    with raises(RecipeError, "too-few-samples"):
        fit_to_classes(recipe, np.arange(40), ())
    settings = ["batch.size=8", "data.validation=0"]
    assert fit_to_classes(override(recipe, settings), labels[:30], settings)[1] == ()
    pair, changes = fit_to_classes(RECIPES["margin2-conv4-glyphs"](), labels[:30], ())
    assert isinstance(pair, EnsembleRecipe)
    assert [member.batch.size for member in pair.members] == [24, 24]


def test_a_shipped_name_is_not_hidden_in_silence(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, settings = "margin-conv4-glyphs", ("schedule.epochs=0", "data.validation=0", "data.dataset=folder")
    quick = [part for setting in (*settings, "batch.size=16", "batch.per_class=2") for part in ("--set", setting)]
    assert main(["train", name, *quick, "--data", str(pictures), "--quiet", "--no-eval", "--device", "cpu"]) == 0
    assert f"{name} is also shipped" in capsys.readouterr().err


def test_photographs_of_a_published_set_are_recognised_in_a_folder(
    pictures: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: a folder of the photographs that a shipped model learnt from was called unseen."""
    published = replace(load_dataset("folder", "train", pictures), name="omniglot", split="train")
    monkeypatch.setitem(DATASETS, "omniglot", lambda split, data: published)
    learns = on_folder()
    api.train(replace(learns, data=replace(learns.data, dataset="omniglot")), pictures, progress=False, evaluate=False)
    learnt = read_learnt_classes(own_zoo / "models" / learns.name)
    renamed = replace(published, classes=tuple(f"other {number}" for number in range(len(published.classes))))
    assert learnt.among_classes(renamed).by_images == renamed.classes
