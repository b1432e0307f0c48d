"""Beside a user's packages `training`, `exports` and `serving`, ours are found, and the user's keep their names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.sandbox import ROOT

pytestmark = pytest.mark.slow  # starts processes that train

THEIRS = "from training.losses import NAME\nfrom serving import app\nimport exports.table\n"
"""Imports of the user's packages; each fails if ours takes the name."""

PARTS = """
from zoo import losses, miners, samplers
assert losses.MarginLoss.__name__ in dir(losses) and miners.DistanceWeightedMiner and samplers.SPC
with zoo.index("margin-conv4-glyphs", "pictures", out="gallery") as gallery:
    assert [hit.source for hit in gallery.search("pictures/a.png", k=1)] == ["a.png"]
"""

SHORT = ("schedule.epochs=1", "schedule.steps=2", "data.validation=0")

TRAINING = f"""
trained = zoo.train("margin-conv4-glyphs", settings={SHORT}, name="short", evaluate=False)
assert zoo.export(trained).parity["fp32"].min_cosine > 0.9999
"""

LAB = {
    "training/__init__.py": "",
    "training/losses.py": "NAME = 'theirs'\n",
    "serving/__init__.py": "",
    "serving/app.py": "NAME = 'theirs'\n",
    "exports/__init__.py": "",
    "exports/table.py": "NAME = 'theirs'\n",
    "theirs_first.py": f"{THEIRS}import zoo\n{PARTS}",
    "ours_first.py": f"import zoo\nassert zoo.list_recipes('margin-conv4-glyphs')\n{THEIRS}{PARTS}{TRAINING}",
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Return a folder of a user's scripts, packages and pictures."""
    folder = tmp_path / "lab"
    for name, text in LAB.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    draw = np.random.default_rng(0)
    for name in "abc":
        (folder / "pictures").mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "pictures" / f"{name}.png")
    return folder


def environment(lab: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "ZOO_HOME": str(lab / "home")}


def run(lab: Path, *words: str) -> str:
    """Run Python in the folder, which stands before ours on the path as for any script."""
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=lab, env=environment(lab), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_a_script_trains_exports_and_searches_beside_its_own_packages(lab: Path) -> None:
    run(lab, "theirs_first.py")
    run(lab, "ours_first.py")


def test_folders_without_init_are_found_once_zoo_is_imported(lab: Path) -> None:
    for file in lab.glob("*/__init__.py"):
        file.unlink()
    (lab / "short.py").write_text(f"import zoo\n{THEIRS}{PARTS}")
    run(lab, "short.py")


@pytest.mark.timeout(600)
def test_torchrun_and_commands_run_in_the_folder(lab: Path) -> None:
    short = [word for setting in SHORT for word in ("--set", setting)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(lab, *launcher, "-m", "zoo.cli.main", "train", "margin-conv4-glyphs", *short, "--as", "short", "--no-eval")
    run(lab, "-m", "zoo.cli.main", "index", "short", "pictures", "--out", "gallery")
    assert "a.png" in run(lab, "-m", "zoo.cli.main", "search", "gallery", "pictures/a.png")


@pytest.mark.timeout(400)
def test_two_workers_of_a_service_answer(lab: Path) -> None:
    run(lab, "-m", "zoo.cli.main", "index", "margin-conv4-glyphs", "pictures", "--out", "gallery")
    words = [sys.executable, "-m", "zoo.cli.main", "serve", "gallery", "--port", "0", "--workers", "2"]
    with subprocess.Popen(words, cwd=lab, env=environment(lab), stdout=subprocess.PIPE, text=True) as service:
        try:
            url = next(match[0] for line in service.stdout or () if (match := re.search(r"http://[\w.:]+", line)))
            with zoo.Client(url, retries=10) as client:
                hits = client.search(lab / "pictures" / "b.png", k=1)
            assert [hit.source for hit in hits] == ["b.png"]
        finally:
            service.terminate()
