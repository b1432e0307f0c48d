"""A user's script against the installed wheel: mypy in strict mode finds nothing wrong, and knows every type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.sandbox import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # builds a wheel, and checks all that torch imports

SCRIPT = """
import numpy as np
import torch

import zoo
from zoo import losses, miners, samplers

loss = losses.MarginLoss(3)
reveal_type(loss)
miner = miners.DistanceWeightedMiner()
reveal_type(miner)
reveal_type(samplers.SPC(np.zeros(8, np.int64), 4, 2))
value: torch.Tensor = loss(torch.rand(4, 8), torch.tensor([0, 0, 1, 1]))
model = zoo.load("photos")
reveal_type(model)
rows: np.ndarray = model.embed(["a.png"])
reveal_type(zoo.evaluate(model, "glyphs"))
trained = zoo.train("margin-conv4-glyphs", settings={"optimizer.lr": 1e-3})
reveal_type(trained)
better = zoo.finetune(trained, "pictures")
reveal_type(better)
reveal_type(zoo.distill("photos", "pictures", backbone="resnet18"))
reveal_type(zoo.export(better, "int8"))
with zoo.index(better, "pictures", out="gallery") as gallery:
    reveal_type(gallery.search("query.jpg", k=5))
reveal_type(zoo.Client("http://127.0.0.1:3000"))
reveal_type(zoo.list_models("*dino*", status="hub")[0])
failed: list[str] = [check.name for check in zoo.verify(better, quick=True) if check.fails]
embedded = zoo.embed(zoo.ensemble([model, trained], "both"), "pictures")
reveal_type(embedded)
reveal_type(zoo.compare(rows, embedded.rows, embedded.labels))
reveal_type(zoo.duplicates("pictures").report)
reveal_type(zoo.convert("net.pth", "weights", architecture="resnet50"))
reveal_type(zoo.reproduce(trained))
reveal_type(zoo.doctor("watched"))
reveal_type(zoo.features(better, "pictures", out="kept"))


def sources(hits: list[zoo.Hit] | list[zoo.SearchHit], better: zoo.Finetuned) -> list[str]:
    return [hit.source for hit in hits]


reveal_type(zoo.Client("http://127.0.0.1:3000").add("a.png"))
reveal_type(zoo.baseline("net.onnx", "own", mean=[0.5], std=[0.5]))
"""

TYPES = (
    *("MarginLoss", "DistanceWeightedMiner", "SPC", "Embedder", "Evaluation", "FinishedRun", "Finetuned", "Distilled"),
    *("ExportedModel", "list[Hit]", "Client", "ModelInfo", "ImageEmbeddings", "EmbeddingComparison", "DuplicateReport"),
    *("ConvertedModel", "Reproduction", "RunHealth", "Features", "AddedItems", "SavedBaseline"),
)

MISUSE = """
from zoo import losses
losses.MarginLos()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the built wheel, and the libraries of this one."""
    folder = tmp_path_factory.mktemp("user")
    certified = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}  # tests.conftest sets it
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, ROOT]
    subprocess.run(build, check=True, env=certified)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("*/site-packages"))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def check(python: Path, text: str) -> tuple[int, str]:
    """Return mypy's status and output for a script, without the parts of libraries that our own check leaves out."""
    folder = python.parents[2]
    (folder / "script.py").write_text(text)
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["overrides"]
    skipped = next(
        entry["module"]
        for entry in overrides
        if entry.get("follow_imports") == "skip" and "torch.fx.*" in entry["module"]
    )
    sections = "".join(f"[mypy-{name}]\nfollow_imports = skip\n" for name in skipped)
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nwarn_unused_configs = false\n{sections}")
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--config-file", "mypy.ini", "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_strict_check_knows_every_type(python: Path) -> None:
    status, text = check(python, SCRIPT)
    assert status == 0, text
    found = [re.sub(r"\w+\.", "", name) for name in re.findall(r'Revealed type is "(.*?)"', text)]
    assert found == list(TYPES)
    status, text = check(python, MISUSE)
    assert status == 1
    assert "MarginLos" in text
