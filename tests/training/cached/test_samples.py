"""Heads on cached features: they learn as on images through the trunk, and give an ordinary model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from tests.raising import raises
from tests.training import toys
from tests.training.cached.pictures import CPU, make_model, noise, write_pictures
from training import api, checkpoint
from training.cached.extraction import extract
from training.cached.feature_folder import (
    USUAL_AUGMENTATION,
    Features,
    TrunkModel,
    Views,
    read_features,
    recipe_on_features,
    views_of_model,
)
from training.cached.samples import load_cached_data
from training.cached.views import draw_views
from training.overrides import resolve
from training.recipe import Augmentation, Recipe
from training.trainer import Trainer, fit
from zoo.cli.main import main
from zoo.errors import DatasetError, RecipeError, UsageError
from zoo.models.card import Card
from zoo.models.network import load_network

SETTINGS = ["schedule.epochs=2", "schedule.steps=4", "batch.size=16", "batch.per_class=4", "data.validation=0.25"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Card, Path, Path]:
    """Return a model's card and folder, and a folder of its features."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("base") / "toy"
    card = make_model(folder)
    file = folder.parent / "f"
    views = Views(3, Augmentation(flip=0.5, crop="resized", oversample=1), 20, "whole")
    extract(TrunkModel(folder, card, str(folder)), noise(), file, views, "float32", CPU, batch_size=20)
    return card, folder, file


def frozen(name: str, made: tuple[Card, Path, Path], *settings: str) -> Recipe:
    card, folder, file = made
    given = [*SETTINGS, *settings]
    return recipe_on_features(resolve(name, given), read_features(file), card, str(folder), given, "heads")


def test_plain_features_are_those_of_test_images(made: tuple[Card, Path, Path]) -> None:
    card, folder, file = made
    features = read_features(file)
    assert (features.plain != 0).any(axis=1).all()
    heads = load_network(card, folder).embed(torch.from_numpy(np.array(features.plain))).detach().numpy()
    np.testing.assert_allclose(heads, zoo.load(folder).embed(noise().images), atol=1e-5)
    assert features.views.shape == (3, 48, 16)
    assert (np.abs(np.diff(features.views, axis=0)).max(axis=(1, 2)) > 1e-4).all()
    assert features.about.fingerprint == card.fingerprint
    assert features.about.augmentation["flip"] == 0.5


def test_views_follow_from_the_seed(made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    card, folder, file = made
    dataset, first = noise(), read_features(file)
    kept = []
    for seed in (0, 1):
        views = Views(3, Augmentation(flip=0.5, crop="resized", oversample=1), 20, "whole", seed)
        extract(TrunkModel(folder, card, "m"), dataset, tmp_path / "g", views, "float32", CPU, batch_size=20)
        kept.append(np.array(read_features(tmp_path / "g").views))
    np.testing.assert_array_equal(kept[0], first.views)
    assert not np.array_equal(kept[0], kept[1])


def test_views_that_change_nothing_are_the_plain_features(made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    card, folder, _ = made
    still = Views(1, Augmentation(oversample=1), 16, "square")
    dataset = dataclasses.replace(noise(), images=[image[:24, :24] for image in noise().images])
    extract(TrunkModel(folder, card, "m"), dataset, tmp_path / "g", still, "float32", CPU)
    found = read_features(tmp_path / "g")
    np.testing.assert_allclose(found.views[0], found.plain, atol=2e-3 * np.abs(found.plain).max())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["diva", "mic", "shared"])
def test_heads_learn_and_give_an_ordinary_model(
    method: str, made: tuple[Card, Path, Path], own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, _, _ = made
    few = ["objective.method_args.groups=8"] if method == "mic" else []
    recipe = frozen(f"{method}-conv4-glyphs", made, *few)
    outcome = api.train(recipe, progress=False, evaluate=False)
    model = zoo.load("heads")
    assert model.card.heads == recipe.heads
    assert (model.card.backbone, model.card.description) == (card.backbone, "Trained from toy.")
    assert model.card.files["model.safetensors"] == card.files["model.safetensors"]
    assert outcome.validation.keys() == {"recall_at_1", "map_at_r"}
    record = json.loads((outcome.folder / "recipe.json").read_text())
    assert record["base"] == {"name": card.name, "fingerprint": card.fingerprint}
    assert main(["verify", "heads"]) == 0
    rows = model.embed(noise().images[:2])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_a_run_repeats_and_learns(made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    recipe = frozen("margin-conv4-glyphs", made, "schedule.epochs=2", "schedule.steps=20", "optimizer.lr=0.01")
    logs = [fit(recipe, load_cached_data(recipe), tmp_path / again, CPU, progress=False).log for again in "ab"]
    assert [r["loss"] for r in logs[0]] == [r["loss"] for r in logs[1]]
    assert logs[0][-1]["loss"] < logs[0][0]["loss"]


def test_a_run_on_features_records_its_health(made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    recipe = frozen("margin-conv4-glyphs", made)
    data = load_cached_data(recipe)
    log = fit(recipe, data, tmp_path, toys.CPU, progress=False).log
    assert data.validation is not None
    features, labels = data.validation
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    nearest = (rows @ rows.T - 4 * np.eye(len(rows))).argmax(1)
    assert log[0]["start"]["trunk_recall_at_1"] == pytest.approx((labels[nearest] == labels).mean())
    values = log[-1]["indicators"]
    assert set(values["update"]) == {"head embedding", "loss"}  # the boundaries of the margin loss
    assert "input" not in values


@pytest.mark.slow
def test_an_interrupted_run_continues(
    made: tuple[Card, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = frozen("diva-conv4-glyphs", made)
    whole = fit(recipe, load_cached_data(recipe), tmp_path / "whole", CPU, progress=False)
    save = checkpoint.save

    def saves_once(value: dict[str, object], path: Path) -> None:
        if value["epoch"] == 2:
            raise KeyboardInterrupt
        save(value, path)

    monkeypatch.setattr(checkpoint, "save", saves_once)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, load_cached_data(recipe), tmp_path / "cut", CPU, progress=False)
    monkeypatch.undo()
    rest = fit(recipe, load_cached_data(recipe), tmp_path / "cut", CPU, progress=False)
    assert rest.resumed_at == 1
    assert [r["loss"] for r in rest.log] == [r["loss"] for r in whole.log]
    for a, b in zip(rest.network.state_dict().values(), whole.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_step_equals_that_of_a_frozen_trunk(made: tuple[Card, Path, Path]) -> None:
    """Compare the gradient of the head on cached features with that on the trunk's own features of the same images."""
    recipe = frozen("triplet-r-conv4-glyphs", made, "data.validation=0", "schedule.average=0")
    data = load_cached_data(recipe)
    samples = np.arange(0, 48, 3)
    run = Trainer(recipe, data, CPU)
    torch.manual_seed(1)
    batch = run.minibatch(samples, data.images(samples), "main")
    run.backward(sum(run.method.loss(batch).values()))
    found = run.network.heads["embedding"].weight.grad

    torch.manual_seed(1)
    chosen = torch.randint(3, (16,)).numpy()
    direct = Trainer(recipe, data, CPU)  # the same initial head
    seen = torch.from_numpy(np.array(data.features.views[chosen, samples]))
    torch.manual_seed(1)
    torch.randint(3, (16,))
    raw = direct.network.heads["embedding"](seen)
    unit = raw / raw.norm(dim=1, keepdim=True)
    labels = torch.from_numpy(data.labels[samples])
    direct.method.objective(unit, labels, direct.method.miner(unit.detach(), labels)).backward()
    torch.testing.assert_close(found, direct.network.heads["embedding"].weight.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["margin-noise-in-conv4-glyphs", "diva-rotation-conv4-glyphs", "mixup-conv4-glyphs"])
def test_methods_that_need_images_are_refused(name: str, made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    recipe = frozen(name, made)
    with raises(RecipeError, "conflicting-settings"):
        fit(recipe, load_cached_data(recipe), tmp_path, CPU, progress=False)


def test_a_second_view_differs_from_the_first() -> None:
    cached, rows = torch.arange(4.0).repeat(6, 1)[:, :, None], torch.arange(6)

    def pass_on(images: Tensor, trunk: nn.Module | None) -> Tensor:
        return images.flatten(1)

    views = draw_views(lambda numbers: cached[rows, numbers], 4, 6, slice(None), pass_on, "")
    for _ in range(20):
        assert (views.another() != views.first).all()
    seen = views.forward(views.first, None)
    torch.testing.assert_close(seen, views.first.flatten(1))
    with raises(RecipeError, "conflicting-settings"):
        views.forward(views.first + 1, None)
    alone = draw_views(lambda numbers: cached[rows, numbers], 1, 6, slice(None), pass_on, "")
    with raises(RecipeError, "too-few-samples"):
        alone.another()


def test_recipes_that_features_cannot_follow_are_refused(made: tuple[Card, Path, Path]) -> None:
    card, folder, file = made
    features = read_features(file)
    for name, code in (("margin2-conv4-glyphs", "not-available"), ("group-conv4-glyphs", "conflicting-settings")):
        with raises(RecipeError, code):
            recipe_on_features(resolve(name), features, card, str(folder))
    for setting in (
        "augmentation.flip=0",
        "backbone.pretrained=true",
        "data.side=4",
        "batch.chunk=3",
        "precision=bf16",
    ):
        with raises(RecipeError, "option-without-effect"):
            frozen("margin-conv4-glyphs", made, setting)
    with raises(UsageError, "not-available"):
        api.train(frozen("margin-conv4-glyphs", made), compiled=True)


def test_other_weights_are_refused(made: tuple[Card, Path, Path], tmp_path: Path) -> None:
    *_, file = made
    other = make_model(tmp_path / "toy", seed=1)
    with raises(UsageError, "other-model"):
        recipe_on_features(resolve("margin-conv4-glyphs"), read_features(file), other, str(tmp_path / "toy"))


def test_an_image_that_cannot_be_read_is_named_and_nothing_is_left(
    made: tuple[Card, Path, Path], tmp_path: Path
) -> None:
    card, folder, _ = made
    for row, value in ((40, "noise/40"), (47, "noise")):  # the last is among the golden ones
        images = [*noise().images]
        images[row] = b"no image"
        broken = dataclasses.replace(noise(), images=images)
        with pytest.raises(DatasetError) as caught:
            extract(TrunkModel(folder, card, "m"), broken, tmp_path / "g", Views(1, USUAL_AUGMENTATION, 24))
        assert value in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_recipe_has_the_usual_views(tmp_path: Path) -> None:
    preprocessing = toys.recipe().preprocessing
    assert views_of_model(tmp_path, preprocessing, 2, 0) == Views(2, USUAL_AUGMENTATION, 16, "whole", 0)
    for text in ("{", '{"recipe": {}}', '{"recipe": {"augmentation": {"warp": 1}}}'):
        (tmp_path / "recipe.json").write_text(text)
        assert views_of_model(tmp_path, preprocessing, 2, 0).augmentation == USUAL_AUGMENTATION


def test_a_shipped_model_has_the_views_of_its_own_recipe() -> None:
    info = zoo.info("margin-conv4-glyphs")
    views = views_of_model(info.folder, info.card.preprocessing, 2, 0)
    assert (views.side, views.fit, views.augmentation.rotate) == (40, "square", 8)


@pytest.mark.slow
def test_from_images_to_a_model_on_the_command_line(
    made: tuple[Card, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    _, folder, _ = made
    for i, (image, label) in enumerate(zip(noise().images, noise().labels, strict=True)):
        (tmp_path / "pictures" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "pictures" / str(label) / f"{i}.png")
    out = tmp_path / "f"
    (tmp_path / "pictures" / "0" / "cut.png").write_bytes(b"no image")
    call = ["features", str(folder), str(tmp_path / "pictures"), "-o", str(out), "--views", "2", "--quiet"]
    assert main([*call, "--strict", "--json"]) == 1
    output = capsys.readouterr()
    assert (json.loads(output.out)["images"], json.loads(output.out)["unreadable"]) == (48, ["0/cut.png"])
    assert "cut.png" in output.err
    made_at = (out / "plain.npy").stat().st_mtime_ns
    assert main(call) == 2
    assert (out / "plain.npy").stat().st_mtime_ns == made_at
    assert main([*call, "--replace"]) == 0
    found: Features = read_features(out)
    assert (found.plain.dtype, found.views.shape, len(found.classes)) == (np.float16, (2, 48, 16), 8)
    arguments = [part for setting in SETTINGS for part in ("--set", setting)]
    command = ["train", "diva-conv4-glyphs", "--features", str(out), "--as", "mine", "--quiet", "--json", *arguments]
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mine"
    assert zoo.info("mine").card.heads[0].name == "discriminative"
    assert main(["train", "diva-conv4-glyphs", "--model", "mine"]) == 2
    assert main(["features", str(folder), "-o", str(out)]) == 2
    for other in (tmp_path / "pictures", tmp_path / "pictures" / "0" / "cut.png"):
        assert main(["features", str(folder), str(tmp_path / "pictures"), "-o", str(other), "--quiet"]) == 2
    assert len(list((tmp_path / "pictures").rglob("*.png"))) == 49


def test_heads_are_trained_on_features_of_six_classes(own_zoo: Path, tmp_path: Path) -> None:
    make_model(own_zoo / "models" / "toy")
    root, out = write_pictures(tmp_path / "pictures", classes=6), tmp_path / "f"
    assert main(["features", "toy", str(root), "-o", str(out), "--views", "1", "--device", "cpu", "--quiet"]) == 0
    quick = [part for setting in ("schedule.epochs=1", "schedule.steps=2") for part in ("--set", setting)]
    call = ["train", "margin-conv4-glyphs", "--features", str(out), "--as", "heads", "--no-eval", "--quiet", *quick]
    assert main(call) == 0
    recipe = json.loads((own_zoo / "models" / "heads" / "recipe.json").read_text())["recipe"]
    assert (recipe["data"]["validation"], recipe["batch"]["size"]) == (0, 24)
    assert main([*call, "--replace", "--set", "head_start=pca"]) == 0
