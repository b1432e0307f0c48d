"""Losses, called as `loss(embeddings [b, d], labels [b])`.

>>> from zoo import losses, miners
>>> loss, miner = losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner()
>>> loss(embeddings, labels, miner(embeddings, labels)).backward()

The classes need torch (`pip install 'dml-zoo[train]'`).
"""

from typing import TYPE_CHECKING

from zoo.own import members

if TYPE_CHECKING:
    from training.losses.angular import AngularLoss as AngularLoss
    from training.losses.arcface import ArcFaceLoss as ArcFaceLoss
    from training.losses.circle import CircleLoss as CircleLoss
    from training.losses.contrastive import ContrastiveLoss as ContrastiveLoss
    from training.losses.cosface import CosFaceLoss as CosFaceLoss
    from training.losses.dance import DaNCELoss as DaNCELoss
    from training.losses.fastap import FastAPLoss as FastAPLoss
    from training.losses.group import GroupLoss as GroupLoss
    from training.losses.histogram import HistogramLoss as HistogramLoss
    from training.losses.lifted import GeneralizedLiftedStructureLoss as GeneralizedLiftedStructureLoss
    from training.losses.margin import MarginLoss as MarginLoss
    from training.losses.multi_similarity import MultiSimilarityLoss as MultiSimilarityLoss
    from training.losses.n_pair import NPairsLoss as NPairsLoss
    from training.losses.norm_softmax import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
    from training.losses.nt_xent import NTXentLoss as NTXentLoss
    from training.losses.proxy_anchor import ProxyAnchorLoss as ProxyAnchorLoss
    from training.losses.proxy_nca import ProxyNCALoss as ProxyNCALoss
    from training.losses.quadruplet import QuadrupletLoss as QuadrupletLoss
    from training.losses.recall_at_k import RecallAtKLoss as RecallAtKLoss
    from training.losses.smooth_ap import SmoothAPLoss as SmoothAPLoss
    from training.losses.snr import SignalToNoiseRatioContrastiveLoss as SignalToNoiseRatioContrastiveLoss
    from training.losses.snr import SNRTripletLoss as SNRTripletLoss
    from training.losses.softtriple import SoftTripleLoss as SoftTripleLoss
    from training.losses.subcenter_arcface import SubCenterArcFaceLoss as SubCenterArcFaceLoss
    from training.losses.supcon import SupConLoss as SupConLoss
    from training.losses.triplet import TripletMarginLoss as TripletMarginLoss
else:
    __getattr__, __dir__ = members("training.losses")
