"""Columns of metadata in tables: which ones hold numbers or truth values, and the cells that do not fit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from zoo.errors import UsageError, unknown

Kind = Literal["number", "decimal-comma", "boolean", "text"]
"""Kinds of columns; decimal-comma: numbers as 3,5 and 1.250,00, which are read only if the user says so."""
KINDS: tuple[Kind, ...] = get_args(Kind)

# Longer numbers do not fit into 64 bits without loss, and one with zeros in front is a name: both are identifiers.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,14})?\.[0-9]{1,30}|[-+]?(0|[1-9][0-9]{0,14})\.")
_EXPONENT = re.compile(r"[-+]?[0-9]{1,15}(\.[0-9]{0,30})?e[-+]?[0-9]{1,3}", re.IGNORECASE)
_COMMA = re.compile(r"[-+]?([0-9]{1,3}(\.[0-9]{3}){1,4}|[0-9]{1,15})(,[0-9]{1,30})?")
_IDENTIFIER = re.compile(r"[-+]?[0-9]+")
_MISSING = ("nan", "-nan", "+nan")
"""How programs write a number that is missing, in lower case."""

_BOOLEANS = {"true": True, "false": False}
_EXACT = 2**53
"""Whole numbers up to this one are exact as floats."""


@dataclass(frozen=True)
class Column:
    """A column of metadata.

    Attributes:
        name: Its header, the key of the metadata.
        kind: Kind of its values: "number", "boolean" or "text".
        misfits: Line and text of each cell that is not of this kind; it stays a text.
        missing: Number of cells "NaN" of a number column, which count as empty.
        cells: Number of cells that are not empty.
        numbers: Number of cells of a text column that are numbers, where it might be a column of numbers.
        commas: Number of cells of a text column that are numbers with a comma, where they might be decimal commas.
        identifier: Line and text of the first identifier: with one all cells stay texts, though most are numbers.
    """

    name: str
    kind: Kind
    misfits: tuple[tuple[int, str], ...] = ()
    missing: int = 0
    cells: int = 0
    numbers: int = 0
    commas: int = 0
    identifier: tuple[int, str] | None = None


def parse_column(
    name: str, cells: Sequence[tuple[int, str]], kind: Kind | None = None
) -> tuple[Column, dict[int, Any]]:
    """Return a column, and its values by line.

    Without a given kind, a column is of numbers or of truth values if more than half of its cells are, unless one of
    them is an identifier such as 00123.

    Args:
        name: The header.
        cells: Line and text of each cell that is not empty.
        kind: The kind, if the user has decided.
    """
    texts = {line: cell.strip() for line, cell in cells}
    if kind == "decimal-comma":
        texts, kind = {line: _with_point(text) for line, text in texts.items()}, "number"
    missing = {line for line, text in texts.items() if text.lower() in _MISSING}
    numbers = {line: number for line, text in texts.items() if (number := _number(text)) is not None}
    booleans = {line: _BOOLEANS[text.lower()] for line, text in texts.items() if text.lower() in _BOOLEANS}
    doubtful, identifier = False, None
    if kind is None:
        mostly = 2 * len(numbers) > len(texts) - len(missing)
        is_identifier = (pair for pair in texts.items() if pair[0] not in numbers and _IDENTIFIER.fullmatch(pair[1]))
        identifier = next(is_identifier, None)
        doubtful = 4 * len(numbers) >= len(texts) and identifier is None
        if mostly and identifier is None:
            kind = "number"
        else:
            kind = "boolean" if 2 * len(booleans) > len(texts) else "text"
            identifier = identifier if mostly else None
    elif kind == "number":
        numbers |= {line: int(text) for line, text in texts.items() if _IDENTIFIER.fullmatch(text) and len(text) < 19}
    if kind == "text":
        commas = sum("," in text and _COMMA.fullmatch(text) is not None for text in texts.values())
        counts = len(numbers) if doubtful else 0, commas if 4 * commas >= len(texts) else 0
        return Column(name, kind, (), 0, len(cells), *counts, identifier), dict(cells)
    values: dict[int, Any] = _of_one_type(numbers) if kind == "number" else booleans
    gone = missing if kind == "number" else set[int]()
    misfits = tuple((line, cell) for line, cell in cells if line not in values and line not in gone)
    return Column(name, kind, misfits, len(gone), len(cells)), {**values, **dict(misfits)}


def check_kinds(kinds: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise `UsageError` unless kinds that the user has decided exist, and so do their columns."""
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise unknown("kind of column", kind, KINDS)
        if name not in names:
            message = f"there is no column {name!r} of metadata; the table has {', '.join(names) or 'none'}."
            raise UsageError(message, code="unknown-name")


def _with_point(text: str) -> str:
    """Return a number with a decimal comma as one with a point; another text that has a point is not a number."""
    if _COMMA.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return "" if "." in text else text


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    if not (_DECIMAL.fullmatch(text) or _EXPONENT.fullmatch(text)):
        return None
    number = float(text)
    if not math.isfinite(number):
        return None
    is_whole = number == int(number) and abs(number) <= _EXACT and "e" in text.lower()
    return int(number) if is_whole else number


def _of_one_type(numbers: Mapping[int, int | float]) -> dict[int, Any]:
    """Return numbers unchanged if all are whole, otherwise all as floats."""
    if all(isinstance(number, int) for number in numbers.values()):
        return dict(numbers)
    return {line: number if abs(number) > _EXACT else float(number) for line, number in numbers.items()}
