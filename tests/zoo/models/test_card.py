from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError
from zoo.models.card import SCHEMA, Card, Head, card_from_json, read_card

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
        ({"heads": 2 * [{"name": "a", "dim": 12}]}, "several heads are called 'a'; each needs a name of its own"),
        ({"heads": [{"name": "a.b", "dim": 24}]}, "a head needs a name of .* not 'a.b'"),
        ({"heads": [{"name": "a", "dim": 10**13}], "dim": 10**13}, "a dim from 1 to 65536"),
        (
            {"heads": [{"name": n, "dim": 40_000} for n in "ab"], "dim": 80_000},
            "dims add up to 80000; .* at most 65536",
        ),
        ({"heads": [], "dim": 10**30}, "expected 1 to 65536"),
        ({"heads": [], "dim": 0}, "dim is 0, expected 1"),
        ({"preprocessing": {"resize": 28, "crop": 32}}, "crop <= resize"),
        ({"preprocessing": {"resize": 28, "crop": 28, "mode": "XYZ"}}, "'L' .grey. or 'RGB'"),
        (
            {"preprocessing": {"resize": 28, "crop": 28, "std": [0, 0, 0]}},
            r"std is \[0, 0, 0\]; expected .* 0\.0001 to",
        ),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [1, 1e-300, 1]}}, "std is .* on the scale 0 to 1"),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [1, 1, 10**400]}}, "std is .* on the scale 0 to 1"),
        ({"preprocessing": {"resize": 28, "crop": 28, "mean": [0, 0, 1e300]}}, "mean is .* from -10000 to 10000"),
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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["mean", "std"])
def test_preprocessing_is_of_numbers(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(CardError, match=rf"preprocessing\.{key} is"):
        Preprocessing(32, 28, "L", **{"mean": (0.5,), "std": (0.5,), key: (value,)})
    how = {**CARD.to_json()["preprocessing"], key: [value]}
    (tmp_path / "card.json").write_text(json.dumps({**CARD.to_json(), "preprocessing": how}))
    with pytest.raises(CardError, match=r"card\.json cannot be read as JSON: -?(NaN|Infinity) is no number of JSON"):
        read_card(tmp_path)


def test_means_and_deviations_of_pixels_from_0_to_255_are_taken() -> None:
    how = Preprocessing(224, 224, mean=(104.0, 117.0, 128.0), std=(1 / 255,) * 3)
    assert how.std == (1 / 255,) * 3


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
