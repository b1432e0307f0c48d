"""A study's report as one HTML page that asks for nothing: claims, scores, and the pictures of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from training.studies.command_line import command_of
from training.studies.correlations import column, varies
from training.studies.rank import Ranks
from training.studies.report import Judged, Report, Row
from training.studies.results import Values
from training.studies.selections import Moved
from training.studies.statistics import FAILS, HOLDS, Summary
from training.studies.study import DECAY, MAP_AT_R, R1, Measure
from training.studies.trend_page import trend_sections
from training.studies.words import (
    SELECTED,
    VERDICTS,
    chance_of,
    counted,
    ended,
    how,
    name_of,
    notes,
    printed_of,
    rule_of_selections,
    told,
)
from zoo.report import pictures
from zoo.report.forest import Line, forest
from zoo.report.matrix import correlations, pearson
from zoo.report.page import Section, folded, legend, numbered, page, paragraph, picture, table

SVG = "image/svg+xml"
TONES = {HOLDS: "good", FAILS: "bad"}
SHOWN = len(pictures.COLOURS)
"""At most so many lines in a picture."""


def as_html(report: Report) -> str:
    """The whole page; what comes from files is escaped."""
    study, plan = report.plan.study, report.plan
    sections = [_about(report), *trend_sections(report), *_claims(report)]
    for selection in plan.selections:
        tables = report.values[selection]
        sections += _scores([row for row in report.rows if row.selection == selection], selection, study.x)
        sections += [*_sweeps(report, tables, selection), *_together(tables, selection, report.ranks)]
        sections += _decay(tables, selection, report.ranks)
    sections += [*_moved(report), *_curves(report.curves), *_spectra(report.spectra), _state(report)]
    return page(f"{study.name} on {plan.dataset}", sections)


def _about(report: Report) -> Section:
    study, plan = report.plan.study, report.plan
    finished = len({(row.arm, row.selection) for row in report.rows})
    settings = [f"All arms with {', '.join(plan.settings)}."] if plan.settings else []
    runs = len(plan.arms) * plan.seeds * len(plan.selections)
    state = f"{runs - len(report.missing)} of {runs} runs are finished, of {finished} arms."
    beside = [f"Published numbers, {text}." for text in report.protocols]
    texts = [f"{study.title} ({study.source}).", *notes(report), *settings, how(report), *beside, state]
    return Section("What was compared", "".join(map(paragraph, texts)))


def _claims(report: Report) -> list[Section]:
    """A forest plot for each measure of which something is claimed."""
    if not report.claims:
        return []
    parts = [paragraph(counted(report.claims))]
    for measure in dict.fromkeys(each.claim.measure for each in report.claims):
        chosen = [each for each in report.claims if each.claim.measure == measure]
        lines = [_line(each, len(report.plan.selections) > 1) for each in chosen if each.difference]
        waiting = [each.claim.text for each in chosen if not each.difference]
        grey = "; grey: as far as little is claimed to be" if any(line.band for line in lines) else ""
        parts.append(paragraph(f"Differences of {name_of(measure)}{grey}"))
        parts += [forest(lines, at=0.0)] if lines else []
        parts += [paragraph(f"Not measured yet: {'; '.join(waiting)}.")] if waiting else []
    return [Section("Claims", "".join(parts) + paragraph(VERDICTS))]


def _line(judged: Judged, several: bool) -> Line:
    found = judged.difference
    assert found is not None
    selection = f", {judged.selection}" if several else ""
    chance = "" if judged.holm is None else f"; p (Holm) {chance_of(judged.holm)}"
    limit = judged.claim.within
    tone, band = TONES.get(judged.verdict, ""), None if limit is None else (-limit, limit)
    note = f"{judged.claim.better} - {judged.than}: {_difference(found)}{selection}{chance}"
    return Line(judged.claim.text, found.mean, found.interval, note, judged.verdict, tone, band)


def _scores(rows: Sequence[Row], selection: str, axis: str) -> list[Section]:
    """Every arm by every measure; all but the first measure folded."""
    parts = []
    for number, measure in enumerate(dict.fromkeys(row.measure for row in rows)):
        chosen = [row for row in rows if row.measure == measure]
        body = forest([_arm(row, axis) for row in chosen])
        parts.append(folded(name_of(measure), body) if number else paragraph(name_of(measure)) + body)
    return [Section(f"Scores: {SELECTED[selection]}", "".join(parts))] if parts else []


def _moved(report: Report) -> list[Section]:
    """What the selection changes, by measure; all but the first folded."""
    parts = []
    for number, measure in enumerate(dict.fromkeys(each.measure for each in report.moved)):
        lines = [_shift(each) for each in report.moved if each.measure == measure]
        body = forest(lines, at=0.0)
        parts.append(folded(name_of(measure), body) if number else paragraph(name_of(measure)) + body)
    said = paragraph(rule_of_selections(report))
    return [Section("Validation-selected beside the last epoch", said + "".join(parts))] if parts else []


def _shift(each: Moved) -> Line:
    found = each.difference
    return Line(each.arm, found.mean, found.interval, _difference(found), each.verdict)


def _difference(found: Summary) -> str:
    bounds = f" ({found.interval[0]:+.4f} to {found.interval[1]:+.4f})" if found.interval else ""
    return f"{found.mean:+.4f}{bounds}, {found.n} seed{'s' * (found.n > 1)}"


def _arm(row: Row, axis: str) -> Line:
    value, difference = row.value, row.difference
    place = f"{axis} {row.x:g}; " if row.x is not None else ""
    bounds = f", {value.interval[0]:.4f} to {value.interval[1]:.4f}" if value.interval else ""
    beside = f"; {difference.mean:+.4f} to the baseline" if difference else ""
    printed = f"; published {printed_of(row)}" if row.published is not None else ""
    rank = f"; rank {row.rank[0]} of {row.rank[1]}" if row.rank else ""
    note = f"{place}{value.n} seed{'s' * (value.n > 1)}{bounds}{beside}{printed}{rank}"
    mark = f"{value.mean:.4f}" + (f" ± {value.sd:.4f}" if value.sd is not None else "")
    return Line(row.arm, value.mean, value.interval, note, mark)


def _sweeps(report: Report, tables: Mapping[Measure, Values], selection: str) -> list[Section]:
    """The first measure against the arms' places, a line for each recipe; trends have pictures of their own."""
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
    heading = f"{name_of(measure)} by {study.x}"
    return [_drawn(heading, pictures.curves(series, study.x, name_of(measure)), series, SELECTED[selection] + ".")]


def _together(tables: Mapping[Measure, Values], selection: str, ranks: Ranks) -> list[Section]:
    """How the measures go together over runs (Revisiting, figure 4)."""
    found = {name_of(m): column(m, values, ranks) for m, values in tables.items() if varies(m)}
    columns = {name: [value for _, value in sorted(values.items())] for name, values in found.items()}
    runs = len(next(iter(columns.values()), []))
    if len(columns) < 3 or runs < 3:
        return []
    text = f"Pearson's correlation over {runs} runs of all arms. {SELECTED[selection].capitalize()}."
    return [Section("How the measures go together", correlations(columns) + paragraph(text))]


def _decay(tables: Mapping[Measure, Values], selection: str, ranks: Ranks) -> list[Section]:
    """R@1, or else MAP@R, against spectral decay, a point for each arm (Revisiting, figure 5)."""
    score = next((measure for measure in (R1, MAP_AT_R) if measure in tables), None)
    if score is None or DECAY not in tables:
        return []
    up, across = _means(tables[score]), _means(tables[DECAY])
    low = [label for label in up if label in ranks.get(DECAY, {})]
    labels = [label for label in up if label in across and label not in low]
    if len(labels) < 3:
        return []
    points = [(across[label], up[label]) for label in labels]
    found = pearson([x for x, _ in points], [y for _, y in points])
    text = f"Means over seeds; r = {found:+.2f} over arms. {SELECTED[selection].capitalize()}." if found else ""
    text += f" Without {', '.join(low)}: rank below dimension." if low else ""
    image = picture(pictures.scatter([points], name_of(DECAY), name_of(score)), SVG, "A point for each arm")
    return [Section(f"{name_of(score)} against spectral decay", image + numbered(labels) + paragraph(text), "half")]


def _curves(curves: Mapping[str, Sequence[float]]) -> list[Section]:
    series = {name.partition(":")[0]: list(enumerate(line, start=1)) for name, line in curves.items() if len(line)}
    if not series:
        return []
    text = "On training classes held out, mean over seeds; test classes are measured once, at the end."
    return [_drawn("R@1 by epoch", pictures.curves(series), series, text)]


def _spectra(spectra: Mapping[str, Sequence[float]]) -> list[Section]:
    """A picture for each split, view and selection."""
    kinds: dict[str, dict[str, Sequence[float]]] = {}
    for name, line in spectra.items():
        arm, _, kind = name.partition(": ")
        kinds.setdefault(kind, {})[arm] = line
    return [_drawn(kind.capitalize(), pictures.spectra(list(s.values())), s, "") for kind, s in kinds.items()]


def _drawn(heading: str, image: bytes, names: Iterable[str], text: str) -> Section:
    names = list(names)
    left = f" The first {SHOWN} of {len(names)}." if len(names) > SHOWN else ""
    body = picture(image, SVG, heading) + legend(names, pictures.COLOURS)
    return Section(heading, body + (paragraph(f"{text}{left}") if text or left else ""), "half")


def _state(report: Report) -> Section:
    parts = []
    if report.missing:
        parts.append(folded(f"{len(report.missing)} runs are not finished", paragraph("; ".join(report.missing))))
    if report.failures:
        parts.append(table(("run", "failed with"), list(map(list, report.failures.items()))))
    if not report.curves:
        text = "R@1 by epoch is measured on training classes held out, by runs with --select validation or both."
        parts.append(paragraph(text))
    made = [[key, "; ".join(map(told, values))] for key, values in report.made_with.items() if values]
    parts += [paragraph(ended(report)), table(("made with", ""), [["command", command_of(report.plan)], *made])]
    return Section("Runs", "".join(parts))


def _means(values: Values) -> dict[str, float]:
    return {label: sum(seeds.values()) / len(seeds) for label, seeds in values.items()}
