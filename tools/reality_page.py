"""The parts of docs/reality-2026.md and its figure, from the finished studies of docs/lab/protocol-2026.md.

    python -m tools.reality_page docs/studies/reality-2026-birds docs/studies/reality-2026-cars \\
        --checks docs/studies/reality-2026-long docs/studies/reality-2026-stages

The page needs the marked parts "facts", "objectives", "claims", "checks" and "made with".
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from training.studies.plan import read_plan
from training.studies.render import command_of, fact_text
from training.studies.report import Report, ScoreRow, build_report
from training.studies.statistics import FAILS, HOLDS, judge_claim
from training.studies.study import DECAY, MAP_AT_R, R1, Measure
from training.studies.trends import TrendEstimate
from zoo.console import interval_text
from zoo.errors import UsageError
from zoo.evaluation.statistics import (
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Estimate,
    Verdict,
    estimate,
    judge,
    partial_correlation,
)
from zoo.files import write_bytes
from zoo.render import Table, replace_parts

PAGE = Path(__file__).parent.parent / "docs" / "reality-2026.md"
START = "start"
"""The arm of the heads before the first step."""


@dataclass(frozen=True)
class Row:
    """One arm on one data set.

    Attributes:
        arm: Its label.
        year: The year of its paper; None for an arm that is not an objective.
        map_at_r: MAP@R on the unseen classes.
        difference: That less the baseline's; None for the baseline.
        verdict: On the difference for further classes, in the family of all arms; None for the baseline.
        here: The same for these classes alone: by the scatter of the seeds.
        r1: R@1.
        r1_verdict: On its difference.
        decay: Spectral decay on the training classes; None where the embeddings cannot fill their dimension.
    """

    arm: str
    year: int | None
    map_at_r: Estimate
    difference: Estimate | None
    verdict: Verdict | None
    here: Verdict | None
    r1: Estimate
    r1_verdict: Verdict | None
    decay: float | None


def read_report(folder: Path) -> Report:
    """Return the report of a finished study.

    Raises:
        UsageError: If runs are missing: no verdict is published from a part of the plan.
    """
    report = build_report(read_plan(folder), folder)
    if report.missing:
        raise UsageError(
            f"{folder} lacks {len(report.missing)} runs; no verdict is published from a part of the plan.",
            code="no-results",
        )
    return report


def read_rows(report: Report) -> list[Row]:
    """Return all arms of a study, that of the highest MAP@R first."""
    rows = {(row.arm, row.measure): row for row in report.rows}
    arms = [arm for arm in report.plan.arms if (arm.label, MAP_AT_R) in rows]
    here = verdicts_here(report, [arm.label for arm in arms])
    found = [
        Row(
            arm.label,
            None if arm.x is None else int(arm.x),
            rows[arm.label, MAP_AT_R].value,
            rows[arm.label, MAP_AT_R].difference,
            rows[arm.label, MAP_AT_R].verdict,
            here.get(arm.label),
            rows[arm.label, R1].value,
            rows[arm.label, R1].verdict,
            _decay(rows.get((arm.label, DECAY))),
        )
        for arm in arms
    ]
    return sorted(found, key=lambda row: -row.map_at_r.mean)


def _decay(row: ScoreRow | None) -> float | None:
    return None if row is None or row.rank else row.value.mean


def difference_here(report: Report, measure: Measure, arm: str, than: str) -> Estimate | None:
    """Return the difference of two arms for these classes alone: only seeds are random. None without common seeds."""
    (selection,) = report.plan.selections
    ours, theirs = (report.values[selection][measure].get(name, {}) for name in (arm, than))
    common = [seed for seed in ours if seed in theirs]
    return estimate([ours[seed] - theirs[seed] for seed in common]) if common else None


def verdicts_here(report: Report, arms: Sequence[str]) -> dict[str, Verdict]:
    """Return the verdicts on differences to the baseline in MAP@R for these classes alone."""
    others = [arm for arm in arms if arm != report.plan.study.reference]
    found = [difference_here(report, MAP_AT_R, arm, report.plan.study.reference) for arm in others]
    return dict(zip(others, judge(found, [report.plan.margin(MAP_AT_R)] * len(others)), strict=True))


def claims_here(report: Report) -> list[str]:
    """Return whether each claim holds for these classes alone; those on arms of low rank stay undecided."""
    found = [
        None
        if judged.tests.p is None
        else difference_here(report, judged.claim.measure, judged.claim.better, judged.than)
        for judged in report.claims
    ]
    tests = judge(found, [report.plan.margin(judged.claim.measure) for judged in report.claims])
    return [
        judge_claim(judged.claim, difference, test)[1]
        for judged, difference, test in zip(report.claims, found, tests, strict=True)
    ]


def objective_table(tables: Sequence[Sequence[Row]], names: Sequence[str]) -> str:
    """Return one row per arm, in the order of the first data set."""
    head = ["arm", "year"]
    for name in names:
        head += [f"MAP@R, {name}", "minus margin, 95 %", "p (Holm)", "", "R@1", "", "decay"]
    by_arm = [{row.arm: row for row in rows} for rows in tables]
    lines = []
    for row in tables[0]:
        cells = [f"`{row.arm}`", "" if row.year is None else str(row.year)]
        for rows in by_arm:
            cells += _cells(rows[row.arm]) if row.arm in rows else [""] * 7
        lines.append(cells)
    return Table(head, lines, range(1, len(head))).markdown()


def _cells(row: Row) -> list[str]:
    return [
        f"{row.map_at_r.mean:.4f}",
        _difference_cells(row)[0],
        row.verdict.p_text if row.verdict else "",
        "" if row.verdict is None or row.here is None else _verdict_text(row.verdict, row.verdict.word, row.here.word),
        f"{row.r1.mean:.3f}",
        "" if row.r1_verdict is None else row.r1_verdict.word,
        "" if row.decay is None else f"{row.decay:.3f}",
    ]


def _verdict_text(tests: Verdict, found: str, here: str) -> str:
    """Return what was found, the detectable difference of what is undecided, and another verdict for these classes."""
    notes = [] if found != UNDECIDED or tests.detectable is None else [f"detectable {tests.detectable:.4f}"]
    notes += [] if here == found else [f"these classes: {here}"]
    return f"{found} ({'; '.join(notes)})" if notes else found


def claim_table(reports: Sequence[Report], names: Sequence[str]) -> str:
    """Return one row per claim: its effect on each data set, and the outcome on all of them."""
    head = ["claim", "measure"]
    for name in names:
        head += [f"{name}, 95 %", "p (Holm)", "verdict"]
    rows = []
    columns = [zip(report.claims, claims_here(report), strict=True) for report in reports]
    for on_each in zip(*columns, strict=True):
        claim = on_each[0][0].claim
        cells = [claim.text, str(claim.measure)]
        for judged, here in on_each:
            found = judged.difference
            text = "" if found is None else f"{found.mean:+.4f} ({interval_text(found.interval, '+')})"
            cells += [text, judged.tests.p_text, _verdict_text(judged.tests, judged.verdict, here)]
        rows.append([*cells, outcome([judged.verdict for judged, _ in on_each]), claim.printed])
    return Table((*head, "outcome", "printed in the paper (R@1)"), rows).markdown()


def check_table(reports: Sequence[Report], checks: Sequence[Report]) -> str:
    """Return one row per arm of each check: beside which settings it ran, and its difference there and in the plan."""
    head = (
        "data",
        "other settings",
        "arm",
        "seeds",
        "MAP@R",
        "minus margin, 95 %",
        "verdict",
        "in the plan",
        "verdict",
    )
    plans = {report.plan.dataset: report for report in reports}
    rows = []
    for check in checks:
        plan = plans[check.plan.dataset]
        settings = ", ".join(f"`{text}`" for text in check.plan.settings if text not in plan.plan.settings)
        planned = {row.arm: row for row in read_rows(plan)}
        for row in read_rows(check):
            seeds = str(row.map_at_r.n)
            scores = [f"{row.map_at_r.mean:.4f}", *_difference_cells(row)]
            rows.append(
                [plan.plan.dataset, settings, f"`{row.arm}`", seeds, *scores, *_difference_cells(planned[row.arm])]
            )
    return Table(head, rows, (3, 4)).markdown()


def _difference_cells(row: Row) -> tuple[str, str]:
    """Return a difference with its interval, and the verdict on it."""
    if row.difference is None:
        return "", ""
    text = f"{row.difference.mean:+.4f} ({interval_text(row.difference.interval, '+')})"
    return text, "" if row.verdict is None else row.verdict.word


def outcome(verdicts: Sequence[str]) -> str:
    """Return "holds" or "does not" if all data sets say so, else that the claim depends on them or is undecided."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "depends on the data set" if {HOLDS, FAILS} <= set(verdicts) else UNDECIDED


def fact_list(reports: Sequence[Report], tables: Sequence[Sequence[Row]], names: Sequence[str]) -> str:
    """Return the sentences of the result: gains, counts, trends and correlations."""
    lines = []
    for report, rows, name in zip(reports, tables, names, strict=True):
        lines += [_gain_line(rows, name, report.plan.study.reference), *_count_lines(rows, name)]
        lines += [_trend_line(trend, name) for trend in report.trends if trend.slope is not None]
        lines += _correlation_line(f"R@1 and spectral decay, {name}", *_pairs([rows]))
    if len(tables) > 1:
        lines += _correlation_line("R@1 and spectral decay on all sets, given MAP@R of the start", *_pairs(tables))
    return "\n".join(lines)


def _gain_line(rows: Sequence[Row], name: str, baseline: str) -> str:
    scores = {row.arm: row.map_at_r.mean for row in rows}
    low, _, high = statistics.quantiles([row.map_at_r.mean for row in rows if row.year is not None], n=4)
    return (
        f"- **{name}**: MAP@R of `{baseline}` is {scores[baseline]:.4f}, that of its start {scores[START]:.4f}; the "
        f"middle half of the objectives spans {high - low:.4f}."
    )


def _count_lines(rows: Sequence[Row], name: str) -> list[str]:
    objectives = [row for row in rows if row.year is not None and row.verdict is not None]
    texts = []
    for title, of in (("for further classes", lambda row: row.verdict), ("for these classes", lambda row: row.here)):
        counts = {word: [row.arm for row in objectives if of(row).word == word] for word in (BETTER, WORSE, EQUIVALENT)}
        named = [f"{word}: {', '.join(f'`{arm}`' for arm in arms)}" for word, arms in counts.items() if arms]
        rest = len(objectives) - sum(map(len, counts.values()))
        texts.append(f"- Beside it, {name}, {title}: {'; '.join([*named, f'undecided: {rest} of {len(objectives)}'])}.")
    return texts


def _trend_line(found: TrendEstimate, name: str) -> str:
    assert found.slope is not None
    metric = "R@1" if found.trend.measure == R1 else "MAP@R"
    return (
        f"- Newer objectives have a higher {metric}, {name}: {found.verdict}. It changes by {found.slope.mean:+.4f} a "
        f"year ({interval_text(found.slope.interval, '+')} over seeds, {interval_text(found.over_arms, '+')} over the "
        f"{found.arms} objectives)."
    )


def _pairs(tables: Sequence[Sequence[Row]]) -> tuple[list[float], list[float], list[float]]:
    """Return decay and R@1 of the objectives and, of several data sets, MAP@R of the start of each."""
    rows = [
        (row.decay, row.r1.mean, next(other.map_at_r.mean for other in table if other.arm == START))
        for table in tables
        for row in table
        if row.year is not None and row.decay is not None
    ]
    decays, scores, starts = (list(column) for column in zip(*rows, strict=True))
    return decays, scores, starts if len(tables) > 1 else []


def _correlation_line(what: str, a: Sequence[float], b: Sequence[float], given: Sequence[float]) -> list[str]:
    found = partial_correlation(a, b, given)
    if found is None:
        return []
    return [f"- {what}: r = {found.mean:+.2f} ({interval_text(found.interval, '+', 2)}, {found.n} points)."]


def made_with(reports: Sequence[Report]) -> str:
    """Return commands, images, dates, processor and versions of the runs."""
    lines = []
    for report in reports:
        facts = "; ".join(fact_text(value) for key in ("hardware", "versions") for value in report.made_with[key])
        dates = " to ".join(date[:10] for date in report.dates or ())
        lines.append(f"<sub>`{command_of(report.plan)}`; {report.measured} of {report.data}; {dates}; {facts}.</sub>")
    return "\n\n".join(lines)


def draw(tables: Sequence[Sequence[Row]], names: Sequence[str]) -> bytes:
    """Draw the difference to margin in MAP@R of every arm on each data set as a PNG, untrained ones in ochre."""
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
            colour = "#c98a2b" if row.map_at_r.sd == 0 else "#9aa3ad" if row.verdict.word == UNDECIDED else "#1f5fa8"
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.plot(row.difference.mean, place, "o", color=colour, markersize=4)
        axes.axvline(0, color="#555555", linewidth=0.8)
        axes.set_title(f"MAP@R minus margin's, {name}", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks([-place for place in range(len(order))], order)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Write the page's parts and its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="the study on each data set")
    parser.add_argument(
        "--checks", nargs="*", type=Path, default=[], metavar="FOLDER", help="studies of the extra checks"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="default: %(default)s")
    arguments = parser.parse_args(words)
    reports, checks = ([read_report(folder) for folder in given] for given in (arguments.folders, arguments.checks))
    names, tables = [report.plan.dataset for report in reports], [read_rows(report) for report in reports]
    parts = {
        "facts": fact_list(reports, tables, names),
        "objectives": objective_table(tables, names),
        "claims": claim_table(reports, names),
        "checks": check_table(reports, checks),
        "made with": made_with(reports),
    }
    text = arguments.page.read_text(encoding="utf-8")
    write_bytes(arguments.page, replace_parts(text, parts).encode())
    write_bytes(arguments.page.with_suffix(".png"), draw(tables, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
