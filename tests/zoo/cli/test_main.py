from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperOption

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.cli import main as cli
from zoo.cli.main import main
from zoo.errors import UsageError
from zoo.models.results import read_results

COMMANDS = """
from __future__ import annotations
import importlib
import typer

app = typer.Typer()

@app.command("hello", epilog="  zoo hello json      an example\\n  zoo hello csv")
def hello(what: str, restart: bool = False) -> int:
    '''say hello 100 %'''
    if what == "interrupt":
        raise KeyboardInterrupt
    importlib.import_module(what)
    return 7

app.command("kept")(hello)
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a module made for this test, and one of a module that lacks a library."""
    (tmp_path / "made_up_commands.py").write_text(COMMANDS)
    (tmp_path / "lacking_commands.py").write_text("import not_to_be_found.at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = (
        cli.Entry("hello", "made_up_commands", "tests", "say hello 100 %"),
        cli.Entry("kept", "made_up_commands", "tests", "say hello 100 %", resumes=True),
        cli.Entry("lacking", "lacking_commands", "tests", "lack a library"),
    )
    monkeypatch.setattr(cli, "COMMANDS", cli.COMMANDS + entries)


@pytest.fixture
def toy(own_zoo: Path) -> Path:
    return toys.write_model(own_zoo / "models" / "toy-pool")


def shell(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zoo.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("statement", ["import zoo.cli.main", "from zoo.cli.main import main; main(['--help'])"])
def test_the_help_imports_no_command_and_no_torch(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    modules = set(out.splitlines()[-1].split())
    assert not modules & {"torch", "timm", "rich", *{entry.module for entry in cli.COMMANDS}}


def test_help_lists_every_command_with_its_summary_under_its_panel(capsys):
    groups = {"", *(entry.name for entry in cli.COMMANDS if not entry.module)}
    assert {entry.group for entry in cli.COMMANDS} == groups
    for group in groups:
        assert main([*group.split(), "--help"]) == 0
        out = capsys.readouterr().out
        for entry in cli.COMMANDS:
            if entry.group == group:
                assert re.search(rf"^  {entry.word} +{re.escape(entry.summary)}$", out, re.MULTILINE)
                assert f"\n{entry.panel}:\n" in out


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_the_summary_of_a_command_is_the_first_line_of_its_help(entry):
    assert cli.load(entry).help.splitlines()[0] == entry.summary


@pytest.mark.parametrize("entry", [entry for entry in cli.COMMANDS if entry.module], ids=lambda entry: entry.name)
def test_every_command_has_examples_and_every_option_a_help_text(entry):
    command = cli.load(entry)
    assert f"zoo {entry.name}" in command.epilog
    for parameter in command.params:
        text = parameter.help
        assert text, parameter.opts
        assert not text.endswith("."), text
        if isinstance(parameter, TyperOption) and not parameter.is_flag and not parameter.required:
            optional = "default|only|repeatable|instead|if |also"
            assert parameter.default is not None or re.search(optional, text), f"{parameter.opts}: say the default"


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dml-zoo {zoo.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["evalute"], "'evaluate'"),
        (["gallery", "remov"], "'remove'"),
        (["--verson"], "'--version'"),
        (["hello", "--restrat"], "'--restart'"),
        (["hello", "a", "b\x07"], "b\\x07"),
        (["hello"], "zoo hello --help"),
        (["list", "--dataset", "--json"], "--dataset=--json"),
        (["features", "m", "-o", "--json"], "--out=--json"),
        (["gallery", "list", "g", "--limit", "two"], "'two'"),
        (["gallery", "tune", "g", "--recall", "high"], "'high'"),
    ],
)
@pytest.mark.usefixtures("made_up")
def test_a_mistake_is_one_line_with_a_suggestion(capsys, arguments, hint):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zoo: error: ")
    assert hint in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("made_up")
def test_a_command_runs_and_its_status_counts(capsys):
    assert main(["hello", "json"]) == 7
    assert main(["hello", "--help"]) == 0
    out = capsys.readouterr().out
    assert "zoo hello [OPTIONS]" in out
    assert "    zoo hello json      an example\n    zoo hello csv\n" in out
    assert "say hello 100 %" in out


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("bentoml", "pip install 'dml-zoo[serve]'"),
        ("timm.models", "pip install 'dml-zoo[train]'"),
        ("faiss", "pip install 'dml-zoo[cpu]'"),
        ("onnx", "pip install 'dml-zoo[export]'"),
        ("nowhere_to_be_found", "'nowhere_to_be_found'"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(capsys, monkeypatch, module, says):
    for name in [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)  # so that Python does not find it
    assert main(["hello", module]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


@pytest.mark.usefixtures("made_up")
def test_a_missing_library_of_a_module_of_commands_is_named(capsys):
    assert main(["lacking"]) == 2
    assert "'not_to_be_found'" in capsys.readouterr().err


@pytest.mark.usefixtures("made_up")
def test_a_bug_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError):
        main(["hello", "zoo.nothing_of_that_name"])


@pytest.mark.usefixtures("made_up")
def test_an_interrupted_command_says_whether_it_continues(capsys):
    assert main(["hello", "interrupt"]) == 130
    assert capsys.readouterr().err == "zoo: interrupted\n"
    assert main(["kept", "interrupt"]) == 130
    assert capsys.readouterr().err == f"zoo: interrupted{cli.CONTINUES}\n"
    assert main(["kept", "interrupt", "--restart"]) == 130
    assert capsys.readouterr().err == "zoo: interrupted\n"


def test_the_commands_that_resume():
    """A command resumes if a test of its own interrupts it and finds that it continues."""
    resuming = {"train", "finetune", "distill", "index", "gallery rebuild"}
    studies = {"benchmark run", "benchmark resume", "benchmark search"}
    assert {entry.name for entry in cli.COMMANDS if entry.resumes} == resuming | studies


def test_the_shell_completes_commands_and_options():
    top = [entry.word for entry in cli.COMMANDS if not entry.group]
    for words, position, completions in (
        ("zoo ", 1, top),
        ("zoo gallery ad", 2, ["add"]),
        ("zoo list --rec", 2, ["--recipes"]),
    ):
        request = {"_ZOO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        outcome = shell(env={**os.environ, **request})
        assert (outcome.stdout.split(), outcome.stderr) == (completions, "")
    shown = shell("--show-completion", env={**os.environ, "SHELL": "/bin/bash"})
    assert shown.returncode == 0
    assert "_ZOO_COMPLETE" in shown.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"]])
def test_a_closed_pipe_is_not_an_error(arguments):
    command = [sys.executable, "-m", "zoo.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert err == b""
    assert process.returncode == 141


def test_list(capsys, toy):
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["toy-pool"] == {
        "name": "toy-pool",
        "status": "trained",
        "dim": toys.DIM,
        "method": "none",
        "backbone": "pool",
        "dataset": "toys",
        "size": sum(file.stat().st_size for file in toy.rglob("*") if file.is_file()),
        "parameters": None,
        "published_recall_at_1": None,
        "recall_at_1": None,
        "changed": {},
    }
    assert "margin-conv4-glyphs" in rows
    assert main(["list", "--backbone", "pool"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["toy-pool"]
    assert main(["list", "--backbone", "pool", "--status", "recipe"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "zoo list" in err


@pytest.mark.usefixtures("toy")
def test_list_hides_recipes_and_counts_them(capsys):
    assert main(["list", "--json"]) == 0
    statuses = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    usable = {name for name, status in statuses.items() if status != "recipe"}
    assert {"toy-pool", "margin-conv4-glyphs", "dinov2-s14"} <= usable < statuses.keys()
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[2:-1]} == usable
    assert lines[-1].startswith(f"{len(statuses) - len(usable):,} recipes")
    assert "zoo list --recipes" in lines[-1]
    assert main(["list", "--recipes"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]} == statuses.keys()
    assert main(["list", "--status", "recipe", "--dataset", "cub"]) == 0
    assert "diva-r50-cub" in capsys.readouterr().out
    assert main(["list", "--backbone", "ibn", "--dataset", "sop"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")


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


EVALUATE = ["evaluate", "toy-pool", "--runtime", "onnx", "--dataset", "folder"]


def test_evaluate_prints_json_and_nothing_else(toy, pictures):
    out = shell(*EVALUATE, "--data", str(pictures), "--json", "-k", "1,5")
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert result["model"] == "toy-pool"
    assert result["queries"] == len(toys.CLASSES) * toys.PER_CLASS
    assert result["metrics"].keys() == {"recall_at_1", "recall_at_5", "precision_at_1", "r_precision", "map_at_r"}
    low, high = result["intervals"]["map_at_r"]
    assert low <= result["metrics"]["map_at_r"] <= high


def test_evaluate_prints_a_table_writes_a_file_and_saves(capsys, toy, pictures, tmp_path):
    out = tmp_path / "new" / "result.json"
    assert main([*EVALUATE, "--data", str(pictures), "--out", str(out), "--save"]) == 0
    result = json.loads(out.read_text())
    assert read_results(toy) == [result]
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "map_at_r" in line)
    assert f"{result['metrics']['map_at_r']:.4f}" in row
    low, high = result["intervals"]["map_at_r"]
    assert f"{low:.4f} to {high:.4f}" in row
    assert main(["info", "toy-pool"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("measured on folder, all of it, with onnx in fp32" in line for line in lines)
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        assert any(line.split() == [name, f"{value:.4f}", f"{low:.4f}", "to", f"{high:.4f}"] for line in lines)
    assert main(["info", "toy-pool", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == [result]


def test_scores_are_not_saved_in_a_shipped_model():
    for words in (["margin-conv4-glyphs"], [str(zoo.info("margin-conv4-glyphs").folder)]):
        with raises(UsageError, "shipped-model") as caught:
            cli.run(["evaluate", *words, "--save"])
        assert "margin-conv4-glyphs" in str(caught.value)


def test_a_model_trained_on_a_folder_gets_a_warning_on_folders(capsys, toy, pictures):
    assert main([*EVALUATE, "--data", str(pictures)]) == 0
    out, err = capsys.readouterr()
    assert "on folder, all of it" in out
    assert "has seen" not in err
    card = json.loads((toy / "card.json").read_text())
    (toy / "card.json").write_text(json.dumps({**card, "dataset": "folder"}))
    assert main([*EVALUATE, "--data", str(pictures), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["split"] == "all"
    assert "toy-pool was trained on a folder of images. If it was this one, it has seen these classes" in err


@pytest.mark.usefixtures("toy")
def test_evaluate_adds_groups_of_metrics(capsys, pictures):
    assert main([*EVALUATE, "--data", str(pictures), "-k", "1", "--metrics", "ranking,structure"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[0]: row[-1] for row in rows if row}
    assert {"recall_at_1", "map", "spectral_decay"} <= shown.keys()
    assert not {"nmi", "eer"} & shown.keys()
    assert shown["spectral_decay"] == "-"  # one number of all embeddings has no interval over queries
    assert shown["map"] != "-"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["evaluate", "toy-pol", "--runtime", "onnx"], 2, "'toy-pool'"),
        ([*EVALUATE[:3], "onxx", *EVALUATE[4:], "--data", "DIR"], 2, "'onnx'"),
        ([*EVALUATE, "--data", "DIR", "--precision", "fp12"], 2, "fp12"),
        ([*EVALUATE, "--data", "nowhere"], 2, "nowhere"),
        ([*EVALUATE[:-1], "foldr"], 2, "'folder'"),
        ([*EVALUATE, "--data", "DIR", "--split", "tset"], 2, "'test'"),
        ([*EVALUATE, "--data", "DIR", "-k", "1,99"], 2, "recall_at_99"),
        ([*EVALUATE, "--data", "DIR", "--metrics", "structur"], 2, "'structure'"),
        ([*EVALUATE, "--data", "DIR", "--batch-size", "0"], 2, "batch_size"),
        ([*EVALUATE, "--data", "DIR", "--out", "/proc/none/x.json"], 2, "/proc/none/x.json"),
    ],
)
@pytest.mark.usefixtures("toy")
def test_mistakes_end_with_one_message(capsys, pictures, arguments, status, says):
    assert main([str(pictures) if argument == "DIR" else argument for argument in arguments]) == status
    err = capsys.readouterr().err
    assert err.startswith("zoo: error: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("toy")
def test_lists_are_repeated_or_have_commas(capsys, pictures):
    words = [*EVALUATE, "--data", str(pictures), "--json"]
    assert main([*words, "-k", "1,3", "--metrics", "structure,verification"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main([*words, "-k", "1", "-k", "3", "--metrics", "structure", "--metrics", "verification"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == result["metrics"]
    assert {"recall_at_1", "recall_at_3", "eer", "spectral_decay"} <= result["metrics"].keys()
    assert main([*words, "-k", "1,x"]) == 2
    assert "'1,x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/full/rows.npy"), "/full/rows.npy: the disk is full."),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full. Make room"),
        (PermissionError(errno.EACCES, "Permission denied", b"/locked"), "/locked: Permission denied."),
        (shutil.Error([("/a/1", "/b/1", "[Errno 28] No space"), ("/a/2", "/b/2", "the same")]), "/a/1 could not be"),
        (OSError("of a library's own"), "of a library's own"),
    ],
)
def test_an_error_of_the_system_is_one_line_with_the_file(
    error: OSError, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("zoo.cli.main.run", refuse)
    assert main(["list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"zoo: error: {says}")
