"""Published numbers (TOML) as values.

Published numbers as frozen values: a paper, its tables, their scores. What makes no sense raises `ZooError`.

The numbers that the source papers published, one TOML file a paper in this folder, as the papers print them.

A file has `[paper]` (short, citation, source), `[[tables]]` (name, title, protocol, runs, scores) and `[[absent]]`
(what, why). A score is row, dataset, metric, value, backbone and dim and, where known, sd, split, recipe, and study
with arm and view; backbone, dim and study may be said once for the whole table. What is not at hand is left out, and
said to be.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from zoo.data import DATASETS
from zoo.data.dataset import SPLITS
from zoo.data.official import RECALL_DEPTHS
from zoo.errors import UsageError, ZooError, nearest

WHOLE_EMBEDDING = "embedding"
"""The view that is a model's whole embedding; others are of one head, as studies measure them."""

PERCENT = ("precision_at_1", "r_precision", "map_at_r", "nmi")
"""Metrics beside recall_at_K that papers print in percent."""

TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
RECALL = re.compile(r"recall_at_([1-9]\d*)")
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}")


@dataclass(frozen=True)
class Paper:
    """A source paper. `short` is its name in this project; `source` is its arXiv identifier."""

    short: str
    citation: str
    source: str

    def __post_init__(self) -> None:
        _check(bool(self.short), "a paper needs a short name.")
        _check(
            SOURCE.fullmatch(self.source), f"the source of {self.short} is {self.source!r}; expected arXiv:NNNN.NNNNN."
        )


@dataclass(frozen=True)
class PublishedScore:
    """One number of a table.

    metric: a key as in results.json. value, sd: fractions for what papers print in percent; spectral decay in nats.
    sd: over runs, None where the paper gives none. split: what was embedded. recipe: the name of the recipe that is to
    give this number, None where no model of this project measures the same thing. backbone: as in model names. study,
    arm, view: the study of this project that measures it, which arm of it, and of what part of the network.
    """

    row: str
    dataset: str
    metric: str
    value: float
    backbone: str
    dim: int
    split: str = "test"
    sd: float | None = None
    recipe: str | None = None
    study: str | None = None
    arm: str | None = None
    view: str = WHOLE_EMBEDDING

    def __post_init__(self) -> None:
        where = f"{self.row!r} on {self.dataset}, {self.metric}"
        _check(self.dataset in DATASETS, f"{where}: no data set of that name.{nearest(self.dataset, DATASETS)}")
        known = (*PERCENT, "recall_at_1", "spectral_decay")
        _check(
            metric_scale(self.metric) == 100 or self.metric in known,
            f"{where}: no metric {self.metric!r}.{nearest(self.metric, known)}",
        )
        _check_recall(where, self.dataset, self.metric)
        _check(self.split in SPLITS, f"{where}: split is {self.split!r}; expected train or test.")
        _check((self.study is None) == (self.arm is None), f"{where}: a study is named together with its arm.")
        _check(
            self.view == WHOLE_EMBEDDING or self.study,
            f"{where}: the view {self.view!r} needs the study that measures it.",
        )
        _check(self.dim >= 1, f"{where}: dim is {self.dim}; expected 1 or more.")
        highest = 1.0 if metric_scale(self.metric) == 100 else float("inf")
        _check(0 <= self.value <= highest, f"{where}: the value lies outside its range.")
        _check(self.sd is None or 0 <= self.sd <= highest / 2, f"{where}: sd is {self.sd}, outside its range.")


@dataclass(frozen=True)
class AbsentTable:
    """Tables of a paper, or columns of one, whose numbers are not at hand; what: which ones; why."""

    paper: Paper
    what: str
    why: str

    def __post_init__(self) -> None:
        _check(self.what and self.why, f"what is absent of {self.paper.short} needs a name and a reason.")


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, as far as its numbers are at hand.

    protocol: how the numbers came about, with what must be known before they are compared with others. runs: how many
    seeds the mean and sd are of, where that is known.
    """

    name: str
    paper: Paper
    title: str
    protocol: str
    scores: tuple[PublishedScore, ...]
    runs: int | None = None

    def __post_init__(self) -> None:
        _check(TABLE_NAME.fullmatch(self.name), f"the table name {self.name!r} may hold a-z, 0-9 and '-' only.")
        _check(bool(self.protocol), f"the table {self.name} needs a protocol.")
        _check(bool(self.scores), f"the table {self.name} has no scores.")
        _check(self.runs is None or self.runs >= 1, f"the table {self.name}: runs is {self.runs}; expected 1 or more.")
        keys = [(score.row, score.dataset, score.metric) for score in self.scores]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        _check(twice is None, f"the table {self.name} has {twice} twice.")

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score.dataset for score in self.scores))

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score.metric for score in self.scores))


def metric_scale(metric: str) -> float:
    """What a printed number is divided by: 100 for percent, 1 for all else."""
    return 100.0 if metric in PERCENT or RECALL.fullmatch(metric) else 1.0


def _check_recall(where: str, dataset: str, metric: str) -> None:
    """Refuse a recall that nobody reports on the data set: a slip of a table's head, as R@2 for R@10 on SOP."""
    found, known = RECALL.fullmatch(metric), RECALL_DEPTHS.get(dataset)
    reported = found is None or known is None or int(found[1]) in known
    _check(reported, f"{where}: on {dataset} recall is reported at {', '.join(map(str, known or ()))}.")


def _check(holds: object, message: str) -> None:
    if not holds:
        raise ZooError(f"published numbers: {message}")


FOLDER = Path(__file__).parent.parent / "published"
SHARED = ("backbone", "dim", "study")
"""Facts of a score that its table may say once."""

Record = TypeVar("Record", AbsentTable, Paper, PublishedScore, PublishedTable)

_KINDS: dict[str, tuple[type, ...]] = {"value": (int, float), "sd": (int, float), "dim": (int,), "runs": (int,)}
"""What a field holds in the file; text where it isn't named here."""


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Every published table, by paper file and then in the file's order."""
    found = tuple(table for path in sorted(FOLDER.glob("*.toml")) for table in read_paper(path)[0])
    names = [table.name for table in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ZooError(f"published numbers: two tables are called {', '.join(sorted(twice))}.")
    return found


@cache
def absent_tables() -> tuple[AbsentTable, ...]:
    """What of the papers' tables is not at hand."""
    return tuple(each for path in sorted(FOLDER.glob("*.toml")) for each in read_paper(path)[1])


def published_table(name: str) -> PublishedTable:
    """The table of that name. Raises `UsageError` with the nearest names."""
    known = {table.name: table for table in published_tables()}
    if name not in known:
        raise UsageError(f"there is no published table {name!r}.{nearest(name, known)} All: zoo benchmark list")
    return known[name]


def select_tables(paper: str | None = None, dataset: str | None = None) -> list[PublishedTable]:
    """The tables of a paper (its short name) with scores on a data set. Raises `UsageError` for unknown names."""
    papers = dict.fromkeys(
        [*(each.paper.short for each in published_tables()), *(each.paper.short for each in absent_tables())]
    )
    for kind, name, known in (("paper", paper, papers), ("data set", dataset, DATASETS)):
        if name is not None and name not in known:
            raise UsageError(f"there is no {kind} {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return [
        table
        for table in published_tables()
        if paper in (None, table.paper.short) and (dataset in (None, *table.datasets))
    ]


def read_paper(path: Path) -> tuple[tuple[PublishedTable, ...], tuple[AbsentTable, ...]]:
    """The tables of one file, and what is absent. Raises `ZooError`, naming the file, for what makes no sense."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        listed = {"tables", "absent"} & set(raw)
        if set(raw) != {"paper", *listed} or not listed or not all(isinstance(raw[key], list) for key in listed):
            raise ZooError("expected [paper], [[tables]] and [[absent]], and nothing else.")
        paper = _build(Paper, raw["paper"])
        tables = tuple(_table(paper, each) for each in raw.get("tables", []))
        return tables, tuple(_build(AbsentTable, each, paper=paper) for each in raw.get("absent", []))
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
    divisor = metric_scale(raw["metric"])
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
