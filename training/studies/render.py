"""A study's report as Markdown, JSON and one HTML page, and the sentences that these share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

from training.studies.normalised import NORMALISATION, normalised_table
from training.studies.plan import Plan
from training.studies.report import (
    SELECTION_RULE,
    ClaimResult,
    Curves,
    Ranks,
    Report,
    ScoreRow,
    SelectionEffect,
    claim_counts,
    depends_on_embeddings,
    run_values,
)
from training.studies.search import SearchPlan
from training.studies.statistics import FAILS, HOLDS, Values
from training.studies.study import DECAY, EMBEDDING, GAP, MAP_AT_R, R1, SELECTIONS, Measure
from training.studies.trends import TrendEstimate
from training.studies.trials import SEARCH_RULE, TRIAL_RULE, trial_table
from zoo.console import count, interval_text, score_text
from zoo.evaluation.statistics import (
    VERDICT_RULE,
    Estimate,
    Verdict,
    correlation_triangle,
    p_text,
    parse_margins,
    pearson,
)
from zoo.files import write_bytes, write_json
from zoo.models.card import HEADS
from zoo.render import Table, environment
from zoo.report import figures
from zoo.report.html import (
    SVG,
    Block,
    Details,
    ForestLine,
    ForestPlot,
    HeatMap,
    NumberedList,
    Paragraph,
    Picture,
    Section,
    figure_section,
    page,
)

SELECTION_TITLES = {
    "last": "last epoch, trained on all training classes",
    "validation": "epoch selected on held-out classes",
}

METRIC_TITLES = {
    "map_at_r": "MAP@R",
    "precision_at_1": "P@1",
    "nmi": "NMI",
    "nmi_random": "NMI of random embeddings",
    "map": "mAP",
}

CLAIM_RULE = (
    f'{VERDICT_RULE} Here "better" is as claimed. A claim holds where the difference is better, one of closeness '
    "where it is equivalent within the margin that the claim names; it does not where the difference is worse or "
    "equivalent, one of closeness where the whole interval lies beyond the margin. All claims of differences are one "
    "family, all of closeness another. One seed decides nothing."
)

UNDIRECTED = 'Of a measure without a better end, such as the spectral decay, a difference is "higher" or "lower".'

OVER_CLASSES = (
    "interval of the mean over seeds and, where scores by class are known, over classes (a crossed mixed model)"
)

LOW_RANK = (
    "Rank below dimension: {}. Heads wider than the features that they are given leave the other singular values at "
    "what rounding makes of 0, and these alone decide the spectral decay. Such arms are marked, and left out of "
    "pictures and correlations of spectral decay and of verdicts on it."
)

TREND_RULE = (
    "A straight line through all arms, seed by seed: its slope, a {}, and Spearman's rank correlation, each with the "
    '95 % interval over seeds; "holds" and "does not" where p of the slope, adjusted by Holm for all trends here, is '
    "below .05. That interval is of these arms. "
    "The 95 % interval over arms (by linear regression of their means) and the least and the greatest slope if any one "
    "is left out show how much depends on their choice. Where one of these contains 0, nothing is decided."
)

NAMED_RUNS = 5
"""The largest number of unfinished runs that Markdown names."""

TONES = {HOLDS: "good", FAILS: "bad"}

Measured = TypeVar("Measured", ScoreRow, SelectionEffect)


def as_markdown(report: Report) -> str:
    """Return the report in Markdown."""
    study, plan = report.plan.study, report.plan
    return (
        environment("training.studies")
        .get_template("study.md.j2")
        .render(
            report=report,
            plan=plan,
            study=study,
            notes=notes(report),
            protocol=protocol(report),
            measured=measured_text(report),
            trials=_trial_table(plan) if plan.rates else None,
            trial_rule=_trial_rule(plan),
            trends=_trend_table(report) if report.trends else None,
            trend_rule=trend_rule(report),
            normalised=normalised_table(report.normalised) if report.normalised else None,
            normalisation=NORMALISATION,
            claims=_claim_table(report) if report.claims else None,
            claim_counts=claim_counts(report.claims),
            verdict_rule=CLAIM_RULE,
            score_rule=score_rule(report),
            scores=_score_tables(report),
            selections=_selection_table(report) if report.selection_effects else None,
            selection_rule=selection_rule(report),
            correlations=_correlation_table(report) if report.correlations else None,
            budgets=_budget_table(report) if report.budgets else None,
            named=NAMED_RUNS,
            command=command_of(plan),
            dates=dates(report),
            made_with="; ".join(fact_text(value) for values in report.made_with.values() for value in values),
        )
    )


def tables_of(report: Report) -> dict[str, Table]:
    """Return the report's tables by their headings."""
    tables = {"trends": _trend_table(report)} if report.trends else {}
    tables |= {"claims": _claim_table(report)} if report.claims else {}
    for heading, parts in _score_tables(report):
        tables |= {f"{heading}, {measure}": part for measure, part in parts.items()}
    tables |= {"selection": _selection_table(report)} if report.selection_effects else {}
    return tables | ({"correlations": _correlation_table(report)} if report.correlations else {})


def as_latex(report: Report) -> str:
    """Return the report's tables in LaTeX (booktabs); captions name the images, the seeds and what was measured."""
    seeds = count(report.plan.seeds, "seed")
    about = f"{report.plan.study.title}; test scores of {report.measured} of {report.data}, {seeds}, intervals of 95 %."
    tables = tables_of(report).items()
    return "\n\n".join(
        table.latex(f"{name[0].upper()}{name[1:]}. {about}", f"tab:{file_name(name)}") for name, table in tables
    )


def as_html(report: Report) -> str:
    """Return the whole page; text from files is escaped."""
    return page(f"{report.plan.study.name} on {report.data}", [*_sections(report), _run_section(report)])


def _sections(report: Report) -> list[Section]:
    study, plan = report.plan.study, report.plan
    rule = Section("How differences are judged", [Paragraph(score_rule(report))])
    sections = [
        _about_section(report),
        rule,
        *_trial_sections(plan),
        *_trend_sections(report),
        *_claim_sections(report),
    ]
    sections += _normalised_sections(report)
    for selection in plan.selections:
        tables = report.values[selection]
        sections += _score_sections([row for row in report.rows if row.selection == selection], selection, study.x)
        sections += [*_sweep_sections(report, tables, selection), *_matrix_sections(tables, selection, report.ranks)]
        sections += _decay_sections(tables, selection, report.ranks)
    return [
        *sections,
        *_selection_sections(report),
        *_curve_sections(report.curves),
        *_spectrum_sections(report.spectra),
    ]


def to_json(report: Report) -> dict[str, Any]:
    """Return the report for programs."""
    study = report.plan.study
    return {
        **report.plan.to_json(),
        "measured_on": report.data,
        "measured_numbers": report.measured,
        "command": command_of(report.plan),
        "dates": report.dates,
        "title": study.title,
        "source": study.source,
        "note": " ".join(notes(report)),
        "rank_below_dimension": {str(measure): ranks for measure, ranks in report.ranks.items()},
        "one_model": report.duplicates,
        "moved": [{**asdict(effect), "measure": str(effect.measure)} for effect in report.selection_effects],
        "selections_made_unlike": report.provenance_note,
        "baseline": study.reference,
        "published_protocols": report.protocols,
        "values": {
            selection: {str(measure): values for measure, values in tables.items()}
            for selection, tables in report.values.items()
        },
        "rows": [{**asdict(row), "measure": str(row.measure)} for row in report.rows],
        "claims": list(map(_claim_facts, report.claims)),
        "trends": [
            {
                **asdict(trend),
                "trend": trend.trend.text,
                "measure": str(trend.trend.measure),
                "lower": trend.trend.lower,
            }
            for trend in report.trends
        ],
        "verdict_rule": VERDICT_RULE,
        "normalised": list(map(asdict, report.normalised)),
        "correlations": [
            dict(zip(("selection", "of", "with", "pearson"), row, strict=True)) for row in report.correlations
        ],
        "curves": report.curves,
        "spectra": report.spectra,
        "missing": report.missing,
        "failures": report.failures,
        "training_seconds": report.seconds,
        "steps_and_images": report.budgets,
        **report.made_with,
    }


def write_report(report: Report, folder: Path) -> None:
    """Write report.md, report.json and report.html, each table as CSV and LaTeX, and each figure as PDF and PNG."""
    write_bytes(folder / "report.md", as_markdown(report).encode())
    write_json(folder / "report.json", to_json(report))
    write_bytes(folder / "report.html", as_html(report).encode())
    for heading, table in tables_of(report).items():
        name = file_name(heading)
        write_bytes(folder / "tables" / f"{name}.csv", table.csv().encode())
        write_bytes(folder / "tables" / f"{name}.tex", f"{table.latex()}\n".encode())
    for form in ("pdf", "png"):
        with figures.drawn_as(form):
            for section in _sections(report):
                for picture in (block for block in section.blocks if isinstance(block, Picture)):
                    write_bytes(folder / "figures" / f"{file_name(section.heading)}.{form}", picture.data)


def file_name(heading: str) -> str:
    """Return the name of a file for a heading: "R@1 by epoch" becomes "r-1-by-epoch"."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def command_of(plan: Plan) -> str:
    """Return the command that makes a plan's results, without the folder."""
    arms = [word for text in plan.study.own_arms for word in ("--arm", text)]
    words = [*plan.study.command.split(), "run", *(arms or [plan.study.name]), "--dataset", plan.dataset]
    words += ["--seeds", str(plan.seeds)]
    if plan.selections != plan.study.selections:
        words += ["--select", "both" if plan.selections == SELECTIONS else plan.selections[0]]
    words += [word for label in plan.only for word in ("--only", label)]
    words += [word for weights in plan.weights for word in ("--weights", weights)]
    words += [word for rate in plan.rates for word in ("--trial-rates", f"{rate:g}")]
    words += ["--trials", str(plan.budget)] if plan.budget else []
    words += [word for margin in plan.margins for word in ("--margin", margin)]
    return shlex.join([*words, *_common_options(plan)])


def command_of_search(search: SearchPlan) -> str:
    """Return the `zoo benchmark search` that makes a search's results, without the folder."""
    counts = ("trials", "reruns", "folds", "patience", "seed")
    words = [word for name in counts for word in (f"--{name}", str(getattr(search, name)))]
    command = ["zoo", "benchmark", "search", *search.losses, "--dataset", search.dataset]
    return shlex.join([*command, *words, *_common_options(search)])


def protocol(report: Report) -> str:
    """Return the protocol in a sentence or two."""
    if report.plan.seeds == 1:
        return "Seed 0 alone: no interval, and nothing is decided. Give --seeds for more."
    reference = report.plan.study.reference
    interval = OVER_CLASSES if report.over_classes else "Student-t interval of the mean"
    return f"Seeds 0 to {report.plan.seeds - 1}. Mean ± standard deviation over seeds, then the 95 % {interval}; " + (
        f"differences to {reference} are paired by seed."
        if reference in {arm.label for arm in report.plan.arms}
        else f"no differences, which would be to {reference}: that arm was not chosen."
    )


def score_rule(report: Report) -> str:
    """Return the sentences on the differences in the tables of scores, and the margins of the plan."""
    margins = [f"{metric} {margin:g}" for metric, margin in parse_margins(report.plan.margins).items()]
    stated = (
        f"margins of equivalence, stated before the runs: {', '.join(margins)}" if margins else "no margin was stated"
    )
    return f"{VERDICT_RULE} {UNDIRECTED} A family is all arms by one measure; {stated}."


def notes(report: Report) -> list[str]:
    """Return the notes on the study, on chosen arms, and on arms whose numbers mislead."""
    low: dict[str, tuple[int, int]] = {}
    for ranks in report.ranks.values():
        low |= ranks
    texts = [note for note in (report.plan.study.note, _chosen_arms(report.plan)) if note]
    if low:
        texts.append(LOW_RANK.format(", ".join(f"{label} ({rank} of {dim})" for label, (rank, dim) in low.items())))
    for label, changes in report.outdated.items():
        told = "; ".join(f"{name}: {change}" for name, change in changes.items())
        texts.append(f"{label} was run by definitions that have changed since ({told}).")
    return [*texts, *(f"{', '.join(labels)}: one model under {len(labels)} names." for labels in report.duplicates)]


def measured_text(report: Report) -> str:
    """Return the sentence on the numbers of queries and classes; "" where no run records them."""
    return f"Test scores are of {report.measured}." if report.measured else ""


def dates(report: Report) -> str:
    """Return when the runs ended, and how long they took."""
    if not report.rows:
        return "No run has finished yet."
    ended = f"Runs ended from {report.dates[0]} to {report.dates[1]}. " if report.dates else ""
    return f"{ended}Training took {report.seconds:,.0f} s in all."


def trend_rule(report: Report) -> str:
    """Return what a trend is, and what its interval is of."""
    return TREND_RULE.format(report.plan.study.x)


def selection_rule(report: Report) -> str:
    """Return what is compared of the two selections, and what else differs between them."""
    return f"{SELECTION_RULE} {report.provenance_note}".rstrip()


def measure_title(measure: Measure) -> str:
    """Return a measure's printed name, as R@1 on test."""
    metric = re.sub(r"^recall_at_(\d+)$", r"R@\1", measure.metric)
    metric = METRIC_TITLES.get(metric, metric)
    view = "" if measure.view == EMBEDDING else f" of {measure.view}"
    where = "test less training classes" if measure.split == GAP else measure.split
    return f"{metric.replace('_', ' ')}{view} on {where}"


def _published_text(row: ScoreRow) -> str:
    """Return the paper's number with its standard deviation over runs where it gives one."""
    if row.published is None:
        return ""
    return score_text(row.published, row.published_sd)


def fact_text(value: object) -> str:
    """Return a fact about the runs, of several parts as part and value."""
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)


def _common_options(plan: Plan | SearchPlan) -> list[str]:
    data = [] if plan.data is None else ["--data", plan.data]
    return [*(word for setting in plan.settings for word in ("--set", setting)), *data]


def _chosen_arms(plan: Plan) -> str:
    if not plan.only:
        return ""
    left = len(plan.study.claims) - len(plan.claims)
    out = f" {count(left, 'claim')} about others are left out." if left else ""
    return f"Chosen: {len(plan.only)} of the study's {len(plan.study.arms)} arms ({', '.join(plan.only)}).{out}"


def _score_tables(report: Report) -> list[tuple[str, dict[str, Table]]]:
    """Return for each selection with rows its title and the table of each measure."""
    titled = []
    for selection in report.plan.selections:
        rows = [row for row in report.rows if row.selection == selection]
        measures = dict.fromkeys(row.measure for row in rows)
        tables = {
            str(measure): _score_table([row for row in rows if row.measure == measure], report.plan.study.x)
            for measure in measures
        }
        if tables:
            titled.append((SELECTION_TITLES[selection], tables))
    return titled


def _score_table(rows: Sequence[ScoreRow], axis: str) -> Table:
    """Return the rows of one measure; columns for heads that are not trained, places and published numbers if any."""
    ends = ("difference", "95 %", "p (Holm)", "verdict", "published")
    columns = ("arm", "head", axis, "seeds", str(rows[0].measure), "95 %", *ends)
    shown = {"head": any(row.head != HEADS["trained"] for row in rows), axis: bool(axis)}
    shown["published"] = any(row.published is not None for row in rows)
    kept = [shown.get(column, True) for column in columns]
    head, *cells = (list(compress(line, kept)) for line in (columns, *map(_score_cells, rows)))
    return Table(head, cells)


def _score_cells(row: ScoreRow) -> list[str]:
    value, difference = row.value, row.difference
    mark = "" if row.rank is None else f" (rank {row.rank[0]} of {row.rank[1]})"
    head = [row.arm, row.head, "" if row.x is None else f"{row.x:g}", str(value.n)]
    score = [score_text(value.mean, value.sd) + mark, interval_text(value.interval)]
    compared = [f"{difference.mean:+.4f}" if difference else "", _interval_text(difference)]
    return [*head, *score, *compared, *_verdict_cells(row.verdict), _published_text(row)]


def _verdict_cells(verdict: Verdict | None) -> list[str]:
    return ["", ""] if verdict is None else [verdict.p_text, str(verdict)]


def _claim_table(report: Report) -> Table:
    several = len(report.plan.selections) > 1
    printed = any(judged.claim.printed for judged in report.claims)
    rows = []
    for judged in report.claims:
        difference = judged.difference
        compared = f"{judged.claim.better} - {judged.than}" + (f" ({judged.selection})" if several else "")
        mean, seeds = (f"{difference.mean:+.4f}", str(difference.n)) if difference else ("", "0")
        measured = [mean, _interval_text(difference), seeds, *_verdict_cells(judged.tests), judged.verdict]
        measured += [judged.claim.printed] if printed else []
        rows.append([judged.claim.text, compared, str(judged.claim.measure), *measured])
    head = ("claim", "compared", "measure", "difference", "95 %", "seeds", "p (Holm)", "verdict", "the claim")
    return Table((*head, "printed in the paper") if printed else head, rows)


def _claim_facts(judged: ClaimResult) -> dict[str, Any]:
    return {
        "text": judged.claim.text,
        "better": judged.claim.better,
        "than": judged.than,
        "measure": str(judged.claim.measure),
        "within": judged.claim.within,
        "lower": judged.claim.lower,
        "selection": judged.selection,
        "difference": judged.difference and asdict(judged.difference),
        "verdict": judged.verdict,
        "tests": asdict(judged.tests),
        "printed": judged.claim.printed,
    }


def _trend_table(report: Report) -> Table:
    several = len(report.plan.selections) > 1
    rows = []
    for trend in report.trends:
        text = trend.trend.text + (f" ({trend.selection})" if several else "")
        slope = [f"{trend.slope.mean:+.4f}" if trend.slope else "", _interval_text(trend.slope)]
        ranks = [f"{trend.spearman.mean:+.2f}" if trend.spearman else "", _interval_text(trend.spearman, 2)]
        ends = p_text(trend.p), trend.verdict, interval_text(trend.over_arms, "+"), interval_text(trend.left_out, "+")
        rows.append([text, str(trend.trend.measure), str(trend.arms), *slope, *ranks, *ends])
    title = f"slope a {report.plan.study.x}"
    head = ("claim", "measure", "arms", title, "95 %", "Spearman", "95 %", "p (Holm)", "verdict", "95 % over arms")
    return Table((*head, "slope without any one"), rows)


def _selection_table(report: Report) -> Table:
    rows = []
    for effect in report.selection_effects:
        mean, interval = f"{effect.difference.mean:+.4f}", _interval_text(effect.difference)
        rows.append([effect.arm, str(effect.measure), mean, interval, *_verdict_cells(effect.verdict)])
    return Table(("arm", "measure", "difference", "95 %", "p (Holm)", "validation-selected is"), rows)


def _correlation_table(report: Report) -> Table:
    rows = [[*names, "" if r is None else f"{r:+.3f}"] for *names, r in report.correlations]
    return Table(("epoch", "of", "with", "r"), rows)


def _budget_table(report: Report) -> Table:
    """Return the steps and images of each arm; arms with equal numbers share a line."""
    arms: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for label, counts in report.budgets.items():
        arms.setdefault(tuple(counts), []).append(label)
    rows = [
        [
            ", ".join(labels),
            *(" or ".join(dict.fromkeys(f"{n:,}" for n in numbers)) for numbers in zip(*counts, strict=True)),
        ]
        for counts, labels in arms.items()
    ]
    return Table(("arms", "steps per run", "images per run"), rows)


def _interval_text(value: Estimate | None, digits: int = 4) -> str:
    """Return the interval of a difference, a slope or a correlation; "" without one."""
    return interval_text(value.interval if value else None, "+", digits)


def _about_section(report: Report) -> Section:
    study, plan = report.plan.study, report.plan
    arms = len({(row.arm, row.selection) for row in report.rows})
    settings = [f"All arms with {', '.join(plan.settings)}."] if plan.settings else []
    runs = len(plan.arms) * plan.seeds * len(plan.selections)
    state = f"{runs - len(report.missing)} of {runs} runs are finished, of {arms} arms."
    published = [f"Published numbers, {text}." for text in report.protocols]
    title = f"{study.title} ({study.source})."
    texts = [title, *notes(report), *settings, protocol(report), measured_text(report), *published, state]
    return Section("What was compared", [Paragraph(text) for text in texts if text])


def _trial_table(plan: Plan) -> Table:
    searches = {arm.label: search for arm in plan.arms if (search := plan.search_of(arm)) is not None}
    return trial_table(searches, plan.trials)


def _trial_rule(plan: Plan) -> str:
    return f"{TRIAL_RULE} {SEARCH_RULE.format(plan.budget)}" if plan.budget else TRIAL_RULE


def _trial_sections(plan: Plan) -> list[Section]:
    """Return the trials, if the study has any."""
    return [Section("Trials", [Paragraph(_trial_rule(plan)), _trial_table(plan)])] if plan.rates else []


def _normalised_sections(report: Report) -> list[Section]:
    """Return the max-normalised scores, if the study has any."""
    blocks: list[Block] = [Paragraph(NORMALISATION), normalised_table(report.normalised)]
    return [Section("Normalised scores", blocks)] if report.normalised else []


def _claim_sections(report: Report) -> list[Section]:
    """Return a forest plot for each measure that a claim is about."""
    if not report.claims:
        return []
    blocks: list[Block] = [Paragraph(claim_counts(report.claims))]
    for measure in dict.fromkeys(judged.claim.measure for judged in report.claims):
        claims = [judged for judged in report.claims if judged.claim.measure == measure]
        several = len(report.plan.selections) > 1
        lines = [_claim_line(judged, judged.difference, several) for judged in claims if judged.difference is not None]
        waiting = [judged.claim.text for judged in claims if judged.difference is None]
        grey = "; grey: as far as little is claimed to be" if any(line.band for line in lines) else ""
        blocks.append(Paragraph(f"Differences of {measure_title(measure)}{grey}"))
        blocks += [ForestPlot(lines, 0.0)] if lines else []
        blocks += [Paragraph(f"Not measured yet: {'; '.join(waiting)}.")] if waiting else []
    return [Section("Claims", [*blocks, Paragraph(CLAIM_RULE)])]


def _claim_line(judged: ClaimResult, difference: Estimate, several: bool) -> ForestLine:
    selection = f", {judged.selection}" if several else ""
    p = f"; {judged.tests}, p (Holm) {judged.tests.p_text}" if judged.tests.p_text else ""
    limit = judged.claim.within
    tone, band = TONES.get(judged.verdict, ""), None if limit is None else (-limit, limit)
    printed = f"; printed in the paper: {judged.claim.printed}" if judged.claim.printed else ""
    note = f"{judged.claim.better} - {judged.than}: {_difference_text(difference)}{selection}{p}{printed}"
    return ForestLine(judged.claim.text, difference.mean, difference.interval, note, judged.verdict, tone, band)


def _score_sections(rows: Sequence[ScoreRow], selection: str, axis: str) -> list[Section]:
    """Return every arm by every measure."""
    blocks = _plots_by_measure(rows, lambda row: _score_line(row, axis))
    return [Section(f"Scores: {SELECTION_TITLES[selection]}", blocks)] if blocks else []


def _selection_sections(report: Report) -> list[Section]:
    """Return what the selection of the epoch changes, by measure."""
    blocks = _plots_by_measure(report.selection_effects, _selection_line, reference=0.0)
    heading = "Validation-selected beside the last epoch"
    return [Section(heading, [Paragraph(selection_rule(report)), *blocks])] if blocks else []


def _plots_by_measure(
    rows: Sequence[Measured], line: Callable[[Measured], ForestLine], reference: float | None = None
) -> list[Block]:
    """Return a forest plot for each measure, all but the first folded."""
    blocks: list[Block] = []
    for measure in dict.fromkeys(row.measure for row in rows):
        plot = ForestPlot([line(row) for row in rows if row.measure == measure], reference)
        title = measure_title(measure)
        blocks += [Details(title, [plot])] if blocks else [Paragraph(title), plot]
    return blocks


def _selection_line(effect: SelectionEffect) -> ForestLine:
    difference = effect.difference
    return ForestLine(
        effect.arm, difference.mean, difference.interval, _difference_text(difference), str(effect.verdict)
    )


def _difference_text(difference: Estimate) -> str:
    return f"{_signed_text(difference, 4)}, {_seeds_text(difference.n)}"


def _signed_text(value: Estimate, digits: int) -> str:
    bounds = f" ({_interval_text(value, digits)})" if value.interval else ""
    return f"{value.mean:+.{digits}f}{bounds}"


def _seeds_text(number: int) -> str:
    return f"{number} seed{'s' * (number > 1)}"


def _score_line(row: ScoreRow, axis: str) -> ForestLine:
    value, difference = row.value, row.difference
    place = f"{axis} {row.x:g}; " if row.x is not None else ""
    place += f"head {row.head}; " if row.head != HEADS["trained"] else ""
    bounds = f", {interval_text(value.interval)}" if value.interval else ""
    to_baseline = f"; {difference.mean:+.4f} to the baseline, {row.verdict}" if difference else ""
    published = f"; published {_published_text(row)}" if row.published is not None else ""
    rank = f"; rank {row.rank[0]} of {row.rank[1]}" if row.rank else ""
    note = f"{place}{_seeds_text(value.n)}{bounds}{to_baseline}{published}{rank}"
    return ForestLine(row.arm, value.mean, value.interval, note, score_text(value.mean, value.sd))


def _trend_sections(report: Report) -> list[Section]:
    """Return a figure for each trend, and before them what its numbers are."""
    sections = [_trend_section(report, trend, trend.slope) for trend in report.trends if trend.slope]
    about = Section(f"By {report.plan.study.x}", [Paragraph(trend_rule(report))])
    return [about, *sections] if sections else []


def _trend_section(report: Report, trend: TrendEstimate, slope: Estimate) -> Section:
    """Show every arm at its place on the axis, with its interval, and the line through them."""
    study, measure = report.plan.study, trend.trend.measure
    rows = [row for row in report.rows if (row.selection, row.measure) == (trend.selection, measure)]
    placed = [(row, row.x) for row in rows if row.x is not None]
    points = [(x, row.value.mean, row.value.interval) for row, x in placed]
    image = figures.trend(points, _mean_line(slope, points), study.x, measure_title(measure))
    blocks: list[Block] = [
        Picture(image, SVG, f"{measure_title(measure)} of every arm by {study.x}"),
        NumberedList([f"{row.arm}, {x:g}" for row, x in placed]),
        Paragraph(_trend_text(report, trend, slope)),
    ]
    return Section(f"{trend.trend.text}: {trend.verdict}", blocks, "half")


def _mean_line(slope: Estimate, points: list[figures.Point]) -> tuple[float, float]:
    """Return slope and intercept of the mean line, which goes through the means as every least-squares line does."""
    middle, mean = (sum(values) / len(points) for values in zip(*((x, y) for x, y, _ in points), strict=True))
    return slope.mean, mean - slope.mean * middle


def _trend_text(report: Report, trend: TrendEstimate, slope: Estimate) -> str:
    ranks = f" Spearman {_signed_text(trend.spearman, 2)}." if trend.spearman else ""
    least = f" Over arms {interval_text(trend.over_arms, '+')}." if trend.over_arms else ""
    least += f" Without any one arm {interval_text(trend.left_out, '+')}." if trend.left_out else ""
    axis = report.plan.study.x
    text = f"{measure_title(trend.trend.measure)}: slope {_signed_text(slope, 4)} a {axis}, {_seeds_text(slope.n)}."
    return f"{text}{ranks}{least} {SELECTION_TITLES[trend.selection].capitalize()}."


def _sweep_sections(report: Report, tables: Mapping[Measure, Values], selection: str) -> list[Section]:
    """Draw the first measure against the arms' places, a line for each recipe; trends have figures of their own."""
    study = report.plan.study
    if study.trends:
        return []
    measure = study.measures[0]
    means = _means(tables[measure])
    series: dict[str, list[tuple[float, float]]] = {}
    for arm in study.arms:
        if arm.x is not None and arm.label in means:
            series.setdefault(arm.recipe.partition("-$")[0], []).append((arm.x, means[arm.label]))
    if not series:
        return []
    title = measure_title(measure)
    image = figures.curves(series, study.x, title)
    return [figure_section(f"{title} by {study.x}", image, series, f"{SELECTION_TITLES[selection]}.")]


def _matrix_sections(tables: Mapping[Measure, Values], selection: str, ranks: Ranks) -> list[Section]:
    """Show how the measures go together over runs (Revisiting, figure 4)."""
    by_run = {
        measure_title(m): run_values(m, values, ranks) for m, values in tables.items() if depends_on_embeddings(m)
    }
    columns = {name: [value for _, value in sorted(values.items())] for name, values in by_run.items()}
    runs = len(next(iter(columns.values()), []))
    if len(columns) < 3 or runs < 3:
        return []
    selected = SELECTION_TITLES[selection].capitalize()
    text = f"Pearson's correlation over {count(runs, 'run')} of all arms. {selected}."
    heat_map = HeatMap(list(columns), correlation_triangle(columns))
    return [Section("How the measures go together", [heat_map, Paragraph(text)])]


def _decay_sections(tables: Mapping[Measure, Values], selection: str, ranks: Ranks) -> list[Section]:
    """Draw R@1, or else MAP@R, against spectral decay, a point for each arm (Revisiting, figure 5)."""
    score = next((measure for measure in (R1, MAP_AT_R) if measure in tables), None)
    if score is None or DECAY not in tables:
        return []
    scores, decays = _means(tables[score]), _means(tables[DECAY])
    low = [label for label in scores if label in ranks.get(DECAY, {})]
    labels = [label for label in scores if label in decays and label not in low]
    if len(labels) < 3:
        return []
    points = [(decays[label], scores[label]) for label in labels]
    r = pearson([x for x, _ in points], [y for _, y in points])
    text = f"Means over seeds; r = {r:+.2f} over arms. {SELECTION_TITLES[selection].capitalize()}." if r else ""
    text += f" Without {', '.join(low)}: rank below dimension." if low else ""
    image = figures.scatter([points], measure_title(DECAY), measure_title(score))
    blocks: list[Block] = [Picture(image, SVG, "A point for each arm"), NumberedList(labels), Paragraph(text)]
    return [Section(f"{measure_title(score)} against spectral decay", blocks, "half")]


def _curve_sections(curves: Curves) -> list[Section]:
    """Return a figure of all arms for each kind of curve."""
    kinds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, points in curves.items():
        arm, _, kind = name.partition(": ")
        if points:
            kinds.setdefault(kind, {})[arm] = [*points]
    return [_curve_section(kind, series) for kind, series in kinds.items()]


def _curve_section(kind: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> Section:
    title, text = kind.removesuffix(" by epoch").replace("recall_at_1", "R@1"), "Mean over seeds."
    if title.startswith("validation "):
        title = title.removeprefix("validation ")
        text = "On training classes held out, mean over seeds; test classes are measured once, at the end."
    return figure_section(
        f"{title[0].upper()}{title[1:]} by epoch", figures.curves(series, y_label=title), series, text
    )


def _spectrum_sections(spectra: Mapping[str, Sequence[float]]) -> list[Section]:
    """Return a figure for each split, view and selection."""
    kinds: dict[str, dict[str, Sequence[float]]] = {}
    for name, line in spectra.items():
        arm, _, kind = name.partition(": ")
        kinds.setdefault(kind, {})[arm] = line
    return [
        figure_section(kind.capitalize(), figures.spectra(list(by_arm.values())), by_arm)
        for kind, by_arm in kinds.items()
    ]


def _run_section(report: Report) -> Section:
    blocks: list[Block] = []
    if report.missing:
        heading = f"{count(len(report.missing), 'run')} are not finished"
        blocks.append(Details(heading, [Paragraph("; ".join(report.missing))]))
    if report.failures:
        blocks.append(Table(("run", "failed with"), list(report.failures.items())))
    if not any(": validation" in name for name in report.curves):
        text = "R@1 by epoch is measured on training classes held out, by runs with --select validation or both."
        blocks.append(Paragraph(text))
    blocks += [_budget_table(report)] if report.budgets else []
    made = [[key, "; ".join(map(fact_text, values))] for key, values in report.made_with.items() if values]
    facts = Table(("made with", ""), [["command", command_of(report.plan)], *made])
    return Section("Runs", [*blocks, Paragraph(dates(report)), facts])


def _means(values: Values) -> dict[str, float]:
    return {label: sum(seeds.values()) / len(seeds) for label, seeds in values.items()}
