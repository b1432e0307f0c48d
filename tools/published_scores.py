"""The papers' printed scores as zoo/published/*.toml: python -m tools.published_scores TEXTS [--out DIR]

TEXTS is a folder with reality.txt, group.txt, diva.txt, sharing.txt and revisiting.txt. The texts are not part of the
project; each written file holds the SHA-256 of its own. Table 2 of Revisiting, which its text has lost, is in
zoo/published/revisiting_figures.toml, written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.published import diva, group, reality, revisiting, sharing
from tools.published.text import PrintedPaper, PrintedTable, Score
from zoo.errors import ZooError
from zoo.files import atomic_path, sha256_of
from zoo.models.published import FOLDER, SHARED, read_paper

READERS: dict[str, tuple[str, Callable[[str], PrintedPaper]]] = {
    "reality": ("reality.txt", reality.read),
    "group": ("group.txt", group.read),
    "diva": ("diva.txt", diva.read),
    "sharing": ("sharing.txt", sharing.read),
    "mic": ("sharing.txt", sharing.read_mic),
    "revisiting": ("revisiting.txt", revisiting.read),
}
"""Text and reader by the name of the file that is written."""

HEADER = (
    "# As the paper prints them: recall, precision and NMI in percent. tools/published_scores.py writes this file from",
    "# the paper's text; change the script, not this file.",
)
RECALL = re.compile(r"recall_at_(\d+)")
SAME_TITLE = 25
"""Letters of a title by which two papers' references are known to be the same work."""


@dataclass(frozen=True)
class Quote:
    """A score that a paper quotes, with the table that quotes it."""

    paper: PrintedPaper
    table: PrintedTable
    score: Score


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files and return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="folder of the papers' texts")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        written = write_papers(options.texts, options.out)
    except (ZooError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path, count in written.items():
        print(f"{path}: {count} scores")
    return 0


def write_papers(texts: Path, out: Path) -> dict[Path, int]:
    """Read the texts, check the counts, mark contradictions and write one file per paper.

    Returns:
        The number of scores by file.

    Raises:
        ZooError: `unexpected-text` if a table has another form or another number of scores than the paper's.
    """
    papers = {name: read((texts / file).read_text(encoding="utf-8")) for name, (file, read) in READERS.items()}
    for paper in papers.values():
        paper.check_counts()
    mark_contradictions(list(papers.values()))
    written = {}
    for name, paper in papers.items():
        path = out / f"{name}.toml"
        with atomic_path(path) as temporary:
            temporary.write_text(as_toml(paper, sha256_of(texts / READERS[name][0])), encoding="utf-8")
            read_paper(temporary)
        written[path] = sum(len(table.scores) for table in paper.tables)
    return written


def mark_contradictions(papers: Sequence[PrintedPaper]) -> None:
    """Mark recall that falls as its depth grows, and numbers of one work that two tables quote differently."""
    for paper in papers:
        for table in paper.tables:
            _mark_falling_recall(table)
    for score, text in list(_other_quotes(papers)):
        score.setdefault("contradicts", text)


def _mark_falling_recall(table: PrintedTable) -> None:
    rows: dict[tuple[str, ...], list[tuple[int, Score]]] = defaultdict(list)
    for score in table.scores:
        if match := RECALL.fullmatch(score["metric"]):
            rows[score["row"], score["dataset"], score.get("split", "test")].append((int(match[1]), score))
    for row in rows.values():
        row.sort(key=lambda pair: pair[0])
        for (depth, smaller), (_, larger) in pairwise(row):
            if larger["value"] < smaller["value"]:
                larger["contradicts"] = f"recall at {depth} is {smaller['value']}, and recall cannot fall"


def _other_quotes(papers: Sequence[PrintedPaper]) -> Iterator[tuple[Score, str]]:
    """Yield each quoted score that another table quotes otherwise, with what that table prints.

    A table with several rows of the work may have rows that the other lacks, so that only tables with as many rows or
    more are looked at.
    """
    tables: dict[tuple[str, str, str], dict[str, list[Quote]]] = defaultdict(lambda: defaultdict(list))
    for paper in papers:
        for table in paper.tables:
            for score in table.scores:
                if "quoted_from" in score:
                    key = _title(score["quoted_from"]), score["dataset"], score["metric"]
                    tables[key][table.name].append(Quote(paper, table, score))
    for by_table in tables.values():
        for name, quotes in by_table.items():
            others = [rows for other, rows in by_table.items() if other != name and len(rows) >= len(quotes)]
            for quote in quotes:
                if text := _differences(quote.score["value"], others):
                    yield quote.score, text


def _differences(value: Decimal, others: Sequence[Sequence[Quote]]) -> str:
    """Return what the other tables print that do not print a value: "Sharing prints 42.6 (table 4, table 9)"."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for rows in others:
        values = [row.score["value"] for row in rows]
        if value not in values:
            printed = " and ".join(map(str, values))
            places[rows[0].paper.facts["short"], printed].append(rows[0].table.place)
    return "; ".join(f"{paper} prints {printed} ({', '.join(named)})" for (paper, printed), named in places.items())


def _title(work: str) -> str:
    title = work.partition(", ")[2]
    return "".join(filter(str.isalnum, title.lower()))[:SAME_TITLE]


def as_toml(paper: PrintedPaper, digest: str) -> str:
    """Return the file of a paper; keys that all scores of a table share are stated once."""
    lines = [*HEADER, "", "[paper]", *(f"{key} = {_literal(fact)}" for key, fact in paper.facts.items())]
    lines.append(f"text_sha256 = {_literal(digest)}")
    for table in paper.tables:
        lines += ["", "[[tables]]", *_table_lines(table)]
    for what, why in paper.absent:
        lines += ["", "[[absent]]", f"what = {_literal(what)}", f"why = {_literal(why)}"]
    return "\n".join(lines) + "\n"


def _table_lines(table: PrintedTable) -> Iterator[str]:
    facts: dict[str, Any] = {"name": table.name, "place": table.place, "title": table.title, "protocol": table.protocol}
    if table.runs is not None:
        facts["runs"] = table.runs
    first = table.scores[0]
    shared = {
        key: first[key] for key in SHARED if key in first and all(row.get(key) == first[key] for row in table.scores)
    }
    yield from (f"{key} = {_literal(fact)}" for key, fact in (facts | shared).items())
    yield "scores = ["
    for row in table.scores:
        pairs = ", ".join(f"{key} = {_literal(fact)}" for key, fact in row.items() if key not in shared)
        yield f"  {{ {pairs} }},"
    yield "]"


def _literal(fact: Any) -> str:
    if isinstance(fact, bool):
        return str(fact).lower()
    return str(fact) if isinstance(fact, int | Decimal) else json.dumps(fact, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
