"""Pushes and downloads of every variant of a model: the real client and a Hub on loopback."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import zoo
from tests.raising import raises
from tests.zoo.hub_client import connected
from zoo.errors import VariantNotFoundError
from zoo.models.card import read_card
from zoo.models.golden import read_golden
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import GOLDEN_FLOORS

# huggingface_hub sends large files in a way that its own HTTP library no longer recommends.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")]


def test_variants_that_were_pushed_load_by_name_and_embed(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, golden = read_golden(exported)
    with connected(monkeypatch, tmp_path / "cache") as (hub, _):
        monkeypatch.setenv("HF_TOKEN", hub.token)
        zoo.push(exported, "org/x")
        sent = hub.repositories["org/x"].files()
        assert set(GRAPH_FILES.values()) <= sent.keys()
        for precision, file in GRAPH_FILES.items():
            model = zoo.load("org/x", runtime="onnx", precision=precision)
            assert (model.folder / file).read_bytes() == (exported / file).read_bytes() == sent[file]
            assert model.folder.is_relative_to(tmp_path / "cache")
            assert (model.embed(images) * golden).sum(1).min() >= GOLDEN_FLOORS[precision]
        assert read_card(model.folder).files == read_card(exported).files


def test_a_variant_that_was_not_pushed_is_named(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / GRAPH_FILES["int8"]).unlink()
    card = read_card(copy)
    kept = {name: sha for name, sha in card.files.items() if name != GRAPH_FILES["int8"]}
    dataclasses.replace(card, files=kept).write(copy)
    with connected(monkeypatch, tmp_path / "cache") as (hub, _):
        monkeypatch.setenv("HF_TOKEN", hub.token)
        zoo.push(copy, "org/x")
        with raises(VariantNotFoundError) as caught:
            zoo.load("org/x", runtime="onnx", precision="int8")
        assert "it has fp32, fp16" in str(caught.value)
