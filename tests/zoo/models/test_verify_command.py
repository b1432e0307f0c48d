"""`zoo verify` of a folder from others: one line per check, for any content."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.raising import raises
from zoo.cli.main import main
from zoo.console import one_line
from zoo.errors import CardError
from zoo.files import sha256_of
from zoo.models.card import read_card
from zoo.paths import SHIPPED

MODEL = SHIPPED / "margin-conv4-glyphs"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped model to damage; without torch and the fonts of glyphs, which take most of the time."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("torch", "matplotlib") else object())
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def vouch(folder: Path, **files: str) -> None:
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, **files}).write(folder)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a b-c.safetensors", "a b-c.safetensors"),
        ("prüfung 模型", "prüfung 模型"),
        ("a\nok b", r"a\nok b"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[2Kok", r"\x1b[2Kok"),
        ("a\u2028b\u0085c", r"a\u2028b\x85c"),
        ("\u202eko", r"\u202eko"),
        ("\ud800", r"\ud800"),
    ],
)
def test_text_of_others_stays_on_one_line(text: str, printed: str) -> None:
    assert one_line(text) == printed
    assert len(printed.encode().splitlines()) == 1


@pytest.mark.parametrize(
    "name",
    ["x\nok          sha256 model.safetensors                1dedd0d6", "\x1b[1A\x1b[2Kok", "a\rok", "\0"],
)
def test_a_files_name_forges_no_check(copy: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(copy), "--quick"])
    usual = lines(capsys)
    vouch(copy, **{name: "0" * 64})
    assert main(["verify", str(copy), "--quick"]) == 1
    (added,) = set(lines(capsys)) - set(usual)
    assert added.startswith("FAILED      sha256 ")
    assert added.isprintable()
    assert main(["verify", str(copy), "--quick", "--json"]) == 1
    assert f"sha256 {name}" in [check["name"] for check in json.loads(capsys.readouterr().out)]


def test_an_impossible_file_name_is_a_failed_check(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vouch(copy, **{"a" * 5000: "0" * 64})
    assert main(["verify", str(copy), "--quick"]) == 1
    (failed,) = [line for line in lines(capsys) if line.startswith("FAILED")]
    assert failed.endswith("cannot be read: File name too long")


def test_a_lone_surrogate_in_a_card_is_a_card_error(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (copy / "card.json").read_text()
    (copy / "card.json").write_text(text.replace('"files": {', '"files": {"\\ud800": "0", '))
    with raises(CardError, "unreadable-card") as caught:
        read_card(copy)
    assert r"\ud800" in str(caught.value)
    assert main(["verify", str(copy)]) == 1
    assert "Traceback" not in "".join(capsys.readouterr())
    (copy / "card.json").write_text(text.replace('"files": {', '"files": {"\\ud83d\\ude00": "0", '))
    assert "😀" in read_card(copy).files


def test_weights_of_other_names_give_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch writes missing and unexpected keys on separate lines."""
    folder = Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("onnx")))
    weights = load_file(folder / "heads.safetensors")
    save_file({f"renamed.{name}": value for name, value in weights.items()}, folder / "heads.safetensors")
    card = read_card(folder)
    hashes = {name: sha256_of(folder / name) for name in card.files if not name.startswith("onnx/")}
    dataclasses.replace(card, files=hashes).write(folder)
    assert main(["verify", str(folder), "--quick"]) == 1
    printed = lines(capsys)
    assert all(line.startswith(("ok ", "FAILED ", "unsuited ", "not checked ")) for line in printed)
    (fp32,) = [line for line in printed if "golden torch fp32" in line]
    assert "Missing key(s) in state_dict" in fp32
    assert "Unexpected key(s)" in fp32


@pytest.mark.parametrize(("file", "check"), [("results.json", "scores"), ("onnx/parity.json", "costs")])
@pytest.mark.parametrize("text", ["", "[", '{"a": 1', '"text"', '[{"model": 1}]'])
def test_a_damaged_record_is_a_failed_check_beside_the_others(
    copy: Path, file: str, check: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / file).write_text(text)
    assert main(["verify", str(copy), "--data", str(tmp_path), "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[check]["fails"] is True
    assert file in rows[check]["detail"]
    assert rows["golden onnx fp32"]["ok"] is True


@pytest.mark.parametrize("data", ["nowhere", "nowhere.csv", "file"])
def test_a_missing_data_folder_is_wrong_usage(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["verify", "no-such-model", "--data", str(tmp_path / data)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path / data}" in printed.err


def test_a_table_of_images_is_data_too(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "birds.csv").write_text("image,label\n")
    assert main(["verify", str(copy), "--data", str(tmp_path / "birds.csv"), "--quick"]) == 0
    assert lines(capsys)
