"""Exports that are interrupted: by a kill while a variant is put into the folder, and by a full disk."""

from __future__ import annotations

import errno
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
from zoo.errors import ModelFolderError, command
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.verify import verify

pytestmark = pytest.mark.slow


def add_and_die(folder: Path, graph: Path, last: str) -> None:
    """Add a graph in a child process that ends as soon as it has renamed the file `last`."""
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
def test_a_kill_between_the_renames_leaves_an_unused_graph(copy: Path, tmp_path: Path, last: str) -> None:
    model = onnx.load(copy / GRAPH_FILES["fp16"])
    model.doc_string = "another export of the same model"
    onnx.save(model, tmp_path / "new.onnx")
    add_and_die(copy, tmp_path / "new.onnx", last)

    with pytest.raises(ModelFolderError) as caught:
        zoo.load(copy, runtime="onnx", precision="fp16")
    assert command("export", copy) in str(caught.value)
    assert any(not check.ok for check in verify(copy))
    for precision in ("fp32", "int8"):
        zoo.load(copy, runtime="onnx", precision=precision)

    assert export(copy, "fp16").holds
    zoo.load(copy, runtime="onnx", precision="fp16")
    assert all(check.ok for check in verify(copy))


def test_a_kill_after_the_last_rename_leaves_a_complete_variant(copy: Path, tmp_path: Path) -> None:
    model = onnx.load(copy / GRAPH_FILES["fp16"])
    model.doc_string = "another export of the same model"
    onnx.save(model, tmp_path / "new.onnx")
    add_and_die(copy, tmp_path / "new.onnx", "card.json")
    zoo.load(copy, runtime="onnx", precision="fp16")
    assert onnx.load(copy / GRAPH_FILES["fp16"]).doc_string == model.doc_string


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the system refuse files of more than `size` bytes."""
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
    with files_of_at_most(int(share * graph.stat().st_size)), pytest.raises(OSError) as caught:
        add_graph(copy, GRAPH_FILES["fp16"], graph, {"fp16": {"holds": True}})
    assert caught.value.errno == errno.EFBIG
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
