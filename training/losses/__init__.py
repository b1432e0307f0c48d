"""Losses by name.

A loss is a module called as `loss(embeddings [b, d], labels [b], tuples=None)`; it returns a scalar. `training.build`
constructs it with the number of classes and, if the constructor has such parameters, the dimension of the embeddings
(`dim`) and the number of training images of each class (`class_sizes`, int64 [classes]).

Embeddings are unit rows unless the class sets `normalised = False`. They are float32, or have the dtype of the loss's
class vectors (`loss.to(dtype)`). Labels are int64. The annotation of `tuples` is required: it names the mined tuples
that the loss accepts. Each file starts with the source and the equation; s are cosines and d Euclidean distances of
unit embeddings, a an anchor, p a positive, n a negative, and [x]+ is max(0, x).
"""

from __future__ import annotations

from training.construction import ClassTable

__all__ = [
    "AngularLoss",
    "ArcFaceLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "DaNCELoss",
    "FastAPLoss",
    "GeneralizedLiftedStructureLoss",
    "GroupLoss",
    "HistogramLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "QuadrupletLoss",
    "RecallAtKLoss",
    "SNRTripletLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "TripletMarginLoss",
]

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
)
__getattr__ = LOSSES.class_named
