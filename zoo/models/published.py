"""Published numbers of the source papers: one TOML file per paper in zoo/published, read into frozen values.

A file has `[paper]` (short, citation, source, text_sha256), `[[tables]]` (name, place, title, protocol, runs, scores)
and `[[absent]]` (what, why). A score has row, dataset, metric and value; if the paper states them, backbone, dim, sd or
ci95, and split; if this project measures the same, recipe, or study with arm and view, or search; and the marks
best_on_test, quoted_from and contradicts. A table may state some of them once for all of its scores (`SHARED`).
`[[absent]]` lists numbers that are missing here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from zoo.console import interval_text, score_text
from zoo.data import DATASETS
from zoo.data.dataset import SPLITS
from zoo.data.official import RECALL_DEPTHS
from zoo.errors import ZooError, nearest, unknown

WHOLE_EMBEDDING = "embedding"
"""View of a model's whole embedding; the other views are single heads, as studies measure them."""

PERCENT = ("precision_at_1", "r_precision", "map_at_r", "nmi")
"""Metrics, besides recall_at_K, that papers print in percent."""

TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
RECALL = re.compile(r"recall_at_([1-9]\d*)")
SEARCHED = re.compile(r"[a-z0-9-]+/(separated|concatenated)")
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Paper:
    """Source paper.

    Attributes:
        short: Its name in this project.
        citation: Authors, year and title.
        source: Its arXiv identifier.
        text_sha256: SHA-256 of the text from which a script read the numbers; None for a file written by hand.
    """

    short: str
    citation: str
    source: str
    text_sha256: str | None = None

    def __post_init__(self) -> None:
        _check(bool(self.short), "a paper needs a short name.")
        _check(
            SOURCE.fullmatch(self.source), f"the source of {self.short} is {self.source!r}; expected arXiv:NNNN.NNNNN."
        )
        digest = self.text_sha256
        _check(digest is None or SHA256.fullmatch(digest), f"text_sha256 of {self.short} is {digest!r}; not a SHA-256.")


@dataclass(frozen=True)
class PublishedScore:
    """Number in a table.

    Attributes:
        metric: A key as in results.json.
        value: A fraction for numbers that papers print in percent; spectral decay in nats.
        backbone: As in model names; None if the paper does not state it.
        dim: Numbers per embedding; None if the paper does not state it.
        split: The embedded split.
        sd: Standard deviation over runs, as `value`; None if the paper gives none.
        ci95: Half of the 95 % interval of the mean over runs, as `value`; None if the paper gives none.
        best_on_test: Whether the epoch was selected on the test images.
        quoted_from: The paper that measured it, where this one only quotes it.
        contradicts: What the same paper, or another that quotes the same number, prints instead.
        recipe: Recipe that reproduces this number; None if no model of this project measures the same quantity: the
            same method, backbone, dimension and data set.
        study: Study of this project that measures it; `arm` is its arm and `view` the measured part of the network.
        search: LOSS/KIND: the loss of `zoo benchmark search`, and "separated" for the mean score of the models of its
            folds, or "concatenated" for the score of their joined embeddings.
    """

    row: str
    dataset: str
    metric: str
    value: float
    backbone: str | None = None
    dim: int | None = None
    split: str = "test"
    sd: float | None = None
    ci95: float | None = None
    best_on_test: bool = False
    quoted_from: str | None = None
    contradicts: str | None = None
    recipe: str | None = None
    study: str | None = None
    arm: str | None = None
    view: str = WHOLE_EMBEDDING
    search: str | None = None

    def __post_init__(self) -> None:
        where = f"{self.row!r} on {self.dataset}, {self.metric}"
        _check_name(where, "data set", self.dataset, DATASETS)
        if metric_scale(self.metric) == 1:
            _check_name(
                where, "metric", self.metric, (*PERCENT, "recall_at_1", "spectral_decay", "spectral_decay_drop_1")
            )
        _check_recall(where, self.dataset, self.metric)
        _check(self.split in SPLITS, f"{where}: split is {self.split!r}; expected train or test.")
        _check((self.study is None) == (self.arm is None), f"{where}: a study is named together with its arm.")
        _check(
            self.view == WHOLE_EMBEDDING or self.study,
            f"{where}: the view {self.view!r} needs the study that measures it.",
        )
        _check(self.dim is None or self.dim >= 1, f"{where}: dim is {self.dim}; expected 1 or more.")
        _check(
            self.search is None or SEARCHED.fullmatch(self.search),
            f"{where}: search is {self.search!r}; expected LOSS/separated or LOSS/concatenated.",
        )
        stated = self.dim is not None and self.backbone is not None
        _check(
            stated or (self.recipe is self.study is self.search is None),
            f"{where}: a score with a recipe, a study or a search states its backbone and its dim.",
        )
        highest = 1.0 if metric_scale(self.metric) == 100 else float("inf")
        _check(0 <= self.value <= highest, f"{where}: the value is outside its range.")
        for name, spread in (("sd", self.sd), ("ci95", self.ci95)):
            _check(spread is None or 0 <= spread <= highest / 2, f"{where}: {name} is {spread}, outside its range.")
        _check(self.sd is None or self.ci95 is None, f"{where}: sd and ci95 exclude each other.")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the bounds of the 95 % interval of the mean, rounded as the number is; None if none is printed."""
        return None if self.ci95 is None else (round(self.value - self.ci95, 6), round(self.value + self.ci95, 6))

    @property
    def text(self) -> str:
        """Return the number for readers, with its standard deviation or its interval."""
        bounds = "" if self.interval is None else f" ({interval_text(self.interval)})"
        return score_text(self.value, self.sd) + bounds

    @property
    def marks(self) -> tuple[str, ...]:
        """Return in words what a reader must know before comparing with this number."""
        best = "best epoch on the test set" if self.best_on_test else ""
        quoted = f"quoted from {self.quoted_from}" if self.quoted_from else ""
        return tuple(filter(None, (best, quoted, f"but {self.contradicts}" if self.contradicts else "")))


@dataclass(frozen=True)
class AbsentTable:
    """Tables or columns of a paper whose numbers are missing here: which ones (`what`) and the reason (`why`)."""

    paper: Paper
    what: str
    why: str

    def __post_init__(self) -> None:
        _check(self.what and self.why, f"an [[absent]] entry of {self.paper.short} needs what and why.")


@dataclass(frozen=True)
class PublishedTable:
    """Table of a paper, without the numbers that are missing here.

    Attributes:
        place: Its number in the paper, as "table 3".
        protocol: Measurement of the numbers, with the facts that a comparison needs.
        runs: Number of seeds behind mean and spread, if known.
    """

    name: str
    paper: Paper
    place: str
    title: str
    protocol: str
    scores: tuple[PublishedScore, ...]
    runs: int | None = None

    def __post_init__(self) -> None:
        _check(TABLE_NAME.fullmatch(self.name), f"the table name {self.name!r} may hold a-z, 0-9 and '-' only.")
        _check(bool(self.protocol), f"the table {self.name} needs a protocol.")
        _check(bool(self.scores), f"the table {self.name} has no scores.")
        _check(self.runs is None or self.runs >= 1, f"the table {self.name}: runs is {self.runs}; expected 1 or more.")
        _check(bool(self.place), f"the table {self.name} needs its place in the paper.")
        keys = [(score.row, score.dataset, score.metric, score.split) for score in self.scores]
        duplicate = next((key for key in keys if keys.count(key) > 1), None)
        _check(duplicate is None, f"the table {self.name} has {duplicate} twice.")

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score.dataset for score in self.scores))

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score.metric for score in self.scores))


def metric_scale(metric: str) -> float:
    """Return the divisor of a printed number: 100 for percent, 1 for other metrics."""
    return 100.0 if metric in PERCENT or RECALL.fullmatch(metric) else 1.0


def _check_name(where: str, kind: str, name: str, names: Collection[str]) -> None:
    """Refuse an unknown name with the nearest known ones, whose search takes longer than all other checks."""
    if name not in names:
        raise ZooError(f"published numbers: {where}: unknown {kind} {name!r}.{nearest(name, names)}", code=INVALID)


def _check_recall(where: str, dataset: str, metric: str) -> None:
    """Refuse a recall depth that is not reported on the data set: an error in a table, as R@2 for R@10 on SOP."""
    match, depths = RECALL.fullmatch(metric), RECALL_DEPTHS.get(dataset)
    reported = match is None or depths is None or int(match[1]) in depths
    _check(reported, f"{where}: on {dataset} recall is reported at {', '.join(map(str, depths or ()))}.")


def _check(holds: object, message: str) -> None:
    if not holds:
        raise ZooError(f"published numbers: {message}", code=INVALID)


FOLDER = Path(__file__).parent.parent / "published"
INVALID = "damaged-file"
SHARED = ("backbone", "dim", "dataset", "metric", "study", "best_on_test", "quoted_from")
"""Keys of a score that its table may state once."""

Record = TypeVar("Record", AbsentTable, Paper, PublishedScore, PublishedTable)

_NUMBER = (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("value", "sd", "ci95"), _NUMBER),
    **dict.fromkeys(("dim", "runs"), (int,)),
    "best_on_test": (bool,),
}
"""Types of a field in the file; text for all other fields."""


@cache
def _papers() -> tuple[tuple[tuple[PublishedTable, ...], tuple[AbsentTable, ...]], ...]:
    return tuple(map(read_paper, sorted(FOLDER.glob("*.toml"))))


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return every published table, by paper file and then in the file's order."""
    tables = tuple(table for tables, _ in _papers() for table in tables)
    names = [table.name for table in tables]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    _check(not duplicates, f"two tables are called {', '.join(duplicates)}.")
    return tables


@cache
def absent_tables() -> tuple[AbsentTable, ...]:
    """Return the tables and columns of the papers that are missing here."""
    return tuple(entry for _, entries in _papers() for entry in entries)


def published_table(name: str) -> PublishedTable:
    """Return a table by name. Raises `UsageError` (`unknown-name`) with the nearest names."""
    tables = {table.name: table for table in published_tables()}
    if name not in tables:
        raise unknown("published table", name, tables, "All: zoo benchmark list")
    return tables[name]


def select_tables(paper: str | None = None, dataset: str | None = None) -> list[PublishedTable]:
    """Return the tables of a paper (by its short name) with scores on a data set.

    Raises:
        UsageError: `unknown-name`.
    """
    papers = dict.fromkeys(
        [table.paper.short for table in published_tables()] + [entry.paper.short for entry in absent_tables()]
    )
    for kind, name, names in (("paper", paper, papers), ("dataset", dataset, DATASETS)):
        if name is not None and name not in names:
            raise unknown(kind, name, names)
    return [
        table
        for table in published_tables()
        if paper in (None, table.paper.short) and dataset in (None, *table.datasets)
    ]


def read_paper(path: Path) -> tuple[tuple[PublishedTable, ...], tuple[AbsentTable, ...]]:
    """Read one file: its tables and its missing ones.

    Raises:
        ZooError: `damaged-file`; the message names the file.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        listed = {"tables", "absent"} & set(raw)
        if set(raw) != {"paper", *listed} or not listed or not all(isinstance(raw[key], list) for key in listed):
            raise ZooError("expected [paper], [[tables]] and [[absent]], and nothing else.")
        paper = _build(Paper, raw["paper"])
        tables = tuple(_table(paper, table) for table in raw.get("tables", []))
        return tables, tuple(_build(AbsentTable, entry, paper=paper) for entry in raw.get("absent", []))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ZooError) as error:
        raise ZooError(f"{path}: {error}", code=INVALID) from None


def _table(paper: Paper, raw: Any) -> PublishedTable:
    facts = _mapping(raw, "a table")
    shared = {key: facts.pop(key) for key in SHARED if key in facts}
    scores = facts.pop("scores", [])
    if not isinstance(scores, list):
        raise ZooError(f"scores must be a list, not {type(scores).__name__}.")
    rows = [shared | _mapping(score, "a score") for score in scores]
    return _build(PublishedTable, facts, paper=paper, scores=tuple(map(_score, rows)))


def _score(raw: dict[str, Any]) -> PublishedScore:
    """Build a score, with its printed number as a fraction."""
    _check_fields(PublishedScore, raw)
    divisor = metric_scale(raw["metric"])
    printed = {key: round(raw[key] / divisor, 6) for key in ("value", "sd", "ci95") if key in raw}
    return PublishedScore(**(raw | printed))


def _build(record: type[Record], raw: Any, **context: Any) -> Record:
    facts = _mapping(raw, f"a {record.__name__.lower()}")
    _check_fields(record, facts, tuple(context))
    return record(**facts, **context)


def _mapping(raw: Any, name: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ZooError(f"{name} must be a table of keys and values, not {type(raw).__name__}.")
    return dict(raw)


def _check_fields(record: type[Record], facts: Mapping[str, Any], context: tuple[str, ...] = ()) -> None:
    """Raise `ZooError` for an unknown or missing key and for a value of another type."""
    fields_by_name = {field.name: field for field in fields(record) if field.name not in context}
    for key, value in facts.items():
        if key not in fields_by_name:
            raise ZooError(f"unknown key {key!r}.{nearest(key, fields_by_name)} Known: {', '.join(fields_by_name)}.")
        kinds = _KINDS.get(key, (str,))
        if type(value) not in kinds:
            raise ZooError(f"{key} is {value!r}; expected {' or '.join(kind.__name__ for kind in kinds)}.")
    if absent := [name for name, field in fields_by_name.items() if field.default is MISSING and name not in facts]:
        raise ZooError(f"{', '.join(absent)} missing in {dict(facts)}.")
