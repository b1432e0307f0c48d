"""A terminal at which commands ask."""

from __future__ import annotations

from io import StringIO


class Terminal(StringIO):
    """Terminal with the text that a person types."""

    def isatty(self) -> bool:
        return True
