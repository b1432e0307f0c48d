"""Studies of Revisiting: its measured tables and figures, with a fixed number of epochs and five seeds."""

from __future__ import annotations

from training.recipes.common import PAPER_DATASETS, SMALL_DATASETS
from training.studies.papers.claims import NMI, arm, rho_claims
from training.studies.study import (
    DECAY,
    DRAWN_DECAY,
    MAP_AT_R,
    R1,
    Arm,
    Claim,
    Measure,
    Study,
    backbone_settings,
    embedding_head,
)

OBJECTIVES = (
    *("angular", "arcface", "contrastive", "lifted", "histogram", "margin06", "margin", "ms", "npair", "proxynca"),
    *("quadruplet", "snr", "softtriple", "softmax", "triplet-r", "triplet-s", "triplet-h", "triplet-d"),
)
RHO = ("contrastive", "margin06", "margin", "snr", "triplet-d")

STRUCTURE = tuple(
    Measure(metric, "train")
    for metric in (
        *("spectral_decay", "spectral_decay_drop_1", "spectral_decay_by_class", "intra_class_distance"),
        *("inter_class_distance", "intra_inter_ratio"),
    )
)
"""Structure of the embedded training data: the paper's measures, and the decay without the largest singular value, by
which the published code draws figure 9."""

SUMMARISED = (R1, Measure("recall_at_2"), Measure("nmi"), Measure("f1_neighbours"), Measure("map_by_class"))
"""The paper's metrics (section 4.1 and appendix A.3), which figures 2 and 3 sum up."""

MEASURED = (*SUMMARISED[:2], *NMI, *SUMMARISED[3:], MAP_AT_R)
"""The paper's metrics, NMI of random embeddings, and MAP@R."""

OF_THE_CODE = (Measure("f1_clusters"), Measure("map_at_1000_query_counted"), Measure("map"))
"""F1 and mAP as the published code computes them, and the usual mAP."""

SAMPLED = ("margin", "triplet-r", "proxynca", "ms", "histogram", "softmax")
"""Objectives of figure 3 (section 4.3): margin with distance-weighted and triplets with random mining."""

VARIED = ("margin", "triplet-r", "proxynca", "ms", "softmax")
"""Objectives of figure 2."""

UNNAMED = (
    "The paper names no objective of its five in figure 2: these are those of figure 3 without the histogram loss. The "
    "values on the axes are ours, as the figure's are not in the text."
)

UNCROPPED = "The paper's recipe crops 224 pixels for GoogLeNet, as for the others; the published code crops 227."

SQUARED = "triplet-d, squared"
"""The label of triplet-d with the distance of r-triplet-d, its squared one."""

RHO_FORM = (
    "rho has the published form, (a, a, p), in every arm, and r-triplet-d squared distances as in the published code; "
    "'triplet-d, squared' is the arm that it is compared with."
)


def _all_objectives() -> tuple[Arm, ...]:
    squared = arm("triplet-d", "objective.loss_args.squared=true", label=SQUARED)
    return (*map(arm, OBJECTIVES), squared, *(arm(f"r-{method}") for method in RHO))


def _table_2() -> Study:
    plain = {method: method for method in RHO} | {"triplet-d": SQUARED}
    both = [rho_claims("(a, a, p)", f"r-{method}", method, plain[method]) for method in RHO]
    return Study(
        "revisiting/table-2",
        "Objectives under one protocol, and rho-regularisation",
        "Revisiting, table 2 and figure 1",
        _all_objectives(),
        (*MEASURED, DECAY, DRAWN_DECAY),
        (*(raises for raises, _ in both), *(lowers for _, lowers in both)),
        baseline="margin",
        note=RHO_FORM,
    )


def _table_1() -> Study:
    return Study(
        "revisiting/table-1",
        "The backbone before any training on the data, with a random head and without one",
        "Revisiting, table 1",
        (arm("margin", "schedule.epochs=0", label="untrained"), arm("margin", label="margin")),
        (R1, Measure("recall_at_1", "test", "features"), *NMI),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets, where there are ImageNet's weights: revisiting/table-1-published.",
        note="Small backbones start from random weights.",
    )


def _weight_decay() -> Study:
    arms = [
        Arm(f"{method} {decay:g}", f"{method}-$backbone-$dataset", (f"optimizer.weight_decay={decay}",), decay)
        for method in VARIED
        for decay in (0.0, 1e-5, 1e-4, 4e-4, 1e-3, 1e-2)
    ]
    title = "R@1 against weight decay"
    return Study(
        "revisiting/figure-2-weight-decay",
        title,
        "Revisiting, figure 2",
        tuple(arms),
        (*MEASURED, DECAY),
        x="weight decay",
        note=UNNAMED,
        normalised=SUMMARISED,
    )


def _dimension() -> Study:
    arms = [
        Arm(f"{method} {dim}", f"{method}-$backbone-$dataset", (embedding_head(dim),), dim)
        for method in VARIED
        for dim in (16, 32, 64, 128, 256, 512)
    ]
    title = "R@1 against the dimension of the embedding"
    return Study(
        "revisiting/figure-2-dimension",
        title,
        "Revisiting, figure 2",
        tuple(arms),
        (*MEASURED, DECAY),
        x="dimension",
        note=UNNAMED,
        normalised=SUMMARISED,
    )


def _backbone() -> Study:
    widths = {"quarter": [16, 32, 48, 64], "half": [32, 64, 96, 128], "full": [64, 128, 192, 256]}
    arms = [
        arm(method, f"backbone.args.widths={values}", label=f"{method} conv4 {name}")
        for method in VARIED
        for name, values in widths.items()
    ]
    deep = [
        arm(method, "backbone.name=r18", "backbone.architecture=resnet18", label=f"{method} resnet18")
        for method in VARIED
    ]
    return Study(
        "revisiting/figure-2-backbone",
        "R@1 by backbone",
        "Revisiting, figure 2",
        (*arms, *deep),
        (*MEASURED, DECAY),
        datasets=SMALL_DATASETS,
        elsewhere="On the papers' data sets: revisiting/figure-2-published.",
        note="Small twins of the paper's backbones: conv4 in three widths, and ResNet-18, all from random weights. "
        f"{UNNAMED}",
        normalised=SUMMARISED,
    )


PUBLISHED_DIMS = {"r50": 128, "gn": 512, "ibn": 512}
"""Typical numbers per embedding by backbone (section 3.3)."""


def _published_backbones() -> Study:
    return Study(
        "revisiting/figure-2-published",
        "R@1 by backbone: ResNet-50, GoogLeNet and Inception with batch norm",
        "Revisiting, figure 2",
        tuple(
            arm(m, *backbone_settings(short, dim), label=f"{m} {short}")
            for m in VARIED
            for short, dim in PUBLISHED_DIMS.items()
        ),
        (*MEASURED, DECAY),
        datasets=PAPER_DATASETS,
        elsewhere="Recipes of small data sets have small backbones: revisiting/figure-2-backbone.",
        note=f"Embeddings of 128 numbers with ResNet-50, of 512 with the others. {UNCROPPED} {UNNAMED}",
        normalised=SUMMARISED,
    )


def _table_1_published() -> Study:
    arms = [
        Arm(
            short,
            "margin-$backbone-$dataset",
            ("schedule.epochs=0", *backbone_settings(short, dim)),
        )
        for short, dim in sorted(PUBLISHED_DIMS.items())
    ]
    return Study(
        "revisiting/table-1-published",
        "ImageNet's weights and a random layer",
        "Revisiting, table 1",
        tuple(arms),
        (R1, *NMI),
        datasets=PAPER_DATASETS,
        elsewhere="Small backbones have no weights of ImageNet: revisiting/table-1 is of random ones.",
        note="The paper does not print the dimension of the layer; 128, 512 and 512 are those that it calls typical. "
        f"{UNCROPPED}",
    )


SAMPLERS = {
    "spc-2": ("spc", 2),
    "spc-4": ("spc", 4),
    "spc-8": ("spc", 8),
    "spc-r": ("spc-r", 2),
    "greedy coreset": ("greedy-coreset", 2),
    "ddm": ("ddm", 2),
    "frd": ("frd", 2),
}
"""Batch samplers by label: the sampler and its samples per class."""


def _samplers() -> Study:
    arms = [
        arm(method, *_sampler_settings(sampler, per_class), label=f"{method} {label}")
        for method in SAMPLED
        for label, (sampler, per_class) in SAMPLERS.items()
    ]
    return Study(
        "revisiting/figure-3",
        "Batch samplers with six objectives",
        "Revisiting, figure 3",
        tuple(arms),
        MEASURED,
        note="Batches of 96 on small data sets (112 else), so that two a class fit the classes of all. Classes are "
        "drawn singly, quarter turns of a character too.",
        normalised=SUMMARISED,
    )


def _sampler_settings(sampler: str, per_class: int) -> tuple[str, ...]:
    batch = ("batch.size=$batch", f"batch.sampler={sampler}", f"batch.per_class={per_class}")
    return (*batch, "batch.args.together=1") if sampler == "spc" else batch


def _rho_sweep() -> Study:
    arms = [
        Arm(f"{method} {p:g}", f"r-{method}-$backbone-$dataset", (f"objective.miner_args.probability={p}",), p)
        for method in ("margin", "contrastive")
        for p in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
    ]
    return Study(
        "revisiting/figure-7",
        "R@1 and spectral decay against the probability of the exchange",
        "Revisiting, figure 7",
        tuple(arms),
        (R1, MAP_AT_R, DECAY),
        x="rho's probability",
        note="rho has the published form, (a, a, p). Margin has beta 1.2: the text that we have lacks the paper's. The "
        "contrastive loss is not in the figure.",
    )


def _spectra() -> Study:
    objectives = {objective.label: objective for objective in _all_objectives()}
    methods = ("margin", "r-margin", "contrastive", "r-contrastive", SQUARED, "r-triplet-d", "softmax", "npair")
    return Study(
        "revisiting/figure-8",
        "Singular values of the training embeddings, with and without rho",
        "Revisiting, figures 8 and 10",
        tuple(objectives[method] for method in methods),
        (R1, DECAY, DRAWN_DECAY),
        spectrum=True,
        note=RHO_FORM,
    )


def _mixup() -> Study:
    methods = ("margin", "triplet-d", "softmax")
    variants = [(arm(m), arm(m, "objective.method=mixup", label=f"{m} mixup")) for m in methods]
    arms = [variant for pair in variants for variant in pair]
    claims = [Claim(f"manifold mixup hurts {m}", f"{m} mixup", m, lower=True) for m in methods]
    return Study(
        "revisiting/appendix-f", "Manifold mixup", "Revisiting, appendix F", tuple(arms), (R1, DECAY), tuple(claims)
    )


STUDIES = (
    _table_1(),
    _table_2(),
    _weight_decay(),
    _dimension(),
    _backbone(),
    _published_backbones(),
    _table_1_published(),
    _samplers(),
    Study(
        "revisiting/figure-4",
        "How the usual metrics go together over all objectives",
        "Revisiting, figure 4",
        _all_objectives(),
        (*MEASURED, *OF_THE_CODE),
        baseline="margin",
        correlate=True,
        note=RHO_FORM,
    ),
    Study(
        "revisiting/figure-5",
        "R@1 against the structure of the embedded training data, over all objectives",
        "Revisiting, figure 5 and appendix C",
        _all_objectives(),
        (R1, *STRUCTURE),
        baseline="margin",
        correlate=True,
        note=f"{RHO_FORM} Distances are Euclidean, as the text says of all; the published code has cosine distances "
        "in the place of these.",
    ),
    _rho_sweep(),
    _spectra(),
    _mixup(),
)
