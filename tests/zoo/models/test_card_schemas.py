"""Model folders of every schema: they load, give their embeddings, and are written in the current schema."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

import zoo
from tests.raising import raises
from zoo.errors import CardError
from zoo.models.card import NEEDS, SCHEMA, card_from_json, read_card
from zoo.models.verify import verify

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDERS = sorted(FIXTURES.glob("schema-*"))


def test_there_is_a_folder_of_every_version() -> None:
    assert [folder.name for folder in FOLDERS] == [f"schema-{number}" for number in range(1, SCHEMA + 1)]
    for number, folder in enumerate(FOLDERS, 1):
        assert json.loads((folder / "card.json").read_text())["schema"] == number


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_schema_loads_and_passes_every_check(folder: Path) -> None:
    names = {f"sha256 {file}" for file in ("model.safetensors", "heads.safetensors", "onnx/model.onnx")}
    names |= {f"golden torch {precision}" for precision in ("fp32", "fp16", "bf16")}
    names |= {"golden onnx fp32", "parity onnx fp32"}
    if json.loads((folder / "card.json").read_text()).get("text"):
        names |= {"sha256 onnx/text.onnx", "sha256 tokenizer.json", "golden text"}
    assert {check.name: check.ok for check in verify(folder)} == dict.fromkeys(names, True)
    assert zoo.info(str(folder)).card == read_card(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_schema_is_written_in_the_current_one(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    card = read_card(copy)
    card.write(copy)
    assert json.loads((copy / "card.json").read_text())["schema"] == SCHEMA
    assert read_card(copy) == card
    assert read_card(copy).fingerprint == read_card(folder).fingerprint
    assert all(check.ok for check in verify(copy))


@pytest.mark.parametrize(
    ("needs", "values"),
    [
        ("9.2.0", ["9.2.0", "pip install 'dml-zoo>=9.2.0'", "git pull"]),
        (None, ["pip install -U dml-zoo;"]),
        ("1'; rm -rf ~ #", ["pip install -U dml-zoo;"]),
        (["1.0"], ["pip install -U dml-zoo;"]),
    ],
)
def test_a_newer_schema_is_refused_with_the_version_to_install(needs: object, values: list[str]) -> None:
    newer = {"schema": SCHEMA + 1, "needs": needs, "something": "of the future"}
    with raises(CardError, "newer-schema") as caught:
        card_from_json(newer)
    assert all(value in str(caught.value) for value in values)


def test_keys_of_later_schemas_are_refused() -> None:
    values = [json.loads((folder / "card.json").read_text()) for folder in FOLDERS]
    with raises(CardError, "unknown-key"):
        card_from_json({**values[0], "needs": "0.1.0"})
    for older in values[:2]:
        with raises(CardError, "unknown-key"):
            card_from_json({**older, "text": None})
    assert card_from_json(values[2]).text.length == 8


def test_cards_do_not_need_a_newer_version_than_their_writer() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:3]]

    assert numbers(NEEDS[SCHEMA]) <= numbers(version("dml-zoo")) == numbers(zoo.__version__)


def test_every_schema_has_a_version_of_its_own() -> None:
    """Otherwise a card would advise people to install the version that cannot read it."""
    assert list(NEEDS) == list(range(1, SCHEMA + 1))
    versions = [tuple(map(int, needs.split("."))) for needs in NEEDS.values()]
    assert versions == sorted(set(versions))
    newest = read_card(FOLDERS[-1])
    assert (newest.schema, newest.needs) == (SCHEMA, NEEDS[SCHEMA])
