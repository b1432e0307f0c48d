"""The table, the figure and the facts of docs/reality-2026.md: all objectives on photographs under one protocol.

    zoo benchmark run claims/objectives --dataset cub2010 --data DIR --seeds 3 --trial-rates 1e-4 --trial-rates 3e-4 \\
        --set backbone.frozen_stages=7 --set head_end=trained --set schedule.steps=60 --set precision=bf16 \\
        --out docs/studies/objectives-birds --reuse docs/studies/claims-birds
    python -m tools.reality_check --time           measure the time of a step, on a core that has nothing else to do
    python -m tools.reality_check                  write the page's parts and docs/reality-2026.png
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from training.api import provenance
from training.data import TrainingData
from training.execution import Execution
from training.recipe import Recipe
from training.studies.plan import read_plan
from training.studies.render import command_of, fact_text
from training.studies.report import ClaimResult, Report, build_report
from training.studies.statistics import FAILS, HOLDS
from training.studies.study import DECAY, MAP_AT_R, R1
from training.studies.trends import TrendEstimate
from training.trainer import fit
from zoo.console import interval_text
from zoo.evaluation.statistics import BETTER, UNDECIDED, WORSE, Estimate, Verdict, partial_correlation
from zoo.files import read_json, write_bytes, write_json
from zoo.render import Table, replace_parts

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE, STUDY = DOCS / "reality-2026.md", DOCS / "reality-2026.png", DOCS / "studies" / "objectives-birds"
BASELINE = "margin"
TIMES = "steps.json"
"""File in the study's folder with the time of a step of each objective."""
CLASSES, IMAGES_PER_CLASS = 100, 4
ROUNDS, STEPS = 3, 20


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
        verdict: On the first difference, in the family of all objectives; None for the baseline.
        map_verdict: On the second, likewise.
        cost: Seconds per step over the baseline's; None if not measured.
    """

    name: str
    year: int
    rate: float | None
    r1: Estimate
    map_at_r: Estimate
    decay: Estimate | None
    difference: Estimate | None
    map_difference: Estimate | None
    verdict: Verdict | None
    map_verdict: Verdict | None
    cost: float | None


def noise(side: int) -> TrainingData:
    """Return noise in the place of photographs, uint8 [n, side, side, 3]."""
    count = CLASSES * IMAGES_PER_CLASS
    squares = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    return TrainingData(torch.from_numpy(squares), np.arange(count) % CLASSES, CLASSES, 1, None, [])


def time_steps(recipes: Mapping[str, Recipe], rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, float]:
    """Return the seconds of a training step by name: the median over rounds, in which the recipes take turns.

    All train on the same noise, and share one cached view of it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in recipes}
    execution, data = Execution(torch.device("cpu")), noise(next(iter(recipes.values())).data.side)
    for _, (name, recipe) in product(range(rounds), recipes.items()):
        short = replace(
            recipe, schedule=replace(recipe.schedule, epochs=1, steps=steps), data=replace(recipe.data, views=1)
        )
        with TemporaryDirectory() as folder:
            (epoch,) = fit(short, data, Path(folder), execution, progress=False).log
        seconds[name].append(recipe.batch.size / epoch["images_per_second"])
    return {name: statistics.median(values) for name, values in seconds.items()}


def read_objectives(report: Report, times: Mapping[str, float]) -> list[Objective]:
    """Return the measured objectives, that of the highest R@1 first.

    Args:
        report: The report of the study.
        times: Seconds of a training step by objective; empty if not measured.
    """
    rows = {(row.arm, row.measure): row for row in report.rows}
    arms = {arm.label: arm for arm in report.plan.arms}
    low_rank = report.ranks[DECAY]
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
            rows[arm, R1].verdict,
            rows[arm, MAP_AT_R].verdict,
            times[arm] / times[BASELINE] if times else None,
        )
        for arm in dict.fromkeys(row.arm for row in report.rows)
    ]
    return sorted(objectives, key=lambda objective: -objective.r1.mean)


def fractions(value: Estimate | None, sign: str = "") -> list[str]:
    """Return a mean and its interval; one seed has no interval."""
    if value is None:
        return ["", ""]
    return [f"{value.mean:{sign}.3f}", interval_text(value.interval, sign, 3)]


def score_table(objectives: Sequence[Objective]) -> str:
    """Return one row per objective: scores with 95 % intervals, difference to the baseline, Holm's p, cost, decay."""
    less = (f"minus {BASELINE}", "95 %", "p (Holm)")
    head = ("objective", "year", "R@1", "95 %", *less, "MAP@R", *less)
    rows = []
    for one in objectives:
        scores = [
            *fractions(one.r1),
            *fractions(one.difference, "+"),
            one.verdict.p_text if one.verdict else "",
            fractions(one.map_at_r)[0],
            *fractions(one.map_difference, "+"),
            one.map_verdict.p_text if one.map_verdict else "",
        ]
        rate = "" if one.rate is None else f"{one.rate:g}"
        decay = "" if one.decay is None else f"{one.decay.mean:.3f}"
        cost = "" if one.cost is None else f"{one.cost:.2f}"
        rows.append([f"`{one.name}`", str(one.year), *scores, rate, cost, decay])
    return Table((*head, "rate", "time of a step", "spectral decay"), rows, range(1, 14)).markdown()


def fact_list(
    objectives: Sequence[Objective], trends: Sequence[TrendEstimate] = (), claims: Sequence[ClaimResult] = ()
) -> str:
    """Return the counts, trends and the correlation that the page states."""
    others = [one for one in objectives if one.difference is not None]
    lines = []
    for metric, of in (("R@1", lambda one: one.verdict), ("MAP@R", lambda one: one.map_verdict)):
        above = [one.name for one in others if of(one).word == BETTER]
        below = [one.name for one in others if of(one).word == WORSE]
        rest = len(others) - len(above) - len(below)
        lines.append(
            f"- By {metric} {_named(above)} beat `{BASELINE}`, {_named(below)} stay behind it, and for {rest} of "
            f"{len(others)} the difference is undecided."
        )
    best, worst = objectives[0], objectives[-1]
    lines.append(
        f"- From `{worst.name}` to `{best.name}` R@1 rises by {best.r1.mean - worst.r1.mean:.3f}; the middle half "
        f"of the objectives spans {_middle_half(objectives):.3f}."
    )
    lines += _alike_lines([claim for claim in claims if claim.claim.within])
    lines += [_trend_line(trend) for trend in trends if trend.slope is not None]
    return "\n".join([*lines, *_decay_lines(objectives)])


def _trend_line(estimate: TrendEstimate) -> str:
    slope, over_arms = estimate.slope, estimate.over_arms
    assert slope is not None
    assert over_arms is not None
    metric = "R@1" if estimate.trend.measure == R1 else "MAP@R"
    low, high = slope.interval or (slope.mean, slope.mean)
    return (
        f"- Newer objectives have a higher {metric}: {estimate.verdict}. It changes by {slope.mean:+.4f} per year "
        f"of the paper ({low:+.4f} to {high:+.4f} over seeds, {over_arms[0]:+.4f} to {over_arms[1]:+.4f} over "
        "objectives)."
    )


def _alike_lines(claims: Sequence[ClaimResult]) -> list[str]:
    """Return the sentence on the losses that are claimed to be close to the baseline."""
    if not claims:
        return []
    close, apart, rest = (
        [claim.claim.better for claim in claims if claim.verdict == verdict] for verdict in (HOLDS, FAILS, UNDECIDED)
    )
    within = claims[0].claim.within or 0
    return [
        f"- The losses of Reality, here untuned, lie within {within:g} of `{BASELINE}`: {_named(close)} do, "
        f"{_named(apart)} do not, {_named(rest)} are undecided."
    ]


def _correlation(objectives: Sequence[Objective]) -> Estimate | None:
    """Return Pearson's correlation of R@1 and spectral decay over objectives, with Fisher's interval."""
    pairs = [(one.decay.mean, one.r1.mean) for one in objectives if one.decay is not None]
    return partial_correlation([decay for decay, _ in pairs], [r1 for _, r1 in pairs])


def _decay_lines(objectives: Sequence[Objective]) -> list[str]:
    """Return the sentences on the correlation of R@1 and spectral decay: of all, and of those near the baseline."""
    every = _correlation(objectives)
    if every is None or every.interval is None:
        return []
    low, high = every.interval
    verdict = HOLDS if high < 0 else FAILS if low > 0 else UNDECIDED
    near = _correlation([one for one in objectives if not _is_behind(one)])
    rest = ""
    if near is not None:
        rest = (
            f" Without those behind `{BASELINE}`: {near.mean:+.2f} ({interval_text(near.interval, '+', 2)}, {near.n})."
        )
    return [
        f"- Objectives of lower spectral decay have a higher R@1 (Revisiting, section 5): {verdict}. The correlation "
        f"is r = {every.mean:+.2f} ({low:+.2f} to {high:+.2f}, Fisher's interval over {every.n} objectives).{rest}"
    ]


def _is_behind(objective: Objective) -> bool:
    return objective.verdict is not None and objective.verdict.word == WORSE


def _decays(objectives: Sequence[Objective]) -> list[float]:
    return [math.nan if one.decay is None else one.decay.mean for one in objectives]


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(f'`{name}`' for name in names)})" if names else "none"


def _middle_half(objectives: Sequence[Objective]) -> float:
    low, _, high = statistics.quantiles([one.r1.mean for one in objectives], n=4)
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
                undecided = value is one.difference and one.verdict is not None and one.verdict.word == UNDECIDED
                colour = "#9aa3ad" if undecided else "#1f5fa8"
                axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
                axes.plot(value.mean, place, "o", color=colour, markersize=4)
    panels[1].axvline(0, color="#555555", linewidth=0.8)
    panels[2].barh(places, _decays(objectives), color="#c98a2b")
    panels[3].barh(places, [one.cost or math.nan for one in objectives], color="#7a9e6d")
    titles = ("R@1", f"R@1 minus {BASELINE}'s", "spectral decay", f"time of a step ({BASELINE} = 1)")
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
    facts = fact_list(objectives, report.trends, report.claims)
    return replace_parts(text, {"scores": score_table(objectives), "facts": facts, "made with": made_with(report)})


def main(words: Sequence[str] | None = None) -> int:
    """Write the page's parts and its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default: %(default)s)")
    parser.add_argument("--time", action="store_true", help="measure the time of a step; write no page (default: off)")
    arguments = parser.parse_args(words)
    plan, times = read_plan(arguments.study), arguments.study / TIMES
    if arguments.time:
        torch.set_num_threads(1)
        measured = time_steps({arm.label: plan.recipes(arm)[0] for arm in plan.arms})
        write_json(times, {"seconds": measured, "rounds": ROUNDS, "steps": STEPS, **provenance()})
        return 0
    report = build_report(plan, arguments.study)
    objectives = read_objectives(report, read_json(times)["seconds"] if times.exists() else {})
    write_bytes(PAGE, page(PAGE.read_text(encoding="utf-8"), report, objectives).encode())
    write_bytes(PICTURE, draw(objectives))
    return 0


if __name__ == "__main__":
    sys.exit(main())
