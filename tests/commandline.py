"""Commands of `zoo` in this process: they raise their errors, and their parameters can be inspected."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from zoo.cli.main import COMMANDS, load, run


def run_here(command: str, *words: object) -> int:
    """Run a command, such as "gallery add", and return its exit status; its errors are raised."""
    return run([*command.split(), *map(str, words)])


def command_named(name: str) -> TyperCommand:
    """Return the command of a name such as "gallery add"."""
    (entry,) = [entry for entry in COMMANDS if entry.name == name]
    command = load(entry)
    assert isinstance(command, TyperCommand)
    return command


def parsed(name: str, *words: object) -> dict[str, Any]:
    """Return the parameters that a command's function gets for these arguments."""
    params: dict[str, Any] = command_named(name).make_context(name, [str(word) for word in words]).params
    return params
