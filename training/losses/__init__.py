"""Losses by name.

A loss is a module called as in pytorch-metric-learning: `loss(embeddings, labels, indices_tuple=None, ref_emb=None,
ref_labels=None)`; it returns a scalar (`training.losses.base`). Where that library has the loss, names and defaults of
the arguments are its own. `training.build` constructs a loss with the constants of its recipe and with those of
`num_classes`, `embedding_size` and `class_sizes`, the number of training images of each class, that its constructor
takes.

Each file starts with the source and the equation; s are cosines and d Euclidean distances of unit embeddings, a an
anchor, p a positive, n a negative, and [x]+ is max(0, x).
"""

from __future__ import annotations

from typing import Any

from training.construction import ClassTable

HALF_RADIAN = 28.64788975654116

CONSTANTS: dict[str, dict[str, Any]] = {
    "angular": {
        "alpha": 45.0,
        "weight": 2.0,
        "npair_weight": 1.0,
        "nu": 0.005,
        "pairs": "random",
        "mined_negatives": True,
    },
    "arcface": {"margin": HALF_RADIAN, "scale": 16.0, "start": "uniform"},
    "contrastive": {"active_only": False},
    "cosface": {"start": "uniform"},
    "histogram": {"n_bins": 64},
    "lifted": {"nu": 0.005, "normalize_embeddings": False},
    "margin": {"learn_beta": True, "by_triplets": False},
    "ms": {"beta": 40.0},
    "npair": {"nu": 0.005, "pairs": "random", "normalize_embeddings": False, "mined_negatives": True},
    "ntxent": {"temperature": 0.1},
    "proxynca": {"softmax_scale": 9.0, "positive_in_denominator": False, "start": "eighth"},
    "smoothap": {"query_counted": False},
    "snr-contrastive": {"nu": 0.005, "active_only": False},
    "softmax": {"start": "uniform"},
    "softtriple": {"centers_per_class": 2, "la": 8.0, "tau": 0.2, "start": "uniform"},
    "subcenter": {"margin": HALF_RADIAN, "least_margin": HALF_RADIAN / 10, "start": "uniform"},
    "triplet": {"margin": 0.2, "active_only": False},
}
"""Constants of recipes that differ from the classes' defaults: those of Roth et al. 2020, Revisiting, appendix A, or of
the loss's paper. A recipe's record has all of its constants."""

LOSSES = ClassTable(
    __name__,
    {
        "angular": "angular:AngularLoss",
        "arcface": "arcface:ArcFaceLoss",
        "circle": "circle:CircleLoss",
        "contrastive": "contrastive:ContrastiveLoss",
        "cosface": "cosface:CosFaceLoss",
        "dance": "dance:DaNCELoss",
        "fastap": "fastap:FastAPLoss",
        "group": "group:GroupLoss",
        "histogram": "histogram:HistogramLoss",
        "lifted": "lifted:GeneralizedLiftedStructureLoss",
        "margin": "margin:MarginLoss",
        "ms": "multi_similarity:MultiSimilarityLoss",
        "npair": "n_pair:NPairsLoss",
        "softmax": "norm_softmax:NormalizedSoftmaxLoss",
        "ntxent": "nt_xent:NTXentLoss",
        "pa": "proxy_anchor:ProxyAnchorLoss",
        "proxynca": "proxy_nca:ProxyNCALoss",
        "quadruplet": "quadruplet:QuadrupletLoss",
        "recall": "recall_at_k:RecallAtKLoss",
        "smoothap": "smooth_ap:SmoothAPLoss",
        "snr-contrastive": "snr:SignalToNoiseRatioContrastiveLoss",
        "snr": "snr:SNRTripletLoss",
        "softtriple": "softtriple:SoftTripleLoss",
        "subcenter": "subcenter_arcface:SubCenterArcFaceLoss",
        "supcon": "supcon:SupConLoss",
        "triplet": "triplet:TripletMarginLoss",
    },
    CONSTANTS,
)
__getattr__ = LOSSES.class_named
__all__ = LOSSES.class_names  # derived
