from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from zoo.cards import SCHEMA, Card, Head, Preprocessing, card_from_json, read_card
from zoo.errors import CardError

CARD = Card(
    name="margin-conv4-toy",
    method="margin",
    backbone="conv4",
    dataset="toy",
    architecture="conv4",
    dim=24,
    preprocessing=Preprocessing(32, 28, "L", mean=(0.9,), std=(0.2,)),
    heads=(Head("embedding", 16), Head("shared", 8)),
    architecture_args={"widths": [8, 8, 8, 8]},
    files={"model.safetensors": "ab" * 32},
)


def test_round_trip(tmp_path: Path) -> None:
    CARD.write(tmp_path)
    assert read_card(tmp_path) == CARD


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"nmae": "x"}, r"unknown key 'nmae'\. Did you mean 'name'"),
        ({"schema": SCHEMA + 1}, "Upgrade"),
        ({"schema": None}, "no schema"),
        ({"dim": 25}, "dims add up"),
        ({"dim": "24"}, "card.dim must be a whole number, as 64, not '24'"),
        ({"name": "../../etc"}, "lower-case"),
        ({"files": {"../secret": "ab"}}, "outside the model folder"),
        ({"files": {"/etc/passwd": "ab"}}, "outside the model folder"),
        ({"files": ["a"]}, "card.files must be"),
        ({"heads": [{"name": "a"}]}, "heads lacks dim"),
        ({"heads": "a"}, "must be a list"),
        ({"preprocessing": {"resize": 28, "crop": 32}}, "crop <= resize"),
        ({"preprocessing": {"resize": 28, "crop": 28, "mode": "XYZ"}}, "'L' .grey. or 'RGB'"),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [0, 0, 0]}}, "must be positive"),
        ({"preprocessing": {"resize": 28, "crop": 28, "mean": [0.5]}}, "3 value"),
        ({"preprocessing": {"resize": 28, "crop": 28, "interpolation": "cubic"}}, "bicubic"),
        ({"preprocessing": []}, "must be a JSON object"),
    ],
)
def test_a_wrong_card_is_refused_with_the_reason(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    (tmp_path / "card.json").write_text(json.dumps({**CARD.to_json(), **change}))
    with pytest.raises(CardError, match=match) as error:
        read_card(tmp_path)
    assert "card.json" in str(error.value)


def test_missing_key_no_file_and_no_json(tmp_path: Path) -> None:
    values = json.loads(json.dumps(CARD.to_json()))
    del values["architecture"]
    with pytest.raises(CardError, match="lacks architecture"):
        card_from_json(values)
    with pytest.raises(CardError, match="no model folder"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(CardError, match="cannot be read"):
        read_card(tmp_path)
    with pytest.raises(CardError, match="JSON object"):
        card_from_json([])


def test_the_fingerprint_follows_what_decides_the_vectors() -> None:
    def changed(**change: Any) -> str:
        return dataclasses.replace(CARD, **change).fingerprint

    same = [changed(name="other"), changed(licence="mit"), changed(files={**CARD.files, "onnx/model.onnx": "cd" * 32})]
    assert set(same) == {CARD.fingerprint}
    different = [
        changed(files={"model.safetensors": "cd" * 32}),
        changed(preprocessing=Preprocessing(32, 32, "L", mean=(0.9,), std=(0.2,))),
        changed(heads=(Head("embedding", 24),)),
        changed(architecture_args={}),
    ]
    assert len({CARD.fingerprint, *different}) == 5
