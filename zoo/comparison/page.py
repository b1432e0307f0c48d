"""Comparisons as one HTML page: tables, published numbers and ours on one axis, and how the metrics go together."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby

from zoo.comparison.cells import COLUMNS, NUMBERS, by_table, cells, heading, source
from zoo.comparison.compare import Comparison
from zoo.comparison.runs import Run
from zoo.published.scores import scale
from zoo.report.forest import Line, forest
from zoo.report.history import recall_by_epoch
from zoo.report.matrix import correlations, pearson
from zoo.report.page import Section, folded, legend, numbered, page, paragraph, picture, table

SVG = "image/svg+xml"
ENOUGH = 3
"""Fewer points make no picture of how two things go together."""


def as_html(rows: Sequence[Comparison], shown: Sequence[Section] = ()) -> str:
    """The whole page; what comes from files is escaped. shown: parts that come last, as those of `zoo.report`."""
    parts = [_table(list(group)) for _, group in by_table(rows)]
    runs = list({run.name: run for row in rows if row.ours for run in row.ours.found}.values())
    return page("Published numbers and ours", [*parts, *_decay(rows), *_together(runs), *_epochs(runs), *shown])


def _table(rows: Sequence[Comparison]) -> Section:
    published = rows[0].table
    pictures = [
        folded(f"{metric} on {dataset}, as a picture", forest(_lines(list(group))))
        for (dataset, metric), group in groupby(sorted(rows, key=_place), key=_place)
    ]
    whole = table(COLUMNS, map(cells, rows), NUMBERS)
    return Section(heading(published), paragraph(source(published)) + whole + "".join(pictures))


def _place(row: Comparison) -> tuple[str, str]:
    return row.score.dataset, row.score.metric


def _lines(rows: Sequence[Comparison]) -> list[Line]:
    """Of each row the published number with its deviation, and ours with its interval in green below it."""
    lines = []
    for row in rows:
        score, ours, factor = row.score, row.ours, scale(row.score.metric)
        mean, sd = factor * score.value, factor * (score.sd or 0)
        spread = (mean - sd, mean + sd) if score.sd is not None else None
        note = f"published, {row.table.protocol}"
        lines.append(Line(score.row, mean, spread, note, f"{mean:.4g}" + (f" ± {sd:.2g}" if sd else "")))
        if ours is not None:
            bounds = ours.interval and (factor * ours.interval[0], factor * ours.interval[1])
            says = f"ours, {len(ours.runs)} seeds, {ours.protocol}"
            lines.append(Line(score.row, factor * ours.value, bounds, says, f"{factor * ours.value:.4g}", "good"))
    return lines


def _decay(rows: Sequence[Comparison]) -> list[Section]:
    """R@1 against spectral decay, published and ours (Revisiting, figure 5), a picture for each data set."""
    if find_spec("matplotlib") is None:
        return []
    parts = []
    for dataset in dict.fromkeys(row.score.dataset for row in rows):
        kinds = {kind: _pairs(rows, dataset, kind == "ours") for kind in ("published", "ours")}
        if len(kinds["published"]) >= ENOUGH:
            parts.append(_scattered(dataset, kinds))
    return parts


def _scattered(dataset: str, kinds: dict[str, dict[str, tuple[float, float]]]) -> Section:
    from zoo.report import pictures

    drawn = {kind: pairs for kind, pairs in kinds.items() if pairs}
    image = pictures.scatter([list(pairs.values()) for pairs in drawn.values()], "spectral decay", "R@1, %")
    body = picture(image, SVG, f"R@1 against spectral decay on {dataset}") + legend(drawn, pictures.COLOURS)
    for kind, pairs in drawn.items():
        found = pearson([x for x, _ in pairs.values()], [y for _, y in pairs.values()])
        body += numbered(pairs) + (paragraph(f"{kind}: r = {found:+.2f}") if found is not None else "")
    return Section(f"R@1 against spectral decay on {dataset}", body, "half")


def _pairs(rows: Sequence[Comparison], dataset: str, ours: bool) -> dict[str, tuple[float, float]]:
    """By the row: spectral decay of training data and R@1 in percent, where both are known."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.score.dataset == dataset and row.score.metric in ("recall_at_1", "spectral_decay"):
            score = row.ours if ours else row.score
            if score is not None:
                found.setdefault(row.score.row, {})[row.score.metric] = score.value
    return {
        name: (values["spectral_decay"], 100 * values["recall_at_1"])
        for name, values in found.items()
        if len(values) > 1
    }


def _together(runs: Sequence[Run]) -> list[Section]:
    """How the metrics of our models go together (Revisiting, figure 4), for each data set and split."""
    measured: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for run in runs:
        for result in run.results:
            measured.setdefault((result["dataset"], result["split"]), {})[run.name] = result["metrics"]
    parts = []
    for (dataset, split), models in measured.items():
        common = [name for name in next(iter(models.values())) if all(name in each for each in models.values())]
        if len(models) >= ENOUGH and len(common) >= ENOUGH:
            columns = {name: [each[name] for each in models.values()] for name in common}
            text = f"Pearson's correlation over {len(models)} models of this zoo: {', '.join(models)}."
            parts.append(Section(f"Metrics on {dataset}, {split} split", correlations(columns) + paragraph(text)))
    return parts


def _epochs(runs: Sequence[Run]) -> list[Section]:
    """R@1 epoch by epoch of our models, from their folders, and of studies' runs."""
    from zoo.loading import find

    logs = {run.name: recall_by_epoch(find(run.name)) if run.curves is None else run.curves for run in runs}
    series = {f"{name}, {key}": points for name, log in logs.items() for key, points in log.items()}
    if not series or find_spec("matplotlib") is None:
        return []
    from zoo.report import pictures

    image = picture(pictures.curves(series), SVG, "R@1 by epoch")
    left = f" The first {len(pictures.COLOURS)} of {len(series)}." if len(series) > len(pictures.COLOURS) else ""
    text = f"From the models' and runs' logs; validation is on classes held out of the training split.{left}"
    return [Section("R@1 by epoch", image + legend(series, pictures.COLOURS) + paragraph(text), "half")]
