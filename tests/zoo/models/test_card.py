"""Cards: round trip, refused values, and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.raising import raises
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
    ("change", "code", "values"),
    [
        ({"nmae": "x"}, "card", ["'nmae'", "'name'"]),
        ({"schema": SCHEMA + 1}, "other-schema", [str(SCHEMA + 1)]),
        ({"schema": None}, "other-schema", []),
        ({"dim": 25}, "invalid-value", ["25", "24"]),
        ({"dim": "24"}, "card", ["card.dim", "'24'"]),
        ({"name": "../../etc"}, "invalid-value", ["'../../etc'"]),
        ({"files": {"../secret": "ab"}}, "unsafe-file", ["'../secret'"]),
        ({"files": {"/etc/passwd": "ab"}}, "unsafe-file", ["'/etc/passwd'"]),
        ({"files": ["a"]}, "card", ["card.files"]),
        ({"heads": [{"name": "a"}]}, "card", ["heads", "dim"]),
        ({"heads": "a"}, "card", ["heads"]),
        ({"heads": 2 * [{"name": "a", "dim": 12}]}, "conflicting-settings", ["'a'"]),
        ({"heads": [{"name": "a.b", "dim": 24}]}, "conflicting-settings", ["'a.b'"]),
        ({"heads": [{"name": "a", "dim": 10**13}], "dim": 10**13}, "conflicting-settings", ["65536"]),
        (
            {"heads": [{"name": n, "dim": 40_000} for n in "ab"], "dim": 80_000},
            "conflicting-settings",
            ["80000", "65536"],
        ),
        ({"heads": [], "dim": 10**30}, "invalid-value", ["65536"]),
        ({"heads": [], "dim": 0}, "invalid-value", ["0"]),
        ({"preprocessing": {"resize": 28, "crop": 32}}, None, ["crop"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "mode": "XYZ"}}, None, ["'RGB'"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [0, 0, 0]}}, None, ["[0, 0, 0]", "0.0001"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [1, 1e-300, 1]}}, None, ["std"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "std": [1, 1, 10**400]}}, None, ["std"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "mean": [0, 0, 1e300]}}, None, ["mean", "-10000", "10000"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "mean": [0.5]}}, None, ["3 value"]),
        ({"preprocessing": {"resize": 28, "crop": 28, "interpolation": "cubic"}}, None, ["bicubic"]),
        ({"preprocessing": []}, "card", ["preprocessing"]),
    ],
)
def test_a_wrong_card_is_refused(tmp_path: Path, change: dict[str, Any], code: str | None, values: list[str]) -> None:
    (tmp_path / "card.json").write_text(json.dumps({**CARD.to_json(), **change}))
    with pytest.raises(CardError) as caught:
        read_card(tmp_path)
    assert code in (None, caught.value.code)
    assert all(value in str(caught.value) for value in ["card.json", *values])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["mean", "std"])
def test_preprocessing_takes_finite_numbers(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(CardError) as caught:
        Preprocessing(32, 28, "L", **{"mean": (0.5,), "std": (0.5,), key: (value,)})
    assert key in str(caught.value)
    preprocessing = {**CARD.to_json()["preprocessing"], key: [value]}
    (tmp_path / "card.json").write_text(json.dumps({**CARD.to_json(), "preprocessing": preprocessing}))
    with raises(CardError, "unreadable-file"):
        read_card(tmp_path)


def test_means_and_deviations_on_the_scale_0_to_255_are_accepted() -> None:
    preprocessing = Preprocessing(224, 224, mean=(104.0, 117.0, 128.0), std=(1 / 255,) * 3)
    assert preprocessing.std == (1 / 255,) * 3


def test_a_missing_key_a_missing_file_and_a_damaged_file(tmp_path: Path) -> None:
    values = json.loads(json.dumps(CARD.to_json()))
    del values["architecture"]
    with raises(CardError, "card") as caught:
        card_from_json(values)
    assert "architecture" in str(caught.value)
    with raises(CardError, "missing-file"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_text("{")
    with raises(CardError, "unreadable-file"):
        read_card(tmp_path)
    with raises(CardError, "card"):
        card_from_json([])


def test_squeezing_is_recorded_where_it_is_used_and_other_cards_keep_their_fingerprint(tmp_path: Path) -> None:
    """The fingerprint of a card without it is the hash of the other fields, as shipped models have it."""
    squeezed = dataclasses.replace(CARD, preprocessing=dataclasses.replace(CARD.preprocessing, squeeze=True))
    squeezed.write(tmp_path)
    assert read_card(tmp_path) == squeezed
    assert json.loads((tmp_path / "card.json").read_text())["preprocessing"]["squeeze"] is True
    assert "squeeze" not in CARD.to_json()["preprocessing"]
    facts = {
        "architecture": "conv4",
        "architecture_args": {"widths": [8, 8, 8, 8]},
        "heads": [{"name": "embedding", "dim": 16}, {"name": "shared", "dim": 8}],
        "preprocessing": {
            "resize": 32,
            "crop": 28,
            "mode": "L",
            "interpolation": "bilinear",
            "mean": [0.9],
            "std": [0.2],
        },
        "weights": {"model.safetensors": "ab" * 32},
    }
    assert CARD.fingerprint == hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    assert squeezed.fingerprint != CARD.fingerprint


def test_the_fingerprint_depends_on_everything_that_decides_the_vectors() -> None:
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
