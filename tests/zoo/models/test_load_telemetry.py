"""Nobody is told what is embedded: ONNX Runtime reports to its makers unless it is told not to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from zoo.models.load import find_model

EMBED = "import zoo; zoo.load('margin-conv4-glyphs', runtime='onnx').embed({image!r})"
OPEN = "import onnxruntime; onnxruntime.InferenceSession({graph!r})"


def left_behind(code: str, home: Path) -> list[str]:
    """The files that a fresh process leaves in its user's folder and among the temporary ones."""
    (home / "tmp").mkdir(parents=True)
    # Of the environment only what is needed: on machines of continuous integration ONNX Runtime is silent.
    own = {"PATH": os.environ["PATH"]}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(home / "tmp")}
    nowhere = {"https_proxy": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**own, **places, **nowhere})
    return [path.name for path in home.rglob("*") if path.is_file()]


def test_embedding_leaves_no_mark_of_the_machine(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (32, 32)).save(image)
    assert left_behind(EMBED.format(image=str(image)), tmp_path / "ours") == []
    graph = find_model("margin-conv4-glyphs") / "onnx" / "model.onnx"
    assert "deviceid" in left_behind(OPEN.format(graph=str(graph)), tmp_path / "plain"), "it does look where it is left"


@pytest.mark.parametrize("package", ["zoo", "exports"])
@pytest.mark.parametrize(("given", "kept"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_it_is_told_before_it_is_imported_unless_the_user_has_said(
    package: str, given: dict[str, str], kept: str
) -> None:
    code = f"import {package}, os, sys; print('onnxruntime' in sys.modules, os.environ['ORT_DISABLE_TELEMETRY'])"
    own = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | given
    done = subprocess.run([sys.executable, "-c", code], check=True, env=own, capture_output=True, text=True)
    assert done.stdout.split() == ["False", kept]
