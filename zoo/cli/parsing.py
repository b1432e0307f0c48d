"""The arguments of a command, its options anywhere between its words, and after -- none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

MARK = "--"


class _Word(str):
    """An argument that is no option, whatever it begins with, and no mark, which argparse would drop."""

    def __eq__(self, other: object) -> bool:
        return other != MARK and super().__eq__(other)

    __hash__ = str.__hash__


class Parser(ArgumentParser):
    """argparse's own takes what may be left out for left out where an option stands in between (GALLERY -k 5 IMAGE).
    Its way around that looks at the words a second time, without the -- before them, for which they are marked here.
    """

    def parse(self, arguments: Sequence[str]) -> Namespace:
        """The options. Ends the process with 2, and what is wrong on stderr, for arguments that the command lacks."""
        end = arguments.index(MARK) if MARK in arguments else len(arguments)
        return self.parse_intermixed_args([*arguments[: end + 1], *map(_Word, arguments[end + 1 :])])

    def _parse_optional(self, arg_string: str) -> Any:
        return None if isinstance(arg_string, _Word) else super()._parse_optional(arg_string)
