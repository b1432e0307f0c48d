"""Tables of Sharing: cells between tabs, `±` before a standard deviation. Its tables 1 to 3 quote the scores of MIC."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tools.published.text import (
    PrintedPaper,
    PrintedTable,
    Score,
    block_after,
    citation,
    ieee_references,
    label,
    number,
    plain,
    scores,
    unexpected,
)

FACTS = {
    "short": "Sharing",
    "citation": "Milbich, Roth et al. 2020, Sharing Matters for Generalization in Deep Metric Learning",
    "source": "arXiv:2004.05582",
}
MIC = {
    "short": "MIC",
    "citation": "Roth, Brattoli, Ommer 2019, MIC: Mining Interclass Characteristics for Improved Metric Learning",
    "source": "arXiv:1909.11574",
}
R1 = ("recall_at_1",)
SMALL = ("recall_at_1", "recall_at_2", "recall_at_4", "nmi")
BENCHMARKS = {
    "1": ("cars", SMALL),
    "2": ("cub", SMALL),
    "3": ("sop", ("recall_at_1", "recall_at_10", "recall_at_100", "nmi")),
}
"""Data set and metrics by table."""

DATASETS = {"CARS196": "cars", "CUB200-2011": "cub", "SOP": "sop"}
LOSSES = {"Semihard": "triplet-s-", "N-pairs": "npair-", "N-Pairs": "npair-", "PNCA": "proxynca-", "Margin": ""}
"""Parts of recipe names by the losses' names in tables 4 and 9."""

GAP = "sharing/generalisation-gap"
REGULARISERS = {
    "Margin": "margin",
    "+ dropout": "margin-dropout",
    "+ noise output": "margin-noise-out",
    "+ noise input": "margin-noise-in",
    "Ours": "both",
}
"""Arms of the study `sharing/table-6` by the columns' names."""

HEADS = {"phi": "discriminative", "phi*": "shared", "phi(N)": "random head", "f": "features"}
"""Views of the study `GAP` by the embeddings' names."""

EPOCH = "the paper does not say which epoch was measured, and its code is not published"
GAMMA = f"gamma chosen by cross validation; {EPOCH}"
SINGLE = f"on CARS196; {EPOCH}"
BASELINE = {"contradicts": "table 4 prints 80.1"}

ABSENT = (("figure 6", "it is drawn; the paper prints no numbers of it"),)
MIC_ABSENT = (("all other tables", "Sharing quotes these scores; the paper's own text is not a source of this file"),)
MIC_COUNTS = {"mic-main": 12}
COUNTS = {
    "sharing-1": 53,
    "sharing-2": 53,
    "sharing-3": 46,
    "sharing-4": 130,
    "sharing-5": 14,
    "sharing-6": 5,
    "sharing-7a": 5,
    "sharing-7b": 7,
    "sharing-8a": 6,
    "sharing-8b": 3,
    "sharing-9": 130,
}


def read(text: str) -> PrintedPaper:
    """Return the paper's tables from its text."""
    works = ieee_references(text)
    tables = [
        *(_benchmark(text, table, works) for table in BENCHMARKS),
        _losses(text, "4", "r50", (128, 256), works),
        _gap(block_after(text, "TABLE 5: ", "\t")),
        _regularisers(block_after(text, "TABLE 6: ", "\t")),
        _architectures(block_after(text, "(a) Architectural Setups", "\t")),
        _weights(block_after(text, "(b) Controlling the influence", "\t")),
        _triplets(block_after(text, "(a) Influence of various shared", "\t")),
        _sampling(block_after(text, "(b) Relevance of sampling", "\t")),
        _losses(text, "9", "gn", (512, 1024), works),
    ]
    return PrintedPaper(FACTS, tables, ABSENT, COUNTS)


def read_mic(text: str) -> PrintedPaper:
    """Return the scores of MIC that the tables of Sharing quote."""
    rows = [
        {**score, "backbone": "r50", "recipe": f"mic-r50-{score['dataset']}", "best_on_test": True}
        for table in BENCHMARKS
        for score in _benchmark(text, table, ieee_references(text)).scores
        if score["row"] == "MIC"
    ]
    own = [{key: fact for key, fact in row.items() if key != "quoted_from"} for row in rows]
    protocol = (
        "as Sharing quotes it; the authors' code keeps the best epoch on the test classes; whether the paper says "
        "which was measured is not known here"
    )
    table = PrintedTable("mic-main", "Sharing, tables 1 to 3", "MIC with ResNet-50", protocol, own)
    return PrintedPaper(MIC, [table], MIC_ABSENT, MIC_COUNTS)


def _benchmark(text: str, table: str, works: dict[str, str]) -> PrintedTable:
    dataset, metrics = BENCHMARKS[table]
    rows: list[Score] = []
    block = block_after(text, f"TABLE {table}: ", "\t")[1:]
    names = [label(cells[0]).replace("[lv2]", "(lv2)").replace("(lv2)", " (lv2)") for cells in block]
    for name, (cell, dim, *cells) in zip(names, block, strict=True):
        facts: dict[str, Any] = {"dim": None if dim == "-" else int(dim)}
        if name.startswith("Ours"):
            grouped = {"study": "sharing/tables-1-to-3", "arm": "shared-r50 of groups"}
            own = {"recipe": f"shared-r50-{dataset}"} if "T*" in name else grouped
            shared = {"backbone": "r50", **own}
            rows += scores(name, dataset, metrics, cells, **facts, **shared)
        elif name == "Margin(ReImp)":
            facts |= {"backbone": "r50", "recipe": f"shared-disc-r50-{dataset}"}
            rows += scores(name, dataset, metrics, cells, **facts)
        else:
            title = f"{name}, {dim}" if names.count(name) > 1 else name
            rows += scores(title, dataset, metrics, cells, **facts, quoted_from=citation(cell, works))
    title = "The method beside others"
    return PrintedTable(f"sharing-{table}", f"table {table}", title, GAMMA, rows)


def _losses(text: str, table: str, short: str, dims: tuple[int, int], works: dict[str, str]) -> PrintedTable:
    """Return table 4 or 9: four losses with and without shared features on one backbone."""
    block = block_after(text, f"TABLE {table}: ", "\t")
    columns = [label(cell).removesuffix("(Ours)").replace(" ", "") for cell in block[0][2:]]
    if columns != ["Original", f"Baseline{dims[0]}", f"Baseline{dims[1]}", "phi", "phi*", "phi+phi*"]:
        raise unexpected(f"the columns of table {table} are {columns}")
    rows: list[Score] = []
    dataset, loss = "", ""
    for cells in block[1:]:
        if cells[0].startswith("Dataset: "):
            dataset = DATASETS[label(cells[0]).removeprefix("Dataset: ")]
            continue
        loss = cells[0] or loss
        rows += _loss_row(loss, dataset, cells[1:], short, dims, citation(loss, works))
    return PrintedTable(
        f"sharing-{table}", f"table {table}", "Four losses with and without shared features", GAMMA, rows, 5
    )


def _loss_row(
    loss: str, dataset: str, cells: list[str], short: str, dims: tuple[int, int], original: str
) -> list[Score]:
    """Return the scores of one loss by one metric: the quoted one, two baselines, each head, and both."""
    name = "N-pairs" if label(loss) == "N-Pairs" else label(loss)
    metric = {"R@1": "recall_at_1", "NMI": "nmi"}[plain(cells[0])]
    recipe = f"shared-{LOSSES[name]}%s{short}-{dataset}"
    half, whole = ({"backbone": short, "dim": dim} for dim in dims)
    study, arm = f"sharing/table-{'4' if short == 'r50' else '9'}", LOSSES[name].removesuffix("-") or "margin"
    shared = {"study": study, "arm": f"{arm}, shared"}
    facts: dict[str, dict[str, Any]] = {
        "original": {"quoted_from": original},
        f"baseline of {dims[0]}": {**half, "study": study, "arm": f"{arm}, {dims[0]}"},
        f"baseline of {dims[1]}": {**whole, "recipe": recipe % "disc-"},
        "phi": {**half, **shared, "view": "discriminative"},
        "phi*": {**half, **shared, "view": "shared"},
        "phi + phi*": {**whole, **shared, "recipe": recipe % ""},
    }
    rows: list[Score] = []
    for (title, fact), cell in zip(facts.items(), cells[1:], strict=True):
        against = _not_best(cell, cells[2:])
        if (name, short, dataset, metric, title) == ("Margin", "r50", "cars", "recall_at_1", "baseline of 128"):
            against = {"contradicts": "tables 5 and 6 print 79.9"}
        rows += scores(f"{name}, {title}", dataset, (metric,), (cell,), **fact, **against)
    return rows


def _not_best(cell: str, cells: list[str]) -> dict[str, str]:
    """Return a mark if a number is printed in bold, as the best of its loss, and another is higher."""
    best = max(_value(other) for other in cells)
    bold = cell.startswith("<b>") and _value(cell) < best
    return {"contradicts": f"it is printed in bold, as the best of its loss, beside {best}"} if bold else {}


def _value(cell: str) -> Decimal:
    printed = number(cell)
    return Decimal(0) if printed is None else printed[0]


def _gap(block: list[list[str]]) -> PrintedTable:
    """Return table 5, whose last column is checked: the score on test classes less that on training classes."""
    rows: list[Score] = []
    model = ""
    for cells in block[1:]:
        model = label(cells[0]) or model
        head, dim, train, test, gap = (plain(cell) for cell in cells[1:])
        if Decimal(test) - Decimal(train) != Decimal(gap):
            raise unexpected(f"the gap {gap} is not {test} less {train}")
        ours = model.startswith("Ours")
        study = {"study": GAP, "arm": "shared" if ours else "margin", "view": HEADS[head]}
        for split, cell in (("train", train), ("test", test)):
            against = BASELINE if (ours, head, split) == (False, "phi", "test") else {}
            facts = {"backbone": "r50", "dim": int(dim), **study, **against}
            rows += scores(f"{'Ours' if ours else model}, {head}", "cars", R1, (cell,), split=split, **facts)
    protocol = f"{SINGLE}; phi(N) is a random head on the trained features f; the printed gap is test less training"
    return PrintedTable("sharing-5", "table 5", "R@1 on training and test classes", protocol, rows)


def _regularisers(block: list[list[str]]) -> PrintedTable:
    names, cells = _pair(block)
    rows: list[Score] = []
    for name, cell in zip(names, cells, strict=True):
        against = BASELINE if name == "Margin" else {}
        title = f"Margin {name}" if name.startswith("+") else name
        study = {"study": "sharing/table-6", "arm": REGULARISERS[name]}
        rows += scores(title, "cars", R1, (cell,), backbone="r50", dim=128, **study, **against)
    protocol = f"{SINGLE}; 128 numbers; ours: one head for both tasks, as 'both' in table 7a"
    return PrintedTable("sharing-6", "table 6", "Regularisers of margin beside the method", protocol, rows)


def _architectures(block: list[list[str]]) -> PrintedTable:
    facts: dict[str, dict[str, Any]] = {
        "discr. only": {"dim": 256, "recipe": "shared-disc-r50-cars"},
        "shared only": {},
        "both": {"dim": 128, "study": "sharing/table-6", "arm": "both"},
        "both+sep": {"dim": 256, "recipe": "shared-separate-r50-cars"},
        "both+sep+decor": {"dim": 256, "recipe": "shared-r50-cars"},
    }
    protocol = f"{SINGLE}; 'both' has 128 numbers by table 6, 'discr. only' 256 by table 4, 'shared only' is not said"
    return _columns("7a", "One task or both, on one head or two", protocol, block, facts)


def _weights(block: list[list[str]]) -> PrintedTable:
    names, cells = _pair(block)
    rows: list[Score] = []
    for name, cell in zip(names, cells, strict=True):
        study = {"study": "sharing/table-7b", "arm": name}
        rows += scores(f"gamma {name}", "cars", R1, (cell,), backbone="r50", dim=256, **study)
    return PrintedTable("sharing-7b", "table 7b", "R@1 by the weight of the decorrelation", SINGLE, rows)


def _triplets(block: list[list[str]]) -> PrintedTable:
    setups = "sharing/table-8a"
    facts: dict[str, dict[str, Any]] = {
        "Base": {"recipe": "shared-disc-r50-cars"},
        "T^G - std.": {"study": setups, "arm": "grouped"},
        "T^G + std.": {"study": setups, "arm": "grouped-standardised"},
        "min d(a, p)": {"study": setups, "arm": "nearest"},
        "NoConstr": {"study": setups, "arm": "unconstrained"},
        "T*": {"recipe": "shared-r50-cars"},
    }
    facts = {name: {"dim": 256, **fact} for name, fact in facts.items()}
    return _columns("8a", "Triplets from which the shared task learns", SINGLE, block, facts)


def _sampling(block: list[list[str]]) -> PrintedTable:
    study = "sharing/table-8b"
    facts = {
        "T* + random": {"dim": 256, "study": study, "arm": "random"},
        "T* + semihard": {"dim": 256, "study": study, "arm": "semihard"},
        "T* (distance)": {"dim": 256, "study": study, "arm": "distance-weighted"},
    }
    return _columns("8b", "Sampling of the shared triplets", SINGLE, block, facts)


def _columns(
    table: str, title: str, protocol: str, block: list[list[str]], facts: dict[str, dict[str, Any]]
) -> PrintedTable:
    """Return a table of one line of R@1 on CARS196, with the known facts of each column."""
    names, cells = _pair(block)
    if names != list(facts):
        raise unexpected(f"the columns of table {table} are {names}")
    rows: list[Score] = []
    for name, cell in zip(names, cells, strict=True):
        rows += scores(name, "cars", R1, (cell,), backbone="r50", **facts[name])
    return PrintedTable(f"sharing-{table}", f"table {table}", title, protocol, rows)


def _pair(block: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return names and cells of a table of two lines, each without its first cell."""
    names, cells = block
    return [label(name) for name in names[1:]], cells[1:]
