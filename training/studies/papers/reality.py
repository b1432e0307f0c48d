"""Studies of Reality: its losses with the values of the published search, or untuned on small data sets."""

from __future__ import annotations

from typing import Any

from training.recipes.common import PAPER_DATASETS, SMALL_DATASETS
from training.studies.papers.claims import arm
from training.studies.study import (
    FEATURES,
    MAP_AT_R,
    P1,
    SMALL_BACKBONES,
    Arm,
    Claim,
    Measure,
    Study,
    backbone_settings,
)

SIMILAR = 0.06
"""Six points of P@1. The paper says that losses perform similarly, be they of 2006 or of 2019 (section 4.2). Its tables
print differences from contrastive of -3.6 to +0.1 (CUB), -4.1 to +3.7 (Cars196) and -1.7 to +2.8 points (SOP) where
embeddings are joined, and of -2.8 to +1.5, -5.6 to +4.7 and -2.4 to +1.7 for single models."""

NAMES = ("precision_at_1", "r_precision", "map_at_r")
MEASURES = (P1, Measure("r_precision"), MAP_AT_R)

PAPERS = (
    *("contrastive", "triplet", "ntxent", "proxynca", "margin", "margin-class", "softmax", "cosface", "arcface"),
    *("fastap", "snr", "ms", "ms-miner", "softtriple"),
)
SMALL = (
    *("contrastive", "triplet-r", "ntxent", "proxynca", "margin", "softmax", "cosface", "arcface", "fastap"),
    *("snr-contrastive", "ms", "softtriple"),
)


def _similar(labels: tuple[str, ...]) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{label} lies within {SIMILAR} of contrastive", label, "contrastive", MEASURES[0], within=SIMILAR)
        for label in labels
        if label != "contrastive"
    )


UNSQUEEZED = ("schedule.epochs=0", "preprocessing.squeeze=false")
"""Reality's images before any training: the short side to 256, then the centre of 227 (section 3.1). The group loss has
the same backbone and crop, and on small data sets a backbone."""


def _pretrained() -> Study:
    reduced = [Measure(name, "test", f"features reduced to {dim}") for dim in (512, 128) for name in NAMES]
    whole = [Measure(name, "test", "features") for name in NAMES]
    return Study(
        "reality/pretrained",
        "The backbone before any training on the data, its features reduced by principal components",
        "Reality, pretrained rows of tables 3 to 5",
        (Arm("pretrained", "group-$backbone-$dataset", UNSQUEEZED, backbone="ibn"),),
        (*reduced, *whole),
        seeds=1,
        note="Small backbones start from random weights, and have fewer features than 512; those of the papers' data "
        "sets from ImageNet's. Components are those of the test split, whose labels they do not use.",
    )


BACKBONES = ("gn", "ibn", "r50")


def _untrained(table: str, title: str, measures: tuple[Measure, ...], settings: tuple[str, ...], **facts: Any) -> Study:
    """Return a study of three backbones before any training, on the papers' data sets."""
    arms = [
        Arm(short, "reality-contrastive-ibn-$dataset", ("schedule.epochs=0", *backbone_settings(short, 128), *settings))
        for short in BACKBONES
    ]
    return Study(
        f"reality/{table}",
        title,
        f"Reality, {table.replace('-', ' ')}",
        tuple(arms),
        measures,
        datasets=PAPER_DATASETS,
        **facts,
    )


def _table_1() -> Study:
    return _untrained(
        "table-1",
        "Three backbones with ImageNet's weights, their features reduced to 512 numbers",
        tuple(Measure(name, "test", "features reduced to 512") for name in ("recall_at_1", *NAMES)),
        (),
        seeds=1,
        elsewhere="Small backbones have no weights of ImageNet: reality/pretrained is of random ones.",
        note="Nothing is trained. Components are those of the test split, whose labels they do not use.",
    )


RANDOM_NMI = (
    Measure("nmi", "test", FEATURES),
    Measure("nmi_random", "test", FEATURES),
    Measure("recall_at_1", "test", FEATURES),
)


def _table_2() -> Study:
    return _untrained(
        "table-2",
        "NMI of three backbones with random weights",
        RANDOM_NMI,
        ("backbone.pretrained=false",),
        elsewhere="On small data sets: reality/table-2-small.",
        note="Nothing is trained. The paper does not print the dimension; these are the pooled features.",
    )


def _table_2_small() -> Study:
    arms = [arm("contrastive", "schedule.epochs=0", *own, label=label) for label, own in SMALL_BACKBONES.items()]
    return Study(
        "reality/table-2-small",
        "NMI of small backbones with random weights",
        "Reality, table 2",
        tuple(arms),
        RANDOM_NMI,
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: reality/table-2.",
        note="Nothing is trained.",
    )


STUDIES = (
    _pretrained(),
    _table_1(),
    _table_2(),
    _table_2_small(),
    Study(
        "reality/tables-3-to-5",
        "Fourteen losses with the best values of the published search",
        "Reality, tables 3 to 5",
        tuple(Arm(name, f"reality-{name}-ibn-$dataset") for name in PAPERS),
        MEASURES,
        _similar(PAPERS),
        baseline="contrastive",
        seeds=10,
        selections=("validation",),
        datasets=PAPER_DATASETS,
        elsewhere="There are no published values for small ones: reality/losses.",
        note="Each model is stopped by a random quarter of the training classes. The paper's tables have twelve losses "
        "and four models per rerun, of successive quarters: zoo benchmark search trains and joins these, and with "
        "--trials 0 with the published values.",
    ),
    Study(
        "reality/losses",
        "Losses of Reality on small data sets, not tuned",
        "Reality, tables 3 to 5",
        tuple(map(arm, SMALL)),
        MEASURES,
        _similar(SMALL),
        baseline="contrastive",
        seeds=10,
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: reality/tables-3-to-5.",
        note="The search that the paper tunes by: zoo benchmark search.",
    ),
)
