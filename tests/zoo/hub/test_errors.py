"""Common mistakes of new users: each gives one error of ours that names the next step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests.raising import raises
from zoo.errors import DatasetError, HubUnreachableError, ImageError, ModelNotFoundError, UsageError, ZooError
from zoo.hub.errors import convert_error
from zoo.paths import SHIPPED


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with a folder of pictures and a file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "notes").write_text("")
    return tmp_path


@pytest.fixture(scope="module")
def model() -> zoo.Embedder:
    return zoo.load("margin-conv4-glyphs", runtime="onnx")


@pytest.mark.parametrize("name", [None, b"margin-conv4-glyphs", 3, ["margin-conv4-glyphs"]])
@pytest.mark.parametrize("look", [zoo.load, zoo.info])
def test_a_model_name_is_a_string(look: Callable[[Any], object], name: Any) -> None:
    with pytest.raises(UsageError) as caught:
        look(name)
    assert type(name).__name__ in str(caught.value)


@pytest.mark.parametrize("name", ["pictures", "./pictures", "{folder}/pictures"])
def test_a_folder_without_a_card_is_not_searched_on_the_hub(working_folder: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load(name.format(folder=working_folder))
    assert name.format(folder=working_folder) in str(caught.value)
    assert "card.json" in str(caught.value)
    assert "Hub" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["./model", "{folder}/model", "org/model", Path("model")])
def test_a_path_has_no_revisions(working_folder: Path, given: Any) -> None:
    for name in ("model", "org/model"):
        shutil.copytree(SHIPPED / "margin-conv4-glyphs", working_folder / name)
    given = given.format(folder=working_folder) if isinstance(given, str) else given
    with pytest.raises(UsageError):
        zoo.load(given, revision="main")
    assert zoo.load(given, runtime="onnx").folder.name == "model"


@pytest.mark.parametrize("value", [3, [], ("fp32",), b"onnx"])
@pytest.mark.parametrize("argument", ["runtime", "precision", "revision"])
def test_arguments_of_another_type_are_named(argument: str, value: Any) -> None:
    with raises(UsageError, "invalid-value") as caught:
        zoo.load("margin-conv4-glyphs", **{argument: value})
    assert argument in str(caught.value)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize("argument", ["runtime", "precision"])
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_none_is_neither_a_runtime_nor_a_precision(runtime: str, argument: str) -> None:
    with raises(UsageError, "invalid-value"):
        zoo.load("margin-conv4-glyphs", **{"runtime": runtime, argument: None})


def test_a_device_of_another_type_is_named() -> None:
    with raises(UsageError, "invalid-value"):
        zoo.load("margin-conv4-glyphs", runtime="onnx", device=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        zoo.load("margin-conv4-glyphs", device=3.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["method", "backbone", "dataset", "status"])
def test_a_filter_of_another_type_is_named(fact: str) -> None:
    with raises(UsageError, "invalid-value"):
        zoo.list_models(**{fact: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["notes", "./nothing"])
@pytest.mark.usefixtures("working_folder")
def test_a_path_without_a_folder_is_not_searched_on_the_hub(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load(name)
    assert name in str(caught.value)
    assert "Hub" not in str(caught.value)


def test_a_folder_of_other_files_hides_no_model_of_its_name(working_folder: Path) -> None:
    (working_folder / "margin-conv4-glyphs").mkdir()
    assert zoo.load("margin-conv4-glyphs", runtime="onnx").folder.parent.name == "checkpoints"
    (working_folder / "margin-conv4-omniglot").mkdir()
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load("margin-conv4-omniglot")
    assert "zoo train margin-conv4-omniglot" in str(caught.value)


def test_a_mistyped_name_without_a_network_is_one_error_with_the_nearest_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load("marginn-conv4-glyphs")
    message = str(caught.value)
    assert "'marginn-conv4-glyphs'. Did you mean 'margin-conv4-glyphs'" in message
    assert message.count("Hub") == 1
    assert "HF_HUB_OFFLINE is set" in message
    assert caught.value.__cause__ is None
    with raises(HubUnreachableError, "offline") as offline:
        zoo.load("org/nothing")
    assert "org/nothing" in str(offline.value)


def test_an_unreachable_hub_has_a_short_reason_too() -> None:
    error = convert_error(ConnectionRefusedError("nobody listens"), "org/toy")
    assert isinstance(error, HubUnreachableError)
    assert error.why.endswith(": ConnectionRefusedError")
    assert "nobody listens" in str(error)


@pytest.mark.parametrize("name", ["pictures", Path("pictures")])
@pytest.mark.usefixtures("working_folder")
def test_a_folder_instead_of_a_data_set_names_the_right_arguments(model: zoo.Embedder, name: Any) -> None:
    with pytest.raises(DatasetError) as caught:
        zoo.evaluate(model, name)
    assert "dataset='folder', data='pictures'" in str(caught.value)
    assert "--dataset folder --data pictures" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_an_unknown_data_set_is_refused_before_the_model_is_searched() -> None:
    with pytest.raises(DatasetError) as caught:
        zoo.evaluate("no-such-model", "cras")
    assert "Did you mean 'cars'" in str(caught.value)


@pytest.mark.usefixtures("working_folder")
def test_a_folder_is_not_an_image(model: zoo.Embedder) -> None:
    for folder in ("pictures", Path("pictures")):
        with pytest.raises(UsageError) as caught:
            model.embed(folder)
        assert "list_images('pictures')" in str(caught.value)
    with pytest.raises(ImageError) as unreadable:
        model.embed(["pictures"])
    assert "'pictures'" in str(unreadable.value)


def test_exit_codes_are_one_or_two_and_two_for_missing_things() -> None:
    assert {error.exit_code for error in _tree(ZooError)} == {1, 2}
    assert {
        error.__name__ for error in _tree(ZooError) if "NotFound" in error.__name__ and error.exit_code != 2
    } == set()


def _tree(error: type[ZooError]) -> list[type[ZooError]]:
    return [error, *(below for child in error.__subclasses__() for below in _tree(child))]


MODEL = "margin-conv4-glyphs"
MISTYPED_COMMANDS = [
    (["train", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["train", MODEL, "--track", "tensorbord"], "Did you mean 'tensorboard'"),
    (["train", MODEL, "--set", "optimizer.lrr=1"], "Did you mean 'optimizer.lr'"),
    (["train", "multi-similarity-conv4-glyphs"], "Did you mean 'ms-conv4-glyphs'?"),
    (["train", MODEL, "--set", "objective.loss=proxy-anchor"], "Did you mean 'pa'?"),
    (["train", MODEL, "--set", "objective.miner=multi-similarity"], "Did you mean 'ms'?"),
    (["list", "--recipes", "--method", "multi-similarity"], "Did you mean 'ms'?"),
    (["benchmark", "search", "multi-similarity", "--dataset", "glyphs"], "Did you mean 'ms'?"),
    (["train", MODEL, "--set", "schedule.epochs=many"], "'many'"),
    (["train", MODEL, "--set", "data.dataset=glyhps"], "Did you mean 'glyphs'"),
    (["train", "margin-conv4-omniglot", "--data", "nowhere"], "nowhere"),
    (["evaluate", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["evaluate", MODEL, "--dataset", "cras"], "Did you mean 'cars'"),
    (["evaluate", MODEL, "--split", "tset"], "Did you mean 'test'"),
    (["evaluate", MODEL, "--metrics", "structur"], "Did you mean 'structure'"),
    (["benchmark", "report", MODEL, "--out", "x.html", "--dataset", "cras"], "Did you mean 'cars'"),
    (["export", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["export", MODEL, "--precision", "fp61"], "Did you mean 'fp16'"),
    (["features", "margin-conv4-glyps", "--dataset", "glyphs", "-o", "f"], "Did you mean 'margin-conv4-glyphs'"),
    (["features", MODEL, "nowhere", "-o", "f"], "nowhere"),
    (["finetune", ".", "--from", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["finetune", ".", "--from", MODEL, "--method", "margn"], "Did you mean 'margin'"),
    (["finetune", "nowhere", "--from", MODEL], "nowhere"),
    (["ensemble", MODEL, "margin-conv4-glyps", "--as", "two"], "Did you mean 'margin-conv4-glyphs'"),
    (["convert", "none.pth", "--architecture", "googlenet", "--out", "x"], "none.pth"),
    (["baseline", "dinov2-s41", "--as", "mine"], "Did you mean 'dinov2-s14'"),
    (["push", "margin-conv4-glyps", "org/x"], "Did you mean 'margin-conv4-glyphs'"),
    (["verify", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["verify", MODEL, "--data", "nowhere"], "nowhere"),
    (["benchmark", "run", "claims/roh", "--dataset", "glyphs"], "Did you mean 'claims/rho'"),
    (["benchmark", "run", "claims/rho", "--dataset", "glyhps"], "Did you mean 'glyphs'"),
    (["benchmark", "search", "margn", "--dataset", "glyphs"], "Did you mean 'margin'"),
    (["list", "--method", "marign"], "Did you mean 'margin'"),
    (["train", "margin-conv4-glyphs", "--set", "objective.miner=semihrad"], "Did you mean 'semihard'"),
    (["train", "margin-conv4-glyphs", "--set", "objective.loss=tirplet"], "Did you mean 'triplet'"),
    (["train", "margin-conv4-glyphs", "--set", "objective.method=divva"], "Did you mean 'diva'"),
    (["train", "margin-conv4-glyphs", "--set", "batch.sampler=spcr"], "Did you mean 'spc-r'"),
    (["train", "margin-conv4-glyphs", "--set", "optimizer.name=adamv"], "Did you mean 'adam"),
    (["baseline", "none.pth", "--as", "mine"], "there is no file none.pth"),
    (["train", "margin-conv4-glyphs", "--data", "."], "glyphs is drawn from fonts"),
    (["train", "margin-conv4-omniglot", "--set", "data.dataset=glyphs", "--data", "."], "glyphs is drawn from fonts"),
]


@pytest.mark.slow
def test_mistyped_commands_exit_with_two_before_torch_is_loaded(working_folder: Path) -> None:
    code = f"""
import contextlib, io, json, sys
from zoo.cli.main import main
outcomes = []
for arguments in {[arguments for arguments, _ in MISTYPED_COMMANDS]!r}:
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        status = main(arguments)
    outcomes.append([status, stderr.getvalue(), sorted({{"torch", "timm", "onnx"}} & sys.modules.keys())])
print(json.dumps(outcomes))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=working_folder)
    for (arguments, value), (status, stderr, loaded) in zip(MISTYPED_COMMANDS, json.loads(done.stdout), strict=True):
        assert (status, loaded) == (2, []), (arguments, stderr)
        assert value in stderr, (arguments, stderr)
        assert stderr.count("zoo: error:") == 1
