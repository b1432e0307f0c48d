"""`zoo baseline`: a public backbone saved under a new name, whitened, or for another input size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.decomposition import PCA

import zoo
from exports.export import export
from tests.commandline import run_here
from tests.raising import raises
from tests.zoo.hub_state import Hub
from tests.zoo.timm_hub import timm_hub
from zoo.cli.main import main, run
from zoo.data.folder import load, split_classes
from zoo.data.preprocessing import to_pixels
from zoo.errors import DatasetError, ImageError, UsageError, ZooError
from zoo.evaluation.whitening import read_whitening_comparison
from zoo.models.card import read_card
from zoo.models.golden import draw_images
from zoo.models.names import find_model
from zoo.models.trunk_graph import normalised
from zoo.models.verify import verify, verify_records

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with timm_hub(tmp_path / "hub", monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def folder_of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(draw_images(40, seed=5)):
        (root / f"class{i % 4}").mkdir(exist_ok=True)
        Image.fromarray(picture).save(root / f"class{i % 4}" / f"{i}.png")
    return root


@pytest.mark.usefixtures("hub")
def test_whitening_is_a_head_of_the_model(
    folder_of_pictures: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whiten = ["--whiten", str(folder_of_pictures), "--dim", "6", "--shrink", "0"]
    assert main(["baseline", "org/conv4", "--as", "mine", *whiten]) == 0
    folder = own_zoo / "models" / "mine"
    assert f"6 numbers of conv4, whitened on 40 images, written to {folder}" in capsys.readouterr().out
    card = read_card(folder)
    assert (card.name, card.dim, [head.name for head in card.heads]) == ("mine", 6, ["whitening"])
    assert "fitted on 40 images" in card.description
    files = sorted(folder_of_pictures.rglob("*.png"))
    rows = zoo.load("mine").embed(files)
    expected = expected_whitening("org/conv4", files, 6)
    signs = np.sign((rows * expected).sum(0))
    np.testing.assert_allclose(rows * signs, expected, atol=2e-4)
    export(folder)
    np.testing.assert_allclose(zoo.load("mine", runtime="onnx").embed(files), rows, atol=2e-5)
    assert {check.ok for check in verify(folder)} == {True}
    assert [check.ok for check in verify_records(folder)] == [True, None, True]
    assert json.loads((folder / "recipe.json").read_text())["model"]["fingerprint"] == card.fingerprint
    assert main(["evaluate", "mine", "--dataset", "folder", "--data", str(folder_of_pictures), "--json"]) == 0
    assert main(["index", "mine", str(folder_of_pictures), "--out", str(own_zoo / "gallery")]) == 0


@pytest.mark.usefixtures("hub")
def test_an_unreadable_image_is_left_out(
    folder_of_pictures: Path, tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whitening is that of the other images."""
    folder = Path(shutil.copytree(folder_of_pictures, tmp_path / "pictures"))
    files = sorted(folder.rglob("*.png"))
    (folder / "class1" / "broken.jpg").write_bytes(b"no picture")
    whiten = ["--whiten", str(folder), "--dim", "6", "--shrink", "0"]
    assert main(["baseline", "org/conv4", "--as", "mine", *whiten]) == 0
    assert main(["baseline", "org/conv4", "--as", "strict", *whiten, "--strict"]) == 1
    assert zoo.load("strict").dim == 6
    printed = capsys.readouterr()
    assert "whitened on 40 images" in printed.out
    assert "zoo: left out:" in printed.err
    assert "broken.jpg" in printed.err
    assert "fitted on 40 images" in read_card(own_zoo / "models" / "mine").description
    expected = expected_whitening("org/conv4", files, 6)
    rows = zoo.load("mine").embed(files)
    np.testing.assert_allclose(rows * np.sign((rows * expected).sum(0)), expected, atol=2e-4)
    again = zoo.baseline("org/conv4", "again", whiten=folder, dim=6)
    assert ["broken.jpg" in str(reason) for reason in again.unreadable.values()] == [True]
    assert "broken.jpg" in capsys.readouterr().err
    for file in files:
        file.write_bytes(b"")
    with raises(ImageError, "no-images") as caught:
        run(["baseline", "org/conv4", "--as", "none", "--whiten", str(folder), "--dim", "6"])
    assert "41 images" in str(caught.value)


@pytest.mark.usefixtures("hub")
def test_a_table_whitens_like_its_images(
    folder_of_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(folder_of_pictures.rglob("*.png"))
    table = tmp_path / "t.csv"
    table.write_text(
        "\n".join(["image,split", *(f"{file},{'test' if i < 9 else 'train'}" for i, file in enumerate(files))])
    )
    with table.open("a") as file:
        file.write("\nmissing.png,train\n")
    assert main(["baseline", "org/conv4", "--as", "mine", "--whiten", str(table), "--dim", "6", "--shrink", "0"]) == 0
    printed = capsys.readouterr()
    assert "whitened on 31 images" in printed.out
    assert "missing.png" in printed.err
    expected = expected_whitening("org/conv4", files[9:], 6)
    rows = zoo.load("mine").embed(files[9:])
    np.testing.assert_allclose(rows * np.sign((rows * expected).sum(0)), expected, atol=2e-4)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("labelled", [True, False])
def test_scores_on_classes_that_the_whitening_saw_are_noted(
    folder_of_pictures: Path, tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str], labelled: bool
) -> None:
    """The finding: whitened on a table, a model was measured on its classes elsewhere without a word."""
    seen, new = ("class0", "class1"), tmp_path / "new" / "test"
    for name in ("class0", "class1", "class2"):
        shutil.copytree(folder_of_pictures / name, new / f"other {name}")
    shutil.copytree(new, tmp_path / "new" / "train")
    files = [file for name in seen for file in sorted((folder_of_pictures / name).iterdir())]
    table = tmp_path / "seen.csv"
    table.write_text("\n".join(["image,label", *(f"{file},{file.parent.name * labelled}" for file in files)]))
    assert main(["baseline", "org/conv4", "--as", "white", "--whiten", str(table)]) == 0
    assert main(["baseline", "org/conv4", "--as", "plain"]) == 0
    shutil.copytree(own_zoo / "models" / "white", own_zoo / "models" / "older")
    recipe = own_zoo / "models" / "older" / "recipe.json"
    record = json.loads(recipe.read_text())
    del record["whitening"]["class_images"]
    recipe.write_text(json.dumps(record))
    images = ["--dataset", "folder", "--data", str(tmp_path / "new"), "--runtime", "torch", "-k", "1"]
    notes, counts = {}, {}
    for name in ("white", "plain", "older"):
        capsys.readouterr()
        assert main(["evaluate", name, *images, "--save", "--json"]) == 0
        printed = capsys.readouterr()
        notes[name], counts[name] = printed.err, json.loads(printed.out)["whitened_classes"]
    assert counts == {"white": 2, "plain": None, "older": None}
    assert "white was whitened on images of 2 of these classes (other class0, other class1)" in notes["white"]
    assert "whitened" not in notes["plain"]
    assert "If these are among them" in notes["older"]
    saved = json.loads((own_zoo / "models" / "white" / "results.json").read_text())
    assert [result["whitened_classes"] for result in saved] == [2]
    assert main(["benchmark", "models", "white", "plain", "older", "--json"]) == 0
    origins = {row["name"]: row["ours"]["protocol"] for row in json.loads(capsys.readouterr().out)}
    assert "whitened on images of 2 of these classes" in origins["white"]
    assert "may be among these" not in origins["white"] + origins["plain"]
    assert "may be among these" in origins["older"]


def expected_whitening(name: str, files: list[Path], dim: int) -> np.ndarray:
    from zoo.models.baseline_folder import pooled_features
    from zoo.models.network import load_network
    from zoo.models.torch_runtime import run_trunk

    folder = find_model(name)
    card = read_card(folder)
    features = pooled_features(run_trunk(load_network(card, folder).trunk), card, files)
    white = PCA(n_components=dim, whiten=True, svd_solver="full").fit_transform(features.astype(np.float64))
    return np.asarray(white / np.linalg.norm(white, axis=1, keepdims=True))


@pytest.mark.usefixtures("hub")
def test_python_and_the_command_make_the_same_model(folder_of_pictures: Path, tmp_path: Path) -> None:
    arguments = ["--whiten", str(folder_of_pictures), "--dim", "5", "--limit", "20"]
    assert main(["baseline", "timm/resnet10t.toy_in1k", "--as", "command", *arguments]) == 0
    files = sorted(folder_of_pictures.rglob("*.png"), key=lambda path: path.parts)
    for own, whiten in (
        ("one", str(folder_of_pictures)),
        ("two", files),
        ("three", [file.read_bytes() for file in files]),
        ("four", load("all", folder_of_pictures)),
    ):
        saved = zoo.baseline("timm/resnet10t.toy_in1k", own, whiten=whiten, dim=5, limit=20)
        assert (saved.card.name, saved.fitted) == (own, 20)
        assert zoo.load(saved).card.fingerprint == zoo.load("command").card.fingerprint
    named = zoo.baseline(
        "timm/resnet10t.toy_in1k", "five", whiten_on="folder", data=folder_of_pictures, dim=5, limit=20
    )
    assert named.card.fingerprint == saved.card.fingerprint
    assert zoo.baseline("timm/resnet10t.toy_in1k", "plain", size=40).card.preprocessing.crop == 40
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError):
        zoo.baseline("timm/resnet10t.toy_in1k", "none", whiten=tmp_path / "empty")
    with raises(UsageError, "already-exists"):
        zoo.baseline("timm/resnet10t.toy_in1k", "one")


@pytest.mark.usefixtures("hub")
def test_python_compares_as_the_command_does_and_says_when_it_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, picture in enumerate(draw_images(60, seed=5)):
        (tmp_path / "many" / f"class{number % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "many" / f"class{number % 10}" / f"{number}.png")
    how = ["--whiten", str(tmp_path / "many"), "--dim", "4"]
    assert main(["baseline", "org/conv4", "--as", "command", *how]) == 0
    saved = zoo.baseline("org/conv4", "python", whiten=tmp_path / "many", dim=4)
    theirs, ours = (read_whitening_comparison(find_model(name)) for name in ("command", "python"))
    assert theirs is not None
    assert ours is not None
    assert replace(ours, date=theirs.date) == theirs
    assert saved.comparison is not None
    assert json.loads(json.dumps(saved.comparison.to_json())) == json.loads(json.dumps(ours.to_json()))
    assert saved.card.fingerprint == zoo.load("command").card.fingerprint
    capsys.readouterr()
    files = sorted((tmp_path / "many").rglob("*.png"))
    zoo.baseline("org/conv4", "unlabelled", whiten=files, dim=4)
    assert read_whitening_comparison(find_model("unlabelled")) is None
    assert capsys.readouterr().err.strip(), "no check is skipped without a line"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("name", "size"), [("dinov2-s14", 48), ("timm/resnet10t.toy_in1k", 40)])
def test_another_input_size_equals_timms(name: str, size: int, own_zoo: Path) -> None:
    assert main(["baseline", name, "--as", "other", "--size", str(size)]) == 0
    folder = own_zoo / "models" / "other"
    preprocessing = read_card(folder).preprocessing
    assert (preprocessing.crop, preprocessing.resize) == (size, round(size * 35 / 32))
    more = {"img_size": size} if name == "dinov2-s14" else {}
    theirs = timm.create_model(f"local-dir:{find_model(name)}", pretrained=True, num_classes=0, **more).eval()
    pixels = np.stack([to_pixels(image, preprocessing) for image in draw_images(2)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(theirs((images - mean) / std)).numpy()
    np.testing.assert_allclose(zoo.load("other").embed(draw_images(2)), expected, atol=1e-5)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in theirs.state_dict().items())


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("kind", ["name", "folder", "table"])
def test_whitening_is_compared_on_classes_of_any_kind_of_data_set(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data set by name, a folder with nested classes, and a table whose labels are not the images' folders."""
    if kind == "name":  # 7,240 images of 362 classes, of which every tenth is drawn
        options, classes, images = ["--whiten-on", "glyphs", "--limit", "724"], 109, 218
    else:
        lines = ["image,label"]
        for i, picture in enumerate(draw_images(40, seed=5)):
            label = f"class{i % 10}"
            file = tmp_path / "images" / (f"{label[-1]}/{label}" if kind == "folder" else "all") / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(file)
            lines.append(f"{file},{label}")
        (tmp_path / "images.csv").write_text("\n".join(lines))
        options = ["--whiten", str(tmp_path / ("images" if kind == "folder" else "images.csv"))]
        classes, images = 3, 12
    assert main(["baseline", "org/conv4", "--as", "white", *options, "--json"]) == 0
    whitening = json.loads(capsys.readouterr().out)["whitening"]
    assert (whitening["data"]["classes"], whitening["data"]["images"]) == (classes, images), (
        "three tenths of the classes"
    )
    assert {row["metric"] for row in whitening["rows"]} >= {"recall_at_1", "map_at_r"}


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
    assert zoo.load("white").embed(draw_images(2)).shape == (2, 4)
    images = ["--dataset", "folder", "--data", str(folder_of_pictures), "-k", "1"]
    for name, said in (("copy", False), ("white", True)):
        capsys.readouterr()
        assert main(["evaluate", name, *images]) == 0
        assert ("whitened on images" in capsys.readouterr().err) == said


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (["--as", "Bad Name"], "invalid-value", "'Bad Name'"),
        (["--as", "x", "--dim", "4"], "missing-value", "--whiten DIR"),
        (["--as", "x", "--whiten", "DIR", "--dim", "9"], "invalid-value", "9"),
        (["--as", "x", "--whiten", "DIR", "--limit", "3"], "too-few-samples", "17 or more"),
        (["--as", "x", "--whiten", "DIR", "--limit", "3", "--dim", "3"], "too-few-samples", "2 directions"),
        (["--as", "x", "--whiten", "DIR", "--power", "2"], "invalid-value", "--power"),
        (["--as", "x", "--whiten", "DIR", "--limit", "1"], "invalid-value", "--limit"),
        (["--as", "x", "--whiten", "DIR", "--whiten-on", "glyphs"], None, "--whiten"),
        (["--as", "x", "--whiten", "nowhere"], None, "nowhere"),
        (["--as", "x", "--whiten", "DIR", "--data", "DIR"], "option-without-effect", "--data"),
        (["--as", "x", "--layout", "nchw"], "option-without-effect", "--layout"),
        (["--as", "x", "--whiten", "EMPTY"], None, "empty"),
        (["--as", "x", "--whiten-on", "foldr"], None, "'folder'"),
        (["--as", "x", "--batch-size", "0"], None, "--batch-size"),
        (["--as", "x", "--size", "0"], None, "--size"),
        (["--as", "x", "--size", "5000"], "invalid-value", "--size"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(
    own_zoo: Path, tmp_path: Path, folder_of_pictures: Path, arguments: list[str], code: str | None, value: str
) -> None:
    (tmp_path / "empty").mkdir()
    folders = {"DIR": str(folder_of_pictures), "EMPTY": str(tmp_path / "empty")}
    with pytest.raises(ZooError) as caught:
        run(["baseline", "timm/resnet10t.toy_in1k", *(folders.get(argument, argument) for argument in arguments)])
    assert caught.value.exit_code == 2
    assert code in (None, caught.value.code)
    assert value in str(caught.value)
    assert not (own_zoo / "models").exists() or not list((own_zoo / "models").iterdir())


def test_a_model_with_a_head_is_whitened_as_its_vectors_are(folder_of_pictures: Path) -> None:
    """The new head is both maps in one: a whitening of the vectors that the old head gives before they are scaled."""
    files = sorted(folder_of_pictures.rglob("*.png"))
    whiten = ["--whiten", str(folder_of_pictures), "--dim", "6", "--shrink", "0", "--power", "0.25"]
    assert main(["baseline", "margin-conv4-glyphs", "--as", "white", *whiten]) == 0
    module = zoo.load("margin-conv4-glyphs", "torch").module
    pixels = np.stack([to_pixels(file, zoo.load("white").preprocessing) for file in files])
    with torch.inference_mode():
        images = torch.from_numpy(normalised(pixels, zoo.load("white").preprocessing))
        vectors = next(iter(module.heads.values()))(module.trunk(images)).double().numpy()
    centred = vectors - vectors.mean(0)
    _, spread, directions = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ directions[:6].T / (spread[:6] ** 2 / (len(files) - 1)) ** 0.25
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = zoo.load("white").embed(files)
    np.testing.assert_allclose(rows * np.sign((rows * expected).sum(0)), expected, atol=1e-4)


def test_a_whitening_that_cannot_be_compared_says_why(
    folder_of_pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four classes are too few to hold some out; the fault: the promised comparison was left out in silence."""
    whiten = ["--whiten", str(folder_of_pictures), "--dim", "6"]
    assert main(["baseline", "margin-conv4-glyphs", "--as", "white", *whiten]) == 0
    assert "not compared with the plain model" in capsys.readouterr().err
    assert main(["baseline", "margin-conv4-glyphs", "--as", "again", *whiten, "--json"]) == 0
    assert "4 classes" in json.loads(capsys.readouterr().out)["not_compared"]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("squeeze", [False, True])
def test_whole_images_can_be_squeezed(squeeze: bool) -> None:
    """Two wide images that differ at their sides alone are one image in the centre, and two as a whole."""
    run(["baseline", "timm/resnet10t.toy_in1k", "--as", "mine", *(["--squeeze"] if squeeze else [])])
    images = np.zeros((2, 40, 120, 3), np.uint8)
    images[1, :, :30] = 255
    first, second = zoo.load("mine").embed(images)
    assert np.allclose(first, second, atol=1e-6) != squeeze


@pytest.mark.usefixtures("hub")
def test_an_existing_name_and_whitening_of_several_heads_are_refused(folder_of_pictures: Path) -> None:
    run(["baseline", "timm/resnet10t.toy_in1k", "--as", "mine"])
    with raises(UsageError, "already-exists"):
        run(["baseline", "timm/resnet10t.toy_in1k", "--as", "mine"])
    with raises(UsageError, "not-available"):
        run(["baseline", "diva-lite0-cub2010", "--as", "other", "--whiten", str(folder_of_pictures)])
    run(["baseline", "margin-conv4-glyphs", "--as", "other"])
    assert zoo.load("other").card.fingerprint == zoo.load("margin-conv4-glyphs").card.fingerprint


@pytest.mark.usefixtures("hub")
def test_the_comparison_is_kept_with_its_origin_apart_from_the_results(
    tmp_path: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, picture in enumerate(draw_images(60, seed=5)):
        file = tmp_path / "birds" / f"class{number % 10}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    run_here("baseline", "org/conv4", "--as", "mine", "--whiten", tmp_path / "birds", "--dim", 6, "--json")
    printed = json.loads(capsys.readouterr().out)["whitening"]
    folder = own_zoo / "models" / "mine"
    compared = read_whitening_comparison(folder)
    assert compared is not None
    assert printed == json.loads(json.dumps(compared.to_json()))
    held_out = split_classes(load("all", tmp_path / "birds")).test
    assert asdict(compared.data) == asdict(held_out.identity), "three of ten classes"
    assert (compared.data.classes, compared.data.images, compared.fitted_images) == (3, 18, 42)
    assert (compared.share, compared.seed) == (0.3, 0)
    assert compared.model["fingerprint"] != read_card(folder).fingerprint, "that of the plain model"
    assert not (folder / "results.json").exists()
    run_here("info", "mine")
    assert compared.data.sha256[:8] in capsys.readouterr().out
