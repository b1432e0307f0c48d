"""recipe.json, results.json and onnx/parity.json, for which no hash stands: cut off, missing or another model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zoo
from zoo.cli.main import main
from zoo.errors import ModelFolderError
from zoo.files import read_json, write_json
from zoo.models.card import Card, read_card
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import Check
from zoo.models.verify import verify_records
from zoo.paths import SHIPPED

MODEL, OTHER = SHIPPED / "margin-conv4-glyphs", SHIPPED / "group-conv4-glyphs"
CARD = read_card(MODEL)
SOUND = [*SHIPPED.glob("*/card.json"), *(Path(__file__).parents[1] / "fixtures").glob("*/card.json")]
RECORDS = ("recipe.json", "results.json", "onnx/parity.json")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped model as a folder to damage; embedded by ONNX Runtime alone, which takes less time."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def checks(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in verify_records(folder)}


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify_records(folder) if check.fails}


def refused(folder: Path, file: str) -> None:
    """By verify, quick or not, and by push."""
    assert list(failed(folder)) == [file]
    assert main(["verify", str(folder), "--quick"]) == 1
    with pytest.raises(ModelFolderError, match=rf"does not pass zoo verify, and nothing was sent: {file} \("):
        zoo.push(folder, "org/toy", dry_run=True)


@pytest.mark.parametrize("folder", [path.parent for path in SOUND], ids=lambda folder: folder.name)
def test_sound_folders_pass(folder: Path) -> None:
    assert failed(folder) == {}
    if folder.is_relative_to(SHIPPED):
        assert {name: check.ok for name, check in checks(folder).items()} == dict.fromkeys(RECORDS, True)


@pytest.mark.parametrize("file", RECORDS)
def test_another_models_is_refused(copy: Path, file: str) -> None:
    shutil.copy(OTHER / file, copy / file)
    refused(copy, file)


def test_another_models_scores_do_not_come_to_the_page(copy: Path) -> None:
    results = [*read_json(MODEL / "results.json"), read_json(OTHER / "results.json")[0]]
    write_json(copy / "results.json", results)
    refused(copy, "results.json")
    assert "holds scores of group-conv4-glyphs" in failed(copy)["results.json"]
    for result in results:
        result["model"] = None  # of plain embeddings
    write_json(copy / "results.json", results)
    assert failed(copy) == {}


def test_a_recipe_that_is_cut_anywhere_is_refused(copy: Path) -> None:
    data = (copy / "recipe.json").read_bytes()
    for end in (*range(0, len(data) - 1, 61), len(data) - 2):
        (copy / "recipe.json").write_bytes(data[:end])
        assert "perhaps it was cut off" in failed(copy)["recipe.json"]
    refused(copy, "recipe.json")


@pytest.mark.parametrize("text", ["{}", "[]", "1", '{"recipe": 1}', '{"recipe": {}}', '{"recipe": [], "model": 1}'])
def test_a_recipe_of_another_kind_is_refused(copy: Path, text: str) -> None:
    (copy / "recipe.json").write_text(text)
    assert list(failed(copy)) == ["recipe.json"]


def test_what_is_missing_is_told_and_no_failure(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in RECORDS:
        (copy / file).unlink()
    assert {name: check.ok for name, check in checks(copy).items()} == dict.fromkeys(
        ("recipe.json", "scores", "onnx/parity.json")
    )
    assert main(["verify", str(copy)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "scores" in line]
    assert line.split() == ["not", "checked", "scores", "there", "is", "no", "results.json"]
    assert zoo.push(copy, "org/toy", dry_run=True).commit is None


@pytest.mark.parametrize("file", ["onnx/model_int8.onnx", "onnx/model_fp16.onnx", "onnx/model_resize.onnx"])
def test_graphs_that_give_less_than_fp32_need_their_statement(copy: Path, file: str) -> None:
    (copy / file).touch()
    assert f"says nothing of {file}" in failed(copy)["onnx/parity.json"]
    (copy / "onnx" / "parity.json").unlink()
    assert f"says nothing of {file}" in failed(copy)["onnx/parity.json"]


def said(**entries: dict[str, Any]) -> dict[str, Any]:
    fp32 = read_json(MODEL / "onnx" / "parity.json")["fp32"]
    return {variant: fp32 | {"variant": variant} | entry for variant, entry in entries.items()}


@pytest.mark.parametrize(
    ("parity", "why"),
    [
        (said(fp32={}), None),
        (said(fp32={}, int8={}), None),  # whoever took the graph away left a true statement
        (said(fp32={"fingerprint": "0" * 64}), "fp32 is said of another model's graph"),
        (said(fp32={}, int8={"fingerprint": None}), "int8 is said of another model's graph"),
        (said(fp32={"variant": "int8"}), "fp32 holds what is said of int8"),
    ],
)
def test_statements_are_of_this_models_graphs(copy: Path, parity: dict[str, Any], why: str | None) -> None:
    write_json(copy / "onnx" / "parity.json", parity)
    assert [detail.partition(".")[0] for detail in failed(copy).values()] == [why] * bool(why)


def test_older_statements_do_not_say_whose_they_are_but_are_of_graphs_that_are_there(copy: Path) -> None:
    parity = said(fp32={}, int8={}, fp61={})
    for entry in parity.values():
        del entry["fingerprint"]
    write_json(copy / "onnx" / "parity.json", parity)
    assert failed(copy)["onnx/parity.json"].startswith(
        "int8 is said of a graph that is not here; fp61 is said of a graph that is not here."
    )
    (copy / GRAPH_FILES["int8"]).touch()
    write_json(copy / "onnx" / "parity.json", {name: parity[name] for name in ("fp32", "int8")})
    assert failed(copy) == {}


MADE: dict[str, Callable[[Card], dict[str, Any]]] = {
    "another recipe's name": lambda card: {"recipe": {"name": "other"}},
    "an ensemble": lambda card: {"ensemble": [{"name": "a"}, {"name": "b"}]},
    "a backbone of the Hub": lambda card: {"baseline": {"repository": "timm/resnet18.a1_in1k"}},
    "another model by its name": lambda card: {"baseline": {}, "model": {"name": "other", "fingerprint": "0"}},
    "other weights": lambda card: {"recipe": {"name": card.name}, "model": {"name": card.name, "fingerprint": "0"}},
    "a text": lambda card: {"baseline": {}, "model": "other"},
}


@pytest.mark.parametrize("made", MADE)
def test_a_recipe_that_this_model_cannot_have_been_made_by(copy: Path, made: str) -> None:
    write_json(copy / "recipe.json", MADE[made](CARD))
    assert list(failed(copy)) == ["recipe.json"]


@pytest.mark.parametrize("kind", [{"recipe": {"name": CARD.name}}, {"baseline": {"name": "any"}}])
def test_a_recipe_that_names_this_model(copy: Path, kind: dict[str, Any]) -> None:
    for model in ({}, {"model": {"name": CARD.name, "fingerprint": CARD.fingerprint}}):
        write_json(copy / "recipe.json", kind | model)
        assert failed(copy) == {}


def test_all_of_it_is_told_as_json(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in RECORDS:
        shutil.copy(OTHER / file, copy / file)
    assert main(["verify", str(copy), "--quick", "--json"]) == 1
    told = {check["name"]: check["detail"] for check in json.loads(capsys.readouterr().out) if check["fails"]}
    assert told.keys() == set(RECORDS)
    assert told["recipe.json"] == "is of another model, 'group-conv4-glyphs'"
