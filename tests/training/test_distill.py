"""Distillation from a teacher and images: split, training, measurement, resuming and errors."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.attribution import assert_attributed
from tests.raising import raises
from tests.training import toys
from tests.training.before_torch import assert_refused_before_torch
from tests.training.cached.pictures import CPU, make_model, noise, write_pictures
from training import checkpoint
from training.api import write_model_folder
from training.distillation.distil import distil, student_recipe
from training.distillation.images import StudentImages, held_out_to_choose, read_student_images, without_labels
from training.distillation.recipe import SAME_DIM, SOURCES, Student, plan_distillation
from training.finetune import classes_seen
from training.finished import Distilled
from training.methods import TRANSFERS
from training.methods.transfers import needs_same_dim
from training.trainer import Trainer
from zoo.cli.main import main, run
from zoo.data import load_dataset
from zoo.data.dataset import Dataset
from zoo.data.glyphs import SIZE, GlyphImages
from zoo.data.glyphs import characters as alphabet_of
from zoo.errors import DatasetError, RecipeError, UsageError, ZooError
from zoo.evaluation.remeasure import remeasure
from zoo.models.card import Card, read_card

QUICK = ("schedule.epochs=2", "schedule.steps=2", 'backbone.args={"widths":[4,4,4,8],"last_pool":false}')


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "toy"
    make_model(folder)
    return folder


@pytest.fixture
def teacher(made_once: Path, own_zoo: Path) -> Path:
    return Path(shutil.copytree(made_once, own_zoo / "models" / "toy"))


def small(name: str = "small", **change: Any) -> Student:
    return dataclasses.replace(Student(name, "conv4", settings=QUICK), **change)


def distilled(teacher: str, read: Callable[[], StudentImages], student: Student, replaces: bool = False) -> Distilled:
    return distil(plan_distillation(teacher, student, replaces), read, "cpu")


def flat(root: Path, count: int = 12) -> Path:
    """Write images without labels."""
    root.mkdir()
    for i, image in enumerate(noise().images[:count]):
        Image.fromarray(image).save(root / f"{i}.png")
    return root


def glyphs(split: str, characters: int) -> Dataset:
    """Return two images of each of some characters."""
    drawn = alphabet_of(split)[:characters]
    names = [f"{split}/{character.code}/{i}" for character in drawn for i in range(2)]
    images = GlyphImages(drawn, 2, 0, SIZE)
    return Dataset("folder", split, images, np.arange(len(names)) // 2, tuple(c.name for c in drawn), names)


def test_labelled_folders_are_split_by_class(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, classes=10)
    (root / "alone").mkdir()
    (root / "class 1" / "6.png").rename(root / "alone" / "6.png")
    found = read_student_images(root, 0.3, seed=1)
    assert (found.labelled, found.by) == (True, "class")
    assert not {*found.train.classes} & {*found.test.classes}
    assert "alone" in found.train.classes
    assert len(found.test.classes) == 3
    assert len(found.train) + len(found.test) == 60
    assert (
        found.to_json()
        == read_student_images(root, 0.3, seed=1).to_json()
        != read_student_images(root, 0.3, seed=2).to_json()
    )


def test_other_folders_are_split_by_image(tmp_path: Path) -> None:
    few = write_pictures(tmp_path / "few", classes=2)
    stray = write_pictures(tmp_path / "stray")
    (stray / "top.png").write_bytes((stray / "class 0" / "0.png").read_bytes())
    for root, count in ((flat(tmp_path / "flat"), 12), (few, 12), (stray, 49)):
        found = read_student_images(root, 0.25)
        assert (found.labelled, found.by) == (False, "image")
        assert (len(found.test), len(found.train)) == (round(count / 4), count - round(count / 4))
        assert not {*found.train.sources} & {*found.test.sources}
        assert found.to_json()["train_classes"] == []


def test_the_folders_train_and_test_are_used(tmp_path: Path) -> None:
    for split, classes in (("train", 3), ("test", 2)):
        write_pictures(tmp_path / split, classes)
    found = read_student_images(tmp_path)
    assert (found.labelled, found.by, len(found.train), len(found.test)) == (True, "given", 18, 12)
    assert found.test.split == "test"


def table_of(root: Path, *columns: str) -> Path:
    """List the images below a folder in a table; the class and split of an image are its folders."""
    rows = []
    for path in sorted(root.rglob("*.png")):
        *_, split, label, _ = path.parts
        cells = {"image": path.relative_to(root).as_posix(), "label": label, "split": split}
        rows.append([cells[column] for column in columns])
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return root / "table.csv"


def test_a_table_is_split_as_the_folder_that_it_lists(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "labelled", classes=10)
    by_folder, by_table = (
        read_student_images(place, 0.3, seed=1) for place in (root, table_of(root, "image", "label"))
    )
    assert by_table.to_json() == by_folder.to_json()
    assert (by_table.labelled, by_table.by) == (True, "class")
    without = read_student_images(table_of(root, "image"), 0.3, seed=1)
    assert (without.labelled, without.by, len(without.test)) == (False, "image", 18)
    text = table_of(root, "image", "label").read_text().replace(",class 3", ",", 1)
    (root / "table.csv").write_text(text)
    assert read_student_images(root / "table.csv").by == "image", "one image without a label says nothing of its class"
    for split, classes in (("train", 3), ("test", 2)):
        write_pictures(tmp_path / "parted" / split, classes)
    given = table_of(tmp_path / "parted", "image", "label", "split")
    by_folder, by_table = (read_student_images(place) for place in (tmp_path / "parted", given))
    assert (by_table.by, by_table.labelled) == ("given", True)
    assert [part.split for part in (by_table.train, by_table.test)] == ["train", "test"]
    assert list(by_table.test.images) == list(by_folder.test.images)
    assert by_table.test.classes == by_folder.test.classes


def test_a_table_without_enough_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,split\na.png,train\n")
    with raises(DatasetError, "too-few-samples"):
        read_student_images(tmp_path / "t.csv")
    (tmp_path / "u.csv").write_text("file\nx.png\n")
    for name, kind in (("none.csv", DatasetError), ("u.csv", UsageError)):
        with pytest.raises(kind) as caught:
            run(["distill", "margin-conv4-glyphs", str(tmp_path / name), "--backbone", "conv4"])
        assert name in str(caught.value)


def test_unreadable_images_are_left_out(tmp_path: Path) -> None:
    root = flat(tmp_path / "flat")
    bad = read_student_images(root, 0.25).test.sources[0]
    (root / bad).write_bytes(b"no image")
    found = read_student_images(root, 0.25)
    assert list(found.unreadable) == [bad]
    assert (len(found.train), len(found.test)) == (8, 3)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with raises(DatasetError, "no-images"):
        read_student_images(tmp_path / "none")
    with raises(DatasetError, "too-few-samples"):
        read_student_images(flat(tmp_path / "three", 3))
    four = flat(tmp_path / "four", 4)
    assert (len(read_student_images(four).train), len(read_student_images(four).test)) == (2, 2)
    with pytest.raises(UsageError):
        read_student_images(four, 1.0)
    for image in four.glob("*.png"):
        image.write_bytes(b"")
    with raises(DatasetError, "too-few-samples") as caught:
        read_student_images(four)
    assert "0.png: " in str(caught.value)


def test_labels_only_choose_the_epoch() -> None:
    """Of eight classes two are held out and keep their labels; every other image is a class of its own."""
    images = noise()
    validates = held_out_to_choose(images, True, 0)
    assert len(set(images.labels[validates])) == 2
    assert validates.sum() == 12
    plain = without_labels(images, validates)
    assert plain.labels[~validates].tolist() == np.flatnonzero(~validates).tolist()
    assert [plain.classes[label] for label in plain.labels[validates]] == [
        images.classes[label] for label in images.labels[validates]
    ]
    assert not held_out_to_choose(images, False, 0).any()
    assert not held_out_to_choose(noise(7), True, 0).any()
    alone = dataclasses.replace(images, labels=np.minimum(np.arange(48), 7))  # only one class of two or more images
    assert not held_out_to_choose(alone, True, 0).any()


@pytest.mark.slow
def test_held_out_training_classes_choose_the_epoch(teacher: Path, own_zoo: Path) -> None:
    train, test = (dataclasses.replace(noise(classes), name="folder") for classes in (8, 4))
    pictures = StudentImages(train, test, True, "given", 0, 0.0)
    made = distilled("toy", lambda: pictures, small(dim=8, loss="rkd", settings=(*QUICK, "schedule.epochs=3")))
    log = [json.loads(line) for line in (made.outcome.folder / "log.jsonl").read_text().splitlines()]
    scores = [record["validation_map_at_r"] for record in log]
    assert made.outcome.best_epoch == made.selection.epoch == 1 + int(np.argmax(scores))
    facts = made.to_json()
    assert (facts["kept"], facts["selection"]["classes"], facts["selection"]["images"]) == ("trained", 2, 12)
    assert facts["dim"] == {"before": 64, "after": 8}
    for row in facts["rows"]:
        scores_of = made.fidelity.retrieval[row["metric"]]
        assert (row["before"], row["after"]) == (scores_of["teacher"].value, scores_of["student"].value)
    record = json.loads((made.outcome.folder / "recipe.json").read_text())
    assert len(record["held_out_to_choose"]) == 2


def test_the_recipe_has_the_teachers_dimension_preprocessing_and_views(teacher: Path) -> None:
    card = read_card(teacher)
    record = json.loads((teacher / "recipe.json").read_text())
    record["recipe"]["augmentation"]["rotate"] = 3
    record["recipe"]["data"] |= {"side": 20, "fit": "square"}
    (teacher / "recipe.json").write_text(json.dumps(record))
    recipe = student_recipe(plan_distillation("toy", small(size=24)), 500, "folder")
    assert recipe.heads[0].dim == card.dim == 64
    assert (recipe.preprocessing.crop, recipe.preprocessing.resize) == (24, 24)
    assert recipe.preprocessing.mean == card.preprocessing.mean
    assert (recipe.augmentation.rotate, recipe.data.side, recipe.data.fit) == (3, 20, "square")
    assert recipe.objective.method_args["fingerprint"] == card.fingerprint
    timms = student_recipe(plan_distillation("toy", Student("s", "resnet18", pretrained=True)), 50, "folder")
    assert timms.preprocessing.mean == (0.485, 0.456, 0.406)
    assert (timms.batch.size, timms.schedule.steps) == (50, 20)
    assert timms.optimizer.lr < recipe.optimizer.lr
    own = ("batch.size=30", "schedule.steps=7", "preprocessing.mean=[0.1,0.2,0.3]")
    given = Student("s", "resnet18", pretrained=True, settings=own)
    chosen = student_recipe(plan_distillation("toy", given), 50, "folder")
    assert (chosen.batch.size, chosen.schedule.steps) == (30, 7)
    assert (chosen.preprocessing.mean, chosen.preprocessing.std) == ((0.1, 0.2, 0.3), timms.preprocessing.std)


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"dim": 32}, RecipeError, "conflicting-settings"),
        ({"loss": "rkd", "dim": 0}, UsageError, "invalid-value"),
        ({"loss": "margin"}, RecipeError, "unknown-name"),
        ({"backbone": "konv4"}, RecipeError, None),
        ({"size": 5000}, UsageError, "invalid-value"),
        ({"size": 4}, RecipeError, "unsupported-model"),
        ({"settings": ("optimizer.lrr=1",)}, RecipeError, "unknown-setting"),
        (
            {"settings": ("preprocessing.mode=L", "preprocessing.mean=[0.5]", "preprocessing.std=[0.5]")},
            RecipeError,
            "conflicting-settings",
        ),
        ({"settings": ("objective.method=plain",)}, RecipeError, "conflicting-settings"),
        ({"settings": ('objective.method_args.transfer_args={"heat":1}',)}, RecipeError, "unknown-name"),
        ({"name": "toy"}, UsageError, "overwrites-input"),
        ({"name": "margin-conv4-glyphs"}, UsageError, "already-exists"),
    ],
)
def test_wrong_arguments_are_refused_before_training(
    change: dict[str, Any], kind: type[ZooError], code: str | None, teacher: Path, own_zoo: Path
) -> None:
    with pytest.raises(kind) as caught:
        distilled("toy", lambda: pytest.fail("images were read"), small(**change))
    assert code in (None, caught.value.code)
    assert not (own_zoo / "models" / "small").exists()
    assert not (own_zoo / "runs").exists()


@pytest.mark.slow
def test_a_student_of_a_shipped_model(own_zoo: Path) -> None:
    """A student that saw a few glyphs is nearer to its teacher than chance, and is an ordinary model folder."""
    few = [glyphs(split, count) for split, count in (("train", 32), ("test", 12))]
    settings = (*QUICK[2:], "schedule.epochs=2", "schedule.steps=10", "optimizer.lr=0.01", "batch.size=32")
    pictures = StudentImages(*few, True, "given", 0, 0.0)
    made = distilled("margin-conv4-glyphs", lambda: pictures, Student("tiny", "conv4", settings=settings))
    assert made.fidelity.cosine is not None
    assert made.fidelity.cosine.low > 0
    losses = [json.loads(line)["loss"] for line in (made.outcome.folder / "log.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.9 * losses[0]
    model = zoo.load("tiny")
    assert model.dim == made.teacher.dim
    assert model.card.description.startswith("Distilled from margin-conv4-glyphs (fingerprint ")
    assert model.card.sources[-1].startswith("Budnik and Avrithis 2021")
    record = json.loads((model.folder / "recipe.json").read_text())
    assert record["teacher"] == {"name": "margin-conv4-glyphs", "fingerprint": made.teacher.fingerprint}
    assert record["origin"] is None
    assert zoo.info("tiny").results[0]["fingerprint"] == model.card.fingerprint
    assert zoo.info("tiny").results[0]["versions"].keys() == {"dml-zoo", "numpy", "torch", "timm"}
    saved = zoo.info("tiny").results[0]["metrics"]
    assert saved["teacher_cosine"] == made.fidelity.cosine.value
    assert saved["recall_at_1"] == made.fidelity.retrieval["recall_at_1"]["student"].value
    assert main(["verify", "tiny"]) == 0
    rows = [zoo.load(name).embed(few[1].images) for name in ("margin-conv4-glyphs", "tiny")]
    assert made.fidelity.cosine.value == pytest.approx(np.mean(np.sum(rows[0] * rows[1], 1)), abs=1e-5)


def test_licence_and_sources_are_those_of_base_and_teacher(tmp_path: Path) -> None:
    recipe = dataclasses.replace(toys.recipe(), sources=("the loss",))
    network = Trainer(recipe, toys.noise(), CPU).final()

    def written(base: Card | None, teacher: Card | None) -> Card:
        return write_model_folder(tmp_path / "made", recipe, network, [], {}, noise().images[:1], base, teacher)

    alone = written(None, None)
    base = dataclasses.replace(alone, name="begun", licence="mit", sources=("the base",))
    teacher = dataclasses.replace(alone, name="taught", licence="dinov3-license", sources=("the teacher",))
    assert (alone.licence, alone.description) == ("unknown", "")
    made = written(None, teacher)
    assert (made.licence, made.sources) == ("dinov3-license", ("the teacher", "the loss"))
    both = written(base, teacher)
    assert both.licence == "mit AND dinov3-license"
    assert both.sources == ("the base", "the teacher", "the loss")
    assert both.description.startswith("Trained from begun. Distilled from taught (fingerprint ")
    assert written(base, dataclasses.replace(teacher, licence="mit")).licence == "mit"
    assert written(base, None).licence == "mit"


def test_a_finetune_of_a_student_knows_what_its_teacher_saw(teacher: Path, tmp_path: Path) -> None:
    record = json.loads((teacher / "recipe.json").read_text())
    record["split"] = {"train_classes": ["class 3"]}
    (teacher / "recipe.json").write_text(json.dumps(record))
    made = distilled("toy", lambda: read_student_images(write_pictures(tmp_path)), small())
    mine = set(made.pictures.train.classes)
    assert made.seen_classes == (("class 3",) if "class 3" in made.pictures.test.classes else ())
    assert set(classes_seen(made.outcome.folder, load_dataset("folder", "all", tmp_path))) == {*mine, "class 3"}


@pytest.mark.slow
def test_the_held_out_classes_are_measured_again_from_the_folder(teacher: Path, tmp_path: Path) -> None:
    root = write_pictures(tmp_path)
    (root / "class 0" / "broken.png").write_bytes(b"no image")
    made = distilled("toy", lambda: read_student_images(root, 0.25), small())
    found = zoo.evaluate("small", data=root, k=(1,))
    assert (found.split, found.queries, found.classes) == ("test", 12, 2)
    (check,) = remeasure(made.outcome.folder, root)
    assert check.ok is True
    assert "not checked: teacher_neighbours_at_" in check.detail


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_weights(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = read_student_images(flat(tmp_path / "flat"))
    same = (*QUICK, "precision=fp32")  # where it is measured, each run may compute in another precision
    save = checkpoint.save

    def saves_once(value: dict[str, Any], path: Path) -> None:
        if value["epoch"] == 2:
            raise KeyboardInterrupt
        assert not any("_teacher" in name for name in value["method"])
        save(value, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save", saves_once)
        distilled("toy", lambda: pictures, small("cut", loss="rkd", settings=same))
    weights = []
    for name in ("cut", "whole"):
        made = distilled("toy", lambda: pictures, small(name, loss="rkd", settings=same))
        weights.append(zoo.load(name).card.files)
        log = (made.outcome.folder / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in log] == [1, 2]
    assert weights[0] == weights[1]
    with raises(UsageError, "already-exists"):
        distilled("toy", lambda: pictures, small("cut"))
    assert distilled("toy", lambda: pictures, small("cut"), True).outcome.name == "cut"


@pytest.mark.slow
def test_on_the_command_line(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_pictures(tmp_path / "pictures")
    (root / "class 0" / "bad.png").write_bytes(b"no image")
    settings = [part for setting in QUICK for part in ("--set", setting)]
    common = ["distill", str(teacher), str(root), "--backbone", "conv4", "--quiet", "--device", "cpu", *settings]
    assert main([*common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "toy-distilled"
    assert found["teacher"]["name"] == "toy"
    assert found["split"]["by"] == "class"
    assert_attributed(found["evaluation"], zoo.load("toy-distilled").card)
    assert set(found["fidelity"]["retrieval"]["recall_at_1"]) == {"teacher", "student", "cross"}
    assert main([*common, "--loss", "similarity", "--dim", "6", "--as", "six", "--strict"]) == 1
    said = capsys.readouterr()
    assert "learnt from toy on " in said.out
    assert "map_at_r" in said.out
    assert "student in the teacher's gallery" not in said.out
    assert "left out, cannot be read" in said.err
    assert zoo.load("six").dim == 6
    bare = flat(tmp_path / "flat")
    assert main(["distill", "toy", str(bare), *common[3:], "--as", "bare", "--strict"]) == 0
    said = capsys.readouterr()
    assert "without labels" in said.out
    assert "cosine to the teacher's embedding" in said.out


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["toy", "--backbone", "conv4"], "--dataset"),
        (["toy", ".", "--backbone", "conv4", "--dataset", "glyphs"], "--dataset"),
        (["toy", "--backbone", "conv4", "--dataset", "folder", "--data", "nowhere"], "nowhere"),
        (["toy", ".", "--backbone", "conv4", "--data", "."], "--data"),
        (["toy", "nowhere", "--backbone", "conv4"], "nowhere"),
        (["toy", "--backbone", "conv4", "--dataset", "glyfs"], "'glyphs'"),
        (["nobody-knows", ".", "--backbone", "conv4"], "nobody-knows"),
        (["toy", ".", "--backbone", "conv4", "--as", "No Name"], "--as"),
        (["toy", ".", "--backbone", "conv4", "--seed", "-1"], "--seed"),
        (["toy", ".", "--backbone", "conv4", "--test-share", "1"], "--test-share"),
        (["toy", ".", "--backbone", "konv4"], "'conv4'"),
        (["toy", ".", "--backbone", "conv4", "--loss", "rdk"], "'rkd'"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], value: str, teacher: Path) -> None:
    with pytest.raises(ZooError) as caught:
        run(["distill", *arguments])
    assert caught.value.exit_code == 2
    assert value in str(caught.value)


def test_wrong_arguments_are_reported_before_torch_is_loaded(teacher: Path) -> None:
    mistakes = [
        (["--loss", "rdk"], "unknown-name"),
        (["--dim", "0"], "invalid-value"),
        (["--dim", "6"], "conflicting-settings"),
        (["--size", "5000"], "invalid-value"),
        (["--as", "toy"], "overwrites-input"),
        (["--set", "optimizer.lrr=1"], "unknown-setting"),
        (["--set", "objective.method=plain"], "conflicting-settings"),
    ]
    assert_refused_before_torch(["distill", "toy", ".", "--backbone", "conv4"], mistakes)


def test_the_constants_of_the_losses_agree_with_the_losses() -> None:
    assert list(SOURCES) == list(TRANSFERS)
    assert {name for name in TRANSFERS if needs_same_dim(name)} == set(SAME_DIM)


def test_help_names_the_losses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", "--help"]) == 0
    assert "rkd" in capsys.readouterr().out
