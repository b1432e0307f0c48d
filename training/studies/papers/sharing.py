"""Studies of Sharing: its losses, ablations, the gap between training and test, and MIC."""

from __future__ import annotations

from training.recipes.common import PAPER_DATASETS, SMALL_DATASETS
from training.recipes.sharing import SHARING_LOSSES
from training.studies.papers.claims import SHARING, TABLE_MEASURES, arm, half_head, head, sharing_arm
from training.studies.study import (
    DECAY,
    FEATURES,
    GAP,
    MAP_AT_R,
    R1,
    RANDOM_HEAD,
    TRAIN_R1,
    Arm,
    Claim,
    Measure,
    Study,
)

LOSSES = {
    "margin": (),
    "triplet-s": ("objective.loss=triplet", "objective.miner=semihard", "objective.loss_args.squared=true"),
    "npair": ("objective.loss=npair", "objective.miner=none"),
    "proxynca": ("objective.loss=proxynca", "objective.miner=none", "optimizer.loss_lr=0.003"),
}
"""Settings by short name that replace margin by another loss."""


REGULARISERS = {"dropout": "dropout=0.2", "noise-in": "input_noise=0.1", "noise-out": "output_noise=0.05"}
"""Settings of the plain method by short name."""

BEATEN = tuple(Claim(f"both tasks beat {name}", "both", f"margin-{name}") for name in REGULARISERS)


HEADS = ("discriminative", "shared")
OF_HEADS = tuple(Measure(metric, "test", name) for name in HEADS for metric in ("recall_at_1", "nmi", "nmi_random"))
"""What tables 4 and 9 print of each head alone."""

ALONE = "objective.method_args.arm=discriminative"


def _losses() -> Study:
    arms = []
    for name, settings in LOSSES.items():
        arms += [
            arm("shared", *settings, half_head("discriminative"), ALONE, label=f"{name}, half"),
            arm("shared", *settings, head("discriminative"), ALONE, label=name),
            arm("shared", *settings, label=f"shared {name}"),
        ]
    return Study(
        "sharing/losses",
        "Four losses with and without what classes share, with as many numbers and with half of them, and each head",
        "Sharing, tables 1 to 4 and 9",
        tuple(arms),
        (*TABLE_MEASURES, *OF_HEADS),
        tuple(Claim(f"sharing raises R@1 of {name}", f"shared {name}", name) for name in LOSSES),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: sharing/table-4.",
    )


def _losses_published(table: str, short: str, half: int) -> Study:
    arms, claims = [], []
    for loss in SHARING_LOSSES:
        name = loss.removesuffix("-") or "margin"
        alone = f"shared-{loss}disc-{short}-$dataset"
        arms += [
            Arm(f"{name}, {half}", alone, (half_head("discriminative"),)),
            Arm(f"{name}, {2 * half}", alone),
            Arm(f"{name}, shared", f"shared-{loss}{short}-$dataset"),
        ]
        claims.append(Claim(f"sharing raises R@1 of {name}", f"{name}, shared", f"{name}, {2 * half}"))
    return Study(
        f"sharing/table-{table}",
        "Four losses: two baselines, the method, and each of its heads",
        f"Sharing, table {table}",
        tuple(arms),
        (*TABLE_MEASURES, *OF_HEADS),
        tuple(claims),
        datasets=PAPER_DATASETS,
        elsewhere="On small data sets: sharing/losses.",
        note=f"Baselines have the discriminative task alone, with {half} and {2 * half} numbers. All arms have equal "
        "numbers of steps and images.",
    )


def _ablation() -> Study:
    arms = tuple(sharing_arm(label) for label in SHARING)
    beaten = [Claim(f"the whole method beats {label}", "shared", label) for label in SHARING if label != "shared"]
    title = "One task or both, on one head or two, decorrelated or not"
    return Study(
        "sharing/ablation",
        title,
        "Sharing, table 7a",
        arms,
        (R1, MAP_AT_R, DECAY),
        tuple(beaten),
        note="All arms have as many numbers. The paper's both tasks on one head have half as many by its table 6: "
        "sharing/table-6 has that arm, called both.",
    )


def _table_6() -> Study:
    one = half_head("discriminative")
    plain = [
        arm(
            *("shared", "objective.method=plain", f"objective.method_args.{setting}", one, "schedule.epochs=$epochs"),
            label=f"margin-{name}",
        )
        for name, setting in REGULARISERS.items()
    ]
    both = arm("shared", "objective.method_args.arm=joint", half_head("joint"), label="both")
    return Study(
        "sharing/table-6",
        "Plain regularisers of margin beside both tasks on one head",
        "Sharing, table 6",
        (arm("shared", ALONE, one, label="margin"), *plain, both),
        (R1, DECAY),
        BEATEN,
        note="All arms have one head, half as wide as the method's two (128 numbers with ResNet-50), and equal numbers "
        "of steps and images. The paper does not print the strength of its regularisers: dropout .2, noise of .1 on "
        "normalised images and of .05 on embeddings are ours.",
    )


SETUPS = ("inter-class", "nearest", "unconstrained", "grouped", "grouped-standardised")


def _grouped(setup: str) -> Arm:
    """Return the method with triplets of a set-up, those of groups with 60 groups."""
    return arm("shared", f"objective.method_args.triplets={setup}", "objective.method_args.groups=60", label=setup)


def _table_8a() -> Study:
    return Study(
        "sharing/table-8a",
        "Triplets from which the shared task learns, and the discriminative task alone",
        "Sharing, table 8a",
        (*map(_grouped, SETUPS), sharing_arm("shared-disc")),
        (R1, MAP_AT_R),
        tuple(Claim(f"inter-class triplets beat {s}", "inter-class", s) for s in SETUPS[1:]),
        note="The paper does not print the number of groups; 60 is ours.",
    )


def _figure_4() -> Study:
    return Study(
        "sharing/figure-4",
        "Different classes in a group of training images, by epoch",
        "Sharing, figure 4",
        tuple(map(_grouped, SETUPS[3:])),
        (R1,),
        note="Classes per group (report.html; report.json, curves) are means over groups, which are renewed every "
        "third epoch. The paper does not print the number of groups; 60 is ours.",
    )


def _figure_6() -> Study:
    return Study(
        "sharing/figure-6",
        "Training loss and R@1 of each head, by epoch",
        "Sharing, figure 6",
        (sharing_arm("shared"),),
        (R1, *(Measure("recall_at_1", "test", name) for name in HEADS)),
        selections=("validation",),
        curves=True,
        note="The curves (report.html; report.json, curves) are of training classes held out, where the paper has test "
        "classes: these are measured once, at the epoch that is best on those.",
    )


def _table_7b() -> Study:
    weights = (0, 5, 10, 50, 100, 200, 500, 1000, 2500)
    arms = [Arm(f"{w}", "shared-$backbone-$dataset", (f"objective.method_args.gamma={w}",), w) for w in weights]
    title = "R@1 against the weight of the decorrelation"
    return Study("sharing/table-7b", title, "Sharing, table 7b", tuple(arms), (R1, MAP_AT_R), x="gamma")


def _table_8b() -> Study:
    kinds = ("distance-weighted", "semihard", "random")
    arms = [arm("shared", f"objective.method_args.negatives={kind}", label=kind) for kind in kinds]
    title = "How the shared task draws its negatives"
    return Study("sharing/table-8b", title, "Sharing, table 8b", tuple(arms), (R1, MAP_AT_R))


def _gap() -> Study:
    views = (*HEADS, RANDOM_HEAD, FEATURES)
    measures = [Measure("recall_at_1", split, view) for view in views for split in ("train", "test", GAP)]
    margin = arm("shared", ALONE, half_head("discriminative"), label="margin")
    closed = "sharing brings test and training classes closer, by"
    names = {"discriminative": "the discriminative head", RANDOM_HEAD: "a random head", FEATURES: "the features"}
    return Study(
        "sharing/generalisation-gap",
        "R@1 on training and test classes of each head, of a random head and of the features, and its gap",
        "Sharing, table 5",
        (margin, sharing_arm("shared-separate"), sharing_arm("shared")),
        (R1, TRAIN_R1, *measures),
        tuple(
            Claim(f"{closed} {name}", "shared", "margin", Measure("recall_at_1", GAP, view))
            for view, name in names.items()
        ),
        note="The gap is test less training, as the paper prints it. Margin has the head of the method's "
        "discriminative task, and equal numbers of steps and images.",
    )


def _tables_1_to_3() -> Study:
    groups = ("objective.method_args.triplets=grouped-standardised",)
    return Study(
        "sharing/tables-1-to-3",
        "The method beside margin with as many numbers, with groups, and MIC",
        "Sharing, tables 1 to 3, own rows",
        (
            Arm("shared-disc-r50", "shared-disc-r50-$dataset"),
            Arm("shared-r50", "shared-r50-$dataset"),
            Arm("shared-r50 of groups", "shared-r50-$dataset", groups),
            Arm("mic-r50", "mic-r50-$dataset"),
        ),
        (*TABLE_MEASURES, Measure("recall_at_4")),
        (Claim("sharing beats margin", "shared-r50", "shared-disc-r50"),),
        datasets=PAPER_DATASETS,
        elsewhere="On small data sets: sharing/losses.",
        note="Arms that are compared have equal numbers of steps and images. MIC has those of its own protocol.",
    )


STUDIES = (
    *(_tables_1_to_3(), _losses_published("4", "r50", 128), _losses_published("9", "gn", 512), _losses()),
    *(_gap(), _table_6(), _ablation(), _table_7b(), _table_8a(), _table_8b(), _figure_4(), _figure_6()),
)
