"""Studies of Group: the loss compared with softmax, its refinement, and its robustness to the batch."""

from __future__ import annotations

from training.recipes.common import PAPER_DATASETS, SMALL_DATASETS
from training.studies.papers.claims import TABLE_MEASURES, arm, group_arm
from training.studies.study import (
    MAP_AT_R,
    R1,
    R1_GAP,
    SMALL_BACKBONES,
    SMALL_TWINS,
    TRAIN_R1,
    Arm,
    Claim,
    Measure,
    Study,
    backbone_settings,
)

RECIPE = "group-$backbone-$dataset"
MEASURES = (R1, MAP_AT_R)
GROUP_MEASURES = (*TABLE_MEASURES, Measure("recall_at_4"), Measure("recall_at_8"))
"""Measures of its tables 1 and 2."""


def _table_1() -> Study:
    plain = arm("group", "objective.method_args.pretraining=100000", label="cross entropy")
    published = arm("group", "objective.loss_args.published=true", label="group, published code")
    return Study(
        "group/table-1",
        "The group loss beside cross entropy on the same network",
        "Group, tables 1 and 2",
        (plain, arm("group"), published),
        GROUP_MEASURES,
        (Claim("the group loss beats cross entropy", "group"),),
    )


def _sweep(name: str, title: str, source: str, key: str, values: tuple[float, ...], axis: str) -> Study:
    arms = tuple(Arm(f"{axis} {v:g}", RECIPE, (f"{key}={v:g}",), v, "ibn") for v in values)
    return Study(f"group/{name}", title, source, arms, MEASURES, x=axis)


def _samples() -> Study:
    arms = [
        Arm(
            f"samples {n}",
            RECIPE,
            ("batch.size=126", f"batch.per_class={n}", "objective.loss_args.anchors=1"),
            n,
            "ibn",
        )
        for n in (2, 3, 6, 7, 9, 14)
        if n > 2
    ]
    title = "R@1 against samples a class, in batches of 126"
    return Study("group/samples", title, ROBUST, tuple(arms), MEASURES, x="samples a class")


def _classes() -> Study:
    arms = [
        Arm(f"classes {n}", RECIPE, (f"batch.size={6 * n}", "batch.per_class=6"), n, "ibn")
        for n in (4, 8, 12, 21, 30, 42)
    ]
    title = "R@1 against classes a batch, six samples of each"
    return Study("group/classes", title, "Group, figure 5", tuple(arms), MEASURES, x="classes a batch")


CURVES = (
    "The curves (report.html; report.json, curves) are of training classes held out: test classes are measured once, "
    "at the epoch that is best on those."
)


PROXYNCA = arm("group", "objective.method=plain", "objective.loss=proxynca", label="proxynca")
"""Proxy-NCA under the protocol of the group loss."""


def _grid() -> Study:
    arms = [
        Arm(
            f"anchors {anchors}, samples {samples}",
            RECIPE,
            (
                f"batch.size={6 * samples}",
                f"batch.per_class={samples}",
                f"objective.loss_args.anchors={anchors}",
            ),
            backbone="ibn",
        )
        for samples in range(5, 11)
        for anchors in range(5)
    ]
    return Study(
        "group/figure-4",
        "R@1 by anchors and samples a class",
        "Group, figures 4 and 9, appendix A",
        tuple(arms),
        MEASURES,
        baseline="anchors 2, samples 9",
        note="Batches have six classes, as the published code has on CUB; the paper does not say how many there are.",
    )


def _overfitting() -> Study:
    unregularised = arm("group", "optimizer.weight_decay=0", label="group without L2")
    return Study(
        "group/figure-7",
        "R@1 on training and held-out classes by epoch, beside Proxy-NCA and without weight decay",
        "Group, figures 7 and 8",
        (arm("group"), unregularised, PROXYNCA),
        (R1, TRAIN_R1, R1_GAP),
        (
            Claim("the group loss beats Proxy-NCA", "group", "proxynca"),
            Claim("its gap between test and training classes is smaller", "group", "proxynca", R1_GAP),
        ),
        selections=("validation",),
        curves=True,
        note=f"{CURVES} Those of the training images are of all training classes that are not held out. Proxy-NCA has "
        "the protocol of the group loss, as in section 4.5.",
    )


def _one_centre() -> Study:
    single = ("objective.method=plain", "objective.loss=softtriple", "objective.loss_args.centers_per_class=1")
    return Study(
        "group/appendix-e",
        "The group loss beside SoftTriple with one centre a class",
        "Group, appendix E",
        (arm("group"), arm("group", *single, label="softtriple, one centre")),
        TABLE_MEASURES,
        (Claim("the group loss beats SoftTriple with one centre", "group", "softtriple, one centre"),),
        note="Both have the protocol of the group loss; the paper trained SoftTriple by the code of its authors. "
        "SoftTriple has the constants of Revisiting.",
    )


def _convergence(name: str, triplets: Arm, datasets: tuple[str, ...], elsewhere: str, note: str = CURVES) -> Study:
    plain = arm("group", "objective.method_args.pretraining=100000", label="cross entropy")
    return Study(
        f"group/{name}",
        "R@1 epoch by epoch beside cross entropy, Proxy-NCA and triplets",
        "Group, figure 6",
        (plain, arm("group"), PROXYNCA, triplets),
        MEASURES,
        datasets=datasets,
        selections=("validation",),
        elsewhere=elsewhere,
        note=note,
    )


def _published_convergence() -> Study:
    return _convergence(
        "convergence-published",
        arm("triplet-s", *backbone_settings("ibn", 512), label="triplet-s"),
        PAPER_DATASETS,
        "On small data sets: group/convergence.",
        f"{CURVES} Triplets have the group loss's backbone, Inception with batch norm, and the protocol of Revisiting: "
        "its rate, its batches, its number of epochs.",
    )


def _small_backbones() -> Study:
    return Study(
        "group/table-3-small",
        "The group loss on small backbones",
        "Group, table 3",
        tuple(arm("group", *settings, label=label) for label, settings in SMALL_BACKBONES.items()),
        TABLE_MEASURES,
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: group/table-3.",
        note=SMALL_TWINS,
    )


def _appendix_f_g_i() -> Study:
    kinds = {
        "clamp": "objective.loss_args.similarity=clamp",
        "shift": "objective.loss_args.similarity=shift",
        "kl": "objective.loss_args.criterion=kl",
        "sparse classes": "objective.loss_args.sparse_classes=true",
    }
    arms = tuple(arm("group", setting, label=label) for label, setting in kinds.items())
    title = "Negative similarities cut or shifted; the KL criterion; the classes of the batch alone"
    return Study("group/appendix-f-g-i", title, "Group, appendices F, G and I", arms, MEASURES)


def _ensembles() -> Study:
    sizes = (1, 2, 5)
    arms = [Arm(f"{n} models" if n > 1 else "one model", RECIPE, (), n, "ibn", copies=n) for n in sizes]
    claims = [Claim(f"{n} models beat one", f"{n} models") for n in sizes[1:]]
    title = "Embeddings of several models joined"
    return Study("group/ensembles", title, "Group, table 2", tuple(arms), GROUP_MEASURES, tuple(claims), x="models")


ROBUST = "beside Group, figures 4, 5 and 9, whose grids are group/figure-4 and group/classes"

STUDIES = (
    _table_1(),
    Study(
        "group/refinement",
        "R@1 by steps of refinement",
        "steps of section 3.3; the paper prints no such comparison",
        tuple(group_arm(steps) for steps in (0, 1, 2, 3, 5, 10)),
        MEASURES,
    ),
    _sweep(
        *("anchors", "R@1 against anchors a class", ROBUST, "objective.loss_args.anchors"),
        (0, 1, 2, 3, 4, 5),
        "anchors",
    ),
    _sweep(
        *("temperature", "R@1 against the temperature of the priors", "Group, appendix C"),
        *("objective.loss_args.temperature", (1, 3, 10, 24, 54, 79), "temperature"),
    ),
    _samples(),
    _classes(),
    _grid(),
    _overfitting(),
    _one_centre(),
    _convergence(
        "convergence", arm("triplet-s"), SMALL_DATASETS, "On the papers' data sets: group/convergence-published."
    ),
    _published_convergence(),
    _appendix_f_g_i(),
    _ensembles(),
    Study(
        "group/table-3",
        "The group loss on Inception with batch norm and four DenseNets",
        "Group, table 3",
        tuple(Arm(short, f"group-{short}-$dataset") for short in ("ibn", "d121", "d161", "d169", "d201")),
        TABLE_MEASURES,
        datasets=PAPER_DATASETS,
        elsewhere="Recipes of small data sets have small backbones: group/table-3-small.",
    ),
    _small_backbones(),
)
