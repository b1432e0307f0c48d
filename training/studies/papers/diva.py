"""Studies of DiVA: ablation by tasks, compared methods, weights of the loss, and the views of each head."""

from __future__ import annotations

from training.recipes.common import PAPER_DATASETS, PHOTO_DATASETS, SMALL_DATASETS
from training.studies.papers.claims import NO_DECORRELATION, TABLE_MEASURES, WITHOUT, arm
from training.studies.study import (
    CATEGORICAL_FACTORS,
    DECAY,
    MAP_AT_R,
    NUMERIC_FACTORS,
    R1,
    SMALL_BACKBONES,
    SMALL_TWINS,
    Arm,
    Claim,
    Measure,
    Study,
)

TASKS = ("diva-d", "diva-ds", "diva-di", "diva-dn", "diva-dsi", "diva-dsn", "diva-din", "diva")
OTHERS = ("diva-nce", "diva-deepcluster", "diva-rotation", "diva-instance", "diva-ensemble")


HEADS = ("discriminative", "shared", "intra", "dance")
HEAD_MEASURES = (("recall_at_1", "test"), ("recall_at_1", "train"), ("spectral_decay", "train"))


def _task_claims(whole: str, without: str) -> tuple[Claim, ...]:
    """Return the claims of tables 2 and 4 by the labels of all tasks, with decorrelation and without."""
    return (
        *(Claim(f"{name} beats the discriminative task alone", name, "diva-d") for name in (*TASKS[1:-1], whole)),
        *(Claim(f"DaNCE beats {name.removeprefix('diva-')}", "diva-dn", name) for name in OTHERS[:-1]),
        Claim("the discriminative task alone beats it with nce", "diva-d", "diva-nce"),
        Claim("all tasks beat an ensemble", whole, "diva-ensemble"),
        Claim("decorrelation adds to all tasks", whole, without),
        Claim("all tasks in one model beat models trained one by one", whole, "diva-separate"),
    )


def _table_2() -> Study:
    names = (*TASKS[:-1], *OTHERS, "diva-separate")
    arms = [Arm(name, f"{name}-ibn-$dataset") for name in names]
    return Study(
        "diva/table-2",
        "Tasks one by one, without decorrelation, and other auxiliary tasks",
        "DiVA, tables 2 and 4, figures 1 and 4",
        (
            *arms,
            Arm("diva", "diva-dsin-ibn-$dataset"),
            Arm(WITHOUT, "diva-dsin-ibn-$dataset", NO_DECORRELATION),
        ),
        (*TABLE_MEASURES, DECAY),
        _task_claims("diva", WITHOUT),
        datasets=PAPER_DATASETS,
        elsewhere="On small data sets: diva/tasks.",
        note="Inception with batch norm at a constant rate, with its constants of table 1, as in sections 4.1 and 4.3.",
    )


def _tasks() -> Study:
    return Study(
        "diva/tasks",
        "Tasks one by one, without decorrelation, and other auxiliary tasks, on small networks",
        "DiVA, tables 2 and 4, figures 1 and 4",
        (*map(arm, (*TASKS, *OTHERS, "diva-separate")), arm("diva", *NO_DECORRELATION, label=WITHOUT)),
        (*TABLE_MEASURES, DECAY),
        _task_claims("diva", WITHOUT),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: diva/table-2.",
    )


def _table_3() -> Study:
    return Study(
        "diva/table-3",
        "The method beside margin with as many numbers",
        "DiVA, table 3",
        (arm("diva-d"), arm("diva")),
        TABLE_MEASURES,
        (Claim("DiVA beats margin", "diva"),),
        note="On the papers' data sets the backbone is ResNet-50; diva/backbones has both, and models trained one by "
        "one.",
    )


def _weight(name: str, symbol: str, values: tuple[float, ...], title: str) -> Study:
    arms = [
        Arm(f"{symbol} {value:g}", "diva-$backbone-$dataset", (f"objective.method_args.{symbol}={value}",), value)
        for value in values
    ]
    return Study(
        f"diva/{name}",
        title,
        "weights of equations 7 and 8; the paper prints no such comparison",
        tuple(arms),
        (R1, MAP_AT_R, DECAY),
        x=symbol,
    )


def _heads(name: str, arms: tuple[Arm, ...], datasets: tuple[str, ...], elsewhere: str, note: str) -> Study:
    measures = [Measure(metric, split, head) for head in HEADS for metric, split in HEAD_MEASURES]
    return Study(
        f"diva/{name}",
        "What each head is worth alone, and the singular values beside those of the discriminative task",
        "DiVA, figure 5 and table 4",
        arms,
        (R1, DECAY, *measures),
        (Claim("DiVA lowers the spectral decay of its discriminative task", "diva", "diva-d", DECAY, lower=True),),
        datasets=datasets,
        elsewhere=elsewhere,
        spectrum=True,
        note=note,
    )


def _figure_5() -> Study:
    arms = (
        Arm("diva", "diva-dsin-ibn-$dataset"),
        Arm(WITHOUT, "diva-dsin-ibn-$dataset", NO_DECORRELATION),
        Arm("diva-d", "diva-d-ibn-$dataset"),
    )
    return _heads(
        "figure-5",
        arms,
        PAPER_DATASETS,
        "On other data sets: diva/heads.",
        "Inception with batch norm at a constant rate, as in section 4.3.",
    )


def _small_heads() -> Study:
    return _heads(
        "heads",
        (arm("diva"), arm("diva", *NO_DECORRELATION, label=WITHOUT), arm("diva-d")),
        (*SMALL_DATASETS, *PHOTO_DATASETS),
        "On the papers' data sets: diva/figure-5.",
        "What the heads know of the factors of glyphs: diva/factors.",
    )


def _factors() -> Study:
    measures = [
        Measure(f"factor_{name}", "test", head) for name in (*CATEGORICAL_FACTORS, *NUMERIC_FACTORS) for head in HEADS
    ]
    return Study(
        "diva/factors",
        "What each head knows of ink, background, pattern, face, angle and scale",
        "DiVA, what its tasks are to learn",
        (arm("diva"), arm("diva", *NO_DECORRELATION, label=WITHOUT)),
        (R1, *measures),
        datasets=("glyphs",),
        elsewhere="No other has these factors; what each head is worth on the papers' data sets: diva/figure-5.",
        note="Of kinds (ink, background, inverted, pattern, face) the precision of the nearest neighbour of another "
        "class; of sizes (angle, scale) the rank correlation with distances within a class.",
    )


def _small_backbones() -> Study:
    arms = [
        arm(method, *settings, label=f"{method} {label}")
        for label, settings in SMALL_BACKBONES.items()
        for method in ("diva", "diva-d")
    ]
    claims = [Claim(f"DiVA beats margin on {label}", f"diva {label}", f"diva-d {label}") for label in SMALL_BACKBONES]
    separate = arm("diva-separate", label="diva-separate conv4")
    return Study(
        "diva/backbones-small",
        "The method on small backbones beside margin with as many numbers, and models trained one by one",
        "DiVA, tables 3 and 4",
        (*arms, separate),
        TABLE_MEASURES,
        (*claims, Claim("DiVA beats models trained one by one", "diva conv4", separate.label)),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: diva/backbones.",
        note=SMALL_TWINS,
    )


STUDIES = (
    _table_2(),
    _tasks(),
    _table_3(),
    _weight("rho", "rho", (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0), "R@1 against the weight of the decorrelation"),
    _weight("alpha", "alpha", (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0), "R@1 against the weight of the auxiliary tasks"),
    _figure_5(),
    _small_heads(),
    _factors(),
    Study(
        "diva/backbones",
        "The method on two backbones, beside models trained one by one",
        "DiVA, table 3, and table 4 on ResNet-50",
        tuple(Arm(name, f"{name}-$dataset") for name in ("diva-r50", "diva-ibn", "diva-d-r50", "diva-separate-r50")),
        TABLE_MEASURES,
        (
            Claim("DiVA beats margin", "diva-r50", "diva-d-r50"),
            Claim("DiVA beats models trained one by one", "diva-r50", "diva-separate-r50"),
        ),
        datasets=PAPER_DATASETS,
        elsewhere="Recipes of small data sets have small backbones: diva/backbones-small.",
    ),
    _small_backbones(),
)
