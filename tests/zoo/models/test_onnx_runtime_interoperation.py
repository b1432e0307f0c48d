"""Model folders without this package: onnxruntime alone, and onnxruntime-web under Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import playwright
import pytest

from zoo.data.preprocessing import to_pixels
from zoo.models.card import read_card
from zoo.models.golden import read_golden
from zoo.models.onnx_runtime import GRAPH_FILES, RESIZING_FILES
from zoo.models.results import GOLDEN_FLOORS, GOLDEN_RESIZE_FLOORS
from zoo.paths import SHIPPED

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SCRIPT = ROOT / "web" / "embed.mjs"
NODE = shutil.which("node") or str(Path(playwright.__file__).parent / "driver" / "node")
"""Node of the system, else the one in Playwright."""

PLAIN = """
import json, sys
import numpy as np, onnxruntime as ort
from PIL import Image
from safetensors.numpy import load_file

def pixels(image, how):
    image = Image.fromarray(image).convert(how["mode"])
    crop, kind = how["crop"], Image.Resampling[how["interpolation"].upper()]
    width, height = image.size if how.get("squeeze") else 2 * [min(image.size)]
    width, height = width * crop / how["resize"], height * crop / how["resize"]
    left, top = (image.width - width) / 2, (image.height - height) / 2
    image = image.resize((crop, crop), kind, box=(left, top, left + width, top + height))
    return np.asarray(image).reshape(crop, crop, -1)
def cosine(folder):
    how, golden = json.load(open(f"{folder}/card.json"))["preprocessing"], load_file(f"{folder}/golden.safetensors")
    session = ort.InferenceSession(f"{folder}/onnx/model.onnx")
    batch = np.stack([pixels(golden[f"image_{i}"], how) for i in range(len(golden) - 1)])
    return float((session.run(None, {"pixels": batch})[0] * golden["embeddings"]).sum(1).min())
print(json.dumps({"cosines": [cosine(folder) for folder in sys.argv[1:]], "imported": "zoo" in sys.modules}))
"""
FOLDERS = sorted(path.parents[1] for root in (SHIPPED, FIXTURES) for path in root.glob("*/onnx/model.onnx"))


def test_plain_onnxruntime_gives_the_golden_embeddings() -> None:
    command = [sys.executable, "-c", PLAIN, *map(str, FOLDERS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    cosines = dict(zip((folder.name for folder in FOLDERS), output["cosines"], strict=True))
    assert {name: cosine for name, cosine in cosines.items() if cosine < GOLDEN_FLOORS["fp32"]} == {}
    assert not output["imported"]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose node_modules has onnxruntime-web: from `ZOO_NODE_MODULES`, or from npm (100 MB)."""
    if given := os.environ.get("ZOO_NODE_MODULES"):
        return Path(given).parent
    folder = tmp_path_factory.mktemp("web")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), "onnxruntime-web@1.22.0"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=220)
    if done.returncode:
        pytest.skip(f"npm does not provide onnxruntime-web: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_onnxruntime_web_gives_the_golden_embeddings(folder: Path, web: Path, tmp_path: Path) -> None:
    _assert_golden_in_web(folder, web, tmp_path)


@pytest.mark.slow
def test_onnxruntime_web_runs_every_precision(web: Path, tmp_path: Path) -> None:
    from exports.export import Exporter

    folder = tmp_path / "model"
    shutil.copytree(SHIPPED / "margin-conv4-glyphs", folder)
    exporter = Exporter(folder, calibration="glyphs", cost=False)
    for precision in GRAPH_FILES:
        exporter.export(precision)
        exporter.export_resizing(precision)
    assert _assert_golden_in_web(folder, web, tmp_path) == list(GRAPH_FILES)


def _assert_golden_in_web(folder: Path, web: Path, scratch: Path) -> list[str]:
    """Assert that every precision gives the golden embeddings in onnxruntime-web; return the precisions."""
    images, expected = read_golden(folder)
    pixels = np.stack([to_pixels(image, read_card(folder).preprocessing) for image in images])
    present = [precision for precision, file in GRAPH_FILES.items() if (folder / file).is_file()]
    for precision in present:
        actual = _embed_in_web(folder / GRAPH_FILES[precision], pixels, web, scratch)
        assert (actual * expected).sum(1).min() >= GOLDEN_FLOORS[precision]
        if (resizes := folder / RESIZING_FILES[precision]).is_file():
            rows = [_embed_in_web(resizes, image[None], web, scratch) for image in images]
            assert (np.concatenate(rows) * expected).sum(1).min() >= GOLDEN_RESIZE_FLOORS[precision]
    return present


def _embed_in_web(graph: Path, pixels: np.ndarray, web: Path, scratch: Path) -> np.ndarray:
    """Embed pixels uint8 [n, h, w, c] by onnxruntime-web under Node."""
    (scratch / "pixels").write_bytes(pixels.tobytes())
    command = [NODE, str(SCRIPT), str(graph), str(scratch / "pixels"), *map(str, pixels.shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=web)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout), np.float32).reshape(len(pixels), -1)


def test_the_documentation_shows_the_tested_script() -> None:
    page = (ROOT.parents[1] / "docs" / "exports-web.md").read_text("utf-8")
    assert f"```js\n{SCRIPT.read_text('utf-8')}```" in page
