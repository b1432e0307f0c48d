"""A process that is killed while it puts a variant into the folder, and a disk that takes no more."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

import zoo
from exports.export import PARITY_FILE, add_graph, export
from zoo.cli.main import main
from zoo.errors import ModelFolderError
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.verify import verify


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
        add_graph(folder, GRAPH_FILES["fp16"], graph, {"fp16": {"holds": True}})
    finally:
        os._exit(1)


@pytest.mark.parametrize("last", [GRAPH_FILES["fp16"], PARITY_FILE])
def test_killed_between_the_renames(copy: Path, tmp_path: Path, last: str) -> None:
    model = onnx.load(copy / GRAPH_FILES["fp16"])
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
    model = onnx.load(copy / GRAPH_FILES["fp16"])
    model.doc_string = "another export of the same model"
    onnx.save(model, tmp_path / "new.onnx")
    publish_and_die(copy, tmp_path / "new.onnx", "card.json")
    zoo.load(copy, runtime="onnx", precision="fp16")
    assert onnx.load(copy / GRAPH_FILES["fp16"]).doc_string == model.doc_string


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system itself refuses to write more than so many bytes to a file, wherever that is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_full_disk_leaves_the_folder_as_it_was(copy: Path, share: float) -> None:
    graph, before = copy / GRAPH_FILES["fp32"], contents(copy)
    with files_of_at_most(int(share * graph.stat().st_size)), pytest.raises(OSError, match="too large"):
        add_graph(copy, GRAPH_FILES["fp16"], graph, {"fp16": {"holds": True}})
    assert contents(copy) == before
    assert all(check.ok for check in verify(copy))


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_disk_that_fills_during_the_command(
    copy: Path,
    pictures: Path,
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = contents(copy)
    command = ["export", str(copy), "--precision", precision, "--calibration", str(pictures), "--no-cost"]
    with files_of_at_most((copy / GRAPH_FILES[precision]).stat().st_size // 2):
        assert main(command) == 1
    assert "File too large" in capsys.readouterr().err
    assert contents(copy) == before
    assert list(scratch.iterdir()) == []
    assert main(command) == 0
