"""Miners by name. Each is called as `miner(embeddings [b, d], labels [b]) -> Triplets`."""

from __future__ import annotations

from training.miners.distance_weighted import DistanceWeighted

MINERS: dict[str, type] = {
    "distance-weighted": DistanceWeighted,
}
