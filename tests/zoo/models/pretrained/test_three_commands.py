"""Three commands from weights of every kind to a served gallery: the table of docs/models.md, offline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.torch import save_file

import zoo
from tests.models import make_model
from tests.raising import raises
from tests.serving.running import serving
from tests.zoo.timm_hub import FILES, timm_hub
from zoo.cli.main import main, run
from zoo.data.preprocessing import to_pixels
from zoo.errors import ModelFolderError, RecipeError, UsageError
from zoo.models.card import read_card
from zoo.models.golden import draw_images
from zoo.models.names import find_model
from zoo.models.verify import verify, verify_records

pytestmark = pytest.mark.slow

STATISTICS = ["--mean", "0.5,0.4,0.3", "--std", "0.25"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i, picture in enumerate(draw_images(12, seed=5)):
        (root / f"class{i % 2}").mkdir(exist_ok=True)
        Image.fromarray(picture).save(root / f"class{i % 2}" / f"{i}.png")
    return root


def write_pth(folder: Path) -> list[str]:
    """A network of timm's under other first parts of its names, with a head."""
    torch.manual_seed(0)
    state = timm.create_model("test_resnet").state_dict()
    torch.save({"state_dict": {f"module.backbone.{name}": t for name, t in state.items()}}, folder / "net.pth")
    return [str(folder / "net.pth"), "--architecture", "test_resnet", "--size", "64", *STATISTICS]


def write_safetensors(folder: Path) -> list[str]:
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), folder / "net.safetensors")
    return [str(folder / "net.safetensors"), "--architecture", "test_resnet", "--size", "64"]


def write_timm_folder(folder: Path) -> list[str]:
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes(FILES[f"timm/resnet10t.toy_in1k/{file}"])
    return [str(folder)]


def write_sentence_transformers(folder: Path) -> list[str]:
    (folder / "0_Encoder").mkdir()
    write_timm_folder(folder / "0_Encoder")
    (folder / "modules.json").write_text('[{"idx": 0, "path": "0_Encoder", "type": "own.Encoder"}]')
    return [str(folder)]


def write_model_folder(folder: Path) -> list[str]:
    make_model(folder / "own")
    return [str(folder / "own")]


def write_onnx(folder: Path, layout: str = "nchw", batch: int | str = "n") -> list[str]:
    """A graph whose vector is the mean of each channel, followed by its double."""
    shape, axes = ([batch, 3, 32, 32], [2, 3]) if layout == "nchw" else ([batch, 32, 32, 3], [1, 2])
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x", "axes"], ["means"], keepdims=0),
            helper.make_node("Add", ["means", "means"], ["twice"]),
            helper.make_node("Concat", ["means", "twice"], ["y"], axis=1),
        ],
        "means",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 6])],
        [numpy_helper.from_array(np.array(axes), "axes")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / "net.onnx")
    return [str(folder / "net.onnx"), *STATISTICS]


KINDS: dict[str, Callable[[Path], list[str]]] = {
    "hub": lambda folder: ["timm/resnet10t.toy_in1k"],
    "pth": write_pth,
    "safetensors": write_safetensors,
    "timm-folder": write_timm_folder,
    "sentence-transformers": write_sentence_transformers,
    "package": lambda folder: ["lite0", "--size", "64"],
    "model-folder": write_model_folder,
    "onnx": write_onnx,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with timm_hub(tmp_path / "hub", monkeypatch):
        yield


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_become_a_gallery(kind: str, tmp_path: Path, own_zoo: Path, images: Path) -> None:
    (tmp_path / "weights").mkdir()
    arguments = KINDS[kind](tmp_path / "weights")
    assert main(["baseline", *arguments, "--as", "mine"]) == 0
    assert main(["index", "mine", str(images), "--out", str(tmp_path / "gallery")]) == 0
    query = str(images / "class0" / "0.png")
    assert main(["search", str(tmp_path / "gallery"), query, "--json"]) == 0
    folder = own_zoo / "models" / "mine"
    assert not [check for check in (*verify(folder), *verify_records(folder)) if check.fails]
    licences = {"hub": "mit", "timm-folder": "mit", "sentence-transformers": "mit", "package": "apache-2.0"}
    assert read_card(folder).licence == licences.get(kind, "unknown")


def test_only_assumed_values_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """timm states 160 pixels for test_resnet, and the command 64."""
    assert main(["baseline", *write_safetensors(tmp_path), "--as", "mine"]) == 0
    printed = capsys.readouterr().err
    assert "mean 0.5" in printed
    assert "size" not in printed
    assert zoo.load("mine").card.preprocessing.crop == 64


@pytest.mark.parametrize("kind", [pytest.param("pth", marks=pytest.mark.slow), "onnx"])
def test_a_gallery_is_served_without_a_further_command(kind: str, tmp_path: Path, images: Path) -> None:
    """The service makes the graph of the model in `pth` itself; a wrapped ONNX graph needs nothing."""
    assert main(["baseline", *KINDS[kind](tmp_path), "--as", "mine"]) == 0
    assert main(["index", "mine", str(images), "--out", str(tmp_path / "gallery")]) == 0
    with serving(tmp_path / "gallery") as service:
        image = (images / "class0" / "0.png").read_bytes()
        answer = httpx.post(f"{service.url}/search", params={"k": 1}, files={"image": image}).json()
        assert answer["results"][0]["source"].endswith("class0/0.png")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_an_onnx_graph_gets_normalised_pixels_and_gives_unit_rows(tmp_path: Path, layout: str, images: Path) -> None:
    write_onnx(tmp_path, layout)
    assert main(["baseline", str(tmp_path / "net.onnx"), *STATISTICS, "--as", "mine"]) == 0
    model, files = zoo.load("mine", runtime="auto"), sorted(images.rglob("*.png"))
    pixels = np.stack([to_pixels(file, model.preprocessing) for file in files]) / 255
    means = ((pixels - [0.5, 0.4, 0.3]) / 0.25).mean((1, 2))
    rows = np.concatenate([means, 2 * means], axis=1)
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(files), expected, atol=1e-5)
    with raises(ModelFolderError, "not-available"):
        _ = model.module
    with raises(ModelFolderError, "not-available"):
        zoo.load("mine", runtime="torch")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "missing-value"),
        ([*STATISTICS, "--size", "64"], "weights-mismatch"),
        ([*STATISTICS, "--layout", "nhwc"], "unsupported-graph"),
        ([*STATISTICS, "--whiten", "DIR"], "option-without-effect"),
        (["--mean", "x", "--std", "1"], "invalid-value"),
    ],
)
def test_what_does_not_fit_an_onnx_graph_is_refused(
    tmp_path: Path, own_zoo: Path, arguments: list[str], code: str
) -> None:
    write_onnx(tmp_path)
    with raises(UsageError, code):
        run(["baseline", str(tmp_path / "net.onnx"), *arguments, "--as", "mine"])
    assert not (own_zoo / "models" / "mine").exists()


def test_an_encoder_of_sentence_transformers_that_is_not_timms_is_named(tmp_path: Path) -> None:
    (tmp_path / "0_CLIPModel").mkdir()
    (tmp_path / "0_CLIPModel" / "config.json").write_text('{"model_type": "clip"}')
    (tmp_path / "modules.json").write_text(
        '[{"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]'
    )
    with raises(RecipeError, "unsupported-model", "CLIPModel"):
        run(["baseline", str(tmp_path), "--as", "mine"])


def test_all_contradictions_of_a_folder_are_named_at_once(tmp_path: Path) -> None:
    write_timm_folder(tmp_path)
    given = ["--architecture", "resnet50", "--mean", "0.1", "--std", "0.9"]
    with raises(UsageError, "weights-mismatch", "resnet50", "0.1", "0.9"):
        run(["convert", str(tmp_path), "--out", str(tmp_path / "out"), *given])


def test_a_converted_folder_is_a_model_for_every_command(tmp_path: Path, images: Path) -> None:
    file, *options = write_pth(tmp_path)
    out = str(tmp_path / "converted")
    assert main(["convert", file, *options, "--out", out]) == 0
    assert find_model(out) == Path(out)
    for command in (
        ["evaluate", out, "--dataset", "folder", "--data", str(images)],
        ["embed", out, str(images), "--out", str(tmp_path / "rows.npy")],
        ["baseline", out, "--as", "copy"],
        ["features", out, str(images), "--out", str(tmp_path / "f.safetensors"), "--views", "0"],
        ["export", out],
    ):
        assert main(command) == 0, command
    config = json.loads((Path(out) / "config.json").read_text())["pretrained_cfg"]
    assert (config["mean"], config["std"], config["input_size"]) == ([0.5, 0.4, 0.3], [0.25] * 3, [3, 64, 64])
