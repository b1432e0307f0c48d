"""The parts of docs/reality-2026.md, its figure and its tables, from the studies of docs/lab/protocol-2026.md.

    python -m tools.reality_page

The page has the marked parts "facts" and "claims", the page of tables "arms of DATASET", "claims of DATASET",
"trends", "checks", "looked into" and "made with".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

from tools.reality_tables import (
    Reports,
    Row,
    arm_table,
    check_table,
    claim_table,
    outcome_table,
    own_table,
    read_report,
    read_reports,
    read_rows,
    size_note,
)
from training.studies.papers.reality_2026 import LDA, START, TRUNK
from training.studies.render import command_of, fact_text
from training.studies.report import Report
from training.studies.study import MAP_AT_R, R1
from zoo.console import interval_text
from zoo.evaluation.statistics import BETTER, EQUIVALENT, UNDECIDED, WORSE, partial_correlation
from zoo.files import write_bytes
from zoo.render import Table, replace_parts

DOCS = Path(__file__).parent.parent / "docs"
SETS = ("birds", "cars")
CHECKS = ("long", "long-cars", "stages", "fp32", "heads")
OWN = ("starts", "starts-cars", "looked", "squares")
"""The studies: on each data set, the extra checks, and those of own arms."""

RECENT = 2010
"""The year from which objectives were proposed for deep networks."""

SCORES: dict[str, Callable[[Row], float]] = {"MAP@R": lambda row: row.map_at_r.mean, "R@1": lambda row: row.r1.mean}
COLOURS = {BETTER: "#1f5fa8", WORSE: "#1f5fa8", EQUIVALENT: "#3c8d5a", UNDECIDED: "#9aa3ad"}
UNTRAINED = "#c98a2b"


def fact_list(reports: Sequence[Reports], tables: Sequence[Sequence[Row]]) -> str:
    """Return the gains of training as a table, then which objectives differ from the baseline."""
    named = list(zip(reports, tables, strict=True))
    return "\n".join([gain_table(named), "", *(_count_line(rows, report.name) for report, rows in named)])


def trend_list(reports: Sequence[Reports], tables: Sequence[Sequence[Row]]) -> str:
    """Return the sentences on trends over the years, and on spectral decay."""
    named = list(zip(reports, tables, strict=True))
    lines = [_trend_line(rows, report.name) for report, rows in named]
    lines += [line for report, rows in named for line in _decay_lines(rows, report.name)]
    return "\n".join([*lines, *_pooled_lines(tables)])


def gain_table(named: Sequence[tuple[Reports, Sequence[Row]]]) -> str:
    """Return one column per data set: scores without a step and of the baseline, and the trained arms beside them."""
    columns = [_gains(report, rows) for report, rows in named]
    lines = [(head, *(column[head] for column in columns)) for head in columns[0]]
    first = size_note(named[0][0].plan.plan)
    return Table((first, *(report.name for report, _ in named)), lines).markdown()


def _gains(report: Reports, rows: Sequence[Row]) -> dict[str, str]:
    plan, of_arm, trained = report.plan.plan, {row.arm: row for row in rows}, [row for row in rows if row.trained]
    baseline, margin = plan.study.reference, plan.margin(MAP_AT_R)
    scores = [of_arm[name] for name in (TRUNK, START, LDA, baseline) if name in of_arm]
    texts = {f"`{row.arm}`": f"MAP@R {row.map_at_r.mean:.4f}, R@1 {row.r1.mean:.3f}" for row in scores}
    for row in scores[:-1]:
        by_map, by_r1 = (sum(score(arm) > score(row) for arm in trained) for score in SCORES.values())
        texts[f"trained arms above `{row.arm}`, of {len(trained)}"] = f"{by_map} by MAP@R, {by_r1} by R@1"
    for name, beside in report.beside.items():
        texts[f"their differences to `{name}`, by Holm's p"] = "; ".join(_counts(beside, trained))
    if margin is not None:
        gain = of_arm[baseline].map_at_r.mean - of_arm[START].map_at_r.mean
        texts[f"margin of equivalence, and of `{baseline}`'s gain over `{START}`"] = f"{margin:g}, {margin / gain:.0%}"
    return texts


def _counts(beside: Report, arms: Sequence[Row]) -> list[str]:
    """Return how many arms are better and worse than a baseline by each metric."""
    labels, texts = {row.arm for row in arms}, []
    for name, measure in (("MAP@R", MAP_AT_R), ("R@1", R1)):
        words = [
            row.verdict.word for row in beside.rows if row.measure == measure and row.arm in labels and row.verdict
        ]
        texts.append(f"{name} {words.count(BETTER)} better, {words.count(WORSE)} worse")
    return texts


def _count_line(rows: Sequence[Row], name: str) -> str:
    objectives = [row for row in rows if row.year is not None and row.verdict is not None]
    found = [(row.arm, row.verdict.word) for row in objectives if row.verdict]
    counts = {word: [arm for arm, has in found if has == word] for word in (BETTER, WORSE, EQUIVALENT)}
    texts = [f"{word}: {', '.join(f'`{arm}`' for arm in arms)}" for word, arms in counts.items() if arms]
    rest = len(found) - sum(map(len, counts.values()))
    return f"- **Beside `margin`**, {name}: {'; '.join([*texts, f'undecided: {rest} of {len(found)}'])}."


def _trend_line(rows: Sequence[Row], name: str) -> str:
    objectives = [row for row in rows if row.year is not None]
    recent = [row for row in objectives if row.year is not None and row.year >= RECENT]
    texts = [
        f"{what} {_slope_text(chosen)}"
        for what, chosen in (
            (f"all {len(objectives)}", objectives),
            (f"the {len(recent)} since {RECENT}", recent),
            ("without those below the trunk", _above_trunk(rows)),
        )
    ]
    return f"- **Newer**, {name}: MAP@R a year, 95 % over objectives: {'; '.join(texts)}."


def _slope_text(rows: Sequence[Row]) -> str:
    from scipy import stats

    years, scores = [row.year for row in rows], [row.map_at_r.mean for row in rows]
    line, rank = stats.linregress(years, scores), stats.spearmanr(years, scores)
    half = float(stats.t.ppf(0.975, len(rows) - 2) * line.stderr)
    interval = interval_text((line.slope - half, line.slope + half), "+")
    return f"{line.slope:+.4f} ({interval}; Spearman {rank.statistic:+.2f})"


def _above_trunk(rows: Sequence[Row]) -> list[Row]:
    """Return the objectives that are not below the trunk without a step."""
    least = next((row.map_at_r.mean for row in rows if row.arm == TRUNK), 0.0)
    return [row for row in rows if row.year is not None and row.map_at_r.mean >= least]


def _decay_lines(rows: Sequence[Row], name: str) -> list[str]:
    from scipy import stats

    lines = []
    objectives = [row for row in rows if row.year is not None and row.decay is not None]
    for metric, score in SCORES.items():
        texts = []
        for what, chosen in (
            (f"all {len(objectives)}", objectives),
            ("without those below the trunk", [row for row in _above_trunk(rows) if row in objectives]),
        ):
            decays, scores = [row.decay or 0.0 for row in chosen], [score(row) for row in chosen]
            found = partial_correlation(decays, scores)
            rank = stats.spearmanr(decays, scores).statistic
            if found is not None:
                texts.append(
                    f"{what} {found.mean:+.2f} ({interval_text(found.interval, '+', 2)}; Spearman {rank:+.2f})"
                )
        lines.append(f"- **Decay**, {name}: with {metric} r = {'; '.join(texts)}.")
    return lines


def _pooled_lines(tables: Sequence[Sequence[Row]]) -> list[str]:
    """Return the correlation over all data sets given MAP@R of the start of each; an objective counts once."""
    if len(tables) < 2:
        return []
    rows = [
        (row, next(other.map_at_r.mean for other in table if other.arm == START))
        for table in tables
        for row in table
        if row.year is not None and row.decay is not None
    ]
    objectives = len({row.arm for row, _ in rows})
    decays, starts = [row.decay or 0.0 for row, _ in rows], [start for _, start in rows]
    lines = []
    for metric, score in SCORES.items():
        found = partial_correlation(decays, [score(row) for row, _ in rows], starts, objectives)
        if found is not None:
            text = f"{found.mean:+.2f} ({interval_text(found.interval, '+', 2)})"
            lines.append(
                f"- **Decay**, all data sets: with {metric} given MAP@R of the start r = {text} of {objectives}."
            )
    return lines


def made_with(reports: Sequence[Report]) -> str:
    """Return commands, images, dates, processor and versions of the runs."""
    lines = []
    for report in reports:
        facts = "; ".join(fact_text(value) for key in ("hardware", "versions") for value in report.made_with[key])
        dates = " to ".join(date[:10] for date in report.dates or ())
        lines.append(f"<sub>`{command_of(report.plan)}`; {report.measured} of {report.data}; {dates}; {facts}.</sub>")
    return "\n\n".join(lines)


def draw(tables: Sequence[Sequence[Row]], names: Sequence[str], note: str) -> bytes:
    """Draw the difference to margin in MAP@R of every arm on each data set as a PNG, by the colours of verdicts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = [row.arm for row in tables[0]]
    figure = Figure(figsize=(5.5 * len(tables), 0.22 * len(order) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, rows, name in zip(panels, tables, names, strict=True):
        for row in rows:
            if row.arm not in order or row.difference is None or row.verdict is None:
                continue
            place, (low, high) = -order.index(row.arm), row.difference.interval or (row.difference.mean,) * 2
            colour = COLOURS[row.verdict.word] if row.trained else UNTRAINED
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.plot(row.difference.mean, place, "o", color=colour, markersize=4)
        axes.axvline(0, color="#555555", linewidth=0.8)
        axes.set_title(f"MAP@R minus margin's, {name}", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", linewidth=0.3)
    figure.supxlabel(note, fontsize=8)
    panels[0].set_yticks([-place for place in range(len(order))], order)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Write the parts of both pages, and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, studies, subject in (
        ("folders", SETS, "the study on each data set"),
        ("--checks", CHECKS, "studies of the extra checks"),
        ("--own", OWN, "studies of own arms"),
    ):
        default = [DOCS / "studies" / f"reality-2026-{study}" for study in studies]
        subject += f" (default: {', '.join(studies)} in docs/studies)"
        parser.add_argument(name, nargs="*", type=Path, default=default, metavar="FOLDER", help=subject)
    parser.add_argument("--page", type=Path, default=DOCS / "reality-2026.md", help="default: %(default)s")
    parser.add_argument(
        "--tables", type=Path, default=DOCS / "studies" / "reality-2026.md", help="default: %(default)s"
    )
    arguments = parser.parse_args(words)
    reports, checks = ([read_reports(folder) for folder in given] for given in (arguments.folders, arguments.checks))
    own = [read_report(folder) for folder in arguments.own]
    names, tables = [report.name for report in reports], [read_rows(report) for report in reports]
    note = size_note(reports[0].plan.plan)
    parts = {
        "facts": fact_list(reports, tables),
        "trends": trend_list(reports, tables),
        "claims": outcome_table(reports),
        "checks": check_table(reports, checks),
        "looked into": own_table(own),
        "made with": made_with([*(report.plan for report in (*reports, *checks)), *own]),
        **{f"arms of {name}": arm_table(rows, note) for name, rows in zip(names, tables, strict=True)},
        **{f"claims of {report.name}": claim_table(report) for report in reports},
    }
    for page in (arguments.page, arguments.tables):
        write_bytes(page, replace_parts(page.read_text(encoding="utf-8"), parts).encode())
    write_bytes(arguments.page.with_suffix(".png"), draw(tables, names, note))
    return 0


if __name__ == "__main__":
    sys.exit(main())
