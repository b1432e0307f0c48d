"""Finetuning on a folder: reading, errors, class split, training, and measurement before and after."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.attribution import assert_attributed
from tests.raising import raises
from tests.training.before_torch import assert_refused_before_torch
from tests.training.cached.pictures import make_model, noise, write_pictures
from training.finetune import FinetuneRequest, batch_sizes, finetune, method_names
from zoo.cli.main import main
from zoo.data.folder import read_training_folder, split_classes
from zoo.errors import DatasetError, RecipeError, UsageError, ZooError

QUICK = ["schedule.epochs=1", "schedule.steps=3", "data.validation=0"]


@pytest.fixture
def base(own_zoo: Path) -> Path:
    make_model(own_zoo / "models" / "toy")
    return own_zoo / "models" / "toy"


def test_a_folder_and_a_table_are_read_alike(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "pictures")
    images = sorted(root.rglob("*.png"))
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "image", "label"])
        writer.writerows(["-", image.relative_to(tmp_path), image.parent.name] for image in images)
    folder, table = read_training_folder(root).dataset, read_training_folder(tmp_path / "table.csv").dataset
    assert folder.classes == table.classes
    np.testing.assert_array_equal(folder.labels, table.labels)
    assert [Path(str(image)).name for image in folder.images] == [Path(str(image)).name for image in table.images]


def test_unusable_images_are_left_out_and_listed(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, classes=5)
    (root / "class 0" / "broken.png").write_bytes(b"no image")
    (root / "alone").mkdir()
    (root / "class 1" / "6.png").rename(root / "alone" / "6.png")
    pictures = read_training_folder(root)
    assert pictures.alone == ("alone",)
    assert list(pictures.unreadable) == ["class 0/broken.png"]
    assert len(pictures.dataset) == 29
    assert pictures.dataset.classes == tuple(f"class {k}" for k in range(5))
    assert [line.split(":")[0] for line in pictures.notes()] == [
        "left out, cannot be read",
        "left out, a class of one image",
    ]


def test_folders_that_cannot_be_split_are_refused(tmp_path: Path) -> None:
    def refused(folder: Path, kind: type[ZooError] = DatasetError) -> str:
        with pytest.raises(kind) as caught:
            read_training_folder(folder)
        return str(caught.value)

    assert "none" in refused(tmp_path / "none")
    few = write_pictures(tmp_path / "few", classes=3)
    assert "3 classes" in refused(few)
    single = write_pictures(tmp_path / "single", classes=6, each=1)
    message = refused(single)
    assert "6 classes" in message
    assert "class 0, class 1" in message
    for image in few.rglob("*.png"):
        image.write_bytes(b"")
    message = refused(few)
    assert "18 images" in message
    assert "class 0/0.png" in message
    (single / "stray.png").write_bytes(b"")
    assert "stray.png" in refused(single)
    for part in ("train", "test"):
        write_pictures(tmp_path / "split" / part)
    refused(tmp_path / "split", UsageError)


def test_queries_of_a_table_are_not_used(tmp_path: Path) -> None:
    """The printed and the stored scores of the held-out classes agree: each image searches all others."""
    root = write_pictures(tmp_path)
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name},1" for path in sorted(root.rglob("*.png"))]
    (tmp_path / "t.csv").write_text("\n".join(["image,label,query", *lines]))
    assert read_training_folder(tmp_path / "t.csv").dataset.factors == {}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("file,label\na.png,a\n", UsageError, "image"),
        ("image,class\na.png,a\n", UsageError, "label"),
        ("image,label,split\na.png,a,test\n", UsageError, "split"),
        ("image,label\n", DatasetError, "t.csv"),
        ("image,label\na.png,\n", UsageError, "line 2"),
        ("image,label\na.png\n", UsageError, "line 2"),
        ("image,label\na.png,a\na.png,b\n", UsageError, "line 3"),
        ("image,label\na.png,a\nb.png,b\n", DatasetError, "2 images"),
    ],
)
def test_useless_tables_are_refused(text: str, kind: type[ZooError], value: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(kind) as caught:
        read_training_folder(tmp_path / "t.csv")
    assert value in str(caught.value)


def test_the_split_is_by_class_and_follows_from_the_seed() -> None:
    dataset = noise(classes=10)
    split, again, other = (split_classes(dataset, 0.3, seed) for seed in (0, 0, 1))
    assert not set(split.train.classes) & set(split.test.classes)
    assert (len(split.train.classes), len(split.test.classes)) == (7, 3)
    assert len(split.train) + len(split.test) == len(dataset)
    assert split.to_json() == again.to_json() != other.to_json()
    for part in (split.train, split.test):
        names = [part.classes[label] for label in part.labels]
        assert names == [f"class {dataset.labels[int(source.split('/')[1])]}" for source in part.sources]
    for classes, share, expected in ((4, 0.9, 2), (4, 0.1, 2), (20, 0.95, 18)):
        assert len(split_classes(noise(classes), share).test.classes) == expected
    with pytest.raises(UsageError):
        split_classes(dataset, 1.0)


def test_batches_fit_the_classes_there_are() -> None:
    for classes, samples, size, per_class in (
        (2, 9, 16, 8),
        (8, 9, 32, 4),
        (500, 4, 128, 4),
        (2, 5, 10, 5),
        (50, 3, 126, 3),
    ):
        assert batch_sizes(np.repeat(np.arange(classes), samples)) == (size, per_class)


def test_heads_on_a_frozen_trunk(base: Path, tmp_path: Path, own_zoo: Path) -> None:
    root = write_pictures(tmp_path)
    fitted = finetune(root, FinetuneRequest("toy", "mine", "diva", settings=QUICK, views=2, device="cpu"))
    model = zoo.load("mine")
    assert [head.name for head in model.card.heads] == ["discriminative", "shared", "intra", "dance"]
    assert model.card.files["model.safetensors"] == zoo.load("toy").card.files["model.safetensors"]
    record = json.loads((model.folder / "recipe.json").read_text())
    assert record["split"] == fitted.split.to_json()
    assert record["base"]["name"] == "toy"
    saved = zoo.info("mine").results[0]
    assert saved["metrics"]["recall_at_1"] == pytest.approx(fitted.rows[0].after)
    assert saved["model"] == "mine"
    assert list((own_zoo / "cache").glob("features-*/plain.npy"))


def test_trunk_and_head_learn_on_the_command_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_pictures(tmp_path)
    (root / "class 0" / "broken.png").write_bytes(b"no image")
    settings = [part for setting in QUICK for part in ("--set", setting)]
    words = ["finetune", str(root), "--from", str(base), "--tune", "all", "--quiet", "--json", "--device", "cpu"]
    words += settings
    assert main([*words, "--strict"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found["unreadable"]) == ["class 0/broken.png"]
    assert found["name"] == "toy-finetuned"
    assert found["seconds"] >= found["training_seconds"] > 0
    assert_attributed(found["evaluation"], zoo.load("toy-finetuned").card)
    assert found["base"] == zoo.load("toy").card.identity
    assert [row["metric"] for row in found["rows"]] == ["recall_at_1", "map_at_r"]
    model = zoo.load("toy-finetuned")
    assert model.card.files["model.safetensors"] != zoo.load("toy").card.files["model.safetensors"]
    assert json.loads((model.folder / "recipe.json").read_text())["recipe"]["backbone"]["freeze_norm"] == "all"


def test_another_loss_by_setting_is_a_custom_method_on_the_card(base: Path, tmp_path: Path) -> None:
    root = write_pictures(tmp_path)
    loss = ["objective.loss=ms", "objective.miner=ms"]
    finetune(root, FinetuneRequest("toy", "set", "margin", settings=[*QUICK, *loss], views=1, device="cpu"))
    card = zoo.load("set").card
    assert (card.method, card.sources) == ("custom-ms", zoo.load("toy").card.sources)


def test_wrong_arguments_are_refused_before_training(base: Path, tmp_path: Path, own_zoo: Path) -> None:
    root = write_pictures(tmp_path)
    assert "margin" in method_names()
    for request, code in (
        (FinetuneRequest("toy", "toy"), "overwrites-input"),
        (FinetuneRequest("toy", "mine", "margen"), "unknown-name"),
        (FinetuneRequest("toy", "mine", "margin2"), "not-available"),
    ):
        with raises(UsageError, code):
            finetune(root, request)
    with raises(RecipeError, "unknown-setting"):
        finetune(root, FinetuneRequest("toy", "mine", settings=["optimizer.lrr=1"]))
    with raises(RecipeError, "unsupported-model"):  # before it looks for images
        finetune(tmp_path / "nothing", FinetuneRequest("toy", "mine", tune="lora"))
    assert not (own_zoo / "models" / "mine").exists()
    assert main(["finetune", str(root), "--from", "toy", "--as", "No Name"]) == 2
    assert main(["finetune", str(root), "--from", "nobody-knows"]) == 2


@pytest.mark.slow
def test_wrong_arguments_are_reported_before_torch_is_loaded(base: Path) -> None:
    mistakes = [
        (["--seed", "-1"], "invalid-value"),
        (["--views", "-1"], "invalid-value"),
        (["--as", "toy"], "overwrites-input"),
        (["--method", "margen"], "unknown-name"),
    ]
    assert_refused_before_torch(["finetune", ".", "--from", "toy"], mistakes)


def test_missing_features_are_reported_before_torch_is_loaded(tmp_path: Path) -> None:
    mistakes = [(["--features", str(tmp_path / "none")], "not-found")]
    assert_refused_before_torch(["train", "margin-conv4-glyphs"], mistakes)


def test_photographs_of_every_kind_are_trained_on(base: Path, tmp_path: Path) -> None:
    """Grey, CMYK, 16-bit and palette images take part beside RGB ones, under names of any script."""
    root = write_pictures(tmp_path, classes=4, each=2)
    kinds = {"L": "png", "CMYK": "jpg", "I;16": "png", "P": "gif", "LA": "png", "RGBA": "webp"}
    for label in range(4):
        for i, (mode, suffix) in enumerate(kinds.items()):
            grey = Image.fromarray(np.full((20, 30), 60 * label, np.uint8))
            image = Image.fromarray(np.full((20, 30), 257 * 60 * label, np.uint16)) if mode == "I;16" else None
            (image or grey.convert(mode)).save(root / f"class {label}" / f"größe {i}.{suffix}")
    fitted = finetune(root, FinetuneRequest("toy", "mine", settings=QUICK, views=1, device="cpu"))
    assert len(fitted.split.train) + len(fitted.split.test) == 4 * (2 + len(kinds))
    assert (fitted.pictures.unreadable, fitted.pictures.alone) == ({}, ())
    # The kind of file does not matter: 16-bit grey of the same shade has the same embedding.
    model = zoo.load("mine", device="cpu")
    grey, deep = (model.embed(root / "class 3" / f"größe {i}.png") for i in (0, 2))
    np.testing.assert_allclose(grey, deep, atol=1e-6)


def test_two_classes_are_refused(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, classes=2)
    with raises(DatasetError, "too-few-classes"):
        read_training_folder(root)
    (root / "class 1").rename(tmp_path.parent / f"{tmp_path.name}-away")
    with raises(DatasetError, "too-few-classes"):
        read_training_folder(root)


@pytest.mark.slow
def test_a_single_head_of_the_base_goes_on(base: Path, tmp_path: Path) -> None:
    """Before the first step the new model is the base, unless it is whitened: equal embeddings and sizes."""
    root = write_pictures(tmp_path)
    settings = ["schedule.epochs=0", "data.validation=0", "head_start=pca"]
    fitted = finetune(root, FinetuneRequest("toy", "mine", settings=settings, views=1, device="cpu"))
    before, after = zoo.load("toy", device="cpu"), zoo.load("mine", device="cpu")
    assert fitted.dims == (before.dim, before.dim)
    images = fitted.split.test.images
    np.testing.assert_allclose(after.embed(images), before.embed(images), atol=1e-5)
    settings[-1] = "head_start=lda"
    finetune(root, FinetuneRequest("toy", "whitened", settings=settings, views=1, device="cpu"))
    whitened = zoo.load("whitened", device="cpu")
    assert whitened.dim == before.dim
    assert np.abs(whitened.embed(images) - before.embed(images)).max() > 1e-3
