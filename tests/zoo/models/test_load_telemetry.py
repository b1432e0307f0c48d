"""Telemetry of ONNX Runtime is disabled before the import, unless the user has set it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from zoo.models.names import find_model

EMBED = "import zoo; zoo.load('margin-conv4-glyphs', runtime='onnx').embed({image!r})"
OPEN = "import onnxruntime; onnxruntime.InferenceSession({graph!r})"


def written_files(code: str, home: Path) -> list[str]:
    """Return the files that a new process writes to its home and temporary folders, without those of the zoo."""
    (home / "tmp").mkdir(parents=True)
    # A minimal environment: on machines of continuous integration ONNX Runtime is silent.
    environment = {"PATH": os.environ["PATH"]}
    folders = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(home / "tmp")}
    proxy = {"https_proxy": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environment, **folders, **proxy})
    return [path.name for path in home.rglob("*") if path.is_file() and ".dml-zoo" not in path.parts]


@pytest.mark.slow
def test_embedding_writes_no_telemetry(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (32, 32)).save(image)
    assert written_files(EMBED.format(image=str(image)), tmp_path / "ours") == []
    graph = find_model("margin-conv4-glyphs") / "onnx" / "model.onnx"
    assert "deviceid" in written_files(OPEN.format(graph=str(graph)), tmp_path / "plain"), (
        "ONNX Runtime writes telemetry by default"
    )


@pytest.mark.parametrize(
    ("package", "setting", "expected"), [("exports", {}, "1"), ("zoo", {"ORT_DISABLE_TELEMETRY": "0"}, "0")]
)
def test_telemetry_is_disabled_before_the_import_unless_the_user_set_it(
    package: str, setting: dict[str, str], expected: str
) -> None:
    code = f"import {package}, os, sys; print('onnxruntime' in sys.modules, os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | setting
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", expected]
