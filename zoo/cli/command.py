"""What a subcommand of `zoo` is. Each package offers its own through the entry-point group `zoo.commands`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


def never(options: Namespace) -> bool:
    """Nothing is kept of a command that was stopped."""
    return False


def always(options: Namespace) -> bool:
    """What a command has done is kept when it is stopped."""
    return True


@dataclass(frozen=True)
class Command:
    """A subcommand: one line of help, its arguments, what it does, and examples for `--help`.

    `run` returns the exit status (None is 0); it raises `ZooError` for a user's mistake. The module that holds a
    command imports nothing heavy at its top, because `zoo --help` loads them all.

    `resumes` says whether the same command, given again with these options, goes on from what one that was stopped has
    kept; a person who stops it is told so.
    """

    summary: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int | None]
    examples: str = ""
    resumes: Callable[[Namespace], bool] = never


@dataclass(frozen=True)
class CommandGroup:
    """A subcommand that has subcommands of its own, found through the entry-point group named `entry_points`."""

    summary: str
    entry_points: str
