"""Tables of DiVA: cells between tabs."""

from __future__ import annotations

from typing import Any

from tools.published.text import (
    BEST_EPOCH,
    PrintedPaper,
    PrintedTable,
    Score,
    block_before,
    citation,
    label,
    scores,
    springer_references,
    unexpected,
)

FACTS = {
    "short": "DiVA",
    "citation": "Milbich, Roth et al. 2020, DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning",
    "source": "arXiv:2004.13458",
}
METRICS = {
    **dict.fromkeys(("cub", "cars"), ("recall_at_1", "recall_at_2", "nmi")),
    "sop": ("recall_at_1", "recall_at_10", "nmi"),
}
OWN = {
    "Ours (DiVA-IBN-512)": ("ibn", "diva-ibn"),
    "Ours (Margin-R50-512)": ("r50", "diva-d-r50"),
    "Ours (DiVA-R50-512)": ("r50", "diva-r50"),
}
"""Backbone and recipe of the rows of table 3."""
SUBSETS = {
    "Margin (ours, IBN)": "diva-d-ibn",
    "DiVA (IBN, D & Da)": "diva-dn-ibn",
    "DiVA (IBN, D & S)": "diva-ds-ibn",
    "DiVA (IBN, D & I)": "diva-di-ibn",
    "DiVA (IBN, D & Da & I)": "diva-din-ibn",
    "DiVA (IBN, D & S & I)": "diva-dsi-ibn",
    "DiVA (IBN, D & Da & S)": "diva-dsn-ibn",
    "DiVA (IBN, D & Da & S & I)": "diva-dsin-ibn",
}
"""Recipes of the rows of table 2."""
ABLATION = {
    "Baseline": None,
    "DiVA": None,
    "No De-correlation": (
        "section 4.3 says that it is 2.1 points above the baseline, and that decorrelation adds 1.2 points to it"
    ),
    "Separated models": None,
}
"""Rows of table 4, with what the text says against them."""
MEASURED = {
    "Baseline": {"recipe": "diva-d-ibn-cub"},
    "DiVA": {"recipe": "diva-dsin-ibn-cub"},
    "No De-correlation": {"study": "diva/table-2", "arm": "diva without decorrelation"},
    "Separated models": {"study": "diva/table-2", "arm": "diva-separate"},
}
"""What measures the rows of table 4 here."""

ABSENT = (
    ("figures 1, 4 and 5", "they are drawn; the paper prints no numbers of them"),
    ("numbers in its sentences (sections 4.1 and 4.3)", "they are differences between rows of tables 2 and 4"),
)
COUNTS = {"diva-2": 81, "diva-3": 127, "diva-4": 4}


def read(text: str) -> PrintedPaper:
    """Return the paper's tables from its text."""
    works = springer_references(text, r"(?:- )?(\d+)\. ")
    tables = [
        PrintedTable(
            *("diva-2", "table 2", "Tasks one by one"),
            f"constant learning rate; {BEST_EPOCH}",
            [score for row in block_before(text, "Table 2. ", "\t")[2:] for score in _tasks(row, works)],
        ),
        PrintedTable(
            *("diva-3", "table 3", "DiVA beside other methods"),
            f"learning rate lowered once; {BEST_EPOCH}",
            [score for row in block_before(text, "Table 3. ", "\t")[2:] for score in _methods(row, works)],
        ),
        PrintedTable(
            *("diva-4", "table 4", "Without decorrelation, and models trained one by one"),
            f"constant learning rate; {BEST_EPOCH}; the data set is that on which table 2 prints the first two scores",
            _ablation(block_before(text, "Table 4. ", "\t")),
        ),
    ]
    return PrintedPaper(FACTS, tables, ABSENT, COUNTS)


def _tasks(row: list[str], works: dict[str, str]) -> list[Score]:
    name = label(row[0])
    backbone = "r50" if "R50" in name else "ibn"
    marks = {"quoted_from": citation(row[0], works)} if "orig" in name else {"best_on_test": True}
    return _datasets(name, row, SUBSETS.get(name), backbone=backbone, **marks)


def _methods(row: list[str], works: dict[str, str]) -> list[Score]:
    name = label(row[0])
    if len(row) == 1 or not any(row[1:]):  # a heading between rows
        return []
    if name in OWN:
        backbone, recipe = OWN[name]
        found = _datasets(name, row, recipe, backbone=backbone, best_on_test=True)
    else:
        found = _datasets(name, row, quoted_from=citation(row[0], works))
    for score in found:
        if score["metric"] == "recall_at_10":
            score["contradicts"] = "the column is headed R@2; table 2 prints the same numbers as R@10"
    return found


def _ablation(block: list[list[str]]) -> list[Score]:
    names, cells = ([label(cell) for cell in row[1:]] for row in block)
    if names != list(ABLATION):
        raise unexpected(f"the columns of table 4 are {names}")
    return [
        score
        for name, cell in zip(names, cells, strict=True)
        for score in scores(
            *(name, "cub", ("recall_at_1",), (cell,)),
            backbone="ibn",
            dim=512,
            contradicts=ABLATION[name],
            best_on_test=True,
            **MEASURED[name],
        )
    ]


def _datasets(row: str, cells: list[str], recipe: str | None = None, **facts: Any) -> list[Score]:
    """Return the scores of a row: its dimension, then the cells of one data set after another."""
    dim, rest = int(cells[1]), cells[2:]
    found: list[Score] = []
    for dataset, metrics in METRICS.items():
        part, rest = rest[: len(metrics)], rest[len(metrics) :]
        found += scores(row, dataset, metrics, part, dim=dim, recipe=recipe and f"{recipe}-{dataset}", **facts)
    return found
