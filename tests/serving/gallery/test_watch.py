"""`zoo index --watch`: new pictures are found at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serving.gallery import VectorGallery

MODEL = "margin-conv4-glyphs"


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)).save(path, "PNG")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


@pytest.mark.slow
def test_new_and_removed_pictures_are_indexed_at_once(tmp_path: Path) -> None:
    folder, out = tmp_path / "pictures", tmp_path / "pictures" / "gallery"
    picture(folder / "a.png", 0)
    picture(folder / "b.png", 1)

    def sources() -> set[str]:
        if not (out / "gallery.sqlite").exists():
            return set()
        with VectorGallery.open(out) as gallery:
            return {item.source for item in gallery.store.items(limit=99)}

    words = ["index", MODEL, folder, "--out", out, "--prune", "--yes", "--json", "--watch"]
    command = [sys.executable, "-m", "zoo.cli.main", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background it is ignored
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:
        try:
            wait_for(lambda: sources() == {"a.png", "b.png"})
            picture(folder / "sub" / "c.png", 2)
            wait_for(lambda: sources() == {"a.png", "b.png", "sub/c.png"})
            (folder / "a.png").unlink()
            wait_for(lambda: sources() == {"b.png", "sub/c.png"})
            time.sleep(3)  # it must not run because of what it writes itself
        finally:
            process.send_signal(signal.SIGINT)
            out_text, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    decoder, reports = json.JSONDecoder(), []
    while out_text := out_text.strip():
        report, end = decoder.raw_decode(out_text)
        reports.append(report)
        out_text = out_text[end:]
    assert [(report["added"], len(report["pruned"])) for report in reports if report["added"] or report["pruned"]] == [
        (2, 0),
        (1, 0),
        (0, 1),
    ]
    assert len(reports) <= 5
