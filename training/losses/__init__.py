"""Losses by name.

A loss is a module called as `loss(embeddings [b, d], labels [b], tuples=None)`; it returns a scalar. `training.build`
constructs it with the number of classes and, if the constructor has a parameter `dim`, the dimension of the embeddings.

Embeddings are unit rows unless the class sets `normalised = False`. They are float32, or have the dtype of the loss's
class vectors (`loss.to(dtype)`). Labels are int64. The annotation of `tuples` is required: it names the mined tuples
that the loss accepts. Each file starts with the source and the equation; s are cosines and d Euclidean distances of
unit embeddings, a an anchor, p a positive, n a negative, and [x]+ is max(0, x).
"""

from __future__ import annotations

from torch import nn

from training.losses.angular import Angular
from training.losses.arcface import ArcFace
from training.losses.circle import Circle
from training.losses.contrastive import Contrastive
from training.losses.cosface import CosFace
from training.losses.dance import DaNCE
from training.losses.fastap import FastAP
from training.losses.group import GroupLoss
from training.losses.histogram import Histogram
from training.losses.lifted import Lifted
from training.losses.margin import Margin
from training.losses.multi_similarity import MultiSimilarity
from training.losses.n_pair import NPair
from training.losses.norm_softmax import NormSoftmax
from training.losses.nt_xent import NTXent
from training.losses.proxy_anchor import ProxyAnchor
from training.losses.proxy_nca import ProxyNCA
from training.losses.quadruplet import Quadruplet
from training.losses.recall_at_k import RecallAtK
from training.losses.snr import SNRContrastive, SNRTriplet
from training.losses.softtriple import SoftTriple
from training.losses.supcon import SupCon
from training.losses.triplet import Triplet

LOSSES: dict[str, type[nn.Module]] = {
    "angular": Angular,
    "arcface": ArcFace,
    "circle": Circle,
    "contrastive": Contrastive,
    "cosface": CosFace,
    "dance": DaNCE,
    "fastap": FastAP,
    "group": GroupLoss,
    "histogram": Histogram,
    "lifted": Lifted,
    "margin": Margin,
    "multi-similarity": MultiSimilarity,
    "n-pair": NPair,
    "norm-softmax": NormSoftmax,
    "nt-xent": NTXent,
    "proxy-anchor": ProxyAnchor,
    "proxy-nca": ProxyNCA,
    "quadruplet": Quadruplet,
    "recall-at-k": RecallAtK,
    "snr-contrastive": SNRContrastive,
    "snr-triplet": SNRTriplet,
    "softtriple": SoftTriple,
    "supcon": SupCon,
    "triplet": Triplet,
}
