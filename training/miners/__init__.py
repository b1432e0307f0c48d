"""Miners by name.

A miner is called as `miner(embeddings [b, d], labels [b])` and returns index tuples into the batch: `Triplets`, or
`Pairs` from multi-similarity; rho wraps any other miner. Embeddings are unit rows, labels are int64, and an anchor
without a positive or without a negative gets no tuple. Miners do not check that embeddings are finite: the loss of the
tuples is not finite either, and training reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.construction import construct
from training.miners.distance_weighted import DistanceWeighted
from training.miners.hard import Hard
from training.miners.inter_class import InterClass
from training.miners.intra_class import IntraClass
from training.miners.multi_similarity import MultiSimilarityMiner
from training.miners.random import Random
from training.miners.rho import Rho
from training.miners.semihard import Semihard
from training.miners.softhard import Softhard

MINERS: dict[str, type] = {
    "random": Random,
    "semihard": Semihard,
    "softhard": Softhard,
    "hard": Hard,
    "distance-weighted": DistanceWeighted,
    "multi-similarity": MultiSimilarityMiner,
    "inter-class": InterClass,
    "intra-class": IntraClass,
    "rho": Rho,
}


def create_miner(name: str, args: Mapping[str, Any]) -> Any:
    """Create the miner of that name.

    Args:
        name: Key of `MINERS`.
        args: Arguments of its constructor. A wrapper's `miner` and `miner_args` name the miner that it wraps.

    Raises:
        RecipeError: If a name, argument or value is unknown.
    """
    args = dict(args)
    if isinstance(args.get("miner"), str):
        args["miner"] = create_miner(args["miner"], args.pop("miner_args", {}))
    return construct(MINERS, "miner", name, args)
