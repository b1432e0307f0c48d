"""Load, embed, index, search and evaluate where Linux's own modules, functions and files are missing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.children import run_python
from zoo import paths

OTHER_SYSTEM = Path(__file__).with_name("other_system.py")

DECODER = """
import runpy
runpy.run_path({system!r})
main = runpy.run_path({decoder!r})["main"]
"""

CORE = """
import runpy, sys
from pathlib import Path
runpy.run_path(sys.argv[1])
import zoo
from zoo.data import decoder
folder, own = Path(sys.argv[2]), decoder.__file__
decoder.__file__ = sys.argv[3]
Path(decoder.__file__).write_text(sys.argv[4].format(system=sys.argv[1], decoder=own))
model = zoo.load("margin-conv4-glyphs")
assert model.embed([folder / "a" / "0.png"]).shape == (1, 64)
with zoo.index(model, folder, folder.parent / "gallery") as gallery:
    assert gallery.search(folder / "a" / "0.png", k=1)[0].source == "a/0.png"
assert 0 <= zoo.evaluate(model, "folder", data=folder).metrics["recall_at_1"] <= 1
from zoo.cli.main import main
for words in (["search", "gallery", "pictures/a/0.png"], ["duplicates", "pictures"], ["list"],
              ["embed", "margin-conv4-glyphs", "pictures", "--out", "rows.npy"]):
    assert main(words) == 0, words
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(8):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(path)
    return tmp_path / "pictures"


@pytest.mark.slow
def test_the_core_needs_nothing_of_linux(pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(paths.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    run_python(CORE, OTHER_SYSTEM, pictures, tmp_path / "decoder_elsewhere.py", DECODER)


@pytest.mark.parametrize(
    ("files", "affinity", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, 8, 8),
        ({"cpu.max": "150000 100000\n"}, 8, 2),
        ({"cpu.max": "20000 100000\n"}, 8, 1),
        ({"cpu.max": "900000 100000\n"}, 8, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 8),
        ({"cpu.max": "nonsense"}, 4, 4),
        ({}, 4, 4),
    ],
)
def test_cores_are_those_of_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], affinity: int, cores: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(paths, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    assert paths.core_count() == cores
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: affinity)
    assert paths.core_count() == cores
