"""Reality: its losses side by side, with the values that its search found, or as they are on small data sets."""

from __future__ import annotations

from training.studies.claims import CLOSE, arm
from training.studies.study import MAP_AT_R, Arm, Claim, Measure, Study

MEASURES = (Measure("precision_at_1"), Measure("r_precision"), MAP_AT_R)

PAPERS = (
    *("contrastive", "triplet", "ntxent", "proxynca", "margin", "margin-class", "softmax", "cosface", "arcface"),
    *("fastap", "snr", "ms", "ms-miner", "softtriple"),
)
SMALL = (
    *("contrastive", "triplet-r", "ntxent", "proxynca", "margin", "softmax", "cosface", "arcface", "fastap"),
    *("snr-contrastive", "ms", "softtriple"),
)


def _close(labels: tuple[str, ...]) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{label} lies within {CLOSE} of contrastive", label, "contrastive", MEASURES[0], within=CLOSE)
        for label in labels
        if label != "contrastive"
    )


STUDIES = (
    Study(
        "reality/tables-3-to-5",
        "Fourteen losses with the best values of the published search",
        "Reality, tables 3 to 5",
        tuple(Arm(name, f"reality-{name}-ibn-$dataset") for name in PAPERS),
        MEASURES,
        _close(PAPERS),
        baseline="contrastive",
        seeds=10,
        datasets=("cub", "cars", "sop"),
    ),
    Study(
        "reality/losses",
        "Losses of Reality on small data sets, not tuned",
        "Reality, tables 3 to 5",
        tuple(map(arm, SMALL)),
        MEASURES,
        _close(SMALL),
        baseline="contrastive",
        seeds=10,
        datasets=("glyphs", "omniglot", "cifar100"),
        note="The search that the paper tunes by: zoo benchmark search.",
    ),
)
