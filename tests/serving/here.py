"""Commands run in this process, and the terminal at which they ask."""

from __future__ import annotations

from argparse import ArgumentParser
from io import StringIO

from zoo.cli.command import Command


class Terminal(StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


def run_here(command: Command, *words: object) -> int:
    parser = ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([str(word) for word in words])) or 0
