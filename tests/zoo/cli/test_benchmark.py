from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.serving import toys
from zoo.cli.main import main


def test_the_help_of_a_group_lists_its_commands(capsys):
    for arguments in (["benchmark"], ["benchmark", "--help"], ["benchmark", "-h"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: zoo benchmark COMMAND")
        assert re.search(r"\n  list +list the published tables", out)
        assert "--version" not in out


def test_the_help_of_a_command_shows_its_full_name(capsys):
    assert main(["benchmark", "compare", "--help"]) == 0
    assert "zoo benchmark compare [OPTIONS]" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["benchmark", "lst"], 2, "'list'"),
        (["benchmark", "--json"], 2, "'--json'"),
        (["benchmark", "list", "--paper", "Diva"], 2, "'DiVA'"),
        (["benchmark", "list", "--dataset", "cup"], 2, "'cub'"),
        (["benchmark", "compare", "diva-33"], 2, "'diva-3'"),
        (["benchmark", "compare", "diva-3", "--paper", "MIC"], 2, "zoo benchmark list"),
        (["benchmark", "compare", "--dataset", "glyphs"], 2, "zoo benchmark list"),
        (["benchmark", "compare", "--out", "/proc/none/x"], 2, "/proc/none"),
    ],
)
def test_mistakes(capsys, arguments, status, says):
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert says in err
    assert (out, err.count("\n")) == ("", 1)


def test_list(capsys):
    assert main(["benchmark", "list", "--dataset", "cub", "--json"]) == 0
    tables = {row["name"]: row for row in json.loads(capsys.readouterr().out)["tables"]}
    assert {"mic-r50-cub", "mic-r50-cars"} < {score["recipe"] for score in tables["mic-main"]["scores"]}
    assert tables["mic-main"]["paper"]["source"] == "arXiv:1909.11574"
    assert main(["benchmark", "list", "--paper", "Group"]) == 0
    out = capsys.readouterr().out
    assert "group-2" in out
    assert "diva-3" not in out
    assert main(["benchmark", "list", "--dataset", "glyphs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"] == []
    assert "claims/rho" in {study["name"] for study in found["studies"]}
    assert main(["benchmark", "list", "--paper", "Reality", "--absent"]) == 0
    assert "figures 2 to 5" in capsys.readouterr().out
    assert main(["benchmark", "list", "--absent", "--json"]) == 0
    assert {row["paper"]["short"] for row in json.loads(capsys.readouterr().out)} > {"DiVA", "Group"}


def test_compare_to_the_screen_and_to_a_file(capsys, tmp_path):
    assert main(["benchmark", "compare", "diva-3", "--dataset", "sop"]) == 0
    assert capsys.readouterr().out.count("not run") == 9  # three rows, three metrics
    file = tmp_path / "new" / "out.json"
    assert main(["benchmark", "compare", "--paper", "Sharing", "--format", "json", "--out", str(file)]) == 0
    assert capsys.readouterr().out == ""
    rows = json.loads(file.read_text())
    assert {row["status"] for row in rows} == {"not run", "no recipe"}
    assert {row["status"] for row in rows if row["quoted_from"]} == {"no recipe"}


def test_a_study_is_sent_to_its_own_report(capsys, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    assert main(["benchmark", "report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    assert f"zoo benchmark resume {tmp_path} --report" in capsys.readouterr().err


@pytest.mark.slow
def test_report_is_written_without_torch(tmp_path, own_zoo):
    """In a process of its own, so that what it loads can be seen."""
    toys.write_model(own_zoo / "models" / "toy-pool")
    pictures, out = toys.write_pictures(tmp_path / "pictures"), tmp_path / "report.html"
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from zoo.cli.main import main
words = ["benchmark", "report", "toy-pool", "--runtime", "onnx", "--dataset", "folder"]
assert main([*words, "--data", {str(pictures)!r}, "--out", {str(out)!r}]) == 0
print({{"torch", "timm", "sklearn"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("set()\n"), done.stderr
    assert f"report of toy-pool on pictures written to {out}" in done.stdout
    assert out.read_text().startswith("<!doctype html>")
