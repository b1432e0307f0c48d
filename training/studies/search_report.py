"""The outcome of a search as Reality's tables print it: separated and concatenated scores with 95 % intervals."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from training.studies.closeness import KINDS, Difference, by_kind, closeness, compared
from training.studies.command_line import command_of_search
from training.studies.crossval import METRICS
from training.studies.search import Search, best_of, open_trials, reruns_of
from training.studies.search_page import as_html
from training.studies.search_words import CLOSENESS, SHORT, how, made_with, tested_by, values_of
from training.studies.statistics import Summary, summary
from zoo.files import write_bytes, write_json
from zoo.markdown import table

TESTED = ("seed", *KINDS, "protocol", "date", "versions", "commit", "hardware")
"""What is told of a rerun; older ones say less."""


def report_of(search: Search, folder: Path) -> list[dict[str, Any]]:
    """For each loss: its trials, best values, validation score, and each test score: of every rerun, and in sum."""
    found = []
    for loss, trials in open_trials(search, folder).items():
        performed = trials.get_trials(deepcopy=False)
        best, states = best_of(trials), [trial.state.name.lower() for trial in performed]
        runs = [] if best is None else reruns_of(search, loss, best.params, folder)
        found.append(
            {
                "loss": loss,
                "trials": {state: states.count(state) for state in dict.fromkeys(states)},
                "best": best and {"trial": best.number, "values": best.params, "validation_map_at_r": best.value},
                "began": _day(min((trial.datetime_start for trial in performed if trial.datetime_start), default=None)),
                "ended": _day(max((t.datetime_complete for t in performed if t.datetime_complete), default=None)),
                "validations": [trial.value for trial in performed],
                "reruns": len(runs),
                "tests": [{key: run[key] for key in TESTED if key in run} for run in runs],
                "scores": {kind: _scores(runs, kind) for kind in KINDS} if runs else None,
            }
        )
    return found


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else moment.date().isoformat()


def _scores(runs: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return {metric: vars(summary([run[kind][metric] for run in runs])) for metric in METRICS}


def to_json(search: Search, report: list[dict[str, Any]]) -> dict[str, Any]:
    """The report for programs."""
    found = compared(report)
    verdicts = {f"{metric} {kind}": closeness(each) for (metric, kind), each in by_kind(found).items()}
    facts = {**asdict(search), "command": command_of_search(search)}
    return {**facts, "losses": report, "differences": list(map(asdict, found)), "close": verdicts}


def as_markdown(search: Search, report: list[dict[str, Any]], folder: Path) -> str:
    """The report of a search and the folder that it is in."""
    head = ["loss", *(f"{SHORT[metric]} {kind}" for kind in KINDS for metric in METRICS), "validation MAP@R", "reruns"]
    lines = [
        f"# Search on {search.dataset}",
        "",
        how(search),
        "",
        *(line for text in tested_by(report) for line in (text, "")),
        *table(head, [_cells(row) for row in report]),
        "",
    ]
    for row in report:
        told = ", ".join(f"{count} {state}" for state, count in row["trials"].items()) or "none"
        lines.append(f"- {row['loss']}: best values {values_of(row)} (in Reality's conventions); trials: {told}")
    lines += ["", *_closeness(compared(report)), "```sh", command_of_search(search), "```", ""]
    return "\n".join([*lines, made_with(folder, report), ""])


def _closeness(found: list[Difference]) -> list[str]:
    if not found:
        return []
    told = [f"{SHORT[m]} {kind}: {closeness(each)}" for (m, kind), each in by_kind(found).items()]
    head = ["compared", "score", "difference", "95 %", "reruns", "within"]
    cells = [
        [f"{each.loss} - {each.other}", f"{SHORT[each.metric]} {each.kind}", *_points(each.difference), each.verdict]
        for each in found
    ]
    return ["## Are the tuned losses close?", "", f"{CLOSENESS} {'; '.join(told)}.", "", *table(head, cells), ""]


def _points(value: Summary | None) -> list[str]:
    """In points: the mean, its interval, and of how many."""
    if value is None:
        return ["", "", "0"]
    bounds = f"{100 * value.interval[0]:+.2f} to {100 * value.interval[1]:+.2f}" if value.interval else ""
    return [f"{100 * value.mean:+.2f}", bounds, str(value.n)]


def write_report(search: Search, report: list[dict[str, Any]], folder: Path) -> None:
    """Write report.md, report.json and report.html."""
    write_bytes(folder / "report.md", as_markdown(search, report, folder).encode())
    write_json(folder / "report.json", to_json(search, report))
    write_bytes(folder / "report.html", as_html(search, report, folder).encode())


def _cells(row: dict[str, Any]) -> list[str]:
    if row["scores"] is None:
        return [row["loss"], *([""] * len(KINDS) * len(METRICS)), _validated(row), "0"]
    scores = [_score(Summary(**row["scores"][kind][metric])) for kind in KINDS for metric in METRICS]
    return [row["loss"], *scores, _validated(row), str(row["reruns"])]


def _validated(row: dict[str, Any]) -> str:
    return f"{100 * row['best']['validation_map_at_r']:.2f}" if row["best"] else ""


def _score(value: Summary) -> str:
    half = f" ± {50 * (value.interval[1] - value.interval[0]):.2f}" if value.interval else ""
    return f"{100 * value.mean:.2f}{half}"
