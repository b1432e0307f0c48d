"""Exports of models that must not be written to: a copy in the local zoo, of the name that loaded them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import zoo
from exports.export import Exporter, copy_model, output_folder, writable_folder
from tests.exports.toys import picture
from tests.models import CARD
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import ModelFolderError, ModelNotFoundError, UsageError, VariantNotFoundError
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.paths import SHIPPED

COMMITS = {"main": "0123456789" * 4, "v1": "9876543210" * 4}


@pytest.fixture
def cached(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hub's cache with org/toy in it, at a branch and at a tag."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--toy"
    (repository / "refs").mkdir(parents=True)
    for ref, commit in COMMITS.items():
        (repository / "refs" / ref).write_text(commit)
        shutil.copytree(exported, repository / "snapshots" / commit)
    return repository


@pytest.mark.parametrize("name", ["org/toy", "hf-hub:org/toy", "org/toy@v1"])
@pytest.mark.usefixtures("cached")
def test_the_copy_of_a_hub_model_is_found_by_the_name_that_loaded_it(own_zoo: Path, name: str) -> None:
    copy = writable_folder(find_model(name), ["fp16"], name)
    assert copy == own_zoo / "models" / name.removeprefix("hf-hub:")
    assert find_model(name) == copy
    assert writable_folder(find_model(name), ["int8"], name) == copy
    listed = {model.name: (model.status_text, model.folder) for model in zoo.list_models(method=CARD.method)}
    assert listed[name.removeprefix("hf-hub:")] == ("on the Hub, exported here", copy)


@pytest.mark.usefixtures("cached")
def test_the_copy_of_a_hub_model_differs_from_a_model_trained_here(
    cached: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_HUB_ORG", "org")
    assert zoo.info("toy").status_text == "on the Hub"
    copy = writable_folder(find_model("toy"), ["fp16"], "toy")
    assert copy == own_zoo / "models" / "toy"
    assert zoo.info("toy").status_text == "on the Hub, exported here"
    (cached / "snapshots" / COMMITS["main"] / "card.json").write_text("{")
    assert zoo.info("toy").status_text == "trained here"
    shutil.copytree(SHIPPED / "margin-conv4-glyphs", cached / "snapshots" / COMMITS["main"], dirs_exist_ok=True)
    assert (zoo.info("toy").status_text, zoo.info("toy").folder) == ("trained here", copy)


def test_a_folder_of_the_cache_is_copied_under_its_repositorys_name(cached: Path, own_zoo: Path) -> None:
    folder = cached / "snapshots" / COMMITS["main"]
    assert output_folder(folder, ["fp16"], str(folder)) == own_zoo / "models" / "org" / "toy"
    assert not (own_zoo / "models").exists()


@pytest.mark.slow
def test_a_failed_export_leaves_no_copy(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = SHIPPED / "margin-conv4-glyphs"
    target = output_folder(shipped, ["int8"], "margin-conv4-glyphs")
    with raises(UsageError, "unknown-name"):
        Exporter(shipped, "no-such-data", into=target).export("int8")
    assert main(["export", "margin-conv4-glyphs", "--precision", "int8", "--calibration", "no-such-data"]) == 2
    assert "no-such-data" in capsys.readouterr().err
    assert not target.exists()
    assert Exporter(shipped, cost=False, into=target).export("fp16").holds
    assert find_model("margin-conv4-glyphs") == target
    assert {"onnx/model.onnx", "onnx/model_fp16.onnx"} <= set(read_card(target).files)


@pytest.mark.slow  # exports two networks for photographs
@pytest.mark.parametrize("name", ["margin-lite0-cub2010-lda", "diva-lite0-cub2010"])
def test_a_shipped_model_without_an_fp32_graph_gets_one_in_a_copy(own_zoo: Path, name: str) -> None:
    with raises(VariantNotFoundError):
        zoo.load(name, runtime="onnx")
    assert main(["export", name]) == 0
    copy = own_zoo / "models" / name
    assert find_model(name) == copy
    assert zoo.load(name, runtime="onnx").embed([picture(1, 33, 27)]).shape == (1, 512)
    assert not (SHIPPED / name / "onnx" / "model.onnx").exists()


def test_the_copy_of_a_shipped_model_was_not_trained_here(
    own_zoo: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "margin-conv4-glyphs"
    assert zoo.info(name).status_text == "shipped"
    copy = writable_folder(SHIPPED / name, ["fp16"], name)
    assert (zoo.info(name).status, zoo.info(name).folder) == ("shipped", copy)
    assert main(["info", name]) == main(["list", "--status", "shipped"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "shipped, exported here" in line]
    assert [line.split()[0] for line in lines] == ["status", name]
    # A model of that name that was trained here replaces the shipped one.
    shutil.rmtree(copy)
    shutil.copytree(exported, copy)
    assert zoo.info(name).status_text == "trained here, not by the recipe"


def test_a_damaged_model_is_not_copied(exported: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(exported, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelFolderError):
        copy_model(damaged, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(ModelNotFoundError):
        find_model(tmp_path / "copy")
