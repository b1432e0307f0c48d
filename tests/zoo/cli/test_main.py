from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperOption

import zoo
from zoo.cli import main as cli
from zoo.cli.main import main

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


def test_commands_that_took_long_say_so_but_for_services(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "LONG_SECONDS", 0)
    assert main(["serve", "--help"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["list"]) == 0
    assert capsys.readouterr().err.endswith(" s\n")


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


def shell(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zoo.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


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


def test_every_command_has_examples_and_every_option_a_help_text():
    wrong = []
    for entry in cli.COMMANDS:
        command = cli.load(entry)
        if command.help.splitlines()[0] != entry.summary:
            wrong.append((entry.name, "another summary"))
        if entry.module and f"zoo {entry.name}" not in command.epilog:
            wrong.append((entry.name, "no example"))
        for parameter in command.params if entry.module else ():
            text = parameter.help or ""
            if not text or text.endswith("."):
                wrong.append((entry.name, parameter.opts, text))
            if isinstance(parameter, TyperOption) and not parameter.is_flag and not parameter.required:
                optional = "default|only|repeatable|instead|if |also"
                if parameter.default is None and not re.search(optional, text):
                    wrong.append((entry.name, parameter.opts, "say the default"))
    assert wrong == []


@pytest.mark.parametrize("name", ["index", "baseline", "serve"])
def test_the_help_shows_at_most_ten_common_options_first(name, capsys):
    assert main([name, "--help"]) == 0
    common, advanced = capsys.readouterr().out.partition("\nOptions:\n")[2].partition("\nAdvanced:\n")[::2]
    options = re.findall(r"^  (-\S+)", common.partition("\n\n")[0], re.MULTILINE)
    assert len(set(options) - {"-h,"}) <= 10
    assert advanced


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "zoo index photos DIR" in out, "the first model that is named embeds photographs"
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
        ("bentoml", "pip install 'dml-zoo[bento]'"),
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["list", "--json"]])  # less and more than a pipe holds
def test_a_closed_pipe_is_not_an_error(arguments):
    command = [sys.executable, "-m", "zoo.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert err == b""
    assert process.returncode == 141


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


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        (["list", "--json"], {}, ["PASSIVE", "1000"]),
        (["list", "--json"], {"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", "None"]),
        (["serve", "--help"], {}, ["None", "None"]),
    ],
)
def test_threads_do_not_spin_while_they_wait(
    words: list[str], given: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.setenv(name, "")  # so that what the command sets is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 0
    assert [str(os.environ.get(name)) for name in names] == expected
