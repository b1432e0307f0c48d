"""Studies of the losses by the year of their paper: are newer ones better (Reality, abstract)?"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from training.recipes.common import LATER_LOSSES, PAPER_DATASETS, PHOTO_DATASETS, SMALL_DATASETS
from training.studies.papers.claims import arm
from training.studies.study import MAP_AT_R, P1, R1, Arm, Claim, Measure, Study, Trend


class Loss(NamedTuple):
    """A loss and its paper.

    Attributes:
        small: The method of its recipes on small data sets.
        year: The year of the paper.
        paper: The paper that proposed it.
        tuned: Its methods with the values of Reality's search.
    """

    small: str
    year: int
    paper: str
    tuned: tuple[str, ...] = ()


LOSSES = (
    Loss(
        "contrastive",
        2006,
        "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping",
        ("contrastive",),
    ),
    Loss(
        "triplet-s", 2006, "Weinberger et al., Distance Metric Learning for Large Margin Classification", ("triplet",)
    ),
    Loss("npair", 2016, "Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective"),
    Loss("histogram", 2016, "Ustinova & Lempitsky, Learning Deep Embeddings with Histogram Loss"),
    Loss("lifted", 2017, "Hermans et al., In Defense of the Triplet Loss"),
    Loss("quadruplet", 2017, "Chen et al., Beyond Triplet Loss"),
    Loss("angular", 2017, "Wang et al., Deep Metric Learning with Angular Loss"),
    Loss("proxynca", 2017, "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies", ("proxynca",)),
    Loss("margin", 2017, "Wu et al., Sampling Matters in Deep Embedding Learning", ("margin", "margin-class")),
    Loss("softmax", 2017, "Liu et al., SphereFace", ("softmax",)),
    Loss("cosface", 2018, "Wang et al., Large Margin Cosine Loss for Deep Face Recognition", ("cosface",)),
    Loss("arcface", 2019, "Deng et al., Additive Angular Margin Loss for Deep Face Recognition", ("arcface",)),
    Loss("fastap", 2019, "Cakir et al., Deep Metric Learning to Rank", ("fastap",)),
    Loss("snr-contrastive", 2019, "Yuan et al., Signal-to-Noise Ratio", ("snr",)),
    Loss("ms", 2019, "Wang et al., Multi-Similarity Loss with General Pair Weighting", ("ms", "ms-miner")),
    Loss("softtriple", 2019, "Qian et al., SoftTriple Loss", ("softtriple",)),
    Loss(
        "ntxent",
        2020,
        "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations",
        ("ntxent",),
    ),
    Loss("supcon", 2020, "Khosla et al., Supervised Contrastive Learning"),
    Loss("circle", 2020, "Sun et al., Circle Loss"),
    Loss("pa", 2020, "Kim et al., Proxy Anchor Loss for Deep Metric Learning"),
)
"""The losses by year: that of Reality's table 6 and of the paper that it cites there; for losses that the table does
not have, of the paper that the loss's file in `training/losses` names."""

YEARS = {
    "triplet-d": 2006,
    **{method: settings.year for method, settings in LATER_LOSSES.items()},
    **{loss.small: loss.year for loss in LOSSES},
}
"""Years of objectives by method: losses of the later papers, and the losses above."""

BETTER = "newer losses are better"


def _claims(labels: list[str], measure: Measure) -> tuple[Claim, ...]:
    """Return the claims that each newer loss beats the two oldest, which are first."""
    old, new = labels[:2], labels[2:]
    return tuple(Claim(f"{label} beats {than}", label, than, measure) for label in new for than in old)


def _papers(losses: dict[str, Loss]) -> str:
    citations = [f"{label}: {loss.paper.partition(',')[0]} {loss.year}" for label, loss in losses.items()]
    return f"Years are those of these papers: {'; '.join(citations)}."


def _small() -> Study:
    losses = {loss.small: loss for loss in LOSSES}
    return Study(
        "claims/over-the-years",
        "Newer losses are better",
        "what papers claim, by Reality's abstract, and what it denies",
        tuple(replace(arm(label), x=loss.year) for label, loss in losses.items()),
        (R1, MAP_AT_R),
        _claims(list(losses), R1),
        x="year",
        trends=(Trend(BETTER), Trend(BETTER, MAP_AT_R)),
        datasets=(*SMALL_DATASETS, *PHOTO_DATASETS),
        elsewhere="On the papers' data sets: reality/over-the-years.",
        note="One training protocol, and the margins and temperatures of each loss's paper, none tuned to the data. "
        "The tuples of contrastive, margin and quadruplet are mined as Wu et al. proposed in 2017, those of triplet-s "
        f"as FaceNet did. {_papers(losses)}",
    )


def _tuned() -> Study:
    losses = {label: loss for loss in LOSSES for label in loss.tuned}
    return Study(
        "reality/over-the-years",
        "Newer losses are better, with the best values of the published search",
        "what papers claim, by Reality's abstract, and what it denies",
        tuple(Arm(label, f"reality-{label}-ibn-$dataset", x=loss.year) for label, loss in losses.items()),
        (P1, MAP_AT_R),
        _claims(list(losses), P1),
        seeds=10,
        selections=("validation",),
        x="year",
        trends=(Trend(BETTER, P1), Trend(BETTER, MAP_AT_R)),
        datasets=PAPER_DATASETS,
        elsewhere="There are no published values for small ones: claims/over-the-years.",
        note=_papers(losses),
    )


STUDIES = (_small(), _tuned())
