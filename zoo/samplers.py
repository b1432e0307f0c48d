"""Batch samplers: they choose the images of each batch by their labels.

>>> from zoo import samplers
>>> sampler = samplers.SPC(labels, 112, 2)  # batches of 112 images, two of each class
"""

from typing import TYPE_CHECKING

from zoo.own import members

if TYPE_CHECKING:
    from training.samplers.class_weighted import ClassWeighted as ClassWeighted
    from training.samplers.distribution_matching import DDM as DDM
    from training.samplers.distribution_matching import FRD as FRD
    from training.samplers.greedy_coreset import GreedyCoreset as GreedyCoreset
    from training.samplers.m_per_class import MPerClassSampler as MPerClassSampler
    from training.samplers.spc import SPC as SPC
    from training.samplers.spc_r import SPCR as SPCR
else:
    __getattr__, __dir__ = members("training.samplers")
