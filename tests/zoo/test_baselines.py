"""Public backbones by name: the curated list against timm, and tiny real timm models from a Hub on loopback."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save
from sklearn.decomposition import PCA

import zoo
from exports.export import export
from tests.zoo.hub_server import COMMIT, running
from tests.zoo.hub_state import Fault, Hub, Repository
from zoo.architectures import register
from zoo.baselines import baselines, repository_of, short_name
from zoo.baselines.config import read_config
from zoo.cards import read_card
from zoo.cli.main import main
from zoo.errors import HubError, ModelFolderError, ModelNotFoundError, RecipeError
from zoo.golden import pictures
from zoo.network import create_trunk
from zoo.preprocessing import to_pixels
from zoo.registry import find
from zoo.verify import verify

VIT = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2}
RESNET = {"channels": [4, 4, 4, 8], "layers": [1, 1, 1, 1]}
CONV4 = {"widths": [4, 4, 8, 8]}

register()


def of_timm(architecture: str, args: dict[str, Any], **cfg: Any) -> tuple[bytes, bytes]:
    """A timm model with random weights as timm publishes it: config.json and model.safetensors."""
    torch.manual_seed(3)
    model = timm.create_model(architecture, num_classes=7, **args)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var") or (name.endswith("weight") and tensor.ndim == 1):
                tensor.uniform_(0.5, 1.5)  # timm's residual branches begin at zero
    about = {"tag": "toy_in1k", "license": "mit", "input_size": [3, 32, 32], "crop_pct": 0.9, "crop_mode": "center"}
    about |= {"interpolation": "bicubic", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "num_classes": 7}
    config = {"architecture": architecture, "num_classes": 7, "model_args": args, "pretrained_cfg": {**about, **cfg}}
    return json.dumps(config).encode(), save(model.state_dict())


def files() -> dict[str, bytes]:
    found = {}
    for repository, made in {
        "timm/vit_small_patch14_dinov2.lvd142m": of_timm("vit_tiny_patch16_224", VIT),
        "timm/resnet10t.toy_in1k": of_timm("resnet18", RESNET),
        "org/conv4": of_timm("conv4", CONV4),
        "Some-Org/Birds": of_timm("resnet18", RESNET, tag="birds", crop_mode="squash", crop_pct=1.0),
        "org/long": of_timm("resnet18", RESNET, input_size=[3, 64, 32]),
        "org/evil": of_timm("resnet18", {**RESNET, "channels": [4, 4, 4, 4]}, tag=""),
        "org/wrong": of_timm("resnet18", RESNET),
        "org/unknown": of_timm("resnet18", RESNET),
    }.items():
        found[f"{repository}/config.json"], found[f"{repository}/model.safetensors"] = made
    evil = json.loads(found["org/evil/config.json"])
    found["org/evil/config.json"] = json.dumps({**evil, "model_args": {"checkpoint_path": "/tmp/x.pth"}}).encode()
    found["org/wrong/model.safetensors"] = found["org/evil/model.safetensors"]
    unknown = json.loads(found["org/unknown/config.json"])
    found["org/unknown/config.json"] = json.dumps({**unknown, "architecture": "resnet18x"}).encode()
    found["org/bert/config.json"] = b'{"model_type": "bert"}'
    found["org/pickled/config.json"] = found["org/long/config.json"].replace(b"64, 32", b"32, 32")
    found["org/pickled/pytorch_model.bin"] = b"never read"
    return found


FILES = files()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with small timm models."""
    with running() as server:
        for path, data in FILES.items():
            name, _, file = path.rpartition("/")
            server.repositories.setdefault(name, Repository({"main": COMMIT}, {COMMIT: {}})).files()[file] = data
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def timms_own(repository: str, images: list[np.ndarray]) -> np.ndarray:
    """Pooled features by timm's own model on our pixels, normalised."""
    config = json.loads(FILES[f"{repository}/config.json"])
    model = timm.create_model(config["architecture"], num_classes=7, **config["model_args"])
    from safetensors.torch import load

    model.load_state_dict(load(FILES[f"{repository}/model.safetensors"]))
    model.reset_classifier(0)
    how = read_card(find(repository)).preprocessing
    pixels = torch.from_numpy(np.stack([to_pixels(image, how) for image in images])).permute(0, 3, 1, 2).double() / 255
    about = config["pretrained_cfg"]
    mean, std = (torch.tensor(about[key]).double().reshape(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        features = model.double().eval()((pixels - mean) / std)
    return (features / features.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.parametrize("name", list(baselines()))
def test_the_list_says_what_timm_says(name: str) -> None:
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


def test_the_list_needs_no_torch_and_the_first_use_says_so() -> None:
    code = """
import sys
import zoo, zoo.cli.baseline, zoo.cli.verify, zoo.remeasure
zoo.list_models(), zoo.info("dinov2-s14")
print({"torch", "timm", "sklearn"} & set(sys.modules))
sys.modules["torch"] = None
try:
    zoo.load("dinov2-s14")
except zoo.ZooError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[0] == "set()"
    assert "MissingDependencyError" in done.stdout
    assert "dml-zoo[train]" in done.stdout


def test_names() -> None:
    assert repository_of("dinov2-s14") == repository_of("timm/vit_small_patch14_dinov2.lvd142m")
    assert repository_of("hf-hub:timm/resnet50.a1_in1k") == "timm/resnet50.a1_in1k"
    assert short_name("timm/resnet50.a1_in1k") == "r50-a1"
    assert short_name("Some-Org/Birds") == "some-org--birds"
    for other in ("resnet50", "org/name", "timm/", "timm/a/b", "timm/../x"):
        assert repository_of(other) is None
    assert not set(baselines()) & set(zoo.registry.recipes())  # type: ignore[attr-defined]


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
    images = pictures(3)
    rows = zoo.load(name).embed(images)
    np.testing.assert_allclose(rows, timms_own(repository, images), atol=1e-5)
    asked = len(hub.paths)
    go_offline(monkeypatch)
    np.testing.assert_array_equal(zoo.load(name).embed(images), rows)
    assert len(hub.paths) == asked
    folder = find(name)
    assert {check.ok for check in verify(folder)} == {True}
    assert {m.name: m.status for m in zoo.list_models(method="pretrained")}[folder.name] == "hub"
    assert zoo.info(name).folder == folder
    assert find(folder.name) == folder
    trunk = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    assert all(torch.equal(t, load_file(folder / "model.safetensors")[n]) for n, t in trunk.state_dict().items())


@pytest.mark.usefixtures("hub")
def test_the_card_says_where_it_is_from() -> None:
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
def test_a_revision_has_a_folder_of_its_own() -> None:
    assert find("timm/resnet10t.toy_in1k", revision=COMMIT).name == f"timm--resnet10t.toy_in1k--{COMMIT[:12]}"
    assert find("timm/resnet10t.toy_in1k@main") == find("timm/resnet10t.toy_in1k", revision="main")
    assert find("Some-Org/Birds@main").name == f"some-org--birds--{COMMIT[:12]}"
    with pytest.raises(HubError, match="no revision 'nope'"):
        find("timm/resnet10t.toy_in1k", revision="nope")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("timm/nothing", HubError, "the Hub has no timm/nothing"),
        ("org/nothing", ModelNotFoundError, "has no org/nothing"),
        ("org/long", ModelFolderError, "64 x 32 pixels"),
        ("org/evil", ModelFolderError, "takes no argument checkpoint_path"),
        ("org/wrong", ModelFolderError, "cannot be built"),
        ("org/unknown", ModelFolderError, "Did you mean 'resnet18"),
        ("org/bert", HubError, "org/bert"),
        ("org/pickled", HubError, "no model.safetensors.*never unpickled"),
    ],
)
def test_what_is_no_timm_model_is_refused(own_zoo: Path, name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        zoo.load(name)
    assert not list((own_zoo / "baselines").glob("*"))


@pytest.mark.usefixtures("offline")
def test_offline_the_error_says_what_is_missing_and_where_it_would_lie(tmp_path: Path) -> None:
    with pytest.raises(HubError) as caught:
        zoo.load("dinov2-s14")
    for part in (
        "timm/vit_small_patch14_dinov2.lvd142m",
        "config.json",
        str(tmp_path / "hub"),
        "HF_HUB_OFFLINE",
        "HF_HOME",
    ):
        assert part in str(caught.value)
    assert "backbone.pretrained" not in str(caught.value)


def test_a_download_that_broke_off_is_taken_up_again(
    hub: Hub, tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find("timm/resnet10t.toy_in1k")
    import shutil

    shutil.rmtree(own_zoo / "baselines")
    weights = next((tmp_path / "hub").rglob("snapshots/*/model.safetensors"))
    blob = weights.resolve()
    weights.unlink()
    blob.unlink()
    go_offline(monkeypatch)
    with pytest.raises(HubError, match=r"its model.safetensors is not in the Hub's cache"):
        find("timm/resnet10t.toy_in1k")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert find("timm/resnet10t.toy_in1k").is_dir()
    assert hub.paths


WEIGHTS = "model.safetensors"


@pytest.mark.parametrize("fault", [Fault(WEIGHTS, flip=True), Fault(WEIGHTS, drop=2000)])
def test_a_fault_that_passes_is_got_over(hub: Hub, fault: Fault) -> None:
    hub.fail(dataclasses.replace(fault))
    assert {check.ok for check in verify(find("timm/resnet10t.toy_in1k"))} == {True}


def test_weights_of_other_bytes_than_announced_are_never_used(hub: Hub, tmp_path: Path, own_zoo: Path) -> None:
    hub.fail(Fault(WEIGHTS, times=9, flip=True))
    with pytest.raises(HubError, match=r"model\.safetensors of timm/resnet10t\.toy_in1k came twice with other bytes"):
        find("timm/resnet10t.toy_in1k")
    assert not list((tmp_path / "hub").rglob("snapshots/*/model.safetensors"))
    assert not list((own_zoo / "baselines").glob("*"))
    hub.faults.clear()
    assert find("timm/resnet10t.toy_in1k").is_dir()


@pytest.mark.parametrize("status", [401, 404])
def test_a_hub_that_refuses_leaves_nothing_half_made(hub: Hub, status: int, own_zoo: Path) -> None:
    hub.fail(*(Fault(WEIGHTS, times=99, status=status, method=method) for method in ("GET", "HEAD")))
    with pytest.raises(HubError, match="timm/resnet10t"):
        find("timm/resnet10t.toy_in1k")
    assert not list((own_zoo / "baselines").glob("*"))
    hub.faults.clear()
    assert find("timm/resnet10t.toy_in1k").is_dir()


def test_the_preprocessing_is_timms(tmp_path: Path) -> None:
    from timm.data import create_transform

    y, x = np.mgrid[0:90, 0:120]
    slope = np.stack([2 * x, 2 * y, 127 + 100 * np.sin(x / 40) * np.cos(y / 30)], 2).clip(0, 255).astype(np.uint8)
    for crop_pct, interpolation in ((0.9, "bicubic"), (0.875, "bilinear"), (1.0, "bicubic"), (0.95, "bicubic")):
        config, _ = of_timm("resnet18", RESNET, crop_pct=crop_pct, interpolation=interpolation)
        (tmp_path / "config.json").write_bytes(config)
        how = read_config(tmp_path / "config.json").preprocessing
        assert (how.crop, how.resize) == (32, int(32 / crop_pct))
        transform = create_transform((3, 32, 32), crop_pct=crop_pct, interpolation=interpolation, normalize=False)
        theirs = np.asarray(transform(Image.fromarray(slope))).transpose(1, 2, 0)
        ours = to_pixels(slope, how).astype(int)
        # timm rounds the resized image's side and the crop's corner to whole pixels; ours does both in one step.
        assert np.abs(theirs - ours).mean() < 2
        for channel, axis in ((0, 1), (1, 0)):  # as much of the slope is seen: the scale is timm's
            seen = [np.ptp(pixels[..., channel].mean(1 - axis)) for pixels in (theirs, ours)]
            assert seen[0] == pytest.approx(seen[1], rel=0.03)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input_size": [3, 64, 32]}, "64 x 32 pixels"),
        ({"input_size": [4, 32, 32]}, "4 channel"),
        ({"input_size": [3, 32]}, "not a config.json"),
        ({"interpolation": "random"}, "'random'"),
        ({"mean": None}, "not a config.json"),
        ({"std": [0, 0, 0]}, "positive"),
        ({"crop_pct": 0.001}, "4096"),
    ],
)
def test_a_config_that_this_zoo_cannot_follow_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    (tmp_path / "config.json").write_bytes(of_timm("resnet18", RESNET, **change)[0])
    with pytest.raises(ModelFolderError, match=says):
        read_config(tmp_path / "config.json")


def test_grey_models_and_the_flat_config_of_old_repositories(tmp_path: Path) -> None:
    about = {"architecture": "resnet18", "input_size": [1, 28, 28], "mean": [0.1], "std": [0.3], "crop_pct": 1}
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = read_config(tmp_path / "config.json")
    assert (model.preprocessing.mode, model.preprocessing.crop, model.licence) == ("L", 28, "unknown")


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg", "cache_dir", "features_only", "num_classes"])
def test_a_card_cannot_make_timm_read_other_files(key: str) -> None:
    with pytest.raises(RecipeError, match=f"takes no argument {key}"):
        create_trunk("resnet18", 3, {key: "/tmp/x.pth"})


@pytest.fixture(scope="module")
def folder_of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(pictures(40, seed=5)):
        (root / f"class{i % 4}").mkdir(exist_ok=True)
        Image.fromarray(picture).save(root / f"class{i % 4}" / f"{i}.png")
    return root


@pytest.mark.usefixtures("hub")
def test_whitening_is_a_head_that_goes_wherever_the_model_goes(
    folder_of_pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whiten = ["--whiten", str(folder_of_pictures), "--dim", "6"]
    assert main(["baseline", "org/conv4", "--as", "mine", *whiten]) == 0
    folder = own_zoo / "models" / "mine"
    assert f"6 numbers of conv4, whitened on 40 images, written to {folder}" in capsys.readouterr().out
    card = read_card(folder)
    assert (card.name, card.dim, [head.name for head in card.heads]) == ("mine", 6, ["whitening"])
    assert "fitted on 40 images" in card.description
    files = sorted(folder_of_pictures.rglob("*.png"))
    rows = zoo.load("mine").embed(files)
    expected = sklearns_whitening("org/conv4", files, 6)
    signs = np.sign((rows * expected).sum(0))
    np.testing.assert_allclose(rows * signs, expected, atol=2e-4)
    export(folder)
    np.testing.assert_allclose(zoo.load("mine", runtime="onnx").embed(files), rows, atol=2e-5)
    assert {check.ok for check in verify(folder)} == {True}
    assert main(["evaluate", "mine", "--dataset", "folder", "--data", str(folder_of_pictures), "--json"]) == 0
    assert main(["index", "mine", str(folder_of_pictures), "--out", str(own_zoo / "gallery")]) == 0


def sklearns_whitening(name: str, files: list[Path], dim: int) -> np.ndarray:
    from zoo.baselines.own import pooled_features
    from zoo.network import load_network

    folder = find(name)
    card = read_card(folder)
    features = pooled_features(load_network(card, folder), card, files)
    white = PCA(n_components=dim, whiten=True, svd_solver="full").fit_transform(features.astype(np.float64))
    return np.asarray(white / np.linalg.norm(white, axis=1, keepdims=True))


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("name", "size"), [("dinov2-s14", 48), ("timm/resnet10t.toy_in1k", 40)])
def test_another_input_size_is_what_timm_makes_of_it(name: str, size: int, own_zoo: Path) -> None:
    assert main(["baseline", name, "--as", "other", "--size", str(size)]) == 0
    folder = own_zoo / "models" / "other"
    how = read_card(folder).preprocessing
    assert (how.crop, how.resize) == (size, round(size * 35 / 32))
    more = {"img_size": size} if name == "dinov2-s14" else {}
    theirs = timm.create_model(f"local-dir:{find(name)}", pretrained=True, num_classes=0, **more).eval()
    pixels = np.stack([to_pixels(image, how) for image in pictures(2)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (how.mean, how.std))
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(theirs((images - mean) / std)).numpy()
    np.testing.assert_allclose(zoo.load("other").embed(pictures(2)), expected, atol=1e-5)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in theirs.state_dict().items())


@pytest.mark.usefixtures("hub")
def test_a_plain_copy_and_a_data_set_to_whiten_on(
    folder_of_pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "timm/resnet10t.toy_in1k"
    assert main(["baseline", name, "--as", "copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["dim"] == 8
    assert zoo.load("copy").card.fingerprint == zoo.load(name).card.fingerprint
    whiten = ["--whiten-on", "folder", "--data", str(folder_of_pictures), "--limit", "20", "--dim", "4"]
    assert main(["baseline", "copy", "--as", "white", *whiten]) == 0
    assert "whitened on 20 images" in capsys.readouterr().out
    assert zoo.load("white").embed(pictures(2)).shape == (2, 4)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--as", "Bad Name"], 2, "lower-case"),
        (["--as", "x", "--dim", "4"], 2, "--whiten DIR"),
        (["--as", "x", "--whiten", "DIR", "--dim", "9"], 2, "keeps 1 to 8"),
        (["--as", "x", "--whiten", "DIR", "--limit", "3"], 2, "vary along 2 directions"),
        (["--as", "x", "--whiten", "DIR", "--limit", "1"], 2, "--limit"),
        (["--as", "x", "--whiten", "DIR", "--whiten-on", "glyphs"], 2, "not on both"),
        (["--as", "x", "--whiten", "nowhere"], 3, "nowhere"),
        (["--as", "x", "--whiten", "EMPTY"], 3, "holds no images"),
        (["--as", "x", "--whiten-on", "foldr"], 3, "Did you mean 'folder'"),
        (["--as", "x", "--batch-size", "0"], 2, "--batch-size"),
        (["--as", "x", "--size", "0"], 2, "--size"),
        (["--as", "x", "--size", "5000"], 2, "--size"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    own_zoo: Path,
    tmp_path: Path,
    folder_of_pictures: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    says: str,
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"DIR": str(folder_of_pictures), "EMPTY": str(tmp_path / "empty")}
    assert main(["baseline", "timm/resnet10t.toy_in1k", *(places.get(a, a) for a in arguments)]) == status
    assert says in capsys.readouterr().err
    assert not (own_zoo / "models").exists() or not list((own_zoo / "models").iterdir())


@pytest.mark.usefixtures("hub")
def test_a_name_that_is_taken_and_a_model_with_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "timm/resnet10t.toy_in1k", "--as", "mine"]) == 0
    assert main(["baseline", "timm/resnet10t.toy_in1k", "--as", "mine"]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["baseline", "margin-conv4-glyphs", "--as", "other"]) == 2
    assert "has heads of its own" in capsys.readouterr().err
