"""The numbers that the source papers published, one TOML file a paper in this folder, as the papers print them.

A file has `[paper]` (short, citation, source), `[[tables]]` (name, title, protocol, runs, scores) and `[[absent]]`
(what, why). A score is row, dataset, metric, value, backbone and dim and, where known, sd, split, recipe, and study
with arm and view; backbone, dim and study may be said once for the whole table. What is not at hand is left out, and
said to be.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from zoo.data import DATASETS
from zoo.errors import UsageError, ZooError, nearest
from zoo.published.scores import Absent, Paper, PublishedScore, PublishedTable, scale

__all__ = [
    "FOLDER",
    "Absent",
    "Paper",
    "PublishedScore",
    "PublishedTable",
    "absent",
    "read_paper",
    "select",
    "table",
    "tables",
]

FOLDER = Path(__file__).parent.parent / "published"
SHARED = ("backbone", "dim", "study")
"""Facts of a score that its table may say once."""

Record = TypeVar("Record", Absent, Paper, PublishedScore, PublishedTable)

_KINDS: dict[str, tuple[type, ...]] = {"value": (int, float), "sd": (int, float), "dim": (int,), "runs": (int,)}
"""What a field holds in the file; text where it isn't named here."""


@cache
def tables() -> tuple[PublishedTable, ...]:
    """Every published table, by paper file and then in the file's order."""
    found = tuple(table for path in sorted(FOLDER.glob("*.toml")) for table in read_paper(path)[0])
    names = [table.name for table in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ZooError(f"published numbers: two tables are called {', '.join(sorted(twice))}.")
    return found


@cache
def absent() -> tuple[Absent, ...]:
    """What of the papers' tables is not at hand."""
    return tuple(each for path in sorted(FOLDER.glob("*.toml")) for each in read_paper(path)[1])


def table(name: str) -> PublishedTable:
    """The table of that name. Raises `UsageError` with the nearest names."""
    known = {table.name: table for table in tables()}
    if name not in known:
        raise UsageError(f"there is no published table {name!r}.{nearest(name, known)} All: zoo benchmark list")
    return known[name]


def select(paper: str | None = None, dataset: str | None = None) -> list[PublishedTable]:
    """The tables of a paper (its short name) with scores on a data set. Raises `UsageError` for unknown names."""
    papers = dict.fromkeys([*(each.paper.short for each in tables()), *(each.paper.short for each in absent())])
    for kind, name, known in (("paper", paper, papers), ("data set", dataset, DATASETS)):
        if name is not None and name not in known:
            raise UsageError(f"there is no {kind} {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return [table for table in tables() if paper in (None, table.paper.short) and (dataset in (None, *table.datasets))]


def read_paper(path: Path) -> tuple[tuple[PublishedTable, ...], tuple[Absent, ...]]:
    """The tables of one file, and what is absent. Raises `ZooError`, naming the file, for what makes no sense."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        listed = {"tables", "absent"} & set(raw)
        if set(raw) != {"paper", *listed} or not listed or not all(isinstance(raw[key], list) for key in listed):
            raise ZooError("expected [paper], [[tables]] and [[absent]], and nothing else.")
        paper = _build(Paper, raw["paper"])
        tables = tuple(_table(paper, each) for each in raw.get("tables", []))
        return tables, tuple(_build(Absent, each, paper=paper) for each in raw.get("absent", []))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ZooError) as error:
        raise ZooError(f"{path}: {error}") from None


def _table(paper: Paper, raw: Any) -> PublishedTable:
    facts = _mapping(raw, "a table")
    shared = {key: facts.pop(key) for key in SHARED if key in facts}
    scores = facts.pop("scores", [])
    if not isinstance(scores, list):
        raise ZooError(f"scores must be a list, not {type(scores).__name__}.")
    rows = [shared | _mapping(score, "a score") for score in scores]
    return _build(PublishedTable, facts, paper=paper, scores=tuple(map(_score, rows)))


def _score(raw: dict[str, Any]) -> PublishedScore:
    """A score with its printed number as a fraction."""
    _check_fields(PublishedScore, raw)
    divisor = scale(raw["metric"])
    printed = {key: round(raw[key] / divisor, 6) for key in ("value", "sd") if key in raw}
    return PublishedScore(**(raw | printed))


def _build(record: type[Record], raw: Any, **given: Any) -> Record:
    facts = _mapping(raw, f"a {record.__name__.lower()}")
    _check_fields(record, facts, tuple(given))
    return record(**facts, **given)


def _mapping(raw: Any, what: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ZooError(f"{what} must be a table of keys and values, not {type(raw).__name__}.")
    return dict(raw)


def _check_fields(record: type[Record], facts: Mapping[str, Any], given: tuple[str, ...] = ()) -> None:
    """Raise `ZooError` for a key that the record lacks, one that it needs, and a value of another kind."""
    known = {field.name: field for field in fields(record) if field.name not in given}
    for key, value in facts.items():
        if key not in known:
            raise ZooError(f"unknown key {key!r}.{nearest(key, known)} Known: {', '.join(known)}.")
        kinds = _KINDS.get(key, (str,))
        if type(value) not in kinds:
            raise ZooError(f"{key} is {value!r}; expected {' or '.join(kind.__name__ for kind in kinds)}.")
    if absent := [name for name, field in known.items() if field.default is MISSING and name not in facts]:
        raise ZooError(f"{', '.join(absent)} missing in {dict(facts)}.")
