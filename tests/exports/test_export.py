"""Exports of one toy in every precision: as near to torch as the floor, complete or absent, of no other model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import zoo
from exports.export import Exporter, export, writable_folder
from exports.parity import draw_calibration_images, measure_parity
from tests.exports.toys import make_toy, picture, write_pictures
from tests.models import CARD
from tests.raising import raises
from zoo.cli.main import main
from zoo.data.preprocessing import to_pixels
from zoo.errors import ExportError, ModelFolderError, UsageError, VariantNotFoundError, command
from zoo.files import sha256_of
from zoo.models.card import Card, read_card
from zoo.models.graph import keep_padding
from zoo.models.onnx_runtime import FINGERPRINT, GRAPH_FILES, PRECISION, open_graph, open_session, providers_of
from zoo.models.results import EXPORT_FLOORS
from zoo.models.verify import verify, verify_records
from zoo.paths import SHIPPED

PADDED = {"pads": ([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "zero": (0, np.float32)}
IMAGES = [picture(seed, 33, 27) for seed in range(5000, 5042)]


def test_max_pooling_counts_zeros_that_were_padded() -> None:
    """torch's F.pad and F.max_pool2d of [[-1, -2], [-3, -4]]: ONNX Runtime would let the pool ignore the padding."""
    pads, zero = (onnx.numpy_helper.from_array(np.array(*of), name) for name, of in PADDED.items())
    value = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("Pad", ["x", "pads", "zero"], ["padded"]),
        onnx.helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[2, 2], strides=[1, 1]),
        onnx.helper.make_node("MaxPool", ["x"], ["z"], kernel_shape=[2, 2]),
    ]
    given, made = (
        value("x", TensorProto.FLOAT, [1, 1, 2, 2]),
        [value(name, TensorProto.FLOAT, [1, 1, side, side]) for name, side in (("y", 2), ("z", 1))],
    )
    graph = onnx.helper.make_graph(nodes, "g", [given], made, [pads, zero])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    keep_padding(model)
    model.ir_version = 10
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, z = session.run(None, {"x": -np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)})
    assert y.tolist() == [[[[-1, 0], [0, 0]]]]
    assert z.tolist() == [[[[-1]]]]


@pytest.mark.slow
@pytest.mark.parametrize("precision", GRAPH_FILES)
def test_every_batch_size_gives_torchs_embeddings(exported: Path, precision: str) -> None:
    expected = zoo.load(exported).embed(IMAGES)
    model = zoo.load(exported, runtime="onnx", precision=precision)
    for size in (1, 2, 7, 32):
        got = model.embed(IMAGES, batch_size=size)
        assert got.dtype == np.float32
        assert (got * expected).sum(1).min() >= EXPORT_FLOORS[precision]
        assert np.abs(np.linalg.norm(got.astype(np.float64), axis=1) - 1).max() < 1e-6
    # The floors mean something only where images lie further apart than they allow.
    assert (expected @ expected.T).min() < 0.9
    if precision != "fp32":
        assert np.abs(got - expected).max() > 1e-5, "not another precision"


def test_parity_says_what_was_measured(exported: Path) -> None:
    parity = json.loads((exported / "onnx" / "parity.json").read_text())
    assert list(parity) == list(GRAPH_FILES)
    for precision, row in parity.items():
        assert row["holds"]
        assert not row["forced"]
        assert row["floor"] == EXPORT_FLOORS[precision] <= row["min_cosine"] <= row["mean_cosine"]
        assert row["centred_cosine"] > 0.98
        assert row["fingerprint"] == read_card(exported).fingerprint
    assert parity["int8"]["details"]["calibrated_on"] == "folder all"
    assert parity["int8"]["details"]["calibration_images"] == 30
    assert {check.ok for check in verify(exported)} == {True}
    assert {check.name: check.ok for check in verify_records(exported)}["onnx/parity.json"] is True


@pytest.mark.slow
def test_parity_entries_of_other_graphs_are_removed_by_the_next_export(copy: Path) -> None:
    path = copy / "onnx" / "parity.json"
    parity = json.loads(path.read_text())
    unnamed = {key: value for key, value in parity["int8"].items() if key not in ("fingerprint", "variant")}
    foreign = {"fp16": parity["fp16"] | {"fingerprint": "0" * 64}, "fp16-resize": unnamed, "int8-resize": 1}
    path.write_text(json.dumps({**foreign, "int8": parity["int8"]}))
    assert export(copy).holds
    assert list(json.loads(path.read_text())) == ["int8", "fp32"]
    (failed,) = [check for check in verify_records(copy) if check.fails]
    assert "onnx/model_fp16.onnx" in failed.detail
    with raises(ModelFolderError, "verification-failed") as caught:
        zoo.push(copy, "org/toy", dry_run=True)
    assert "onnx/parity.json" in str(caught.value)
    assert "onnx/model_fp16.onnx" in str(caught.value)
    assert export(copy, "fp16").holds
    assert not any(check.fails for check in verify_records(copy))


def test_int8_holds_integers_and_fp16_halves(exported: Path) -> None:
    kinds = {name: _weight_types(exported / file) for name, file in GRAPH_FILES.items()}
    kept = json.loads((exported / "onnx" / "parity.json").read_text())["int8"]["details"]["kept_in_float"]
    assert len(kept) <= 3  # the first layer and the two heads at most
    int8 = {TensorProto.INT8, TensorProto.FLOAT} if kept else {TensorProto.INT8}
    assert kinds == {"fp32": {TensorProto.FLOAT}, "fp16": {TensorProto.FLOAT16}, "int8": int8}


@pytest.mark.parametrize("precision", GRAPH_FILES)
def test_graphs_are_valid_onnx_of_the_standard_alone(exported: Path, precision: str) -> None:
    model = onnx.load(exported / GRAPH_FILES[precision])
    onnx.checker.check_model(model, full_check=True)
    assert [entry.domain for entry in model.opset_import] == [""]
    assert b"site-packages" not in model.SerializeToString()


def _weight_types(path: Path) -> set[int]:
    """The types of the tensors with at least two axes that layers multiply with."""
    graph = onnx.load(path).graph
    return {t.data_type for t in graph.initializer if len(t.dims) > 1 and np.prod(t.dims) > 64}


def test_pixels_and_unit_length_are_computed_in_float32(exported: Path) -> None:
    rows = zoo.load(exported, runtime="onnx", precision="fp16").embed(IMAGES)
    assert (rows != rows.astype(np.float16).astype(np.float32)).any(), "the result went through float16"


def test_parity_of_a_run_by_hand() -> None:
    expected = np.eye(3, dtype=np.float32)
    turned = np.array([[0.6, 0.8, 0], [0, 1, 0], [0, 0, 2]], np.float32)
    parity = measure_parity(expected, lambda pixels: turned[pixels[:, 0]], np.arange(3).reshape(3, 1), "int8")
    assert parity.min_cosine == pytest.approx(0.6)
    assert parity.mean_cosine == pytest.approx(2.6 / 3)
    assert parity.max_difference == pytest.approx(1.0)
    assert parity.max_norm_error == pytest.approx(1.0)
    assert not parity.holds
    broken = measure_parity(expected, lambda pixels: np.full((len(pixels), 3), np.nan), np.zeros((3, 1), int), "fp32")
    assert not broken.holds
    json.dumps(broken.to_json(), allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_under_its_floor_a_variant_is_refused_and_the_earlier_one_stays(
    copy: Path, pictures: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _contents(copy)
    monkeypatch.setitem(EXPORT_FLOORS, precision, 1.1)
    with raises(ExportError, "below-floor") as caught:
        export(copy, precision, str(pictures))
    assert "floor 1.1" in str(caught.value)
    assert _contents(copy) == before
    parity = export(copy, precision, str(pictures), force=True)
    assert parity.forced
    assert not json.loads((copy / "onnx" / "parity.json").read_text())[precision]["holds"]
    zoo.load(copy, runtime="onnx", precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["exports.export.write_metadata", "exports.export.measure_parity", "exports.export.write_json"]
)
def test_an_interrupted_export_leaves_the_folder_as_it_was(
    copy: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = _contents(copy)
    monkeypatch.setattr(moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(copy, "fp16")
    assert _contents(copy) == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_graph_of_another_model_is_refused(copy: Path) -> None:
    card = read_card(copy)
    other = dataclasses.replace(card, files={**card.files, "model.safetensors": "0" * 64})
    for file in GRAPH_FILES.values():
        with pytest.raises(ModelFolderError) as caught:
            open_graph(copy / file, other)
        assert command("export", copy) in str(caught.value)
    shutil.copy(copy / GRAPH_FILES["fp32"], copy / GRAPH_FILES["int8"])
    with pytest.raises(ModelFolderError):
        zoo.load(copy, runtime="onnx", precision="int8")


def _vouch(folder: Path, file: str) -> None:
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, file: sha256_of(folder / file)}).write(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("stands_in", "for_it"), [("int8", "fp32"), ("fp32", "int8"), ("fp32", "fp16")])
def test_a_graph_in_another_precision_is_refused(copy: Path, stands_in: str, for_it: str) -> None:
    shutil.copy(copy / GRAPH_FILES[stands_in], copy / GRAPH_FILES[for_it])
    _vouch(copy, GRAPH_FILES[for_it])
    with pytest.raises(ModelFolderError) as caught:
        zoo.load(copy, runtime="onnx", precision=for_it)
    assert all(value in str(caught.value) for value in (GRAPH_FILES[for_it], stands_in, f"--precision {for_it}"))
    assert f"golden onnx {for_it}" in {check.name for check in verify(copy) if check.fails}


def test_a_graph_of_an_older_export_says_neither_model_nor_precision_and_loads(copy: Path) -> None:
    model = onnx.load(copy / GRAPH_FILES["fp32"])
    assert {entry.key for entry in model.metadata_props} == {FINGERPRINT, PRECISION}
    del model.metadata_props[:]
    onnx.save(model, copy / GRAPH_FILES["fp32"])
    _vouch(copy, GRAPH_FILES["fp32"])
    assert zoo.load(copy, runtime="onnx").embed(IMAGES[:1]).shape == (1, CARD.dim)


@pytest.mark.slow
def test_a_variant_without_fp32_beside_it(copy: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16 is made from an fp32 graph of its own where the folder's cannot be vouched for."""
    made = []

    def write_graph(folder: Path, card: Card, path: Path) -> None:
        made.append(path)
        shutil.copy(exported / GRAPH_FILES["fp32"], path)

    monkeypatch.setattr("exports.export.write_graph", write_graph)
    assert export(copy, "fp16").holds
    assert not made
    (copy / GRAPH_FILES["fp32"]).write_bytes(b"cut")
    assert export(copy, "fp16").holds
    assert len(made) == 1
    assert (copy / GRAPH_FILES["fp32"]).read_bytes() == b"cut"
    shutil.copy(copy / GRAPH_FILES["int8"], copy / GRAPH_FILES["fp32"])
    _vouch(copy, GRAPH_FILES["fp32"])
    assert export(copy, "fp16").holds
    assert len(made) == 2


def test_missing_and_unknown_precisions(copy: Path) -> None:
    (copy / GRAPH_FILES["int8"]).unlink()
    with raises(VariantNotFoundError) as caught:
        zoo.load(copy, runtime="onnx", precision="int8")
    assert "it has fp32, fp16" in str(caught.value)
    assert "--precision int8" in str(caught.value)
    for call in (lambda: zoo.load(copy, runtime="onnx", precision="fp61"), lambda: export(copy, "fp61")):
        with raises(UsageError, "unknown-name") as mistyped:
            call()
        assert "'fp61'. Did you mean 'fp16'" in str(mistyped.value)


def test_int8_needs_images(copy: Path, tmp_path: Path) -> None:
    with raises(ExportError, "too-few-samples"):
        export(copy, "int8")
    with raises(UsageError, "unknown-name") as mistyped:
        export(copy, "int8", "cifra100")
    assert "Did you mean 'cifar100'" in str(mistyped.value)
    with raises(ExportError, "too-few-samples") as missing:
        export(copy, "int8", "cifar100", tmp_path)
    assert "cifar100-train.zip" in str(missing.value)
    with raises(ExportError, "too-few-samples"):
        export(copy, "int8", str(write_pictures(tmp_path / "one", 1)))


def test_calibration_images_and_those_held_out_are_disjoint(pictures: Path) -> None:
    drawn = draw_calibration_images(CARD, str(pictures))
    assert (len(drawn.calibration), len(drawn.held_out)) == (40, 20)
    seen = {image.tobytes() for image in drawn.calibration}
    assert not seen & {image.tobytes() for image in drawn.held_out}
    known = {to_pixels(path, CARD.preprocessing).tobytes() for path in pictures.iterdir()}
    assert seen < known


def test_devices_by_name() -> None:
    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert providers_of("cpu", everything) == [("CPUExecutionProvider", {})]
    assert providers_of("cuda:1", everything) == [
        ("CUDAExecutionProvider", {"device_id": 1}),
        ("CPUExecutionProvider", {}),
    ]
    assert [name for name, _ in providers_of("tensorrt", everything)] == everything
    for device in ("cuda", "tensorrt"):
        with pytest.raises(UsageError):
            providers_of(device, ["CPUExecutionProvider"])
    for device in ("gpu", "cuda:", "cuda:x", "cpu:0", "cud"):
        with pytest.raises(UsageError):
            providers_of(device, everything)


def test_libraries_of_a_gpu_are_loaded_from_where_pip_puts_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime finds its libraries for CUDA if asked to; their messages are not our output."""
    order: list[str] = []

    class Session:
        def __init__(self, path: Path, options: Any, providers: list[Any]) -> None:
            order.append("session")
            self._started = ["CPUExecutionProvider"]

        def get_providers(self) -> list[str]:
            return self._started

    def preload() -> None:
        order.append("libraries")
        print("Failed to load libcudnn.so.9")

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    open_session(SHIPPED / "margin-conv4-glyphs" / GRAPH_FILES["fp32"], "cpu")
    assert order == ["session"]
    for missing, reason in ((OSError, "no NVIDIA driver"), (None, "driver is too old")):
        order.clear()
        monkeypatch.setattr("ctypes.CDLL", Mock(side_effect=missing))
        with pytest.raises(UsageError) as caught:
            open_session(SHIPPED / "margin-conv4-glyphs" / GRAPH_FILES["fp32"], "cuda")
        assert reason in str(caught.value)
        assert order == ["libraries", "session"]
    out, err = capsys.readouterr()
    assert (out, "libcudnn" in err) == ("", True)


def test_a_device_that_is_not_installed_is_named(exported: Path) -> None:
    with pytest.raises(UsageError) as caught:
        zoo.load(exported, runtime="onnx", device="tensorrt")
    assert "TensorrtExecutionProvider" in str(caught.value)


def test_a_cpu_without_vnni_gets_the_same_embeddings(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = zoo.load(exported, runtime="onnx", precision="int8").embed(IMAGES)
    monkeypatch.setattr("zoo.models.onnx_runtime._int8_overflows", lambda: True)
    there = zoo.load(exported, runtime="onnx", precision="int8").embed(IMAGES)
    assert (here * there).sum(1).min() > 0.999


@pytest.mark.slow
def test_the_command(copy: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(copy), "--precision", "fp16", "--precision", "int8"]
    assert main([*words, "--calibration", str(pictures), "--json"]) == 0
    parity = json.loads(capsys.readouterr().out)["parity"]
    assert list(parity) == ["fp16", "int8"]
    assert main(words) == 1  # int8 lacks images
    out, err = capsys.readouterr()
    assert "model_fp16.onnx" in out
    assert "--calibration" in err
    assert main(["export", str(copy), "--precision", "int4"]) == 2
    assert main(["export", str(copy), "--precision", "int8", "--calibration", "glyfs"]) == 2
    assert "'glyfs'. Did you mean 'glyphs'?" in capsys.readouterr().err


@pytest.mark.slow
def test_costs_are_measured_on_the_held_out_classes_of_the_images_that_calibrate(tmp_path: Path) -> None:
    make_toy(tmp_path / "toy", dataclasses.replace(CARD, dataset="folder"))
    for i, name in enumerate("abcd"):
        write_pictures(tmp_path / "all" / name, 5, first=100 * i)
    split = {"train_classes": ["a", "b"], "test_classes": ["c", "d"], "images_sha256": "unknown"}
    (tmp_path / "toy" / "recipe.json").write_text(json.dumps({"split": split}))
    cost = export(tmp_path / "toy", "int8", calibration=str(tmp_path / "all")).cost
    assert cost is not None
    assert [cost[key] for key in ("dataset", "split", "queries", "classes")] == ["folder", "test", 10, 2]


def test_shipped_models_are_copied_and_then_found(own_zoo: Path) -> None:
    shipped = SHIPPED / "margin-conv4-glyphs"
    with raises(UsageError, "option-without-effect"):
        writable_folder(shipped, ["fp32"])
    copy = writable_folder(shipped, ["fp16"])
    assert copy == own_zoo / "models" / "margin-conv4-glyphs"
    assert Exporter(copy, cost=False).export("fp16").holds
    assert writable_folder(shipped, ["int8"]) == copy
    assert len(zoo.load("margin-conv4-glyphs", runtime="onnx", precision="fp16").embed(IMAGES[:1])) == 1
    dataclasses.replace(read_card(copy), files={}).write(copy)
    with raises(UsageError, "already-exists"):
        writable_folder(shipped, ["fp16"])
