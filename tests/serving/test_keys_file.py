from __future__ import annotations

from pathlib import Path

import pytest

from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.keys import Keys
from serving.keys_file import read_keys
from tests.serving.running import run
from zoo.errors import UsageError

READER, WRITER, BIRDS = "r" * 20, "w=" * 10, "b" * 20


def test_keys_of_all_and_of_one(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# of 2026\n\n{READ_KEYS}={READER}, {BIRDS}\n {WRITE_KEYS}_BIRDS = '{WRITER}'\n")
    found = read_keys(tmp_path / "keys")
    assert found == {READ_KEYS: f"{READER}, {BIRDS}", f"{WRITE_KEYS}_BIRDS": WRITER}
    assert Keys.of(found, "birds").may_write(WRITER)
    assert Keys.of(found, "birds").may_read(READER)
    assert not Keys.of(found, "cars").may_write(WRITER)
    assert not Keys.of(found, "cars").may_read(WRITER)


@pytest.mark.parametrize("text", [READER, f"ZOO_SERVE_RATE={READER}", f"PATH={READER}", f"{READ_KEYS} {READER}", "kéy"])
def test_what_is_no_file_of_keys_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(f"# keys\n{text}\n")
    with pytest.raises(UsageError, match=r"keys (is not as|holds other)") as refused:
        read_keys(tmp_path / "keys")
    assert READER not in str(refused.value)
    with pytest.raises(UsageError, match="No such file"):
        read_keys(tmp_path / "none")


def test_the_command_takes_it(tmp_path: Path, gallery_folder: Path) -> None:
    (tmp_path / "keys").write_text(f"{READ_KEYS}_FISH={READER}\n")
    outcome = run("serve", f"birds={gallery_folder}", "--keys-file", tmp_path / "keys", "--port", 0)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert f"{READ_KEYS}_FISH" in outcome.stderr, "a collection that there is not"
