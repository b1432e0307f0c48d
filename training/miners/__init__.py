"""Miners by name. Each is called as `miner(embeddings [b, d], labels [b])` and gives index tuples into the batch.

They give `Triplets`, multi-similarity `Pairs`; rho wraps any other miner. Embeddings that are not finite are not looked
for: the loss of what is found is not finite then, either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.miners.distance_weighted import DistanceWeighted
from training.miners.hard import Hard
from training.miners.inter_class import InterClass
from training.miners.intra_class import IntraClass
from training.miners.multi_similarity import MultiSimilarityMiner
from training.miners.random import Random
from training.miners.rho import Rho
from training.miners.semihard import Semihard
from training.miners.softhard import Softhard
from training.registry import construct

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
    """The miner of that name. A wrapper's arguments `miner` and `miner_args` name the miner that it wraps."""
    args = dict(args)
    if isinstance(args.get("miner"), str):
        args["miner"] = create_miner(args["miner"], args.pop("miner_args", {}))
    return construct(MINERS, "miner", name, args)
