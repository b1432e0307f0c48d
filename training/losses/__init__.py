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

LOSSES = ClassTable(
    __name__,
    {
        "angular": "angular:Angular",
        "arcface": "arcface:ArcFace",
        "circle": "circle:Circle",
        "contrastive": "contrastive:Contrastive",
        "cosface": "cosface:CosFace",
        "dance": "dance:DaNCE",
        "fastap": "fastap:FastAP",
        "group": "group:GroupLoss",
        "histogram": "histogram:Histogram",
        "lifted": "lifted:Lifted",
        "margin": "margin:Margin",
        "multi-similarity": "multi_similarity:MultiSimilarity",
        "n-pair": "n_pair:NPair",
        "norm-softmax": "norm_softmax:NormSoftmax",
        "nt-xent": "nt_xent:NTXent",
        "proxy-anchor": "proxy_anchor:ProxyAnchor",
        "proxy-nca": "proxy_nca:ProxyNCA",
        "quadruplet": "quadruplet:Quadruplet",
        "recall-at-k": "recall_at_k:RecallAtK",
        "smooth-ap": "smooth_ap:SmoothAP",
        "snr-contrastive": "snr:SNRContrastive",
        "snr-triplet": "snr:SNRTriplet",
        "softtriple": "softtriple:SoftTriple",
        "subcenter-arcface": "subcenter_arcface:SubCenterArcFace",
        "supcon": "supcon:SupCon",
        "triplet": "triplet:Triplet",
    },
)
