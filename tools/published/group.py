"""Tables of Group: cells between spaces, and scores in its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.published.text import (
    BEST_EPOCH,
    PrintedPaper,
    PrintedTable,
    Score,
    citation,
    label,
    lines_before,
    scores,
    springer_references,
    unexpected,
)

FACTS = {
    "short": "Group",
    "citation": "Elezi et al. 2020, The Group Loss for Deep Metric Learning",
    "source": "arXiv:1912.00385",
}
SMALL = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "nmi")
METRICS = {"cub": SMALL, "cars": SMALL, "sop": ("recall_at_1", "recall_at_10", "recall_at_100", "nmi")}
PARAMETERS = ("parameters", "recall_at_1", "nmi")
BACKBONES = {
    "GL Densenet121": ("d121", 1024),
    "GL Densenet161": ("d161", 2208),
    "GL Densenet169": ("d169", 1664),
    "GL Densenet201": ("d201", 1920),
    "GL Inception v2": ("ibn", 512),
    "SofTriple": ("ibn", None),
}
ENSEMBLES = {"Ours 2-ensemble": 2, "Ours 5-ensemble": 5}

EPOCH = f"{BEST_EPOCH}; the code returns to the best one when the rate drops"
WIDTH = "the parameters that table 3 prints for Inception are those of an embedding of 512; its code has 1,024"
ABSENT = (
    ("figures 4 to 9", "they are drawn; the paper prints single numbers of them in its sentences"),
    (
        "numbers in its sentences besides those of group-text (section 4.5, appendices A, C and F)",
        "they are differences from other runs, in points, and a training R@1 of about 93 on CARS",
    ),
)
COUNTS = {"group-1": 133, "group-2": 198, "group-3": 36, "group-text": 6}

CELL = re.compile(r"\d+(?:\.\d+)?|-")


def read(text: str) -> PrintedPaper:
    """Return the paper's tables from its text."""
    works = springer_references(text, r" *• \[(\d+)\] ")
    tables = [
        PrintedTable("group-1", "table 1", "Losses", f"{EPOCH}; {WIDTH}", _losses(text, works)),
        PrintedTable("group-2", "table 2", "Ensembles and sampling", f"{EPOCH}; {WIDTH}", _ensembles(text, works)),
        PrintedTable(
            "group-3",
            "table 3",
            "Other backbones",
            f"the hyperparameters of Inception; {EPOCH}; {WIDTH}",
            _backbones(text, works),
        ),
        PrintedTable(
            "group-text",
            "section 4.5, appendices D, E and G",
            "Scores in its sentences",
            f"{EPOCH}; SoftTriple: by the code of its own authors, the dimension is not printed",
            _sentences(text),
        ),
    ]
    return PrintedPaper(FACTS, tables, ABSENT, COUNTS)


def _losses(text: str, works: dict[str, str]) -> list[Score]:
    rows: list[Score] = []
    for name, cells in _rows(lines_before(text, "Table 1: ", "Loss R@1"), 14):
        if name == "Ours":
            own = _datasets("Group loss", cells, METRICS, "group-ibn", backbone="ibn", dim=512, best_on_test=True)
            own[0]["contradicts"] = "section 4.5 and appendix G give 64.3"
            rows += own
        else:
            rows += _datasets(label(name), cells, METRICS, quoted_from=citation(name, works))
    return rows


def _ensembles(text: str, works: dict[str, str]) -> list[Score]:
    rows: list[Score] = []
    for name, cells in _rows(lines_before(text, "Table 2: ", "Loss+Sampling R@1"), 14):
        if name in ENSEMBLES:
            size = ENSEMBLES[name]
            own = {"backbone": "ibn", "dim": 512 * size, "study": "group/ensembles", "arm": f"{size} models"}
            name = f"Group loss, {size} models"
            rows += _datasets(name, cells, METRICS, f"group{size}-ibn", **own, best_on_test=True)
        else:
            rows += _datasets(label(name), cells, METRICS, quoted_from=citation(name, works))
    return _exchanged(rows)


def _exchanged(rows: list[Score]) -> list[Score]:
    """Return the rows with the NMI of two models on CARS and SOP, which the table has in each other's columns."""
    exchanged = {
        row["dataset"]: row
        for row in rows
        if (row["row"], row["metric"]) == ("Group loss, 2 models", "nmi") and row["dataset"] in ("cars", "sop")
    }
    values = {dataset: row["value"] for dataset, row in exchanged.items()}
    if len(values) == 2 and values["cars"] > values["sop"]:  # NMI rises with the number of classes
        for dataset, other in (("cars", "sop"), ("sop", "cars")):
            exchanged[dataset]["value"] = values[other]
            exchanged[dataset]["contradicts"] = (
                f"it is printed in the column of {other.upper()}, and {values[dataset]} here"
            )
    return rows


def _backbones(text: str, works: dict[str, str]) -> list[Score]:
    columns = dict.fromkeys(METRICS, PARAMETERS)
    rows: list[Score] = []
    for name, cells in _rows(lines_before(text, "Table 3: ", "Params R@1"), 9):
        short, dim = BACKBONES[label(name)]
        if label(name) == "SofTriple":
            quoted = _datasets("SoftTriple", cells, columns, backbone=short, quoted_from=citation(name, works))
            for row in quoted:
                if row["metric"] == "recall_at_1" and row["dataset"] != "sop":
                    row["contradicts"] = "appendix E calls it higher than the Group loss's on all three data sets"
            rows += quoted
        else:
            recipe = None if short == "ibn" else f"group-{short}"  # table 1 has the recipe's scores of Inception
            study = {"study": "group/table-3", "arm": short} if short == "ibn" else {}
            own = {"backbone": short, "dim": dim, **study, "best_on_test": True}
            rows += _datasets(label(name), cells, columns, recipe, **own)
    return [row for row in rows if row["metric"] != "parameters"]


def _sentences(text: str) -> list[Score]:
    similar = {"backbone": "ibn", "dim": 512, "study": "group/appendix-f-g-i", "best_on_test": True}
    clamped = {**similar, "arm": "clamp", "contradicts": "table 1 prints 65.5"}
    shift = {**similar, "arm": "shift"}
    tuned = {"backbone": "d161", "dim": 2208, "best_on_test": True}
    below = "the text calls it 0.6 points lower than the Group loss, of which table 1 prints"
    shifted, clamp = _found(text, rf"Recall@1 metric is {_three(1)} with shifting, much below the {_three(2)} obtained")
    recall, nmi = _found(text, rf"We reach a {_three(1)} score .*? in Recall@1, and {_three(2)} score")
    single = _found(text, rf"using only one center .*? reaching {_three(1)} score in Recall@1, and {_three(2)} score")
    centre = "SoftTriple, one centre"
    return [
        *scores("Group loss, similarities clamped", "cub", ("recall_at_1",), (clamp,), **clamped),
        *scores("Group loss, similarities shifted", "cub", ("recall_at_1",), (shifted,), **shift),
        *scores("GL Densenet161, its own hyperparameters", "cars", ("recall_at_1", "nmi"), (recall, nmi), **tuned),
        *scores(centre, "cars", ("recall_at_1",), single[:1], backbone="ibn", contradicts=f"{below} 85.6"),
        *scores(centre, "cars", ("nmi",), single[1:], backbone="ibn", contradicts=f"{below} 72.7"),
    ]


def _three(group: int) -> str:
    """Return the pattern of a number that the text repeats three times without spaces: "64.364.364.3"."""
    return rf"(\d\d(?:\.\d)?)\{group}\{group}"


def _found(text: str, pattern: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    if match is None:
        raise unexpected(f"no sentence has the form {pattern!r}")
    return match.groups()


def _rows(lines: list[str], columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield name and cells of each line that ends with this many numbers; a line without any number is a heading."""
    for line in lines:
        words = line.split()
        cells = words[-columns:]
        if len(words) > columns and all(map(CELL.fullmatch, cells)):
            yield " ".join(words[:-columns]), cells
        elif any(map(CELL.fullmatch, words)):
            raise unexpected(f"the line {line!r} does not end with {columns} numbers")


def _datasets(
    row: str, cells: list[str], columns: Mapping[str, tuple[str, ...]], recipe: str | None = None, **facts: Any
) -> list[Score]:
    """Return the scores of a row whose cells are those of one data set after another."""
    rows: list[Score] = []
    for dataset, metrics in columns.items():
        part, cells = cells[: len(metrics)], cells[len(metrics) :]
        rows += scores(row, dataset, metrics, part, recipe=recipe and f"{recipe}-{dataset}", **facts)
    return rows
