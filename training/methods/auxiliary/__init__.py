"""Auxiliary tasks by the name of the head that they train, beside heads that learn the classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from training.methods.auxiliary.deep_cluster import DeepCluster
from training.methods.auxiliary.instance import Instance
from training.methods.auxiliary.momentum_contrast import MomentumContrast
from training.methods.auxiliary.rotation import Rotation
from training.methods.auxiliary.task import Auxiliary
from training.methods.auxiliary.triplets import Intra, Shared

AUXILIARY: dict[str, Callable[..., Auxiliary]] = {
    "shared": Shared,
    "intra": Intra,
    "dance": MomentumContrast,
    "nce": partial(MomentumContrast, weighted=False),
    "deepcluster": DeepCluster,
    "rotation": Rotation,
    "instance": Instance,
}
