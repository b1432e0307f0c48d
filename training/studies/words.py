"""What reports say in words, on every kind of page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from training.studies.plan import Plan
from training.studies.report import Judged, Report, Row
from training.studies.selections import RULE
from training.studies.statistics import FAILS, HOLDS, UNDECIDED
from training.studies.study import EMBEDDING, Measure

SELECTED = {"last": "last epoch, trained on all training classes", "validation": "epoch selected on held-out classes"}

VERDICTS = (
    '"Holds" where the whole 95 % interval lies on the claimed side of 0 (or within the margin named), "does not" '
    "where it lies on the other (or beyond the margin); undecided otherwise, below two seeds, and where the interval "
    "is wider, end to end, than the difference itself (unless all of it lies within a margin). Each interval is for "
    "its claim alone: of twenty claims about nothing, one has an interval beside 0 by chance. p (Holm) is adjusted for "
    "all claims of differences here: those below 0.05 stand together."
)


def how(report: Report) -> str:
    """The protocol in a sentence or two."""
    if report.plan.seeds == 1:
        return "Seed 0 alone: no interval, and nothing is decided. Give --seeds for more."
    reference = report.plan.study.reference
    return (
        f"Seeds 0 to {report.plan.seeds - 1}. Mean ± standard deviation over seeds, then the 95 % Student-t interval "
        "of the mean; "
        + (
            f"differences to {reference} are paired by seed."
            if reference in {arm.label for arm in report.plan.arms}
            else f"no differences, which would be to {reference}: that arm was not chosen."
        )
    )


def notes(report: Report) -> list[str]:
    """What a reader must know of the study, and of arms whose numbers are not what they seem."""
    low: dict[str, tuple[int, int]] = {}
    for ranks in report.ranks.values():
        low |= ranks
    found = [note for note in (report.plan.study.note, _chosen(report.plan)) if note]
    if low:
        found.append(LOW_RANK.format(", ".join(f"{label} ({rank} of {dim})" for label, (rank, dim) in low.items())))
    return [*found, *(f"{', '.join(labels)}: one model under {len(labels)} names." for labels in report.twins)]


def _chosen(plan: Plan) -> str:
    if not plan.only:
        return ""
    left = len(plan.study.claims) - len(plan.claims)
    out = f" {left} claims about others are left out." if left else ""
    return f"Chosen: {len(plan.only)} of the study's {len(plan.study.arms)} arms ({', '.join(plan.only)}).{out}"


def ended(report: Report) -> str:
    """When the runs ended, and how long they took."""
    if not report.rows:
        return "No run has finished yet."
    dates = f"Runs ended from {report.dates[0]} to {report.dates[1]}. " if report.dates else ""
    return f"{dates}Training took {report.seconds:,.0f} s in all."


LOW_RANK = (
    "Rank below dimension: {}. Heads wider than the features that they are given leave the other singular values at "
    "what rounding makes of 0, and these alone decide the spectral decay. Such arms are marked, and left out of "
    "pictures and correlations of spectral decay and of verdicts on it."
)


def counted(claims: Sequence[Judged]) -> str:
    """How many claims hold, do not, or are undecided."""
    counts = {verdict: sum(each.verdict == verdict for each in claims) for verdict in (HOLDS, FAILS, UNDECIDED)}
    together = sum(each.holm is not None and each.holm < 0.05 and each.verdict == HOLDS for each in claims)
    unmeasured = sum(each.difference is None or each.difference.n < 2 for each in claims)
    many = "claim" if len(claims) == 1 else "claims"
    text = f"Of {len(claims)} {many} {counts[HOLDS]} hold, {counts[FAILS]} do not, {counts[UNDECIDED]} are undecided"
    text += f", {unmeasured} of them for want of two common seeds." if unmeasured else "."
    return f"{text} After Holm's correction {together} of those that hold stand." if counts[HOLDS] else text


def rule_of_trends(report: Report) -> str:
    """What a trend is, and what its interval is of."""
    return TRENDS.format(report.plan.study.x)


TRENDS = (
    "A straight line through all arms, seed by seed: its slope, a {0}, and Spearman's rank correlation, each with the "
    '95 % Student-t interval over seeds; "holds" and "does not" as for claims. The interval is of these very arms: how '
    "much hangs on their choice, the least and the greatest slope tell where any one is left out, and where that turns "
    "the sign nothing is decided."
)


def name_of(measure: Measure) -> str:
    """A measure as people write it: R@1 on test."""
    metric = re.sub(r"^recall_at_(\d+)$", r"R@\1", measure.metric)
    metric = NAMES.get(metric, metric)
    view = "" if measure.view == EMBEDDING else f" of {measure.view}"
    return f"{metric.replace('_', ' ')}{view} on {measure.split}"


NAMES = {
    "map_at_r": "MAP@R",
    "precision_at_1": "P@1",
    "nmi": "NMI",
    "nmi_random": "NMI of random embeddings",
    "map": "mAP",
}


def printed_of(row: Row) -> str:
    """What the paper prints, with its deviation over runs where it gives one."""
    if row.published is None:
        return ""
    return f"{row.published:.4f}" + ("" if row.published_sd is None else f" ± {row.published_sd:.4f}")


def rule_of_selections(report: Report) -> str:
    """What is compared of the two selections, and what else differs between them."""
    return f"{RULE} {report.unlike}".rstrip()


def chance_of(p: float) -> str:
    """A p-value as it is printed."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def told(value: object) -> str:
    """A fact of what runs were made with; one of several parts as part and value."""
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
