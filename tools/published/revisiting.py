"""Tables 1 and 3 of Revisiting: cells between spaces. The text has lost the numbers of table 2."""

from __future__ import annotations

import re

from tools.published.text import (
    BEST_EPOCH,
    PrintedPaper,
    PrintedTable,
    Score,
    lines_before,
    scores,
    surnames_after_initials,
    unexpected,
    work,
)

FACTS = {
    "short": "Revisiting",
    "citation": "Roth et al. 2020, Revisiting Training Strategies and Generalization Performance in "
    "Deep Metric Learning",
    "source": "arXiv:2002.08473",
}
BACKBONES = {"GN": 512, "IBN": 512, "R50": 128}
"""Dimensions by backbone, as section 3.3 calls typical; table 1 prints none."""
ROWS = {"CUB200, R@1": "cub", "CARS196, R@1": "cars", "SOP, R@1": "sop"}
ARCHITECTURES = {"GoogLeNet": "gn", "Inception-BN": "ibn", "ResNet50": "r50"}
METRICS = ("recall_at_1", "recall_at_10", "recall_at_100", "nmi")
ABSENT = (
    ("NMI of table 2", "the text has lost the numbers of this table; the authors' figures have its R@1 only"),
    ("tables 4 to 9", "the text ends in appendix F, before them"),
    ("figures 2, 3 and 7", "they are drawn; the paper prints no numbers of them"),
)
COUNTS = {"revisiting-1": 9, "revisiting-3": 24}


def read(text: str) -> PrintedPaper:
    """Return the paper's tables from its text."""
    untrained = "ImageNet weights and a random last layer, normalised; its dimension is the typical one of section 3.3"
    tables = [
        PrintedTable("revisiting-1", "table 1", "Backbones before any training", untrained, _untrained(text)),
        PrintedTable(
            *("revisiting-3", "table 3", "Other methods on SOP"),
            f"quoted rows as their papers print them; margin: {BEST_EPOCH}",
            _others(text),
        ),
    ]
    return PrintedPaper(FACTS, tables, ABSENT, COUNTS)


def _untrained(text: str) -> list[Score]:
    rows: list[Score] = []
    for line in lines_before(text, "Table 1:", "Network GN IBN R50"):
        name, *cells = re.split(r" (?=[\d.]+(?: |$))", line)
        if name not in ROWS or len(cells) != len(BACKBONES):
            raise unexpected(f"the line {line!r} is not a row of table 1")
        for (backbone, dim), cell in zip(BACKBONES.items(), cells, strict=True):
            short = backbone.lower()
            measured = {"study": "revisiting/table-1-published", "arm": short}
            title = f"{backbone}, ImageNet weights"
            rows += scores(title, ROWS[name], ("recall_at_1",), (cell,), backbone=short, dim=dim, **measured)
    return rows


def _others(text: str) -> list[Score]:
    works = _references(text)
    rows: list[Score] = []
    for line in lines_before(text, "Table 3:", "Approach Architecture Dim"):
        match = re.fullmatch(r"(.+?) ?\(([^()]+, \d{4}[a-z]?)\) (\S+) (\d+) (\S+) (\S+) (\S+) (\S+)", line)
        if match is None or match[2] not in works or match[3] not in ARCHITECTURES:
            raise unexpected(f"the line {line!r} is not a row of table 3")
        own = "(ours)" in match[1]
        marks = {"best_on_test": True} if own else {"quoted_from": works[match[2]]}
        facts = {"backbone": ARCHITECTURES[match[3]], "dim": int(match[4]), **marks}
        found = scores(match[1], "sop", METRICS, match.groups()[4:], **facts)
        for score in found:
            if own and score["metric"] == "recall_at_1":
                score["contradicts"] = "table 2 prints 78.43 with beta 1.2 and 77.38 with 0.6"
        rows += found
    return rows


def _references(text: str) -> dict[str, str]:
    """Return the works by their citations: "Wu et al., 2017"."""
    works = {}
    for match in re.finditer(r"^ *• (.+?) \((\d{4})([a-z]?)\) (.+?)\. ", text, re.MULTILINE):
        names = surnames_after_initials(match[1])
        authors = names[0] + (" et al." if len(names) > 2 else f" and {names[1]}" if len(names) == 2 else "")
        works[f"{authors}, {match[2]}{match[3]}"] = work(names, match[2], match[4])
    return works
