"""The reality check of 2026: objectives and claims under the protocol of docs/lab/protocol-2026.md."""

from __future__ import annotations

from dataclasses import replace

from training.recipes.common import PHOTO_DATASETS
from training.studies.papers.claims import NO_DECORRELATION, WITHOUT, arm, group_arm, rho_claims, sharing_arm
from training.studies.papers.years import BETTER, YEARS
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Claim, Study, Trend

OBJECTIVES = (
    *(
        "margin",
        "contrastive",
        "triplet-d",
        "npair",
        "histogram",
        "lifted",
        "angular",
        "proxynca",
        "softmax",
        "arcface",
    ),
    *("fastap", "ms", "softtriple", "ntxent", "circle", "pa", "smoothap", "recall"),
)
"""Objectives that differ in more than a distance, a margin or a miner; the protocol names the twins left out."""

START, LDA, TRUNK = "start", "lda of the trunk", "trunk"
UNTRAINED = "schedule.epochs=0"
BASELINES = (
    arm("margin", UNTRAINED, label=START),
    arm("margin", UNTRAINED, "head_start=lda", label=LDA),
    arm("margin", UNTRAINED, "heads=[]", "head_start=random", label=TRUNK),
)
"""Rows of no step: the heads' start, which is the trunk's PCA; its LDA on the training classes; the pooled features."""

PER_CLASS = {number: f"margin, {number} per class" for number in (2, 8)}


def _rho(form: str, regularised: str, method: str) -> tuple[Claim, Claim]:
    """Return the claims on rho, the first of MAP@R."""
    raises, lowers = rho_claims(form, regularised, method)
    return replace(raises, text=raises.text.replace("R@1", "MAP@R"), measure=MAP_AT_R), lowers


def _claims() -> tuple[Claim, ...]:
    """Return the claims of the five papers that the protocol names."""
    pairs = (
        ("the shared task adds to the discriminative task", "diva-ds", "margin", "CUB 63.6 to 65.1"),
        ("the intra task adds to the discriminative task", "diva-di", "margin", "CUB 63.6 to 64.9"),
        ("DaNCE adds to the discriminative task", "diva-dn", "margin", "CUB 63.6 to 64.5"),
        ("all four tasks beat the discriminative one alone", "diva", "margin", "CUB 63.6 to 66.4"),
        ("decorrelation adds to the four tasks", "diva", WITHOUT, "CUB 65.6 to 66.4"),
        ("sharing beats the discriminative task with as many numbers", "shared", "margin", "CUB 65.2 to 68.6"),
        ("decorrelation adds to separate heads", "shared", "shared-separate", "Cars196 84.1 to 87.0"),
        ("MIC beats margin with as many numbers", "mic", "margin", "CUB 63.6 to 66.1, quoted, 128 numbers"),
        ("the group loss (T=2) beats cross entropy", "group T=2", "cross entropy", ""),
        ("the group loss (T=2) beats normalised softmax", "group T=2", "softmax", "CUB 59.6, quoted, to 65.5"),
        ("2 samples per class beat 4", PER_CLASS[2], "margin", ""),
        ("4 samples per class beat 8", "margin", PER_CLASS[8], ""),
        ("triplet (S) beats (R)", "triplet-s", "triplet-r", "CUB 58.5 to 60.1"),
        ("triplet (D) beats (S)", "triplet-d", "triplet-s", "CUB 60.1 to 62.9"),
    )
    return (
        *_rho("(a, a, p)", "r-margin", "margin"),
        *_rho("(a, a, p)", "r-contrastive", "contrastive"),
        *(Claim(text, better, than, MAP_AT_R, printed=printed) for text, better, than, printed in pairs),
    )


def _arms() -> tuple[Arm, ...]:
    plain = arm("group", "objective.method_args.pretraining=100000", label="cross entropy")
    variants = [arm("margin", f"batch.per_class={number}", label=label) for number, label in PER_CLASS.items()]
    return (
        *BASELINES,
        *(replace(arm(objective), x=YEARS[objective]) for objective in OBJECTIVES),
        *map(arm, ("r-margin", "r-contrastive", "triplet-r", "triplet-s")),
        *variants,
        *map(arm, ("diva-ds", "diva-di", "diva-dn", "diva")),
        arm("diva", *NO_DECORRELATION, label=WITHOUT),
        *map(sharing_arm, ("shared-separate", "shared")),
        arm("mic"),
        group_arm(2),
        plain,
    )


STUDIES = (
    Study(
        "claims/reality-2026",
        "Objectives and claims under one protocol, with baselines of no step",
        "docs/lab/protocol-2026.md",
        _arms(),
        (MAP_AT_R, R1, DECAY),
        _claims(),
        baseline="margin",
        seeds=8,
        x="year",
        trends=(Trend(BETTER, MAP_AT_R), Trend(BETTER)),
        datasets=PHOTO_DATASETS,
        elsewhere="On the papers' data sets: revisiting/table-2.",
        note="Scores are of photographs of 160 pixels, enlarged to the size that the settings name. Years are of the "
        "loss, not of its miner; only objectives have one. r-... stands for rho of the form (a, a, p). The "
        "discriminative task alone, of DiVA and of Sharing, is margin. What the papers print is R@1.",
    ),
)
