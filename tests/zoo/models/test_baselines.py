"""Public backbones by name: the curated list against timm, and tiny real timm models from a Hub on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import zoo
from tests.raising import raises
from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Hub, Repository
from tests.zoo.timm_hub import FILES, RESNET, of_timm, timm_hub
from zoo.data.preprocessing import to_pixels
from zoo.errors import HubError, ModelFolderError, ModelNotFoundError, RecipeError, ZooError
from zoo.models.baselines import baselines, read_timm_config, repository_of, short_name
from zoo.models.card import read_card
from zoo.models.golden import draw_images
from zoo.models.names import find_model
from zoo.models.network import create_trunk
from zoo.models.verify import verify


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with timm_hub(tmp_path / "hub", monkeypatch) as server:
        yield server


def timm_features(repository: str, images: list[np.ndarray]) -> np.ndarray:
    """Return normalised pooled features of timm's model on our pixels."""
    config = json.loads(FILES[f"{repository}/config.json"])
    model = timm.create_model(config["architecture"], num_classes=7, **config["model_args"])
    from safetensors.torch import load

    model.load_state_dict(load(FILES[f"{repository}/model.safetensors"]))
    model.reset_classifier(0)
    preprocessing = read_card(find_model(repository)).preprocessing
    pixels = (
        torch.from_numpy(np.stack([to_pixels(image, preprocessing) for image in images])).permute(0, 3, 1, 2).double()
        / 255
    )
    about = config["pretrained_cfg"]
    mean, std = (torch.tensor(about[key]).double().reshape(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        features = model.double().eval()((pixels - mean) / std)
    return (features / features.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(baselines()))
def test_the_list_agrees_with_timm(name: str) -> None:
    ours = baselines()[name]
    with torch.device("meta"):
        model = timm.create_model(ours.timm, num_classes=0)
    cfg = timm.get_pretrained_cfg(ours.timm)
    assert cfg.hf_hub_id == ours.repository
    assert (ours.dim, ours.size, ours.licence) == (model.num_features, cfg.input_size[-1], cfg.license)
    assert cfg.crop_mode == "center"
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert ours.source
    assert all(0 < score["value"] < 1 and "arXiv" in score["source"] for score in ours.scores)


def test_repositories_and_short_names() -> None:
    assert repository_of("dinov2-s14") == repository_of("timm/vit_small_patch14_dinov2.lvd142m")
    assert repository_of("hf-hub:timm/resnet50.a1_in1k") == "timm/resnet50.a1_in1k"
    assert short_name("timm/resnet50.a1_in1k") == "r50-a1"
    assert short_name("Some-Org/Birds") == "some-org--birds"
    for other in ("resnet50", "org/name", "timm/", "timm/a/b", "timm/../x"):
        assert repository_of(other) is None
    assert not set(baselines()) & set(zoo.models.recipes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("dinov2-s14", "timm/vit_small_patch14_dinov2.lvd142m"),
        ("timm/resnet10t.toy_in1k", "timm/resnet10t.toy_in1k"),
        ("hf-hub:Some-Org/Birds", "Some-Org/Birds"),
    ],
)
def test_a_timm_model_gives_timms_pooled_features(
    hub: Hub, name: str, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = draw_images(3)
    rows = zoo.load(name).embed(images)
    np.testing.assert_allclose(rows, timm_features(repository, images), atol=1e-5)
    requests = len(hub.paths)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    np.testing.assert_array_equal(zoo.load(name).embed(images), rows)
    assert len(hub.paths) == requests
    folder = find_model(name)
    assert {check.ok for check in verify(folder)} == {True}
    assert {m.name: m.status for m in zoo.list_models(method="pretrained")}[folder.name] == "hub"
    assert zoo.info(name).folder == folder
    assert find_model(folder.name) == folder
    trunk = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    assert all(torch.equal(t, load_file(folder / "model.safetensors")[n]) for n, t in trunk.state_dict().items())


@pytest.mark.usefixtures("hub")
def test_the_card_names_its_source() -> None:
    card = zoo.load("Some-Org/Birds").card
    assert (card.name, card.method, card.backbone, card.dataset) == (
        "some-org--birds",
        "pretrained",
        "resnet18",
        "birds",
    )
    assert (card.licence, card.dim) == ("mit", 8)
    assert card.sources == ("https://huggingface.co/Some-Org/Birds",)
    assert "timm prepares images by 'squash'" in card.description
    card = zoo.load("dinov2-s14").card
    assert card.licence == "apache-2.0"
    assert "arXiv:2304.07193" in card.sources[0]


@pytest.mark.usefixtures("hub")
def test_a_revision_has_its_own_folder() -> None:
    assert find_model("timm/resnet10t.toy_in1k", revision=COMMIT).name == f"timm--resnet10t.toy_in1k--{COMMIT[:12]}"
    assert find_model("timm/resnet10t.toy_in1k@main") == find_model("timm/resnet10t.toy_in1k", revision="main")
    assert find_model("Some-Org/Birds@main").name == f"some-org--birds--{COMMIT[:12]}"
    with raises(HubError, "download-failed") as caught:
        find_model("timm/resnet10t.toy_in1k", revision="nope")
    assert "'nope'" in str(caught.value)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "error", "code", "value"),
    [
        ("timm/nothing", HubError, "download-failed", "timm/nothing"),
        ("org/nothing", ModelNotFoundError, None, "org/nothing"),
        ("org/long", ModelFolderError, "not-available", "64 x 32 pixels"),
        ("org/evil", ModelFolderError, "unsupported-model", "checkpoint_path"),
        ("org/wrong", ModelFolderError, "unsupported-model", "org/wrong"),
        ("org/unknown", ModelFolderError, "unsupported-model", "'resnet18"),
        ("org/bert", HubError, None, "org/bert"),
        ("org/pickled", HubError, "not-found", "model.safetensors"),
    ],
)
def test_other_repositories_are_refused(
    own_zoo: Path, name: str, error: type[ZooError], code: str | None, value: str
) -> None:
    with pytest.raises(error) as caught:
        zoo.load(name)
    assert code in (None, caught.value.code)
    assert value in str(caught.value)
    assert not list((own_zoo / "baselines").glob("*"))


@pytest.mark.usefixtures("hub")
def test_models_with_equal_short_names_have_different_folders(hub: Hub) -> None:
    upper, lower = "Some-Org/Birds", "some-org/birds"
    hub.repositories[lower] = Repository({"main": COMMIT}, {COMMIT: dict(hub.repositories[upper].files())})
    hub.repositories[lower].files()["model.safetensors"] = of_timm("resnet18", RESNET, seed=4)[1]
    first, second = find_model(upper), find_model(lower)
    assert first.name == short_name(upper) == short_name(lower)
    assert (find_model(upper), find_model(lower)) == (first, second)
    assert read_card(first).fingerprint != read_card(second).fingerprint
    for name, folder in ((upper, first), (lower, second)):
        assert json.loads((folder / "recipe.json").read_text())["baseline"]["repository"] == name
        assert zoo.info(name).folder == folder
        assert zoo.info(folder.name).folder == folder
    assert find_model(lower, revision=COMMIT) != find_model(upper, revision=COMMIT)


@pytest.mark.usefixtures("hub")
def test_a_revision_is_not_part_of_another_models_name(hub: Hub) -> None:
    hub.repositories["some-org/birds-v1"] = hub.repositories["Some-Org/Birds"]
    assert find_model("some-org/birds-v1").is_dir()
    with pytest.raises(ModelNotFoundError) as caught:
        find_model("some-org/birds@v1")
    assert "some-org/birds" in str(caught.value)


def test_the_preprocessing_is_timms(tmp_path: Path) -> None:
    from timm.data import create_transform

    y, x = np.mgrid[0:90, 0:120]
    slope = np.stack([2 * x, 2 * y, 127 + 100 * np.sin(x / 40) * np.cos(y / 30)], 2).clip(0, 255).astype(np.uint8)
    for crop_pct, interpolation in ((0.9, "bicubic"), (0.875, "bilinear"), (1.0, "bicubic"), (0.95, "bicubic")):
        config, _ = of_timm("resnet18", RESNET, crop_pct=crop_pct, interpolation=interpolation)
        (tmp_path / "config.json").write_bytes(config)
        preprocessing = read_timm_config(tmp_path / "config.json").preprocessing
        assert (preprocessing.crop, preprocessing.resize) == (32, int(32 / crop_pct))
        transform = create_transform((3, 32, 32), crop_pct=crop_pct, interpolation=interpolation, normalize=False)
        theirs = np.asarray(transform(Image.fromarray(slope))).transpose(1, 2, 0)
        ours = to_pixels(slope, preprocessing).astype(int)
        # timm rounds the resized image's side and the crop's corner to whole pixels; ours does both in one step.
        assert np.abs(theirs - ours).mean() < 2
        for channel, axis in ((0, 1), (1, 0)):  # as much of the slope is seen: the scale is timm's
            seen = [np.ptp(pixels[..., channel].mean(1 - axis)) for pixels in (theirs, ours)]
            assert seen[0] == pytest.approx(seen[1], rel=0.03)


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"input_size": [3, 64, 32]}, "not-available", "64 x 32 pixels"),
        ({"input_size": [4, 32, 32]}, "not-available", "4 channel"),
        ({"input_size": [3, 32]}, "damaged-file", "config.json"),
        ({"interpolation": "random"}, "not-available", "'random'"),
        ({"mean": None}, "damaged-file", "config.json"),
        ({"std": [0, 0, 0]}, "not-available", "std"),
        ({"crop_pct": 0.001}, "not-available", "4096"),
    ],
)
def test_a_config_that_this_zoo_cannot_follow_is_refused(
    tmp_path: Path, change: dict[str, Any], code: str, value: str
) -> None:
    (tmp_path / "config.json").write_bytes(of_timm("resnet18", RESNET, **change)[0])
    with raises(ModelFolderError, code) as caught:
        read_timm_config(tmp_path / "config.json")
    assert value in str(caught.value)


def test_grey_models_and_the_flat_config_of_old_repositories(tmp_path: Path) -> None:
    about = {"architecture": "resnet18", "input_size": [1, 28, 28], "mean": [0.1], "std": [0.3], "crop_pct": 1}
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = read_timm_config(tmp_path / "config.json")
    assert (model.preprocessing.mode, model.preprocessing.crop, model.licence) == ("L", 28, "unknown")


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg", "cache_dir", "features_only", "num_classes"])
def test_a_card_cannot_make_timm_read_other_files(key: str) -> None:
    with raises(RecipeError, "conflicting-settings") as caught:
        create_trunk("resnet18", 3, {key: "/tmp/x.pth"})
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("timm/resnet10t", "as resnet10t.c3_in1k"),
        ("timm/resnet10t.c3_in1kk", "'resnet10t.c3_in1k'"),
    ],
)
def test_a_name_that_timm_does_not_have_gets_the_nearest(hub: Hub, name: str, nearest: str) -> None:
    with raises(HubError, "download-failed") as caught:
        zoo.load(name)
    assert nearest in str(caught.value)


def test_an_architecture_name_gets_its_public_backbones() -> None:
    for ask in (zoo.load, zoo.info):
        with raises(ModelNotFoundError, "model-not-found") as caught:
            ask("resnet50")
        assert "r50-a1 (timm/resnet50.a1_in1k)" in str(caught.value)
