"""The outcome of a search as Markdown, JSON and one HTML page, with separated and concatenated scores as in Reality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

from training.studies.cross_validation import KINDS, METRICS
from training.studies.papers.claims import CLOSE
from training.studies.plan import read_record
from training.studies.render import TONES, command_of_search, fact_text
from training.studies.search import SEARCH_FILE, SearchPlan, best_trial, finished_reruns, load_trials, values_to_test
from training.studies.statistics import FAILS, HOLDS, estimate_score, judge_claim, metric_bounds, paired_difference
from training.studies.study import Claim, recipe_dataset
from zoo.console import interval_text, score_text
from zoo.data.dataset import FOLDER, dataset_title
from zoo.evaluation.statistics import UNDECIDED, VERDICT_RULE, Estimate, Verdict, judge
from zoo.files import write_bytes, write_json
from zoo.render import Table, environment
from zoo.report import figures
from zoo.report.html import Block, Details, ForestLine, ForestPlot, Paragraph, Section, figure_section, page

CLOSENESS_RULE = (
    f"Whether every two losses lie within {CLOSE:g} of one another after tuning; differences over reruns "
    f"are paired by seed. {VERDICT_RULE} The margin is {CLOSE:g}, and a family is all pairs by one score. Close holds "
    "where a pair is equivalent, and does not where the whole interval lies beyond the margin; of all pairs: where "
    "each does, and where any does not."
)

METRIC_TITLES = {"precision_at_1": "P@1", "r_precision": "RP", "map_at_r": "MAP@R"}

RERUN_FACTS = ("seed", *KINDS, "protocol", "date", "versions", "commit", "hardware")
"""The facts of a rerun that the report keeps."""

LossReport = dict[str, Any]
"""The outcome of one loss; see `build_report`."""


@dataclass(frozen=True)
class LossDifference:
    """The test score of one loss minus that of another, its tests, and whether they are within `CLOSE`."""

    kind: str
    metric: str
    loss: str
    other: str
    difference: Estimate | None
    verdict: Verdict
    close: str


def build_report(search: SearchPlan, folder: Path) -> list[LossReport]:
    """Return for each loss its trials, best values, validation score, and test scores of every rerun and on average.

    Args:
        search: The search.
        folder: Its folder.
    """
    report = []
    for loss, trials in load_trials(search, folder).items():
        performed = trials.get_trials(deepcopy=False)
        best, states = best_trial(trials), [trial.state.name.lower() for trial in performed]
        values = values_to_test(search, trials)
        runs = [] if values is None else finished_reruns(search, loss, values, folder)
        report.append(
            {
                "loss": loss,
                "given": not search.trials,
                "trials": {state: states.count(state) for state in dict.fromkeys(states)},
                "best": best and {"trial": best.number, "values": best.params, "validation_map_at_r": best.value},
                "began": _day(min((trial.datetime_start for trial in performed if trial.datetime_start), default=None)),
                "ended": _day(max((t.datetime_complete for t in performed if t.datetime_complete), default=None)),
                "validations": [trial.value for trial in performed],
                "reruns": len(runs),
                "tests": [{key: run[key] for key in RERUN_FACTS} for run in runs],
                "scores": {kind: _summaries(runs, kind) for kind in KINDS} if runs else None,
            }
        )
    return report


def loss_differences(report: Sequence[LossReport]) -> list[LossDifference]:
    """Return the differences between every two tested losses by metric and kind.

    Reruns with the same number have the same seed for every loss, so that networks start alike and differences are
    paired.
    """
    tests = {row["loss"]: row["tests"] for row in report if row["tests"]}
    pairs = list(combinations(tests, 2))
    return [found for metric in METRICS for kind in KINDS for found in _score_differences(kind, metric, pairs, tests)]


def combined_verdict(differences: Sequence[LossDifference]) -> str:
    """Return the verdict on several differences: it holds if each does, fails if any does, else it is undecided."""
    verdicts = {pair.close for pair in differences}
    return FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED


def group_by_score(differences: Sequence[LossDifference]) -> dict[tuple[str, str], list[LossDifference]]:
    """Return the differences by metric and kind."""
    groups: dict[tuple[str, str], list[LossDifference]] = {}
    for pair in differences:
        groups.setdefault((pair.metric, pair.kind), []).append(pair)
    return groups


def to_json(search: SearchPlan, report: list[LossReport]) -> dict[str, Any]:
    """Return the report for programs."""
    differences = loss_differences(report)
    verdicts = {
        f"{metric} {kind}": combined_verdict(pairs) for (metric, kind), pairs in group_by_score(differences).items()
    }
    facts = {**asdict(search), "command": command_of_search(search)}
    return {**facts, "losses": report, "differences": list(map(asdict, differences)), "close": verdicts}


def as_markdown(search: SearchPlan, report: list[LossReport], folder: Path) -> str:
    """Return the report in Markdown.

    Args:
        search: The search.
        report: As `build_report` returns it.
        folder: The search's folder.
    """
    differences = loss_differences(report)
    verdicts = [
        f"{METRIC_TITLES[metric]} {kind}: {combined_verdict(pairs)}"
        for (metric, kind), pairs in group_by_score(differences).items()
    ]
    return (
        environment("training.studies")
        .get_template("search.md.j2")
        .render(
            data=data_name(search),
            report=report,
            protocol=protocol(search),
            tested_by=_protocol_notes(report),
            scores=_score_table(report),
            best_values=best_values,
            trials=_trials_text,
            differences=_difference_table(differences) if differences else None,
            closeness_rule=CLOSENESS_RULE,
            verdicts="; ".join(verdicts),
            command=command_of_search(search),
            made_with=_made_with_text(folder, report),
        )
    )


def as_html(search: SearchPlan, report: list[LossReport], folder: Path) -> str:
    """Return the whole page; text from files is escaped. Arguments are those of `as_markdown`."""
    about = (protocol(search), *_protocol_notes(report), command_of_search(search), _made_with_text(folder, report))
    sections = [
        Section("How it was searched", list(map(Paragraph, about))),
        *_score_sections(report),
        *_closeness_sections(report),
        *_trial_sections(report),
        _value_section(report),
    ]
    return page(f"Search on {data_name(search)}", sections)


def data_name(search: SearchPlan) -> str:
    """Return the name of the data set; of a folder or table its own name."""
    own = search.dataset == FOLDER or f"data.dataset={FOLDER}" in search.settings
    return Path(search.data).name if own and search.data else dataset_title(search.dataset)


def write_report(search: SearchPlan, report: list[LossReport], folder: Path) -> None:
    """Write report.md, report.json and report.html."""
    write_bytes(folder / "report.md", as_markdown(search, report, folder).encode())
    write_json(folder / "report.json", to_json(search, report))
    write_bytes(folder / "report.html", as_html(search, report, folder).encode())


def protocol(search: SearchPlan) -> str:
    """Return the protocol in a few sentences."""
    settings = f" With {', '.join(search.settings)}." if search.settings else ""
    owner = recipe_dataset(search.dataset)
    recipes = f" The recipes are those of {owner}." if owner != search.dataset else ""
    folds = f"{search.folds}-fold class-disjoint cross validation on the training classes, patience {search.patience}"
    done = (
        f"{search.trials} trials of each loss by {folds}; then {search.reruns} reruns of the best"
        if search.trials
        else f"{search.reruns} reruns of the recipes' own values by {folds}"
    )
    return (
        f"{done}, tested once (after Reality, section 4). Separated: the mean of the folds' models; concatenated: "
        f"their embeddings joined. Mean ± half of the 95 % Student-t interval.{recipes}{settings}"
    )


def _protocol_notes(report: Sequence[LossReport]) -> list[str]:
    """Return a sentence on the protocol of the tests; nothing before the first test."""
    protocols = dict.fromkeys(run["protocol"] for row in report for run in row["tests"])
    return [f"Tested by: {'; '.join(protocols)}."] if protocols else []


def _made_with_text(folder: Path, report: Sequence[LossReport]) -> str:
    """Return when the trials ran, and the versions and hardware that the search was begun or last resumed with."""
    dates = sorted(date for row in report for date in (row["began"], row["ended"]) if date)
    ran = f"Trials ran from {dates[0]} to {dates[-1]}. " if dates else ""
    facts = read_record(folder / SEARCH_FILE)
    facts_text = "; ".join(fact_text(facts[key]) for key in ("hardware", "versions", "commit") if facts.get(key))
    return f"{ran}Made with: {facts_text}."


def best_values(row: LossReport) -> str:
    """Return the best values of a loss."""
    best = row["best"]
    if row["given"]:
        return "those of the recipe, which were not searched"
    if not best:
        return "none yet"
    return ", ".join(f"{key.rpartition('.')[2]} {value:.4g}" for key, value in best["values"].items())


def _score_differences(
    kind: str, metric: str, pairs: Sequence[tuple[str, str]], tests: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[LossDifference]:
    """Return the differences of all pairs by one score, which are one family."""
    values = {loss: {int(run["seed"]): float(run[kind][metric]) for run in runs} for loss, runs in tests.items()}
    differences = [paired_difference(values[loss], values[other], metric) for loss, other in pairs]
    judged = zip(pairs, differences, judge(differences, [CLOSE] * len(pairs)), strict=True)
    return [
        LossDifference(kind, metric, *pair, found, *_closeness(pair, found, tests)) for pair, found, tests in judged
    ]


def _closeness(pair: tuple[str, str], difference: Estimate | None, verdict: Verdict) -> tuple[Verdict, str]:
    return judge_claim(Claim(f"{pair[0]} lies within {CLOSE} of {pair[1]}", *pair, within=CLOSE), difference, verdict)


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else moment.date().isoformat()


def _summaries(runs: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    values = {metric: {int(run["seed"]): float(run[kind][metric]) for run in runs} for metric in METRICS}
    return {metric: vars(estimate_score(by_seed, metric_bounds(metric))) for metric, by_seed in values.items()}


def _trials_text(row: LossReport) -> str:
    return ", ".join(f"{count} {state}" for state, count in row["trials"].items())


def _score_table(report: Sequence[LossReport]) -> Table:
    titles = [f"{METRIC_TITLES[metric]} {kind}" for kind in KINDS for metric in METRICS]
    return Table(("loss", *titles, "validation MAP@R", "reruns"), list(map(_score_cells, report)))


def _score_cells(row: LossReport) -> list[str]:
    validated = f"{row['best']['validation_map_at_r']:.4f}" if row["best"] else ""
    if row["scores"] is None:
        return [row["loss"], *([""] * len(KINDS) * len(METRICS)), validated, "0"]
    scores = [_score_text(row, kind, metric) for kind in KINDS for metric in METRICS]
    return [row["loss"], *scores, validated, str(row["reruns"])]


def _score_text(row: LossReport, kind: str, metric: str) -> str:
    value = Estimate(**row["scores"][kind][metric])
    return score_text(value.mean, value.half)


def _difference_table(differences: Sequence[LossDifference]) -> Table:
    rows = [
        [
            f"{pair.loss} - {pair.other}",
            f"{METRIC_TITLES[pair.metric]} {pair.kind}",
            *_difference_cells(pair.difference),
            pair.verdict.p_text,
            str(pair.verdict),
            pair.close,
        ]
        for pair in differences
    ]
    return Table(("compared", "score", "difference", "95 %", "reruns", "p (Holm)", "verdict", "within"), rows)


def _difference_cells(value: Estimate | None) -> list[str]:
    """Return the mean, its interval, and the number of reruns."""
    if value is None:
        return ["", "", "0"]
    return [f"{value.mean:+.4f}", interval_text(value.interval, "+"), str(value.n)]


def _score_sections(report: Sequence[LossReport]) -> list[Section]:
    """Return every loss, separated and concatenated, by each metric."""
    tested = [row for row in report if row["scores"]]
    if not tested:
        return []
    blocks: list[Block] = []
    for metric in reversed(METRICS):
        lines = [
            _score_line(f"{row['loss']}, {kind}", Estimate(**row["scores"][kind][metric]))
            for row in tested
            for kind in row["scores"]
        ]
        title, plot = METRIC_TITLES[metric], ForestPlot(lines)
        blocks += [Details(title, [plot])] if blocks else [Paragraph(title), plot]
    return [Section("Test scores", blocks)]


def _score_line(name: str, value: Estimate) -> ForestLine:
    return ForestLine(name, value.mean, value.interval, f"{value.n} reruns", score_text(value.mean, value.half))


def _closeness_sections(report: Sequence[LossReport]) -> list[Section]:
    """Return the differences between every two losses, by each score; the first two open."""
    blocks: list[Block] = []
    for number, ((metric, kind), pairs) in enumerate(group_by_score(loss_differences(report)).items()):
        lines = [_difference_line(pair, pair.difference) for pair in pairs if pair.difference]
        title = f"{METRIC_TITLES[metric]} {kind}: {combined_verdict(pairs)}"
        plots = [ForestPlot(lines, 0.0)] if lines else []
        blocks += [Details(title, plots)] if number > 1 else [Paragraph(title), *plots]
    return [Section("Are the tuned losses close?", [Paragraph(CLOSENESS_RULE), *blocks])] if blocks else []


def _difference_line(pair: LossDifference, value: Estimate) -> ForestLine:
    mean, interval, reruns = _difference_cells(value)
    note = f"{mean} ({interval}), {reruns} reruns" if interval else f"{mean}, {reruns} reruns"
    label, tone = f"{pair.loss} - {pair.other}", TONES.get(pair.close, "")
    return ForestLine(label, value.mean, value.interval, note, str(pair.verdict), tone, (-CLOSE, CLOSE))


def _trial_sections(report: Sequence[LossReport]) -> list[Section]:
    """Return the figure of the best validation so far, trial by trial."""
    series = {row["loss"]: best for row in report if (best := _best_so_far(row["validations"]))}
    if not series:
        return []
    text = "Mean MAP@R over the folds' held-out classes; test classes take no part."
    return [figure_section("Best validation so far", figures.curves(series, "trial", "MAP@R"), series, text)]


def _best_so_far(validations: list[float | None]) -> list[tuple[float, float]]:
    best, points = 0.0, []
    for number, value in enumerate(validations, start=1):
        if value is not None:
            best = max(best, value)
            points.append((float(number), best))
    return points


def _value_section(report: Sequence[LossReport]) -> Section:
    rows = [[row["loss"], best_values(row), _trials_text(row)] for row in report]
    return Section("Best values, in Reality's conventions", [Table(("loss", "values", "trials"), rows)], "half")
