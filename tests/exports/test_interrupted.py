"""A process that is killed while it puts a variant into the folder."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

import zoo
from exports.export import PARITY, export, publish
from zoo.errors import ModelFolderError
from zoo.onnx_runtime import FILES
from zoo.verify import verify


def publish_and_die(folder: Path, graph: Path, last: str) -> None:
    """Publish in a child process that is gone as soon as it has renamed the file `last`."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        return
    rename = Path.replace

    def replace(path: Path, target: Path) -> None:
        rename(path, target)
        if target == folder / last:
            os._exit(9)

    Path.replace = replace  # type: ignore[method-assign, assignment]
    try:
        publish(folder, FILES["fp16"], graph, {"fp16": {"holds": True}})
    finally:
        os._exit(1)


@pytest.mark.parametrize("last", [FILES["fp16"], PARITY])
def test_killed_between_the_renames(copy: Path, tmp_path: Path, last: str) -> None:
    model = onnx.load(copy / FILES["fp16"])
    model.doc_string = "another export of the same model"
    onnx.save(model, tmp_path / "new.onnx")
    publish_and_die(copy, tmp_path / "new.onnx", last)

    with pytest.raises(ModelFolderError, match=r"SHA-256 differs\). Make it again with: zoo export toy-conv4-noise"):
        zoo.load(copy, runtime="onnx", precision="fp16")
    assert any(not check.ok for check in verify(copy))
    for precision in ("fp32", "int8"):
        zoo.load(copy, runtime="onnx", precision=precision)

    assert export(copy, "fp16").holds
    zoo.load(copy, runtime="onnx", precision="fp16")
    assert all(check.ok for check in verify(copy))


def test_killed_after_the_last_rename_it_is_all_there(copy: Path, tmp_path: Path) -> None:
    model = onnx.load(copy / FILES["fp16"])
    model.doc_string = "another export of the same model"
    onnx.save(model, tmp_path / "new.onnx")
    publish_and_die(copy, tmp_path / "new.onnx", "card.json")
    zoo.load(copy, runtime="onnx", precision="fp16")
    assert onnx.load(copy / FILES["fp16"]).doc_string == model.doc_string
