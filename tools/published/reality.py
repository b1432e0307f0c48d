"""Tables of Reality: cells between bars, `±` before half of a 95 % interval."""

from __future__ import annotations

from tools.published.text import PrintedPaper, PrintedTable, Score, block_after, block_before, label, scores, unexpected

FACTS = {
    "short": "Reality",
    "citation": "Musgrave et al. 2020, A Metric Learning Reality Check",
    "source": "arXiv:2003.08505",
}
DATASETS = ("cub", "cars", "sop")
BACKBONES = {"GoogleNet": "gn", "BN-Inception": "ibn", "ResNet50": "r50"}
METRICS = ("precision_at_1", "r_precision", "map_at_r")
WIDTHS = {"concatenated": 512, "separated": 128}
PRETRAINED, ALONE = "reality/pretrained", "reality/tables-3-to-5"
ARMS = {"N. Softmax": "softmax", "MS+Miner": "ms-miner"}
"""Row of tables 3 to 5 -> the arm of `ALONE`, where it is not the name in lower case."""

SEARCHED = (
    "best of 50 trials of Bayesian search on 4 folds of the training classes; the 4 models of a rerun embed the test "
    "images with the epoch that is best on their held-out classes, and their embeddings are joined (concatenated) or "
    "their scores averaged (separated); mean over reruns, half of the 95 % interval; rows without one are of one run; "
    "pretrained: features reduced by PCA; no study joins the models of a loss: zoo benchmark search LOSS --dataset {} "
    "--data DIR --trials 0 measures the concatenated scores"
)
UNTRAINED = (
    "not trained; the dimension is not printed, so that no score here is beside these; reality/table-2 measures pooled "
    "features"
)
ABSENT = (("figures 2 to 5", "they are drawn; the paper prints no numbers of them"),)
COUNTS = {"reality-1": 9, "reality-2": 9, "reality-3": 78, "reality-4": 78, "reality-5": 78}


def read(text: str) -> PrintedPaper:
    """Return the paper's tables from its text."""
    tables = [
        _backbones(
            *("1", "Backbones before any training", "ImageNet weights, features reduced to 512 numbers by PCA"),
            *(block_after(text, "Table 1. ", "|"), "recall_at_1", 512),
        ),
        _backbones(
            *("2", "NMI of networks with random weights", UNTRAINED),
            *(block_after(text, "Table 2. ", "|"), "nmi", None),
        ),
        _losses("3", "cub", block_before(text, "Table 3. ", "|")),
        _losses("4", "cars", block_after(text, "Table 4. ", "|")),
        _losses("5", "sop", block_after(text, "Table 5. ", "|")),
    ]
    return PrintedPaper(FACTS, tables, ABSENT, COUNTS)


def _backbones(
    table: str, title: str, protocol: str, block: list[list[str]], metric: str, dim: int | None
) -> PrintedTable:
    rows: list[Score] = []
    for name, cells in _rows(block, 3):
        short = BACKBONES[name]
        view = f"features reduced to {dim}"
        measured = {"study": f"reality/table-{table}", "arm": short, "view": view} if dim else {}
        for dataset, cell in zip(DATASETS, cells, strict=True):
            rows += scores(name, dataset, (metric,), (cell,), backbone=short, dim=dim, **measured)
    return PrintedTable(f"reality-{table}", f"table {table}", title, protocol, rows)


def _losses(table: str, dataset: str, block: list[list[str]]) -> PrintedTable:
    rows: list[Score] = []
    for name, cells in _rows(block, 6):
        for index, (kind, dim) in enumerate(WIDTHS.items()):
            measured = _pretrained(dim) if name == "Pretrained" else _alone(name) if kind == "separated" else {}
            part = cells[3 * index : 3 * index + 3]
            rows += scores(
                f"{name}, {kind}", dataset, METRICS, part, backbone="ibn", dim=dim, spread="ci95", **measured
            )
    return PrintedTable(f"reality-{table}", f"table {table}", "Losses after a search", SEARCHED.format(dataset), rows)


def _pretrained(dim: int) -> dict[str, str]:
    """Return the study that measures the features of the backbone, reduced to a dimension."""
    return {"study": PRETRAINED, "arm": "pretrained", "view": f"features reduced to {dim}"}


def _alone(name: str) -> dict[str, str]:
    """Return the study of a loss's single models, which the scores called separated are the means of."""
    return {"study": ALONE, "arm": ARMS.get(name, name.lower())}


def _rows(block: list[list[str]], columns: int) -> list[tuple[str, list[str]]]:
    """Return name and cells of each row below the line that separates the heading, with `columns` cells."""
    rows = [cells[1:-1] for cells in block]  # a line begins and ends with a bar
    named = [(label(row[0]), row[1:]) for row in rows if label(row[0]) and not set(row[0]) <= set("-: ")]
    for name, cells in named:
        if len(cells) != columns:
            raise unexpected(f"the row {name!r} has {len(cells)} cells, not {columns}")
    return named
