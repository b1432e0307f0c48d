"""Arguments and values that begin with a dash: arguments come after --, values after an equals sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from tests.raising import raises
from zoo.cli import main as cli
from zoo.cli.main import main
from zoo.errors import UsageError

COMMANDS = {entry.name: cli.load(entry) for entry in cli.COMMANDS if entry.module}


def words_of(command: TyperCommand) -> list[TyperArgument]:
    """Return the arguments of a command; none if some are not texts or paths."""
    words = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    kinds = (str, Path, list[str], list[Path])
    return words if all(word.type_descriptor.annotation in kinds for word in words) else []


WITH_WORDS = [name for name, command in COMMANDS.items() if words_of(command)]


def parse(command: TyperCommand, arguments: list[str]) -> dict[str, Any]:
    with command.make_context("zoo", arguments) as context:
        return context.params


@pytest.mark.parametrize("name", WITH_WORDS)
def test_arguments_that_begin_with_a_dash(name: str) -> None:
    """All arguments may come after --, or only the last one; options come before it, anywhere."""
    command = COMMANDS[name]
    words = words_of(command)
    options = [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
    given = [word for option in options if option.required for word in (option.opts[0], "1")]
    given += ["--json"] * any("--json" in option.opts for option in options)
    files = [f"-{index}.png" for index in range(len(words))]
    head = [file.replace("-", "x") for file in files[:-1]]
    for before, after in ((given, files), ([*head, *given], files[-1:]), ([*given, *head], files[-1:])):
        values = parse(command, [*before, "--", *after])
        assert _words(values, words) == (files if after == files else [*head, *after])
        assert values.get("as_json", True) is True


def _words(values: dict[str, Any], words: list[TyperArgument]) -> list[str]:
    given = [values[word.name] for word in words]
    return [str(part) for value in given for part in (value if isinstance(value, list | tuple) else [value])]


def test_there_are_commands_with_paths() -> None:
    assert {"embed", "score", "verify", "push", "benchmark report"} <= {*WITH_WORDS}


def made_up() -> TyperCommand:
    app = typer.Typer()

    @app.command()
    def search(gallery: str, image: str | None = typer.Argument(None), k: int = typer.Option(1, "-k")) -> None: ...

    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    return command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["g", "-k", "2", "--", "--"], ("g", "--", 2)),
        (["--", "g", "--"], ("g", "--", 1)),
        (["--", "--", "-k"], ("--", "-k", 1)),
        (["g", "--"], ("g", None, 1)),
        (["g", "-k", "-2", "i"], ("g", "i", -2)),
    ],
)
def test_a_second_double_dash_is_a_word(words: list[str], expected: tuple[str, str | None, int]) -> None:
    values = parse(made_up(), words)
    assert (values["gallery"], values["image"], values["k"]) == expected


@pytest.mark.parametrize("words", [["g", "-q", "--", "-a"], ["g", "-k", "--", "-a"], ["--", "-a", "-b", "-c"], []])
def test_mistakes(words: list[str]) -> None:
    with pytest.raises(typer.TyperException) as caught:
        parse(made_up(), words)
    assert caught.value.exit_code == 2


def test_a_value_with_a_dash_comes_after_an_equals_sign() -> None:
    for words in (["list", "--dataset", "--json"], ["list", "--dataset", "-x"], ["gallery", "tune", "-k", "--", "g"]):
        with raises(UsageError, "missing-value"):
            cli.run(words)
    with pytest.raises(UsageError) as caught:
        cli.run(["list", "--dataset=--json"])
    assert caught.value.code != "missing-value"


def test_files_whose_names_begin_with_a_dash(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are embedded, scored and indexed."""
    monkeypatch.chdir(tmp_path)
    Path("-pictures").symlink_to(pictures)
    model = ["margin-conv4-glyphs", "--runtime", "onnx"]
    assert main(["embed", *model, "--out=-rows.npy", "--", "-pictures"]) == 0
    assert main(["score", "--labels=-rows.csv", "--", "-rows.npy"]) == 0
    assert main(["index", *model, "--out=-gallery", "--", "-pictures"]) == 0
    capsys.readouterr()
    assert main(["gallery", "stats", "--json", "--", "-gallery"]) == 0
    assert '"items"' in capsys.readouterr().out
