"""Shipping a trained model: float16 weights, drawn golden images, an int8 graph, scores, a limit of size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tools import ship_model
from tools.ship_model import ship
from zoo.errors import UsageError
from zoo.models.card import read_card
from zoo.models.folder import check_files, is_stored_in_half
from zoo.models.golden import draw_images, read_golden
from zoo.models.names import find_model
from zoo.models.results import read_results

NAME = "margin-conv4-glyphs"


@pytest.mark.slow
def test_a_shipped_model_is_small_and_embeds_like_the_trained_one(tmp_path: Path) -> None:
    source, target = find_model(NAME), tmp_path / NAME
    size = ship(source, target, None, "A sentence: {scores}.")
    card = read_card(target)
    check_files(target, card)
    assert is_stored_in_half(target, card)
    assert size == sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    assert card.method == read_card(source).method
    assert json.loads((target / "recipe.json").read_text())["model"]["fingerprint"] == card.fingerprint
    images = draw_images()
    for golden, drawn in zip(read_golden(target)[0], images, strict=True):
        np.testing.assert_array_equal(golden, drawn)
    trained, shipped = (zoo.load(folder, runtime="torch").embed(images) for folder in (source, target))
    np.testing.assert_allclose((trained * shipped).sum(1), 1, atol=1e-4)
    (result,) = read_results(target)
    assert result["dataset"] == "glyphs"
    stated = re.fullmatch(r"A sentence: R@1 (.+) \(95 % interval (.+)\), MAP@R (.+)\.", card.description)
    assert stated is not None
    recall, interval, precision = stated.groups()
    assert (float(recall), float(precision)) == tuple(
        pytest.approx(result["metrics"][metric], abs=0.0006) for metric in ("recall_at_1", "map_at_r")
    )
    assert [float(bound) for bound in interval.split(" to ")] == pytest.approx(
        result["intervals"]["recall_at_1"], abs=0.0006
    )
    assert json.loads((target / "onnx/parity.json").read_text())["int8"]["cost"]["recall_at_1"]


@pytest.mark.slow
def test_a_model_that_is_too_large_leaves_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship_model, "MOST_BYTES", 100_000)
    target = tmp_path / NAME
    target.mkdir()
    (target / "old").touch()
    with raises(UsageError, code="too-large"):
        ship(find_model(NAME), target, None)
    assert [file.name for file in target.iterdir()] == ["old"]
