"""Studies of Sharing: its losses, ablations, the gap between training and test, and MIC."""

from __future__ import annotations

from training.recipes.common import PAPER_DATASETS, SMALL_DATASETS
from training.recipes.sharing import SHARING_LOSSES
from training.studies.papers.claims import SHARING, TABLE_MEASURES, arm, head, sharing_arm
from training.studies.study import (
    DECAY,
    FEATURES,
    MAP_AT_R,
    R1,
    RANDOM_HEAD,
    Arm,
    Claim,
    Measure,
    Study,
    embedding_head,
)

LOSSES = {
    "margin": (),
    "triplet-s": ("objective.loss=triplet", "objective.miner=semihard", "objective.loss_args.squared=true"),
    "npair": ("objective.loss=n-pair", "objective.miner=none"),
    "proxynca": ("objective.loss=proxy-nca", "objective.miner=none", "optimizer.loss_lr=0.003"),
}
"""Settings by short name that replace margin by another loss."""


REGULARISERS = {"dropout": "dropout=0.2", "noise-in": "input_noise=0.1", "noise-out": "output_noise=0.05"}
"""Settings of the plain method by short name."""

BEATEN = tuple(Claim(f"sharing beats {name}", "shared", f"margin-{name}") for name in REGULARISERS)


def _losses() -> Study:
    arms = []
    for name, settings in LOSSES.items():
        alone = (head("discriminative"), "objective.method_args.arm=discriminative")
        arms += [arm("shared", *settings, *alone, label=name), arm("shared", *settings, label=f"shared {name}")]
    return Study(
        "sharing/losses",
        "Four losses with and without what classes share, with as many numbers",
        "Sharing, tables 1 to 4",
        tuple(arms),
        TABLE_MEASURES,
        tuple(Claim(f"sharing raises R@1 of {name}", f"shared {name}", name) for name in LOSSES),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: sharing/tables-1-to-3.",
    )


def _ablation() -> Study:
    arms = tuple(sharing_arm(label) for label in SHARING)
    beaten = [Claim(f"the whole method beats {label}", "shared", label) for label in SHARING if label != "shared"]
    title = "One task or both, on one head or two, decorrelated or not"
    return Study("sharing/ablation", title, "Sharing, table 7a", arms, (R1, MAP_AT_R, DECAY), tuple(beaten))


def _table_6() -> Study:
    plain = [arm("margin", embedding_head(256)), *(arm(f"margin-{name}", embedding_head(256)) for name in REGULARISERS)]
    return Study(
        "sharing/table-6",
        "Plain regularisers of margin beside the method",
        "Sharing, table 6",
        (*plain, sharing_arm("shared")),
        (R1, DECAY),
        BEATEN,
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: sharing/table-6-published.",
        note="Plain recipes have an embedding of 256 numbers, as many as the method's on Omniglot and CIFAR-100.",
    )


def _table_6_published() -> Study:
    recipe = "shared-disc-r50-$dataset"
    plain = [
        Arm(f"margin-{name}", recipe, ("objective.method=plain", f"objective.method_args.{setting}"))
        for name, setting in REGULARISERS.items()
    ]
    return Study(
        "sharing/table-6-published",
        "Plain regularisers of margin beside the method, with as many numbers",
        "Sharing, table 6",
        (Arm("margin", recipe), *plain, Arm("shared", "shared-r50-$dataset")),
        (R1, DECAY),
        BEATEN,
        datasets=PAPER_DATASETS,
        elsewhere="On small data sets: sharing/table-6.",
        note="All have the protocol of Sharing and an embedding of 256 numbers. The paper does not print the strength "
        "of its regularisers; here they are those of the small data sets: dropout .2, noise of .1 on normalised images "
        "and of .05 on embeddings.",
    )


SETUPS = ("inter-class", "nearest", "unconstrained", "grouped", "grouped-standardised")


def _table_7() -> Study:
    arms = [
        arm("shared", f"objective.method_args.triplets={s}", "objective.method_args.groups=60", label=s) for s in SETUPS
    ]
    return Study(
        "sharing/table-7",
        "Triplets from which the shared task learns",
        "Sharing, table 8a",
        tuple(arms),
        (R1, MAP_AT_R),
        tuple(Claim(f"inter-class triplets beat {s}", "inter-class", s) for s in SETUPS[1:]),
    )


def _table_7b() -> Study:
    weights = (0, 5, 10, 50, 100, 200, 500, 1000, 2500)
    arms = [Arm(f"{w}", "shared-$backbone-$dataset", (f"objective.method_args.gamma={w}",), w) for w in weights]
    title = "R@1 against the weight of the decorrelation"
    return Study("sharing/table-7b", title, "Sharing, table 7b", tuple(arms), (R1, MAP_AT_R), x="gamma")


def _table_8() -> Study:
    kinds = ("distance-weighted", "semihard", "random")
    arms = [arm("shared", f"objective.method_args.negatives={kind}", label=kind) for kind in kinds]
    title = "How the shared task draws its negatives"
    return Study("sharing/table-8", title, "Sharing, table 8b", tuple(arms), (R1, MAP_AT_R))


def _gap() -> Study:
    views = ("discriminative", "shared", RANDOM_HEAD, FEATURES)
    measures = [Measure("recall_at_1", split, view) for view in views for split in ("train", "test")]
    separate, whole = sharing_arm("shared-separate"), sharing_arm("shared")
    return Study(
        "sharing/generalisation-gap",
        "R@1 on training and test classes of each head, of a random head and of the features",
        "Sharing, table 5",
        (separate, whole),
        (R1, Measure("recall_at_1", "train"), *measures),
    )


def _tables_1_to_3() -> Study:
    pairs = [
        (f"shared-{loss}disc-{short}", f"shared-{loss}{short}") for short in ("r50", "gn") for loss in SHARING_LOSSES
    ]
    arms = [Arm(name, f"{name}-$dataset") for pair in pairs for name in pair]
    groups = ("objective.method_args.triplets=grouped-standardised",)
    return Study(
        "sharing/tables-1-to-3",
        "The method with four losses on two backbones beside the discriminative task alone, and MIC",
        "Sharing, tables 1 to 3, own rows; tables 4 and 9 in part",
        (*arms, Arm("shared-r50 of groups", "shared-r50-$dataset", groups), Arm("mic-r50", "mic-r50-$dataset")),
        (*TABLE_MEASURES, Measure("recall_at_4")),
        tuple(Claim(f"{shared} beats {alone}", shared, alone) for alone, shared in pairs),
        datasets=PAPER_DATASETS,
        elsewhere="On small data sets: sharing/losses.",
        note="Arms that are compared have equal numbers of steps and images. MIC has those of its own protocol.",
    )


STUDIES = (
    *(_tables_1_to_3(), _losses(), _ablation(), _table_6(), _table_6_published()),
    *(_table_7(), _table_7b(), _table_8(), _gap()),
)
