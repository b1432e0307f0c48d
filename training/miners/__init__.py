"""Miners by name.

A miner is called as `miner(embeddings [b, d], labels [b])` and returns index tuples into the batch: `Triplets`, or
`Pairs` from multi-similarity; rho wraps any other miner. Embeddings are unit rows, labels are int64, and an anchor
without a positive or without a negative gets no tuple. Miners do not check that embeddings are finite: the loss of the
tuples is not finite either, and training reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.construction import ClassTable, construct

MINERS = ClassTable(
    __name__,
    {
        "random": "random:RandomMiner",
        "semihard": "semihard:SemihardMiner",
        "softhard": "softhard:SofthardMiner",
        "hard": "hard:BatchHardMiner",
        "distance-weighted": "distance_weighted:DistanceWeightedMiner",
        "ms": "multi_similarity:MultiSimilarityMiner",
        "inter-class": "inter_class:InterClassMiner",
        "intra-class": "intra_class:IntraClassMiner",
        "rho": "rho:RhoMiner",
        "triplet-margin": "triplet_margin:TripletMarginMiner",
    },
)
__getattr__ = MINERS.class_named
__all__ = MINERS.class_names  # derived


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
