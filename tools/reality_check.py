"""The table, the figure and the facts of docs/reality-2026.md: all objectives on photographs under one protocol.

    zoo benchmark run claims/objectives --dataset cub2010 --data DIR --seeds 3 --trial-rates 1e-4 --trial-rates 3e-4 \\
        --set backbone.frozen_stages=7 --set head_end=trained --set schedule.steps=60 --set precision=bf16 \\
        --out docs/studies/objectives-birds
    python tools/reality_check.py                  write the page's parts and docs/reality-2026.png
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from training.studies.plan import read_plan
from training.studies.render import command_of, fact_text
from training.studies.report import Report, build_report
from training.studies.results import Results
from training.studies.statistics import FAILS, HOLDS, UNDECIDED, Summary, sided_verdict
from training.studies.study import DECAY, MAP_AT_R, R1
from training.studies.trends import TrendEstimate
from zoo.files import write_bytes
from zoo.render import Table, replace_parts

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE, STUDY = DOCS / "reality-2026.md", DOCS / "reality-2026.png", DOCS / "studies" / "objectives-birds"
BASELINE = "margin"


@dataclass(frozen=True)
class Objective:
    """Measurements of one objective, from the study.

    Attributes:
        name: The arm's label.
        year: The year of its paper.
        rate: The learning rate that its trials chose; None without trials.
        r1: R@1 on the unseen classes.
        map_at_r: MAP@R on them.
        decay: Spectral decay on the training classes; None where the embeddings cannot fill their dimension.
        difference: R@1 less that of the baseline, on the seeds of both; None for the baseline.
        map_difference: MAP@R less that of the baseline, likewise.
        cost: Seconds per step over the baseline's.
    """

    name: str
    year: int
    rate: float | None
    r1: Summary
    map_at_r: Summary
    decay: Summary | None
    difference: Summary | None
    map_difference: Summary | None
    cost: float


def seconds_per_step(results: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """Return the median over runs of an objective's training seconds per step."""
    own = [result["training"] for result in results.values() if result["arm"] == name]
    return statistics.median(sum(t["seconds"] for t in parts) / sum(t["steps"] for t in parts) for parts in own)


def read_objectives(report: Report, results: Mapping[str, Mapping[str, Any]]) -> list[Objective]:
    """Return the measured objectives, that of the highest R@1 first.

    Args:
        report: The report of the study.
        results: The results of its runs.
    """
    rows = {(row.arm, row.measure): row for row in report.rows}
    arms = {arm.label: arm for arm in report.plan.arms}
    base, low_rank = seconds_per_step(results, BASELINE), report.ranks[DECAY]
    objectives = [
        Objective(
            arm,
            int(arms[arm].x or 0),
            report.plan.chosen_rate(arms[arm]),
            rows[arm, R1].value,
            rows[arm, MAP_AT_R].value,
            None if arm in low_rank else rows[arm, DECAY].value,
            rows[arm, R1].difference,
            rows[arm, MAP_AT_R].difference,
            seconds_per_step(results, arm) / base,
        )
        for arm in dict.fromkeys(row.arm for row in report.rows)
    ]
    return sorted(objectives, key=lambda objective: -objective.r1.mean)


def points(value: Summary | None, sign: str = "") -> list[str]:
    """Return a mean and its interval in points; one seed has no interval."""
    if value is None:
        return ["", ""]
    interval = value.interval and " to ".join(f"{100 * bound:{sign}.1f}" for bound in value.interval)
    return [f"{100 * value.mean:{sign}.1f}", interval or ""]


def score_table(objectives: Sequence[Objective]) -> str:
    """Return one row per objective: scores in points with 95 % intervals, difference to the baseline, cost, decay."""
    head = ("objective", "year", "R@1", "95 %", f"less {BASELINE}", "95 %", "MAP@R", f"less {BASELINE}", "95 %")
    rows = []
    for one in objectives:
        scores = [
            *points(one.r1),
            *points(one.difference, "+"),
            points(one.map_at_r)[0],
            *points(one.map_difference, "+"),
        ]
        rate = "" if one.rate is None else f"{one.rate:g}"
        decay = "" if one.decay is None else f"{one.decay.mean:.3f}"
        rows.append([f"`{one.name}`", str(one.year), *scores, rate, f"{one.cost:.2f}", decay])
    return Table((*head, "rate", "time of a step", "spectral decay"), rows, range(1, 12)).markdown()


def fact_list(objectives: Sequence[Objective], trends: Sequence[TrendEstimate] = ()) -> str:
    """Return the counts, trends and the correlation that the page states."""
    others = [one for one in objectives if one.difference is not None]
    lines = []
    for metric, of in (("R@1", lambda one: one.difference), ("MAP@R", lambda one: one.map_difference)):
        above = [one.name for one in others if sided_verdict(of(one)) == HOLDS]
        below = [one.name for one in others if sided_verdict(of(one), lower=True) == HOLDS]
        rest = len(others) - len(above) - len(below)
        lines.append(
            f"- By {metric} {_named(above)} beat `{BASELINE}`, {_named(below)} stay behind it, and of {rest} of "
            f"{len(others)} the difference is undecided."
        )
    best, worst = objectives[0], objectives[-1]
    lines.append(
        f"- From `{worst.name}` to `{best.name}` R@1 rises by {100 * (best.r1.mean - worst.r1.mean):.1f} points; half "
        f"of the objectives lie within {_middle_half(objectives):.1f} points."
    )
    lines += [_trend_line(trend) for trend in trends if trend.slope is not None]
    return "\n".join([*lines, *_decay_lines(objectives)])


def _trend_line(estimate: TrendEstimate) -> str:
    slope, left_out = estimate.slope, estimate.left_out
    assert slope is not None
    assert left_out is not None
    metric = "R@1" if estimate.trend.measure == R1 else "MAP@R"
    low, high = slope.interval or (slope.mean, slope.mean)
    return (
        f"- Newer objectives have a higher {metric}: {estimate.verdict}. It changes by {100 * slope.mean:+.2f} points "
        f"per year of the paper ({100 * low:+.2f} to {100 * high:+.2f} over seeds; {100 * left_out[0]:+.2f} to "
        f"{100 * left_out[1]:+.2f} if any one objective is left out)."
    )


def _decay_lines(objectives: Sequence[Objective]) -> list[str]:
    """Return the sentence on Pearson's correlation of R@1 and spectral decay, with Fisher's interval."""
    from scipy import stats

    pairs = [(one.decay.mean, one.r1.mean) for one in objectives if one.decay is not None]
    if len(pairs) < 4:
        return []
    found = stats.pearsonr(*zip(*pairs, strict=True))
    low, high = found.confidence_interval()
    verdict = HOLDS if high < 0 else FAILS if low > 0 else UNDECIDED
    return [
        f"- Objectives of lower spectral decay have a higher R@1 (Revisiting, section 5): {verdict}. The correlation "
        f"is r = {found.statistic:+.2f} ({low:+.2f} to {high:+.2f}, Fisher's interval over {len(pairs)} objectives)."
    ]


def _decays(objectives: Sequence[Objective]) -> list[float]:
    return [math.nan if one.decay is None else one.decay.mean for one in objectives]


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(f'`{name}`' for name in names)})" if names else "none"


def _middle_half(objectives: Sequence[Objective]) -> float:
    low, _, high = statistics.quantiles([100 * one.r1.mean for one in objectives], n=4)
    return high - low


def made_with(report: Report) -> str:
    """Return the command, the dates, the processor and the versions of the runs."""
    facts = "; ".join(fact_text(value) for key in ("hardware", "versions") for value in report.made_with[key])
    first, last = report.dates or ("", "")
    dates = f"{first[:10]} to {last[:10]}"
    return f"<sub>`{command_of(report.plan)}`; {report.measured} of {report.data}; {dates}; {facts}.</sub>"


def draw(objectives: Sequence[Objective]) -> bytes:
    """Draw R@1, the difference to the baseline, spectral decay and the time of a step of each objective as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.24 * len(objectives) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4, sharey=True, width_ratios=(3, 3, 2, 2))
    places = range(len(objectives) - 1, -1, -1)
    for axes, of in ((panels[0], lambda one: one.r1), (panels[1], lambda one: one.difference)):
        for place, one in zip(places, objectives, strict=True):
            if (value := of(one)) is not None:
                low, high = value.interval or (value.mean, value.mean)
                colour = "#9aa3ad" if of(one) is one.difference and sided_verdict(value) == UNDECIDED else "#1f5fa8"
                axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=1.5)
                axes.plot(100 * value.mean, place, "o", color=colour, markersize=4)
    panels[1].axvline(0, color="#555555", linewidth=0.8)
    panels[2].barh(places, _decays(objectives), color="#c98a2b")
    panels[3].barh(places, [one.cost for one in objectives], color="#7a9e6d")
    titles = ("R@1, points", f"R@1 less {BASELINE}'s, points", "spectral decay", f"time of a step ({BASELINE} = 1)")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks(list(places), [f"{one.name} ({one.year})" for one in objectives])
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def page(text: str, report: Report, objectives: Sequence[Objective]) -> str:
    """Return the page with the parts of a study."""
    facts = fact_list(objectives, report.trends)
    return replace_parts(text, {"scores": score_table(objectives), "facts": facts, "made with": made_with(report)})


def main(words: Sequence[str] | None = None) -> int:
    """Write the page's parts and its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default: %(default)s)")
    arguments = parser.parse_args(words)
    report = build_report(read_plan(arguments.study), arguments.study)
    objectives = read_objectives(report, Results(arguments.study))
    write_bytes(PAGE, page(PAGE.read_text(encoding="utf-8"), report, objectives).encode())
    write_bytes(PICTURE, draw(objectives))
    return 0


if __name__ == "__main__":
    sys.exit(main())
