"""Atomic writes, locks and hashes."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from zoo.files import (
    atomic_folder,
    atomic_path,
    complete_lines,
    locked,
    read_bytes,
    read_json,
    sha256_of,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"v": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == '{\n  "v": 1\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nan_is_not_written_as_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as temporary:
        (temporary / "old").write_text("1")
    with pytest.raises(RuntimeError), atomic_folder(target) as temporary:
        (temporary / "new").write_text("2")
        raise RuntimeError
    assert [p.name for p in target.iterdir()] == ["old"]
    with atomic_folder(target) as temporary:
        (temporary / "new").write_text("2")
        (temporary / "new").chmod(0o600)
    assert [p.name for p in target.iterdir()] == ["new"]
    assert (target / "new").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()


def test_a_folder_put_aside_by_a_killed_writer_comes_back(tmp_path: Path) -> None:
    aside = tmp_path / ".toy.abcd1234.old"
    aside.mkdir()
    (aside / "model").write_text("1")
    (tmp_path / ".toy.v2.abcd1234.old").mkdir()  # another model's
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "toy"):
        raise RuntimeError
    assert (tmp_path / "toy" / "model").read_text() == "1"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".toy.v2.abcd1234.old", "toy"]


def test_only_one_thread_holds_the_lock(tmp_path: Path) -> None:
    inside, peak = 0, 0

    def work(_: int) -> None:
        nonlocal inside, peak
        with locked(tmp_path):
            inside += 1
            peak = max(peak, inside)
            sleep(0.005)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert peak == 1
    assert list(tmp_path.iterdir()) == []


READERS = {"json": read_json, "bytes": lambda path: read_bytes(path, 100), "hash": sha256_of, "lines": complete_lines}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_or_a_device_is_no_file(tmp_path: Path, name: str) -> None:
    """A reader of a pipe waits until somebody writes; a device such as /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")  # its size is 0, as that of /dev/zero, but it ends
    (tmp_path / "folder").mkdir()
    for kind in ("pipe", "device", "folder"):
        with pytest.raises(OSError, match=kind):
            READERS[name](tmp_path / kind)


def test_no_more_bytes_are_read_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    assert read_bytes(path, 100) == bytes(range(100))
    with pytest.raises(ValueError, match="100"):
        read_bytes(path, 99)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 99)
