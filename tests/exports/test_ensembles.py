"""An ensemble's variants: one graph, as near to torch as any model's in fp16 and int8."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import zoo
from exports.export import Exporter
from tests.exports.toys import make_toy, picture
from tests.models import CARD
from training.api import concatenate
from zoo.models.card import Head
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import EXPORT_FLOORS
from zoo.models.verify import verify

pytestmark = pytest.mark.slow

HEADED = dataclasses.replace(CARD, heads=(Head("class", 8), Head("lambda", 4)))
"""A model whose heads have the names of Python keywords."""

HEADLESS = dataclasses.replace(CARD, name="headless", heads=(), dim=6, architecture_args={"widths": [4, 4, 4, 6]})
IMAGES = [picture(seed, 31, 28) for seed in range(7000, 7020)]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    root = tmp_path_factory.mktemp("ensemble")
    for card in (HEADED, HEADLESS):
        make_toy(root / card.name, card)
    concatenate([root / CARD.name, root / HEADLESS.name], root / "both", "both")
    exporter = Exporter(root / "both", str(pictures), cost=False)
    for precision in GRAPH_FILES:
        exporter.export(precision)
    return root / "both"


@pytest.mark.parametrize("precision", GRAPH_FILES)
def test_embeddings(ensemble: Path, precision: str) -> None:
    expected = zoo.load(ensemble).embed(IMAGES)
    got = zoo.load(ensemble, runtime="onnx", precision=precision).embed(IMAGES)
    assert got.shape == (20, CARD.dim + HEADLESS.dim)
    assert (got * expected).sum(1).min() >= EXPORT_FLOORS[precision]
    assert precision != "fp32" or abs(got - expected).max() < 1e-6
    # A member that is lost or swapped would show in its own part, however short that is.
    for part in (slice(0, CARD.dim), slice(CARD.dim, None)):
        ours, theirs = got[:, part], expected[:, part]
        cosines = (ours * theirs).sum(1) / ((ours**2).sum(1) * (theirs**2).sum(1)) ** 0.5
        assert cosines.min() >= EXPORT_FLOORS[precision]
    assert (expected @ expected.T).min() < 0.9


def test_every_member_is_quantised_and_verified(ensemble: Path) -> None:
    parity = json.loads((ensemble / "onnx" / "parity.json").read_text())
    assert parity["int8"]["details"]["kept_in_float"] == []
    assert {check.ok for check in verify(ensemble)} == {True}
