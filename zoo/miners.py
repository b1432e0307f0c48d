"""Miners, called as `miner(embeddings [b, d], labels [b])`: they choose the pairs or triplets of a loss.

>>> from zoo import losses, miners
>>> loss, miner = losses.MarginLoss(), miners.DistanceWeightedMiner()
>>> loss(embeddings, labels, miner(embeddings, labels)).backward()

The classes need torch (`pip install 'dml-zoo[train]'`).
"""

from typing import TYPE_CHECKING

from zoo.own import members

if TYPE_CHECKING:
    from training.miners.distance_weighted import DistanceWeightedMiner as DistanceWeightedMiner
    from training.miners.hard import BatchHardMiner as BatchHardMiner
    from training.miners.inter_class import InterClassMiner as InterClassMiner
    from training.miners.intra_class import IntraClassMiner as IntraClassMiner
    from training.miners.multi_similarity import MultiSimilarityMiner as MultiSimilarityMiner
    from training.miners.random import RandomMiner as RandomMiner
    from training.miners.rho import RhoMiner as RhoMiner
    from training.miners.semihard import SemihardMiner as SemihardMiner
    from training.miners.softhard import SofthardMiner as SofthardMiner
    from training.miners.triplet_margin import TripletMarginMiner as TripletMarginMiner
else:
    __getattr__, __dir__ = members("training.miners")
