"""What somebody new gets wrong: each mistake is answered by one error of ours, which says the next step."""

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
from zoo.errors import DatasetError, HubError, HubUnreachableError, ImageError, ModelNotFoundError, UsageError, ZooError
from zoo.hub.errors import convert_error
from zoo.paths import SHIPPED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a folder of pictures and a file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "notes").write_text("")
    return tmp_path


@pytest.fixture(scope="module")
def model() -> zoo.Embedder:
    return zoo.load("margin-conv4-glyphs", runtime="onnx")


@pytest.mark.parametrize("name", [None, b"margin-conv4-glyphs", 3, ["margin-conv4-glyphs"]])
@pytest.mark.parametrize("look", [zoo.load, zoo.info])
def test_a_model_is_named_by_text(look: Callable[[Any], object], name: Any) -> None:
    with pytest.raises(UsageError, match=rf"not by {type(name).__name__}: by a name of zoo list, the path"):
        look(name)


@pytest.mark.parametrize("name", ["pictures", "./pictures", "{here}/pictures"])
def test_a_folder_without_a_card_is_not_asked_of_the_hub(here: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load(name.format(here=here))
    assert f"{name.format(here=here)} is a folder but no model folder: card.json is missing." in str(caught.value)
    assert "Hub" not in str(caught.value)


@pytest.mark.parametrize("given", ["./model", "{here}/model", "org/model", Path("model")])
def test_the_path_of_a_model_folder_has_no_revisions(here: Path, given: Any) -> None:
    for name in ("model", "org/model"):
        shutil.copytree(SHIPPED / "margin-conv4-glyphs", here / name)
    given = given.format(here=here) if isinstance(given, str) else given
    with pytest.raises(UsageError, match=r"model is the path of a model folder, and a path has no revisions\. Leave"):
        zoo.load(given, revision="main")
    assert zoo.load(given, runtime="onnx").folder.name == "model"


@pytest.mark.parametrize("value", [3, [], ("fp32",), b"onnx"])
@pytest.mark.parametrize("argument", ["runtime", "precision", "revision"])
def test_arguments_of_another_type_are_named(argument: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{argument} is given as text, not as {type(value).__name__}"):
        zoo.load("margin-conv4-glyphs", **{argument: value})


@pytest.mark.parametrize("argument", ["runtime", "precision"])
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_no_runtime_and_no_precision_are_refused(runtime: str, argument: str) -> None:
    with pytest.raises(UsageError, match=f"{argument} is given as text, not as NoneType"):
        zoo.load("margin-conv4-glyphs", **{"runtime": runtime, argument: None})


def test_a_device_of_another_type_is_named() -> None:
    with pytest.raises(UsageError, match="device is given as text, not as int"):
        zoo.load("margin-conv4-glyphs", runtime="onnx", device=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="torch knows no device"):
        zoo.load("margin-conv4-glyphs", device=3.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["method", "backbone", "dataset", "status"])
def test_a_filter_of_another_type_is_named(fact: str) -> None:
    with pytest.raises(UsageError, match=f"{fact} is given as text, not as int"):
        zoo.list_models(**{fact: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [("notes", "notes is a file; a model is a folder"), ("./nothing", "./nothing is not there")],
)
@pytest.mark.usefixtures("here")
def test_a_path_without_a_folder_is_not_asked_of_the_hub(name: str, says: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load(name)
    assert str(caught.value).startswith(says)
    assert "Hub" not in str(caught.value)


def test_a_folder_of_other_things_hides_no_model_of_its_name(here: Path) -> None:
    (here / "margin-conv4-glyphs").mkdir()
    assert zoo.load("margin-conv4-glyphs", runtime="onnx").folder.parent.name == "checkpoints"
    (here / "margin-conv4-omniglot").mkdir()
    with pytest.raises(ModelNotFoundError, match="Train it with: zoo train margin-conv4-omniglot"):
        zoo.load("margin-conv4-omniglot")


def test_a_mistyped_name_without_a_network_is_one_error_with_the_nearest_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError) as caught:
        zoo.load("marginn-conv4-glyphs")
    said = str(caught.value)
    assert said.startswith("no model 'marginn-conv4-glyphs'. Did you mean 'margin-conv4-glyphs'")
    assert said.count("Hub") == 1
    assert "The Hub could not be asked (HF_HUB_OFFLINE is set)." in said
    assert caught.value.__cause__ is None
    with pytest.raises(HubError, match="there is no folder org/nothing, and org/nothing is not"):
        zoo.load("org/nothing")


def test_an_unreachable_hub_has_a_short_reason_too() -> None:
    error = convert_error(ConnectionRefusedError("nobody listens"), "org/toy")
    assert isinstance(error, HubUnreachableError)
    assert error.why.endswith(": ConnectionRefusedError")
    assert "nobody listens" in str(error)


@pytest.mark.parametrize("name", ["pictures", Path("pictures")])
@pytest.mark.usefixtures("here")
def test_a_folder_in_place_of_a_data_set_is_answered_with_how_one_is_given(model: zoo.Embedder, name: Any) -> None:
    with pytest.raises(DatasetError) as caught:
        zoo.evaluate(model, name)
    assert "dataset='folder', data='pictures'" in str(caught.value)
    assert "--dataset folder --data pictures" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_an_unknown_data_set_is_answered_before_a_model_is_looked_for() -> None:
    with pytest.raises(DatasetError, match=r"Did you mean 'cars'.*dataset='folder', data='DIR'"):
        zoo.evaluate("no-such-model", "cras")


@pytest.mark.usefixtures("here")
def test_a_folder_is_no_image(model: zoo.Embedder) -> None:
    for folder in ("pictures", Path("pictures")):
        with pytest.raises(UsageError, match=r"'pictures' is a folder.*model\.embed\(list_images\('pictures'\)\)"):
            model.embed(folder)
    with pytest.raises(ImageError, match="image 'pictures' is a folder; name the image files in it"):
        model.embed(["pictures"])


def test_exit_statuses_are_two_for_what_is_not_there_or_wrongly_used_and_one_for_the_rest() -> None:
    assert {error.exit_code for error in _tree(ZooError)} == {1, 2}
    assert {
        error.__name__ for error in _tree(ZooError) if "NotFound" in error.__name__ and error.exit_code != 2
    } == set()


def _tree(error: type[ZooError]) -> list[type[ZooError]]:
    return [error, *(below for child in error.__subclasses__() for below in _tree(child))]


MODEL = "margin-conv4-glyphs"
TYPOS = [
    (["train", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["train", MODEL, "--track", "tensorbord"], "Did you mean 'tensorboard'"),
    (["train", MODEL, "--set", "optimizer.lrr=1"], "Did you mean 'optimizer.lr'"),
    (["train", MODEL, "--set", "schedule.epochs=many"], "must be a whole number, as in schedule.epochs=8, not 'many'"),
    (["train", MODEL, "--set", "data.dataset=glyhps"], "Did you mean 'glyphs'"),
    (["train", MODEL, "--data", "nowhere"], "there is no folder nowhere"),
    (["evaluate", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["evaluate", MODEL, "--dataset", "cras"], "Did you mean 'cars'"),
    (["evaluate", MODEL, "--split", "tset"], "Did you mean 'test'"),
    (["evaluate", MODEL, "--metrics", "structur"], "Did you mean 'structure'"),
    (["benchmark", "report", MODEL, "--out", "x.html", "--dataset", "cras"], "Did you mean 'cars'"),
    (["export", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["export", MODEL, "--precision", "fp61"], "Did you mean 'fp16'"),
    (["features", "margin-conv4-glyps", "--dataset", "glyphs", "-o", "f"], "Did you mean 'margin-conv4-glyphs'"),
    (["features", MODEL, "nowhere", "-o", "f"], "there is no folder nowhere"),
    (["finetune", ".", "--from", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["finetune", ".", "--from", MODEL, "--method", "margn"], "Did you mean 'margin'"),
    (["finetune", "nowhere", "--from", MODEL], "there is no folder or file nowhere"),
    (["ensemble", MODEL, "margin-conv4-glyps", "--as", "two"], "Did you mean 'margin-conv4-glyphs'"),
    (["convert", "none.pth", "--architecture", "googlenet", "--out", "x"], "there is no file none.pth"),
    (["baseline", "dinov2-s41", "--as", "mine"], "Did you mean 'dinov2-s14'"),
    (["push", "margin-conv4-glyps", "org/x"], "Did you mean 'margin-conv4-glyphs'"),
    (["verify", "margin-conv4-glyps"], "Did you mean 'margin-conv4-glyphs'"),
    (["verify", MODEL, "--data", "nowhere"], "there is no folder nowhere"),
    (["benchmark", "run", "claims/roh", "--dataset", "glyphs"], "Did you mean 'claims/rho'"),
    (["benchmark", "run", "claims/rho", "--dataset", "glyhps"], "Did you mean 'glyphs'"),
    (["benchmark", "search", "margn", "--dataset", "glyphs"], "Did you mean 'margin'"),
    (["list", "--method", "marign"], "Did you mean 'margin'"),
]


def test_typing_errors_end_with_two_before_torch_is_loaded(here: Path) -> None:
    code = f"""
import contextlib, io, json, sys
from zoo.cli.main import main
outcomes = []
for arguments in {[arguments for arguments, _ in TYPOS]!r}:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(arguments)
    outcomes.append([status, said.getvalue(), sorted({{"torch", "timm", "onnx"}} & sys.modules.keys())])
print(json.dumps(outcomes))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    for (arguments, says), (status, said, loaded) in zip(TYPOS, json.loads(done.stdout), strict=True):
        assert (status, loaded) == (2, []), (arguments, said)
        assert says in said, (arguments, said)
        assert said.count("zoo: error:") == 1
