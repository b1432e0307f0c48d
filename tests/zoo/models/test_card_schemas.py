"""The schema of cards: one is read and written, every other one is refused."""

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
from zoo.paths import SHIPPED

WITH_TEXT = Path(__file__).parents[1] / "fixtures" / "with-text"


def test_a_folder_of_this_schema_loads_and_passes_every_check() -> None:
    names = {f"sha256 {file}" for file in ("model.safetensors", "heads.safetensors", "onnx/model.onnx")}
    names |= {f"golden torch {precision}" for precision in ("fp32", "fp16", "bf16")}
    names |= {"golden onnx fp32", "parity onnx fp32", "sha256 onnx/text.onnx", "sha256 tokenizer.json", "golden text"}
    assert {check.name: check.ok for check in verify(WITH_TEXT)} == dict.fromkeys(names, True)
    assert zoo.info(str(WITH_TEXT)).card == read_card(WITH_TEXT)


@pytest.mark.parametrize("folder", [WITH_TEXT, *SHIPPED.iterdir()], ids=lambda folder: folder.name)
def test_a_card_is_written_as_it_was_read(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "card.json", tmp_path)
    read_card(tmp_path).write(tmp_path)
    assert json.loads((tmp_path / "card.json").read_text()) == json.loads((folder / "card.json").read_text())


@pytest.mark.parametrize("schema", [*range(-1, SCHEMA), SCHEMA + 1])
def test_every_other_schema_is_refused(schema: int) -> None:
    card = json.loads((WITH_TEXT / "card.json").read_text())
    with raises(CardError, "other-schema") as caught:
        card_from_json({**card, "schema": schema})
    assert f"schema {schema};" in str(caught.value)


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
    with raises(CardError, "other-schema") as caught:
        card_from_json(newer)
    assert all(value in str(caught.value) for value in values)


def test_cards_do_not_need_a_newer_version_than_their_writer() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:3]]

    assert numbers(NEEDS) <= numbers(version("dml-zoo")) == numbers(zoo.__version__)
