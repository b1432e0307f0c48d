"""Loading by name or path, embeddings of both runtimes, and errors of model folders."""

from __future__ import annotations

import ctypes
import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import zoo
from exports.export import export
from tests.children import run_python
from tests.models import CARD, make_model
from tests.raising import raises
from zoo.data.preprocessing import to_pixels
from zoo.errors import (
    HubError,
    ImageError,
    ModelFolderError,
    ModelNotFoundError,
    RecipeError,
    UsageError,
    VariantNotFoundError,
)
from zoo.files import sha256_of
from zoo.models.card import read_card
from zoo.models.catalogue import list_models
from zoo.models.names import find_model
from zoo.models.network import create_trunk
from zoo.models.torch_runtime import choose_device
from zoo.models.verify import verify
from zoo.paths import SHIPPED


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / CARD.name
    make_model(folder)
    export(folder)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A model folder that a test may damage."""
    return Path(shutil.copytree(exported, tmp_path / CARD.name))


def reference(folder: Path, pixels: np.ndarray) -> np.ndarray:
    """Compute the embedding by plain torch operations in float64, from the two weight files."""
    trunk, heads = load_file(folder / "model.safetensors"), load_file(folder / "heads.safetensors")
    preprocessing = CARD.preprocessing
    x = torch.from_numpy(pixels).double().permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).double().reshape(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    x = (x - mean) / std
    for block in range(4):
        p = {
            k.removeprefix(f"blocks.{block}."): v.double() for k, v in trunk.items() if k.startswith(f"blocks.{block}.")
        }
        x = torch.conv2d(x, p["0.weight"], padding=1)
        mean, var = p["1.running_mean"].reshape(1, -1, 1, 1), p["1.running_var"].reshape(1, -1, 1, 1)
        x = (x - mean) / (var + 1e-5).sqrt() * p["1.weight"].reshape(1, -1, 1, 1) + p["1.bias"].reshape(1, -1, 1, 1)
        x = x.clamp(min=0)
        x = (
            x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).amax((3, 5))
            if x.shape[2] % 2 == 0
            else (torch.max_pool2d(x, 2))
        )
    x = x.mean((2, 3))
    parts = [x @ heads[f"{name}.weight"].double().T + heads[f"{name}.bias"].double() for name in ("first", "second")]
    parts = [part / part.norm(dim=1, keepdim=True) for part in parts]
    joined = torch.cat(parts, 1)
    return (joined / joined.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.slow
def test_both_runtimes_give_the_embedding_by_definition(exported: Path) -> None:
    images = [np.random.default_rng(i).integers(0, 256, (33, 27, 3), np.uint8) for i in range(5)]
    expected = reference(exported, np.stack([to_pixels(image, CARD.preprocessing) for image in images]))
    for runtime in ("torch", "onnx"):
        got = zoo.load(exported, runtime=runtime).embed(images, batch_size=2)
        assert got.dtype == np.float32
        assert got.shape == (5, CARD.dim)
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_every_kind_of_image_and_of_collection(exported: Path, tmp_path: Path) -> None:
    model = zoo.load(exported, runtime="onnx")
    array = np.random.default_rng(0).integers(0, 256, (30, 30, 3), np.uint8)
    image = Image.fromarray(array)
    image.save(tmp_path / "a.png")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    rows = model.embed([str(tmp_path / "a.png"), tmp_path / "a.png", buffer.getvalue(), image, array])
    assert np.ptp(rows, axis=0).max() == 0
    np.testing.assert_array_equal(model.embed(image), rows[:1])
    np.testing.assert_array_equal(model.embed(array), rows[:1])
    np.testing.assert_array_equal(model.embed(np.stack([array, array])), rows[:2])
    np.testing.assert_allclose(model.embed((array for _ in range(3)), batch_size=2), rows[:3], atol=1e-6)
    assert model.embed([]).shape == (0, CARD.dim)
    with pytest.raises(ImageError):
        model.embed([array, b"no image"])
    with raises(UsageError, "invalid-value"):
        model.embed([array], batch_size=0)
    with raises(UsageError, "unreadable-image"):
        model.embed(3)  # type: ignore[arg-type]
    with raises(UsageError, "unreadable-image"):
        model.embed_pixels(np.zeros((1, 4, 4, 3), np.uint8))


@pytest.mark.slow
def test_a_process_that_cannot_import_torch_embeds_with_onnx(exported: Path) -> None:
    """The error of the runtime torch names a graph that the model has."""
    code = """
import sys
sys.modules["torch"] = sys.modules["timm"] = sys.modules["torchvision"] = None
import zoo, zoo.models.golden, zoo.models.names
images, golden = zoo.models.golden.read_golden(zoo.models.names.find_model(sys.argv[1]))
rows = zoo.load(sys.argv[1], runtime="onnx").embed(images)
print((rows * golden).sum(1).min())
for name in sys.argv[1:]:
    try:
        zoo.load(name, runtime="torch")
    except zoo.errors.MissingDependencyError as error:
        print(error)
"""
    cosine, ours, quantized, none = run_python(
        code, exported, "diva-lite0-cub2010", "pa-lite0-cars-half-lda"
    ).splitlines()
    assert float(cosine) >= 0.9999
    assert "runtime='onnx'" in ours
    assert "runtime='onnx', precision='int8'" in quantized
    assert "onnx" not in none


def test_timm_loads_the_trunk_from_the_folder(exported: Path) -> None:
    trunk = timm.create_model(f"local-dir:{exported}", pretrained=True, num_classes=0).eval()
    weights = load_file(exported / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in trunk.state_dict().items()} == {
        n: tuple(t.shape) for n, t in weights.items()
    }
    assert all(torch.equal(tensor, weights[name]) for name, tensor in trunk.state_dict().items())


def test_parity_is_written_and_the_card_knows_the_graph(exported: Path) -> None:
    parity = json.loads((exported / "onnx" / "parity.json").read_text())["fp32"]
    assert parity["holds"]
    assert parity["min_cosine"] >= 0.99999
    assert "onnx/model.onnx" in read_card(exported).files


def test_the_graph_says_nothing_of_the_machine_that_made_it(exported: Path) -> None:
    for graph in (exported / "onnx" / "model.onnx", SHIPPED / "margin-conv4-glyphs" / "onnx" / "model.onnx"):
        data = graph.read_bytes()
        assert b".py" not in data
        assert b"site-packages" not in data


def test_a_shipped_model_is_not_written_to() -> None:
    with pytest.raises(UsageError):
        export(SHIPPED / "margin-conv4-glyphs")


def results_of(folder: Path) -> dict[str, bool | None]:
    return {check.name: check.ok for check in verify(folder)}


def test_verify(copy: Path) -> None:
    assert set(results_of(copy).values()) == {True}
    assert len(results_of(copy)) == 8
    (copy / "onnx" / "model.onnx").write_bytes(b"no graph")
    broken = results_of(copy)
    assert broken["sha256 onnx/model.onnx"] is False
    assert broken["golden onnx fp32"] is False
    assert broken["golden torch fp32"] is True


@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors"])
def test_altered_missing_or_cut_weights_are_refused(copy: Path, file: str) -> None:
    data = (copy / file).read_bytes()
    for damaged in (data[:-1], data[:40], b"", data[:-1] + bytes([data[-1] ^ 1])):
        (copy / file).write_bytes(damaged)
        with raises(ModelFolderError, "hash-mismatch"):
            zoo.load(copy, "torch")
    (copy / file).unlink()
    with raises(ModelFolderError, "missing-file"):
        zoo.load(copy, "torch")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors", "onnx/model.onnx"])
def test_weights_that_the_card_does_not_list_are_not_used(copy: Path, file: str) -> None:
    card = read_card(copy)
    dataclasses.replace(card, files={name: sha for name, sha in card.files.items() if name != file}).write(copy)
    runtime = "onnx" if file.startswith("onnx") else "torch"
    with raises(ModelFolderError, "unsafe-file"):
        zoo.load(copy, runtime=runtime)
    assert results_of(copy)[f"sha256 {file}"] is False
    (copy / file).unlink()
    assert results_of(copy).get(f"sha256 {file}", True) is (runtime == "onnx")  # torch's weights are always required


def test_verify_names_weights_that_the_card_does_not_list(copy: Path) -> None:
    (copy / "more.safetensors").write_bytes(b"")
    (copy / "onnx" / "model_fp16.onnx").write_bytes(b"")
    failed = {name for name, ok in results_of(copy).items() if ok is False}
    assert failed == {"sha256 more.safetensors", "sha256 onnx/model_fp16.onnx", "golden onnx fp16"}


@pytest.mark.parametrize("args", [{"foo": 1}, {"widths": []}, {"global_pool": "nope"}])
def test_architecture_arguments_that_do_not_fit_are_named(copy: Path, args: dict[str, object]) -> None:
    with raises(RecipeError, "unsupported-model") as caught:
        create_trunk("conv4", 3, args)
    assert next(iter(args)) in str(caught.value)
    dataclasses.replace(read_card(copy), architecture_args=args).write(copy)
    with raises(ModelFolderError, "unsupported-model"):
        zoo.load(copy, "torch")


@pytest.mark.parametrize("device", ["meta", "mps", "cuda:99", "gpu"])
def test_only_devices_that_models_run_on(device: str) -> None:
    with raises(UsageError, "device-unavailable" if device == "cuda:99" else "unknown-name") as caught:
        choose_device(device)
    assert device in str(caught.value)


def test_a_card_of_another_architecture_is_refused(copy: Path) -> None:
    card = read_card(copy)
    dataclasses.replace(card, architecture_args={"widths": [4, 8, 8, 8]}).write(copy)
    with raises(ModelFolderError, "weights-mismatch"):
        zoo.load(copy, "torch")
    dataclasses.replace(card, preprocessing=dataclasses.replace(card.preprocessing, crop=18)).write(copy)
    (copy / "config.json").unlink()
    with raises(ModelFolderError, "other-model"):
        zoo.load(copy, runtime="onnx")


@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors"])
def test_cut_weights_that_the_card_lists_are_refused(copy: Path, file: str) -> None:
    data, card = (copy / file).read_bytes(), read_card(copy)
    for end in (0, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        (copy / file).write_bytes(data[:end])
        dataclasses.replace(card, files={**card.files, file: sha256_of(copy / file)}).write(copy)
        with raises(ModelFolderError, "weights-mismatch") as caught:
            zoo.load(copy, "torch", device="cpu")
        assert file in str(caught.value)


@pytest.mark.parametrize("file", ["model.safetensors", "heads.safetensors", "card.json", "golden.safetensors"])
def test_files_of_two_models_do_not_mix(copy: Path, tmp_path: Path, file: str) -> None:
    make_model(tmp_path / "other", dataclasses.replace(CARD, name="other"), seed=1)
    (copy / file).write_bytes((tmp_path / "other" / file).read_bytes())
    if file == "golden.safetensors":
        assert results_of(copy)["golden torch fp32"] is False
    else:
        with raises(ModelFolderError, "hash-mismatch"):
            zoo.load(copy, "torch", device="cpu")


def test_a_card_of_another_dimension_without_heads_is_refused(tmp_path: Path) -> None:
    card = make_model(tmp_path / "bare", dataclasses.replace(CARD, heads=(), dim=16))
    dataclasses.replace(card, dim=15).write(tmp_path / "bare")
    with raises(ModelFolderError, "invalid-value"):
        zoo.load(tmp_path / "bare", device="cpu")


def test_unknown_arguments_are_refused(exported: Path) -> None:
    for arguments, code, value in (
        ({"runtime": "troch"}, "unknown-name", "'torch'"),
        ({"runtime": "onnx", "precision": "int4"}, "unknown-name", "'int4'"),
        ({"precision": "int4"}, "unknown-name", "'int4'"),
        ({"runtime": "onnx", "device": "cud"}, "unknown-name", "'cuda'"),
    ):
        with raises(UsageError, code) as caught:
            zoo.load(exported, **arguments)
        assert value in str(caught.value)
    with raises(VariantNotFoundError) as absent:
        zoo.load(exported, runtime="onnx", precision="int8")
    assert "--precision int8 --calibration DIR" in str(absent.value), "int8 needs images"


def test_names_are_looked_up_in_order(own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, local, current = tmp_path / "shipped", own_zoo / "models", tmp_path / "cwd"
    monkeypatch.setattr("zoo.paths.SHIPPED", shipped)
    for root in (shipped, local, current):
        (root / CARD.name).mkdir(parents=True)
    monkeypatch.chdir(current)
    CARD.write(shipped / CARD.name)
    assert find_model(CARD.name) == shipped / CARD.name
    CARD.write(local / CARD.name)
    assert find_model(CARD.name) == local / CARD.name
    listed = [(m.folder, m.status_text) for m in list_models() if m.name == CARD.name]
    assert listed == [(local / CARD.name, "shipped, exported here")]
    CARD.write(current / CARD.name)
    assert find_model(CARD.name) == Path(CARD.name)
    assert find_model(f"./{CARD.name}").resolve() == current / CARD.name


def test_a_missing_model_is_reported_with_hints(tmp_path: Path) -> None:
    for name, code, values in (
        ("margin-conv4-glyps", "model-not-found", ("'margin-conv4-glyps'", "'margin-conv4-glyphs'", "local zoo")),
        ("margin-conv4-omniglot", "model-not-found", ("zoo train margin-conv4-omniglot",)),
        (tmp_path, "model-not-found", (str(tmp_path), "card.json")),
        ("net.pth", "model-not-found", ("net.pth",)),  # no name of the Hub: it is not asked
    ):
        with raises(ModelNotFoundError, code) as caught:
            find_model(name)
        assert all(value in str(caught.value) for value in values)
    for file, options in (("net.onnx", ""), ("net.pth", " --architecture NAME")):
        folder = tmp_path / file.partition(".")[2]
        folder.mkdir()
        (folder / file).write_bytes(b"")
        with raises(ModelNotFoundError, "model-not-found", f"zoo baseline {folder / file} --as NAME{options}"):
            find_model(folder)
    with pytest.raises(HubError) as offline:
        find_model("some-org/nothing")
    assert "some-org/nothing" in str(offline.value)
    with raises(ModelNotFoundError, "model-not-found") as unknown:
        zoo.info("margin-conv4-glyps")
    assert "'margin-conv4-glyphs'" in str(unknown.value)


def test_a_damaged_folder_hides_no_other_model(own_zoo: Path) -> None:
    folder = own_zoo / "models" / "bad"
    folder.mkdir(parents=True)
    (folder / "card.json").write_text("{")
    assert "margin-conv4-glyphs" in [m.name for m in list_models()]


def test_a_copy_is_listed_by_the_name_that_loads_it_and_leftovers_are_not(own_zoo: Path) -> None:
    for name in (CARD.name, "copy", f".{CARD.name}.abcd1234"):
        folder = own_zoo / "models" / name
        folder.mkdir(parents=True)
        CARD.write(folder)
    assert [m.name for m in list_models(method="toy")] == ["copy", CARD.name]
    assert zoo.info("copy").name == "copy"
    assert find_model("copy") == own_zoo / "models" / "copy"


@pytest.mark.parametrize("name", ["~nosuchuser", "~nosuchuser/model", "x" * 300, "x/" + "y" * 300, "a\0b"])
def test_impossible_file_names_are_not_found(name: str) -> None:
    for function in (zoo.info, zoo.load):
        with pytest.raises(ModelNotFoundError):
            function(name)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder in a Hub cache made by hand, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository, commit = tmp_path / "models--org--toy", "0123456789" * 4
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    dataclasses.replace(CARD, files={"model.safetensors": "0" * 64}).write(folder)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_complete_model_in_the_hubs_cache_needs_no_network(cached: Path) -> None:
    assert find_model("org/toy") == cached


@pytest.mark.parametrize("file", ["card.json", "model.safetensors"])
def test_an_incomplete_model_in_the_hubs_cache_is_not_used(cached: Path, file: str) -> None:
    (cached / file).unlink()
    with pytest.raises(HubError) as caught:
        find_model("org/toy")
    assert "org/toy" in str(caught.value)


class Portal(BaseHTTPRequestHandler):
    """Server that answers everything with a login page, like a hotel's network."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>log in first</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_login_page_in_place_of_the_hub_is_a_hub_error(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Portal) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        environment = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "zoo.cli.main", "verify", "org/toy"]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
    assert out.returncode == 1
    assert "org/toy" in out.stderr
    assert url in out.stderr
    assert "Traceback" not in out.stderr


LOADED = """
import ctypes
from pathlib import Path
import zoo

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

model = zoo.load("photos", runtime="onnx")
before = private()
ctypes.CDLL(None).malloc_trim(0)
print(before - private())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="it is glibc that keeps freed memory")
def test_loading_leaves_no_freed_memory_in_the_process() -> None:
    """ONNX Runtime reads a graph, and copies its weights in the order in which it computes, before it frees the first.

    Without `_release_memory`, glibc keeps 31 MB for the next allocation, of a graph of 10 MB.
    """
    assert float(run_python(LOADED)) < 8
