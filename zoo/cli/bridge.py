"""Commands that are still argparse's, until they are ported; this file goes when its table is empty."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from importlib import import_module

from zoo.cli.command import Command
from zoo.cli.parsing import Parser

COMMANDS = {
    "benchmark run": "training.studies.commands:RUN",
    "benchmark resume": "training.studies.commands:RESUME",
    "benchmark studies": "training.studies.commands:STUDIES",
    "benchmark search": "training.studies.search_command:COMMAND",
}


def name_of(arguments: list[str]) -> str:
    """Return the name of the command in the table that the arguments begin with, or ""."""
    return next((name for name in (" ".join(arguments[:2]), *arguments[:1]) if name in COMMANDS), "")


def takes(arguments: list[str]) -> bool:
    """Return whether the arguments name a command of the table."""
    return bool(name_of(arguments))


def run(arguments: list[str]) -> int:
    """Run a command of the table as before and return its exit status."""
    from zoo.cli import main

    name = name_of(arguments)
    try:
        command = load(name)
        options = parser(name, command).parse(arguments[len(name.split()) :])
        return command.run(options) or 0
    except KeyboardInterrupt:
        raise KeyboardInterrupt(main.CONTINUES if command.resumes(options) else "") from None
    except ModuleNotFoundError as error:
        if absent := main._missing(error):
            raise absent from None
        raise


def load(name: str) -> Command:
    """Return a command of the table."""
    module, _, value = COMMANDS[name].partition(":")
    command = getattr(import_module(module), value)
    assert isinstance(command, Command)
    return command


def parser(name: str, command: Command) -> Parser:
    """Return the parser of a command."""
    made = Parser(
        prog=f"zoo {name}",
        description=command.summary,
        epilog=f"examples:\n{command.examples}" if command.examples else None,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.configure(made)
    return made
