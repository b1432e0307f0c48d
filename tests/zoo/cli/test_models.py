"""`zoo verify` of a folder from others (one line per check, for any content), `zoo list` and `zoo info`."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import zoo
from tests.raising import raises
from tests.serving import toys
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


@pytest.mark.slow
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
    with raises(CardError, "unreadable-file") as caught:
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


@pytest.mark.slow
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


def test_list(capsys, toy):
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["toy-pool"] == {
        "name": "toy-pool",
        "status": "trained",
        "dim": toys.DIM,
        "method": "none",
        "head": "",
        "backbone": "pool",
        "dataset": "toys",
        "size": sum(file.stat().st_size for file in toy.rglob("*") if file.is_file()),
        "parameters": 3 * (toys.SIDE // 4) ** 2 * toys.DIM,
        "published_recall_at_1": None,
        "recall_at_1": None,
        "measured_on": None,
        "classes": None,
        "changed": {},
    }
    assert "margin-conv4-glyphs" in rows
    assert main(["list", "--backbone", "pool"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["toy-pool"]
    assert main(["list", "margin-*", "--backbone", "pool"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "zoo list" in err
    assert main(["list", "--recipes", "--status", "shipped"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_models_and_recipes_are_listed_apart(capsys):
    assert main(["list", "--json"]) == 0
    models = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert {"toy-pool", "margin-conv4-glyphs", "dinov2-s14"} <= models.keys()
    assert "recipe" not in models.values()
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = [line for line in lines if line.startswith("R@1 on ")]
    assert {line.split()[0] for line in lines[2 : -len(scores)]} == models.keys()
    assert [line.split(" (")[0] for line in scores] == [
        "R@1 on cub2010, not CUB-200-2011",
        "R@1 on glyphs",
        "R@1 on cars-half, not Cars196",
    ]
    assert re.match(r"R@1 on glyphs \([0-9a-f]{8}\): group-conv4-glyphs, ", scores[1])
    assert main(["list", "--recipes", "--json"]) == 0
    trainable = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert set(trainable.values()) == {"recipe"}
    assert main(["list", "--recipes"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]} == trainable.keys()
    assert main(["list", "--recipes", "--dataset", "cub"]) == 0
    assert "diva-r50-cub" in capsys.readouterr().out


def test_info(capsys, toy):
    for name in ("toy-pool", str(toy)):
        assert main(["info", name, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["card"]["files"].keys() == {"model.safetensors", "onnx/model.onnx"}
        assert facts["results"] == []
    assert main(["info", "toy-pool"]) == 0
    out = capsys.readouterr().out
    assert zoo.info("toy-pool").card.fingerprint in out
    assert str(toy) in out
    assert main(["info", "toy-pol"]) == 2
    assert "'toy-pool'" in capsys.readouterr().err
    (toy / "results.json").write_text("nonsense")
    assert main(["info", "toy-pool"]) == 1
    assert "results.json" in capsys.readouterr().err


def test_info_of_a_recipe_shows_the_command_that_trains_it(capsys):
    assert main(["info", "margin-conv4-omniglot"]) == 0
    assert "zoo train margin-conv4-omniglot" in capsys.readouterr().out


def test_every_table_shows_whether_a_model_has_its_methods_heads(capsys):
    """The fault: models of discriminant directions stood under the names of methods."""
    expected = {"margin-conv4-glyphs": "method", "group-conv4-glyphs": "none", "pa-lite0-cars-half-lda": "LDA"}
    for args in (["list", "--json"], ["benchmark", "models", "--json"]):
        assert main(args) == 0
        heads = {row["name"]: row["head"] for row in json.loads(capsys.readouterr().out)}
        assert expected.items() <= heads.items()
    for name, head in (expected | {"mic-lite0-cub2010": "method", "mic-lite0-cub2010-lda": "LDA"}).items():
        assert main(["info", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["head"] == head
