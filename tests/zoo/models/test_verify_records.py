"""recipe.json, results.json and onnx/parity.json, which no hash covers: cut, missing or of another model."""

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
from zoo.models.results import Check
from zoo.models.verify import verify_records
from zoo.paths import SHIPPED

MODEL, OTHER = SHIPPED / "margin-conv4-glyphs", SHIPPED / "group-conv4-glyphs"
CARD = read_card(MODEL)
SOUND = [*SHIPPED.glob("*/card.json"), *(Path(__file__).parents[1] / "fixtures").glob("*/card.json")]
RECORDS = ("recipe.json", "results.json", "onnx/parity.json")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped model to damage; embedded by ONNX Runtime only, which is faster."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def checks(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in verify_records(folder)}


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify_records(folder) if check.fails}


def assert_refused(folder: Path, file: str) -> None:
    """Assert that verify, quick or not, and push refuse a record."""
    assert list(failed(folder)) == [file]
    assert main(["verify", str(folder), "--quick"]) == 1
    with pytest.raises(ModelFolderError) as caught:
        zoo.push(folder, "org/toy", dry_run=True)
    assert f"{file} (" in str(caught.value)


@pytest.mark.parametrize("folder", [path.parent for path in SOUND], ids=lambda folder: folder.name)
def test_sound_folders_pass(folder: Path) -> None:
    assert failed(folder) == {}
    if folder.is_relative_to(SHIPPED):
        kept = [name for name in RECORDS if (folder / name).exists()]
        assert {name: checks(folder)[name].ok for name in kept} == dict.fromkeys(kept, True)


@pytest.mark.slow
@pytest.mark.parametrize("file", RECORDS)
def test_a_record_of_another_model_is_refused(copy: Path, file: str) -> None:
    shutil.copy(OTHER / file, copy / file)
    assert_refused(copy, file)


def test_scores_of_another_model_are_refused(copy: Path) -> None:
    results = [*read_json(MODEL / "results.json"), read_json(OTHER / "results.json")[0]]
    write_json(copy / "results.json", results)
    assert_refused(copy, "results.json")
    assert "group-conv4-glyphs" in failed(copy)["results.json"]
    for result in results:
        result["model"] = None  # of plain embeddings
    write_json(copy / "results.json", results)
    assert failed(copy) == {}


def test_a_recipe_that_is_cut_anywhere_is_refused(copy: Path) -> None:
    data = (copy / "recipe.json").read_bytes()
    for end in (*range(0, len(data) - 1, 61), len(data) - 2):
        (copy / "recipe.json").write_bytes(data[:end])
        assert list(failed(copy)) == ["recipe.json"]
    assert_refused(copy, "recipe.json")


@pytest.mark.parametrize("text", ["{}", "[]", "1", '{"recipe": 1}', '{"recipe": {}}', '{"recipe": [], "model": 1}'])
def test_a_recipe_of_another_kind_is_refused(copy: Path, text: str) -> None:
    (copy / "recipe.json").write_text(text)
    assert list(failed(copy)) == ["recipe.json"]


def test_missing_records_are_reported_but_do_not_fail(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in RECORDS:
        (copy / file).unlink()
    assert {name: check.ok for name, check in checks(copy).items()} == dict.fromkeys(
        ("recipe.json", "scores", "onnx/parity.json")
    )
    assert main(["verify", str(copy)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "scores" in line]
    assert line.split()[:4] == ["not", "checked", "scores", "results.json"]
    assert zoo.push(copy, "org/toy", dry_run=True).commit is None


@pytest.mark.parametrize("file", ["onnx/model_int8.onnx", "onnx/model_fp16.onnx", "onnx/model_resize.onnx"])
def test_graphs_of_less_than_fp32_need_their_entry(copy: Path, file: str) -> None:
    (copy / file).touch()
    assert file in failed(copy)["onnx/parity.json"]
    (copy / "onnx" / "parity.json").unlink()
    assert file in failed(copy)["onnx/parity.json"]


def parity_of(**entries: dict[str, Any]) -> dict[str, Any]:
    fp32 = read_json(MODEL / "onnx" / "parity.json")["fp32"]
    return {variant: fp32 | {"variant": variant} | entry for variant, entry in entries.items()}


@pytest.mark.parametrize(
    ("parity", "problem"),
    [
        (parity_of(fp32={}), None),
        (parity_of(fp32={}, int8={}), None),  # the graph was removed, and its entry is still true
        (parity_of(fp32={"fingerprint": "0" * 64}), "fp32 describes a graph of another model"),
        (parity_of(fp32={}, int8={"fingerprint": None}), "int8 describes a graph of another model"),
        (parity_of(fp32={"variant": "int8"}), "fp32 describes the variant int8"),
    ],
)
def test_entries_describe_graphs_of_this_model(copy: Path, parity: dict[str, Any], problem: str | None) -> None:
    write_json(copy / "onnx" / "parity.json", parity)
    assert [detail.partition(".")[0] for detail in failed(copy).values()] == [problem] * bool(problem)


def test_entries_without_a_fingerprint_are_refused(copy: Path) -> None:
    parity = parity_of(fp32={})
    del parity["fp32"]["fingerprint"]
    write_json(copy / "onnx" / "parity.json", parity)
    assert failed(copy)["onnx/parity.json"].startswith("fp32 describes a graph of another model.")


OTHER_RECIPES: dict[str, Callable[[Card], dict[str, Any]]] = {
    "another recipe's name": lambda card: {"recipe": {"name": "other"}},
    "an ensemble": lambda card: {"ensemble": [{"name": "a"}, {"name": "b"}]},
    "a backbone of the Hub": lambda card: {"baseline": {"repository": "timm/resnet18.a1_in1k"}},
    "another model by its name": lambda card: {"baseline": {}, "model": {"name": "other", "fingerprint": "0"}},
    "other weights": lambda card: {"recipe": {"name": card.name}, "model": {"name": card.name, "fingerprint": "0"}},
    "a text": lambda card: {"baseline": {}, "model": "other"},
}


@pytest.mark.parametrize("recipe", OTHER_RECIPES)
def test_a_recipe_that_cannot_have_made_this_model_is_refused(copy: Path, recipe: str) -> None:
    write_json(copy / "recipe.json", OTHER_RECIPES[recipe](CARD))
    assert list(failed(copy)) == ["recipe.json"]


@pytest.mark.parametrize("kind", [{"recipe": {"name": CARD.name}}, {"baseline": {"name": "any"}}])
def test_a_recipe_that_names_this_model_passes(copy: Path, kind: dict[str, Any]) -> None:
    for model in ({}, {"model": {"name": CARD.name, "fingerprint": CARD.fingerprint}}):
        write_json(copy / "recipe.json", kind | model)
        assert failed(copy) == {}


def test_json_lists_every_failed_record(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in RECORDS:
        shutil.copy(OTHER / file, copy / file)
    assert main(["verify", str(copy), "--quick", "--json"]) == 1
    details = {check["name"]: check["detail"] for check in json.loads(capsys.readouterr().out) if check["fails"]}
    assert details.keys() == set(RECORDS)
    assert "'group-conv4-glyphs'" in details["recipe.json"]
