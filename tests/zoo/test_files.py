from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from zoo.files import atomic_folder, atomic_path, sha256_of, write_json


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
