"""Graphs of trunks in the cache, and the runtime that `zoo.load(runtime="auto")` chooses."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.models import CARD, make_model
from tests.raising import raises
from zoo.errors import ModelFolderError, UsageError
from zoo.models import trunk_graph
from zoo.models.card import read_card
from zoo.models.load import Embedder
from zoo.models.results import EXPORT_FLOORS

PIXELS = np.random.default_rng(1).integers(0, 256, (40, *CARD.preprocessing.shape), np.uint8)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trunk_graph, "MAKING_SECONDS", 0.0)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model and a cache of its trunk's graph, made once; tests copy them."""
    base = tmp_path_factory.mktemp("made")
    make_model(base / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_HOME", str(base / "home"))
        patch.setattr(trunk_graph, "MAKING_SECONDS", 0.0)
        assert zoo.load(base / "model", "auto", images=1).runtime == "onnx"
    return base / "model", base / "home"


@pytest.fixture
def cached(made: tuple[Path, Path], home: Path) -> Path:
    """Return a model whose trunk's graph is in the cache."""
    shutil.copytree(made[1], home)
    return made[0]


def graphs(home: Path) -> list[Path]:
    return sorted((home / "cache" / "graphs").glob("*.onnx"))


def assert_rows_are_torchs(model: Embedder) -> None:
    rows, expected = model.embed_pixels(PIXELS), zoo.load(model.folder, "torch").embed_pixels(PIXELS)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (rows * expected).sum(1).min() >= EXPORT_FLOORS["fp32"]


def no_export(*_: object) -> None:
    raise AssertionError("a graph is made")


@pytest.mark.slow
def test_a_graph_is_made_for_a_large_job_and_used_again_without_torch(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.models.load._open_torch", no_export)
    monkeypatch.setattr(trunk_graph, "_make", no_export)
    model = zoo.load(cached, "auto")
    assert (model.runtime, model.precision, model.device) == ("onnx", "fp32", "cpu")
    monkeypatch.undo()
    assert_rows_are_torchs(model)


def test_torch_embeds_what_it_finishes_before_a_graph_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "model")
    monkeypatch.setattr(trunk_graph, "MAKING_SECONDS", 1e9)
    monkeypatch.setattr(trunk_graph, "_make", no_export)
    assert zoo.load(tmp_path / "model", "auto", images=10**6).runtime == "torch"
    assert zoo.load(tmp_path / "model", "auto").runtime == "torch"


def test_a_graph_in_the_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk_graph, "open_trunk_graph", no_export)
    assert zoo.load("margin-conv4-glyphs", "auto", images=10**6).runtime == "onnx"
    assert zoo.load("margin-conv4-glyphs", "torch").runtime == "torch"


@pytest.mark.parametrize("absent", ["onnxscript", "onnxruntime"])
def test_torch_is_used_where_no_graph_can_be_made(tmp_path: Path, absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "model")
    monkeypatch.setattr(trunk_graph, "_is_installed", lambda name: name != absent)
    monkeypatch.setattr(trunk_graph, "_make", no_export)
    assert zoo.load(tmp_path / "model", "auto", images=10).runtime == "torch"


def test_a_failure_is_one_line_and_torch_is_used(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model")
    monkeypatch.setattr("zoo.models.graph.write_trunk_graph", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert zoo.load(tmp_path / "model", "auto", images=10).runtime == "torch"
    assert len([line for line in capsys.readouterr().err.splitlines() if "disk full" in line]) == 1
    assert graphs(home) == []


@pytest.mark.slow
def test_a_graph_with_other_features_than_torch_is_not_kept(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model")
    monkeypatch.setitem(trunk_graph.EXPORT_FLOORS, "fp32", 1.1)
    assert zoo.load(tmp_path / "model", "auto", images=10).runtime == "torch"
    assert graphs(home) == []


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_graph_is_made_again(
    cached: Path, made: tuple[Path, Path], home: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = graphs(home)
    whole = file.read_bytes()
    weights = whole.replace(whole[-4000:-3000], bytes(1000))
    file.write_bytes({"cut": whole[:-500], "empty": b"", "other": weights}[damage])
    assert zoo.load(cached, "auto").runtime == "torch"
    (original,) = graphs(made[1])
    monkeypatch.setattr("zoo.models.graph.write_trunk_graph", lambda trunk, card, path: shutil.copy(original, path))
    assert zoo.load(cached, "auto", images=10).runtime == "onnx"
    assert file.read_bytes() == whole


def test_models_with_one_trunk_share_its_graph(cached: Path, tmp_path: Path, home: Path) -> None:
    """Whitening and finetuning of the head make such models."""
    from zoo.models.baseline_folder import _write_folder
    from zoo.models.golden import read_golden
    from zoo.models.network import Network, create_heads, feature_count, load_network

    trunk = load_network(read_card(cached), cached).trunk
    heads = (dataclasses.replace(CARD.heads[0], dim=5),)
    card = dataclasses.replace(read_card(cached), name="other", dim=5, heads=heads)
    other = tmp_path / "other"
    network = Network(trunk, create_heads(heads, feature_count(trunk))).eval()
    _write_folder(other, network, card, read_golden(cached)[0], {})
    model = zoo.load(other, "auto")
    assert model.runtime == "onnx"
    assert model.dim == 5
    assert_rows_are_torchs(model)


def test_a_model_with_other_weights_or_sizes_has_a_graph_of_its_own(cached: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "other", seed=3)
    assert zoo.load(tmp_path / "other", "auto").runtime == "torch"
    card = read_card(cached)
    larger = dataclasses.replace(card.preprocessing, resize=40, crop=32)
    assert trunk_graph._file(dataclasses.replace(card, preprocessing=larger)) != trunk_graph._file(card)


def test_altered_weights_are_refused_although_the_graph_is_in_the_cache(cached: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(cached, tmp_path / "copy"))
    (folder / "model.safetensors").write_bytes(b"other")
    with raises(ModelFolderError, "hash-mismatch"):
        zoo.load(folder, "auto")


@pytest.mark.parametrize(("precision", "runtime"), [("bf16", "torch"), ("fp16", "torch")])
def test_half_precisions_without_a_graph_run_with_torch(cached: Path, precision: str, runtime: str) -> None:
    assert zoo.load(cached, "auto", precision).runtime == runtime


def test_a_missing_gpu_is_an_error(cached: Path) -> None:
    with raises(UsageError, "device-unavailable"):
        zoo.load(cached, "auto", device="cuda:7")


def test_on_a_gpu_torch_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.models.load import uses_gpu

    monkeypatch.setattr("zoo.models.load.has_nvidia_driver", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert uses_gpu(None)
    assert uses_gpu("cuda:1")
    assert not uses_gpu("cpu")
    assert not uses_gpu("tensorrt")
