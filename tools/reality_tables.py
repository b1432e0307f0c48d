"""Rows and tables of the reality check of 2026: arms, claims and extra checks on each data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.studies.papers.reality_2026 import LDA, START
from training.studies.plan import Plan, read_plan
from training.studies.report import ClaimResult, Report, ScoreRow, build_report
from training.studies.statistics import FAILS, judge_claim
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Measure, Study
from training.studies.trials import TrialValues, best_values, scores_by_values
from zoo.console import interval_text
from zoo.errors import UsageError
from zoo.evaluation.statistics import EQUIVALENT, UNDECIDED, Estimate, Verdict, estimate, judge
from zoo.render import Table

AT_EDGE = "†"
"""The mark of an arm whose search ended with an untried value next to the best."""

DIFFERENCES = ("minus start, 95 %", "minus margin, 95 %", "p (Holm)")


@dataclass(frozen=True)
class Reports:
    """The report of one data set, and the same runs with differences to rows of no step and claims on R@1."""

    plan: Report
    beside: Mapping[str, Report]

    @property
    def name(self) -> str:
        return self.plan.plan.dataset


@dataclass(frozen=True)
class Row:
    """One arm on one data set.

    Attributes:
        arm: Its label.
        year: The year of its paper; None for an arm that is not an objective.
        trained: Whether it has a step.
        values: The chosen learning rate and factor of the main constant; None without trials.
        held_out: Their MAP@R on held-out training classes.
        at_edge: Whether a value next to them is untried.
        map_at_r: MAP@R on the unseen classes.
        from_start: That less the start's; None for the start, and without one.
        difference: MAP@R less the baseline's; None for the baseline.
        verdict: On the difference for further classes, in the family of all arms; None for the baseline.
        here: The same for these classes alone: by the scatter of the seeds.
        r1: R@1.
        r1_verdict: On its difference.
        decay: Spectral decay on the training classes; None where the embeddings cannot fill their dimension, and of
            several heads, which begin alike.
    """

    arm: str
    year: int | None
    trained: bool
    values: TrialValues | None
    held_out: float | None
    at_edge: bool
    map_at_r: Estimate
    from_start: Estimate | None
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


def read_reports(folder: Path) -> Reports:
    """Return the reports of a finished study with rows of no step; raises as `read_report`."""
    report = read_report(folder)
    plan = report.plan
    others = [name for name in (START, LDA) if name in {arm.label for arm in plan.arms}]
    beside = {name: dataclasses.replace(plan, study=_beside(plan.study, name)) for name in others}
    return Reports(report, {name: build_report(other, folder) for name, other in beside.items()})


def _beside(study: Study, baseline: str) -> Study:
    claims = tuple(
        dataclasses.replace(claim, measure=R1) if claim.measure == MAP_AT_R else claim for claim in study.claims
    )
    return dataclasses.replace(study, baseline=baseline, claims=claims, trends=())


def read_rows(reports: Reports) -> list[Row]:
    """Return all arms of a study, that of the highest MAP@R first."""
    report, plan = reports.plan, reports.plan.plan
    rows = {(row.arm, row.measure): row for row in report.rows}
    from_start = {row.arm: row for row in reports.beside[START].rows if row.measure == MAP_AT_R}
    arms = [arm for arm in plan.arms if (arm.label, MAP_AT_R) in rows]
    here = verdicts_here(report, [arm.label for arm in arms])
    found = [
        Row(
            arm.label,
            None if arm.x is None else int(arm.x),
            any(recipe.learns for recipe in plan.recipes(arm)),
            *_trial_facts(plan, arm),
            rows[arm.label, MAP_AT_R].value,
            from_start[arm.label].difference,
            rows[arm.label, MAP_AT_R].difference,
            rows[arm.label, MAP_AT_R].verdict,
            here.get(arm.label),
            rows[arm.label, R1].value,
            rows[arm.label, R1].verdict,
            _decay(plan, arm, rows),
        )
        for arm in arms
    ]
    return sorted(found, key=lambda row: -row.map_at_r.mean)


def _trial_facts(plan: Plan, arm: Arm) -> tuple[TrialValues | None, float | None, bool]:
    search, scores = plan.search_of(arm), scores_by_values(arm.label, plan.trials)
    best = best_values(scores)
    if search is None or best is None:
        return None, None, False
    return best, scores[best], search.is_at_edge(scores)


def _decay(plan: Plan, arm: Arm, rows: Mapping[tuple[str, Measure], ScoreRow]) -> float | None:
    row = rows.get((arm.label, DECAY))
    if row is None or row.rank or any(len(recipe.heads) > 1 for recipe in plan.recipes(arm)):
        return None
    return row.value.mean


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
    """Return whether each claim on unseen classes holds for these classes alone; "" for one on training classes."""
    claims = [judged for judged in report.claims if judged.claim.measure.split == "test"]
    found = [difference_here(report, one.claim.measure, one.claim.better, one.than) for one in claims]
    tests = judge(found, [report.plan.margin(one.claim.measure) for one in claims])
    outcomes = {
        one.claim.text: judge_claim(one.claim, difference, test)[1]
        for one, difference, test in zip(claims, found, tests, strict=True)
    }
    return [outcomes.get(judged.claim.text, "") for judged in report.claims]


def size_note(plan: Plan) -> str:
    """Return the size of a study's images, for the heads of its tables."""
    recipe = plan.recipes(plan.arms[0])[0]
    stored, crop = recipe.data.side, recipe.preprocessing.crop
    return f"images of {stored} px{f', enlarged to {crop}' if crop > stored else ''}"


def arm_table(rows: Sequence[Row], note: str) -> str:
    """Return one row per arm of a data set."""
    head = (f"arm; {note}", "year", "trials chose", "held out", "MAP@R", *DIFFERENCES)
    lines = [
        (
            f"`{row.arm}`",
            "" if row.year is None else str(row.year),
            "" if row.values is None else f"{row.values}{AT_EDGE if row.at_edge else ''}",
            "" if row.held_out is None else f"{row.held_out:.4f}",
            f"{row.map_at_r.mean:.4f}",
            difference_text(row.from_start),
            difference_text(row.difference),
            *verdict_cells(row.verdict, row.here.word if row.here else ""),
            f"{row.r1.mean:.3f}",
            verdict_text(row.r1_verdict),
            "" if row.decay is None else f"{row.decay:.3f}",
        )
        for row in rows
    ]
    return Table((*head, "", "R@1", "", "decay"), lines, (1, 3, 4, 5, 6, 7, 9, 11)).markdown()


def difference_text(difference: Estimate | None) -> str:
    """Return a difference with its 95 % interval."""
    if difference is None:
        return ""
    interval = f" ({interval_text(difference.interval, '+')})" if difference.interval else ""
    return f"{difference.mean:+.4f}{interval}"


def verdict_text(tests: Verdict | None, found: str = "", here: str = "") -> str:
    """Return what was found, the detectable difference of what is undecided, and another verdict for these classes.

    "" without a test, as of a single seed without scores of classes.
    """
    if tests is None or tests.p is None:
        return ""
    found = found or tests.word
    notes = _detectable(tests, found)
    notes += [] if here in ("", found) else [f"these classes: {here}"]
    return f"{found} ({'; '.join(notes)})" if notes else found


def verdict_cells(tests: Verdict | None, here: str = "") -> list[str]:
    """Return the adjusted p and `verdict_text`; "" twice without a verdict."""
    return ["" if tests is None else tests.p_text, verdict_text(tests, here=here)]


def outcome_table(reports: Sequence[Reports]) -> str:
    """Return one row per claim: its effect and p on each data set, and the outcome on all of them."""
    head = [f"claim; {size_note(reports[0].plan.plan)}"]
    for report in reports:
        head += [f"{report.name}, 95 %", "p (Holm)"]
    rows, names = [], [report.name for report in reports]
    by_r1 = zip(*(report.beside[START].claims for report in reports), strict=True)
    for on_each, on_each_by_r1 in zip(
        zip(*(report.plan.claims for report in reports), strict=True), by_r1, strict=True
    ):
        claim = on_each[0].claim
        cells = [text for judged in on_each for text in (difference_text(judged.difference), _p_text(judged))]
        found, other = (
            outcome(dict(zip(names, map(claim_word, several), strict=True))) for several in (on_each, on_each_by_r1)
        )
        rows.append([claim.text, *cells, found, other if claim.measure == MAP_AT_R else "", claim.printed])
    return Table((*head, "outcome", "by R@1", "printed in the paper (R@1)"), rows).markdown()


def _p_text(judged: ClaimResult) -> str:
    """Return the adjusted p, with the detectable difference of what is undecided."""
    return judged.tests.p_text + "".join(f" ({note})" for note in _detectable(judged.tests, judged.verdict))


def _detectable(tests: Verdict, found: str) -> list[str]:
    return [] if found != UNDECIDED or tests.detectable is None else [f"detectable {tests.detectable:.4f}"]


def claim_table(report: Reports) -> str:
    """Return one row per claim on one data set: its effect, the verdict with what it needs, and R@1."""
    first = f"claim; {size_note(report.plan.plan)}"
    head = (first, "measure", "difference, 95 %", "p (Holm)", "verdict", "R@1, 95 %", "p (Holm)", "verdict")
    rows = []
    for judged, here, by_r1 in zip(
        report.plan.claims, claims_here(report.plan), report.beside[START].claims, strict=True
    ):
        by_map = judged.claim.measure.split == "test"
        words = verdict_text(by_r1.tests, claim_word(by_r1))
        other = [difference_text(by_r1.difference), by_r1.tests.p_text, words] if by_map else [""] * 3
        verdict = verdict_text(judged.tests, claim_word(judged), "" if here == judged.verdict else here)
        cells = [judged.claim.text, str(judged.claim.measure), difference_text(judged.difference)]
        rows.append([*cells, judged.tests.p_text, verdict, *other])
    return Table(head, rows).markdown()


def claim_word(judged: ClaimResult) -> str:
    """Return the verdict on a claim, and of one that does not hold whether it is the opposite or equivalent."""
    if judged.verdict != FAILS:
        return judged.verdict
    return f"{FAILS}: {'equivalent' if judged.tests.word == EQUIVALENT else 'the opposite'}"


def outcome(verdicts: Mapping[str, str]) -> str:
    """Return the verdict that all data sets share, "does not" for one reason or the other, else the verdict of each."""
    if len(words := {*verdicts.values()}) == 1:
        return words.pop()
    if all(verdict.startswith(FAILS) for verdict in verdicts.values()):
        return FAILS
    return "; ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())


def check_table(reports: Sequence[Reports], checks: Sequence[Reports]) -> str:
    """Return one row per arm of each check: beside which settings it ran, and its differences there and in the plan."""
    first = f"data; {size_note(reports[0].plan.plan)}"
    head = (first, "other settings", "arm", "seeds", "MAP@R", *DIFFERENCES, "")
    plans = {report.name: report for report in reports}
    rows = []
    for check in checks:
        plan = plans[check.name]
        settings = ", ".join(f"`{text}`" for text in check.plan.plan.settings if text not in plan.plan.plan.settings)
        planned = {row.arm: row for row in read_rows(plan)}
        for row in read_rows(check):
            same, chosen = planned[row.arm], [f"`{row.arm}`", str(row.map_at_r.n), f"{row.map_at_r.mean:.4f}"]
            here = [difference_text(row.from_start), difference_text(row.difference)]
            here += verdict_cells(row.verdict)
            there = [difference_text(same.from_start), difference_text(same.difference)]
            rows.append([check.name, settings, *chosen, *here, *there])
    return Table((*head, "in the plan: minus start", "minus margin"), rows, (3, 4, 5, 6, 7, 9, 10)).markdown()


def own_table(reports: Sequence[Report]) -> str:
    """Return one row per arm of studies of own arms: its scores, and its difference to the study's first arm."""
    rows = []
    for report in reports:
        found = {(row.arm, row.measure): row for row in report.rows}
        for arm in report.plan.arms:
            by_map, by_r1 = (found[arm.label, measure] for measure in (MAP_AT_R, R1))
            cells = [report.plan.dataset, f"`{arm.label}`", str(by_map.value.n), f"{by_map.value.mean:.4f}"]
            than = "" if by_map.difference is None else f"`{report.plan.study.reference}`"
            cells += [f"{by_r1.value.mean:.3f}", than, difference_text(by_map.difference)]
            rows.append([*cells, *verdict_cells(by_map.verdict)])
    first = f"data; {size_note(reports[0].plan)}" if reports else "data"
    head = (first, "arm", "seeds", "MAP@R", "R@1", "beside", "difference in MAP@R, 95 %", "p (Holm)", "")
    return Table(head, rows, (2, 3, 4, 6, 7)).markdown()
